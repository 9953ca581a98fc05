"""Good episodes of earlier steps that the policy trains on again (SPEAR, arXiv 2509.22601).

A row is kept when the credit of its tokens is positive on average. It stays with the log-probs of the policy that
sampled it and the step of that policy, and its advantage is reckoned anew when it trains: the return of its episode
minus the median of the mean returns of recent groups, so that what the policy has outgrown no longer counts as good.

The released code was read at TencentYoutuResearch/SPEAR, commit 7e84315, `verl/verl/trainer/ppo/ray_trainer_hybrid.py`:
what is kept (lines 421-503), the baselines (191-243), the new advantages (245-303), when rows train (184-189, 505-529);
and `verl/verl/workers/actor/dp_actor.py`, lines 506-606: the optimiser steps behind those of the step, and the weight.
docs/self_imitation.md says what differs here.

Shapes: L tokens of a response.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit import Floats
from verl_hier.errors import FileError, RecipeError
from verl_hier.training.options import SelfImitationOptions

STATE_FILE = "actor/hier_self_imitation.npz"
"""A file of a checkpoint: the kept rows and the baselines. verl removes it with the actor."""
SMALLEST_SCALE = 1e-6
"""What is added to the standard deviation by which advantages are divided (`core_algos.py`, line 266)."""

Array = NDArray[Any]


@dataclass(frozen=True)
class KeptRow:
    """One row of a step.

    Attributes:
        step: of the trainer, and so the version of the policy that sampled it.
        score: return of its episode.
        prompt: token ids.
        response: (L,) token ids.
        mask: (L,) 1 on trained tokens.
        log_probs: (L,) of the policy that sampled it.
        credit: (L,) advantages in its own step.
        weight: (L,) loss weights in its own step.
    """

    step: int
    score: float
    prompt: Array
    response: Array
    mask: Array
    log_probs: Array
    credit: Array
    weight: Array

    @property
    def good(self) -> bool:
        """Whether its trained tokens had a positive advantage on average."""
        return bool((self.credit * self.mask).sum() > 0)


KINDS: dict[str, Any] = {
    **{"prompt": np.int32, "response": np.int32, "mask": np.int8},
    **{"log_probs": np.float32, "credit": np.float32, "weight": np.float32},
}
"""What tokens of a kept row have, and the type in which they are kept."""


@dataclass(frozen=True)
class Baselines:
    """Mean and standard deviation of the returns of each group of a step."""

    step: int
    means: Floats
    stds: Floats

    @classmethod
    def of(cls, step: int, groups: ArrayLike, scores: ArrayLike) -> Baselines:
        """
        Args:
            step: of the trainer.
            groups: (E,) the group of each episode.
            scores: (E,) its return.
        """
        _, of, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
        values = np.asarray(scores, np.float64)
        means = np.bincount(of, values, len(counts)) / counts
        squares = np.bincount(of, (values - means[of]) ** 2, len(counts))
        # As torch's `std`, with n - 1 in the denominator; a group of one has none.
        return cls(step, means, np.sqrt(squares / np.maximum(counts - 1, 1)))


class GoodEpisodes:
    """Rows that were good, and what returns were worth lately.

    Attributes:
        rows: in the order in which they came.
        baselines: of the newest steps.
    """

    def __init__(self, options: SelfImitationOptions) -> None:
        self._options = options
        self.rows: list[KeptRow] = []
        self.baselines: list[Baselines] = []

    def add(self, rows: Sequence[KeptRow], baselines: Baselines) -> None:
        """Keep the good rows of a step; the oldest beyond the limit leave, and so do baselines."""
        self.rows = [*self.rows, *(row for row in rows if row.good)][-self._options.limit :]
        while sum(len(step.means) for step in self.baselines) > self._options.baselines:
            del self.baselines[0]
        self.baselines.append(baselines)

    def due(self, step: int, seed: int) -> list[KeptRow]:
        """The rows that train in a step, drawn at random where there are more than it takes; all rows leave with them.

        Args:
            step: of the trainer. Rows that are too old for it leave first.
            seed: of the draw, which depends on nothing else than this and the step.

        Returns:
            no row as long as too few are good.
        """
        options = self._options
        self.rows = [row for row in self.rows if 0 < step - row.step <= options.max_age]
        good = self._good_now()
        if not good or len(good) <= options.fill * options.rows:
            return []
        self.rows = []
        order = np.random.default_rng([seed, step]).permutation(len(good))[: options.rows]
        return [good[place] for place in order]

    @property
    def baseline(self) -> float:
        """Median of the mean returns of recent groups; no number before the first step."""
        return _median(step.means for step in self.baselines)

    def advantages(self, rows: Sequence[KeptRow]) -> list[Array]:
        """(L,) what the tokens of each row are trained with: with `hier.self_imitation.credit: recalibrated` from
        today's baselines."""
        options = self._options
        if options.credit == "kept":
            return [row.credit * row.mask for row in rows]
        baseline, scale = self.baseline, 1.0
        if options.scale == "std":
            scale = _median(step.stds for step in self.baselines) + SMALLEST_SCALE
        return [np.float32((row.score - baseline) / scale) * row.mask for row in rows]

    def _good_now(self) -> list[KeptRow]:
        """The kept rows that have a positive advantage today."""
        found = zip(self.rows, self.advantages(self.rows), strict=True)
        return [row for row, advantage in found if advantage.sum() > 0]

    def save(self, checkpoint: Path) -> None:
        """Write everything into a checkpoint."""
        file = checkpoint / STATE_FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        tokens: dict[str, Any] = {
            name: _joined([getattr(row, name) for row in self.rows], kind) for name, kind in KINDS.items()
        }
        steps = {f"baseline_{part.name}": [getattr(each, part.name) for each in self.baselines] for part in _LISTS}
        held: dict[str, Any] = {
            "step": np.array([row.step for row in self.rows], np.int64),
            "score": np.array([row.score for row in self.rows], np.float64),
            "sizes": np.array([[len(row.prompt), len(row.response)] for row in self.rows], np.int64).reshape(-1, 2),
            "baseline_step": np.array([each.step for each in self.baselines], np.int64),
            "baseline_sizes": np.array([len(each.means) for each in self.baselines], np.int64),
            **{name: _joined(parts, np.float64) for name, parts in steps.items()},
        }
        np.savez(file, **held, **tokens)

    def load(self, checkpoint: Path) -> None:
        """Return to what a checkpoint has.

        Raises:
            RecipeError: when the run that wrote it kept no rows.
            FileError: when the file is damaged.
        """
        file = checkpoint / STATE_FILE
        if not file.exists():
            raise RecipeError(
                f"hier.self_imitation: the checkpoint {checkpoint} is of a run without it; remove the block, or start "
                "anew with trainer.resume_mode=disable."
            )
        try:
            with np.load(file, allow_pickle=False) as stored:
                held = {name: stored[name] for name in stored.files}
            self.rows = _rows(held)
            self.baselines = _baselines(held)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise FileError(
                f"{file} is damaged ({error}); resume from another checkpoint with trainer.resume_from_path."
            ) from error


_LISTS = [part for part in fields(Baselines) if part.name != "step"]


def weight_at(step: int, options: SelfImitationOptions) -> float:
    """What the loss of kept rows counts in a step: it rises as half a cosine over the warm-up."""
    if step >= options.warmup:
        return options.weight
    return options.weight * (1 - math.cos(math.pi * step / options.warmup)) / 2


def loss_weights(rows: Sequence[KeptRow], weight: float) -> list[Array]:
    """(L,) the loss weights of each row: as in the rows' own steps among each other, and `weight` for a trained token
    on average."""
    masked = [row.weight * row.mask for row in rows]
    total, tokens = sum(float(part.sum()) for part in masked), sum(int(row.mask.sum()) for row in rows)
    scale = weight * tokens / total if total > 0 else 0.0
    return [part * np.float32(scale) for part in masked]


def even_steps(rows: int, wanted: float, ranks: int) -> tuple[int, int]:
    """Optimiser steps of so many rows and the rows of each, which are equally many for each rank; a few may be left.

    Args:
        rows: that there are.
        wanted: rows of an optimiser step of the policy's own batch.
        ranks: data-parallel ranks.
    """
    steps = max(1, min(round(rows / max(wanted, 1)), rows // ranks))
    return steps, rows // (steps * ranks) * ranks


def _median(parts: Any) -> float:
    values = [np.zeros(0), *parts]
    found = np.concatenate(values)
    return float(np.median(found)) if len(found) else math.nan


def _joined(parts: Sequence[Array], kind: Any) -> Array:
    return np.concatenate([np.zeros(0, kind), *parts]).astype(kind)


def _rows(held: dict[str, Array]) -> list[KeptRow]:
    prompts, responses = held["sizes"].T
    cut = {name: np.cumsum(prompts if name == "prompt" else responses)[:-1] for name in KINDS}
    tokens = {name: np.split(held[name], places) if len(prompts) else [] for name, places in cut.items()}
    return [
        KeptRow(int(step), float(score), **{name: tokens[name][place] for name in KINDS})
        for place, (step, score) in enumerate(zip(held["step"], held["score"], strict=True))
    ]


def _baselines(held: dict[str, Array]) -> list[Baselines]:
    places, count = np.cumsum(held["baseline_sizes"])[:-1], len(held["baseline_sizes"])
    means, stds = (np.split(held[f"baseline_{part.name}"], places) if count else [] for part in _LISTS)
    return [Baselines(int(step), *parts) for step, *parts in zip(held["baseline_step"], means, stds, strict=True)]

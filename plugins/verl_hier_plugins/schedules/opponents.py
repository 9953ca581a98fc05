"""Opponents from past checkpoints, and a table of how the policy of now plays them; docs/methods/self_play.md."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, Positive, ZeroToOne
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule

MODEL = Path("actor", "huggingface")
"""Where a checkpoint `global_step_N` has the policy as transformers loads it."""


@dataclass(frozen=True)
class OpponentsOptions:
    """Options of `opponents`."""

    folder: str = "checkpoints"
    """Folder of the run's checkpoints, which every rollout worker has to reach: `${trainer.default_local_dir}`."""
    share: ZeroToOne = 0.5
    """Share of the tasks that are played against a past checkpoint; the others have the weights of now in all seats."""
    prefer: Literal["any", "hard"] = "hard"
    """Which one is drawn: `any`, all alike, or rather the `hard` ones, which the policy of now beats less often."""
    power: Positive = 1.0
    """How much rather: the weight of a checkpoint is the share that is not won against it, to this power."""
    newest: Count | None = None
    """Only so many newest checkpoints are drawn from; omitted: all."""
    seed: int = 0
    """Seed of the draws."""
    roles: tuple[str, ...] = ()
    """Roles that learn; empty: all. Turns of past checkpoints never do."""


class Opponents(Schedule):
    """All or the chosen roles learn in every step; a seat is given to a past checkpoint in a share of the tasks."""

    def __init__(self, options: OpponentsOptions) -> None:
        self._options = options
        self._games: dict[int, list[float]] = {}
        """For each checkpoint that is known: games, and how many of them the policy of now has won."""

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint", roles=frozenset(self._options.roles) or None)

    def told(self, step: int, tasks: Sequence[int]) -> list[dict[str, Any]] | None:
        """See `Schedule.told`: `{"opponent": {"step", "path"}}`, empty for a task without a past checkpoint."""
        self._look(step)
        return [{"opponent": self._draw(step, task)} for task in tasks]

    def _look(self, step: int) -> None:
        """Take note of the checkpoints that were written before a step, and of those that are gone."""
        found = {
            int(place.name.removeprefix("global_step_"))
            for place in Path(self._options.folder).glob("global_step_*")
            if place.name.removeprefix("global_step_").isdecimal() and (place / MODEL / "config.json").is_file()
        }
        there = sorted(number for number in found if number < step)
        self._games = {number: self._games.get(number, [0.0, 0.0]) for number in there}

    def _draw(self, step: int, task: int) -> dict[str, Any]:
        options = self._options
        known = list(self._games)[-options.newest if options.newest else 0 :]
        rng = random.Random(f"{options.seed}-{step}-{task}")
        if rng.random() >= options.share or not known:
            return {}
        weights = [1.0 if options.prefer == "any" else (1.0 - self._won(each)) ** options.power for each in known]
        number = rng.choices(known, [max(weight, 1e-3) for weight in weights])[0]
        path = Path(options.folder, f"global_step_{number}", MODEL).absolute()
        return {"step": number, "path": str(path)}

    def _won(self, number: int) -> float:
        """Share of the games that the policy of now wins against a checkpoint; a half before the first one."""
        games, won = self._games[number]
        return (won + 0.5) / (games + 1.0)

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`. A game is won when the seats of now have earned more than the others, and half
        won when they have earned as much."""
        played = 0
        if "opponent" in table:
            # Turns of other workers, which a plugin may mix with self-play, have neither.
            opponent, past = np.nan_to_num(table["opponent"]), table["past"] > 0
            reward = np.asarray(table["reward"], np.float64)
            for episode in range(len(table["episodes.return"])):
                path = table.step_turn[table.step_episode == episode]
                number = int(opponent[path].max(initial=0))
                if number in self._games:
                    margin = float(reward[path][~past[path]].sum() - reward[path][past[path]].sum())
                    self._games[number][0] += 1.0
                    self._games[number][1] += 0.5 * (1.0 + float(np.sign(margin)))
                    played += 1
        won = [self._won(number) for number in self._games]
        return {
            "hier/opponents/pool": float(len(self._games)),
            "hier/opponents/share": played / max(len(table["episodes.return"]), 1),
            "hier/opponents/won": float(np.mean(won or [0.5])),
            "hier/opponents/hardest": float(min(won, default=0.5)),
        }

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        return {"games": {str(number): list(score) for number, score in self._games.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._games = {int(number): [float(each) for each in score] for number, score in state["games"].items()}


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `opponents` schedule."""
    return ScheduleSpec(
        "opponents",
        Opponents,
        OpponentsOptions,
        summary="all or chosen roles learn; gives seats of a game to past checkpoints, and keeps how they are beaten",
        source="fictitious self-play; AlphaStar's prioritised choice of opponents (recalled)",
    )

"""The critic that a run has saved, as a judge of how well an episode goes: its value near the end of the last turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from verl_hier.errors import HierError, RecipeError, first_line
from verl_hier.graph import RolloutGraph
from verl_hier.graph.bounded_reading import read_json
from verl_hier.graph.build_table import number_turns
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.specs import ValueHeadSpec
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.value_heads import places_of

if TYPE_CHECKING:
    from verl_hier.ops.runs import Run

FOLDER = "critic"
"""Where verl puts the critic in a checkpoint."""
_ONE_VALUE = "LABEL_0"
"""What transformers calls the output of verl's own critic, which has one and no name."""
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


@dataclass(frozen=True)
class SavedCritic:
    """A critic with one value, or with heads, of which the first one is read.

    Attributes:
        folder: `…/global_step_N/critic`.
        head: the head; None for verl's own critic, which reads every token.
    """

    folder: Path
    head: ValueHeadSpec | None = None

    @classmethod
    def of(cls, run: Run | None, recipe: ComposedRecipe) -> SavedCritic:
        """The critic of the newest checkpoint of a run.

        Raises:
            RecipeError: when there is none.
        """
        checkpoint = None if run is None else run.checkpoint()
        if checkpoint is None or not _shards(checkpoint / FOLDER):
            where = "this policy" if run is None else f"the newest checkpoint of {run.folder}"
            raise RecipeError(
                f"select=value: {where} has no critic; name a run with critic.enable: true and trainer.save_freq above "
                "0, or choose another way to select."
            )
        folder = checkpoint / FOLDER
        try:
            labels = read_json(folder / "huggingface" / "config.json").get("id2label") or {}
        except (OSError, ValueError, AttributeError) as error:
            raise RecipeError(f"select=value: the critic in {folder} has no config: {first_line(error)}.") from error
        first = str(labels.get("0", _ONE_VALUE))
        known = recipe.host.specs("value_head")
        if first not in (_ONE_VALUE, *known):
            raise RecipeError(
                f"select=value: the first head of the critic in {folder} is {first!r}, and no enabled plugin says what "
                f"it reads of a turn; known heads: {', '.join(sorted(known))}."
            )
        head: Any = known.get(first)
        return cls(folder, head)

    def values(self, graphs: Sequence[RolloutGraph], leaves: Sequence[Sequence[int]]) -> list[list[float]]:
        """What it says of some episodes, from the tokens of their last turns: in front of the last one where it reads
        every token, otherwise where the head reads a turn; 0 where that is nowhere.

        Args:
            graphs: one a task.
            leaves: for each graph the last nodes of the episodes.

        Raises:
            HierError: when the weights cannot be read.
        """
        import torch

        model, offsets = self._load(), [self._offsets(graph) for graph in graphs]
        found: list[list[float]] = []
        with torch.inference_mode():
            for graph, ends, offset in zip(graphs, leaves, offsets, strict=True):
                found.append([])
                for leaf in ends:
                    place = len(graph.nodes[leaf].action) - 1 if offset is None else int(offset[leaf])
                    tokens = graph.prompt(leaf) + graph.nodes[leaf].action[: max(place, 0)]
                    if place < 0 or not tokens:
                        found[-1].append(0.0)
                        continue
                    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
                    found[-1].append(float(logits[0, -1, 0]))
        return found

    def _offsets(self, graph: RolloutGraph) -> Any:
        """For each node the token in front of which the head reads its turn, -1 for none; None where it reads all."""
        if self.head is None or self.head.places is None:
            return None
        table, turns = number_turns([graph])
        places = places_of(self.head, table)
        inside = np.where(places >= 0, places - _starts(table), -1)
        return np.where(turns[0] >= 0, inside[turns[0]], -1)

    def _load(self) -> Any:
        from transformers import AutoConfig, AutoModelForTokenClassification

        try:
            config = AutoConfig.from_pretrained(self.folder / "huggingface")
            model = AutoModelForTokenClassification.from_config(config, attn_implementation="sdpa")
            model.load_state_dict(dict(self._weights()))
        except (OSError, RuntimeError, ValueError, KeyError, AttributeError) as error:
            raise HierError(f"the critic in {self.folder} cannot be loaded: {first_line(error)}.") from error
        return model.float().eval()

    def _weights(self) -> Iterator[tuple[str, Any]]:
        """Its weights, put together from the shards of all ranks."""
        import torch
        from torch.distributed.tensor import DTensor, Shard  # makes them known to the loader, which runs no code

        shards = [torch.load(file, map_location="cpu", weights_only=True) for file in _shards(self.folder)]
        for name, first in shards[0].items():
            parts = [each[name].to_local() if isinstance(each[name], DTensor) else each[name] for each in shards]
            split = [p for p in first.placements if isinstance(p, Shard)] if isinstance(first, DTensor) else []
            yield name, torch.cat(parts, split[0].dim) if split else parts[0]


def _shards(folder: Path) -> list[Path]:
    """The files of the weights, rank by rank; empty where they are not all there."""
    found = {file: _SHARD.fullmatch(file.name) for file in folder.glob("model_world_size_*.pt")}
    ranks = {int(match[2]): file for file, match in found.items() if match}
    sizes = {int(match[1]) for match in found.values() if match}
    return [ranks[rank] for rank in sorted(ranks)] if sizes == {len(ranks)} else []


def _starts(table: TurnTable) -> Any:
    """(T,) the first token of each turn."""
    from verl_hier.credit.tokens import token_bounds

    return token_bounds(np.asarray(table["tokens.turn"]), len(table))[0]

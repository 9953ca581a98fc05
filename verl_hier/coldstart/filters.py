"""The filters of a distillation, one after the other, and the report on what they dropped.

Source: arXiv 2508.13167, progressive filtering by complexity, correctness and format, and upsampling of episodes that
reflect (confidence B: described, not released).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from verl_hier.graph.nodes import EpisodeRecord, RolloutGraph
from verl_hier.rollout.transcript import Transcript

TOO_LONG = ("max_turns", "context_tokens")


@dataclass(frozen=True)
class Filters:
    """Which episodes become data.

    Attributes:
        activations: the least number of turns of the teacher's agents; simpler episodes show no collaboration.
        calls: the least number of actions.
        upsample: how often an episode is written that reflects, or that goes on after an invalid action.
        reflection: token mask of the student's worker that marks a reflection.
    """

    activations: int = 3
    calls: int = 2
    upsample: int = 2
    reflection: str = "reflection"

    def __post_init__(self) -> None:
        if self.upsample < 1:
            raise ValueError(f"upsample must be at least 1, got {self.upsample}")

    def complexity(self, transcript: Transcript) -> str | None:
        """Why an episode is too simple."""
        if len(transcript.turns) < self.activations:
            return "few_activations"
        if sum(len(turn.calls) for turn in transcript.turns) < self.calls:
            return "few_calls"
        return None

    def correctness(self, record: EpisodeRecord) -> str | None:
        """Why an episode's outcome is not what the task wants."""
        if record.status == "failed":
            return "environment_failed"
        if solved(record):
            return None
        return "wrong" if record.status == "finished" else "unfinished"

    def format(self, replayed: RolloutGraph, cut: bool = False) -> str | None:
        """Why an episode cannot be replayed through the student's worker.

        Args:
            replayed: the graph of the replay.
            cut: whether a turn was longer than the limit of tokens.
        """
        record = replayed.episodes[0]
        if cut or record.error in TOO_LONG:
            return "too_long"
        failure = next((node.extra["failure"] for node in replayed.nodes if "failure" in node.extra), None)
        if failure is not None:
            return str(failure)
        return None if solved(record) else "other_outcome"

    def reflects(self, transcript: Transcript, replayed: RolloutGraph) -> bool:
        """Whether an episode reflects, or goes on after an invalid action."""
        invalid = any(not call.step.valid for turn in transcript.turns for call in turn.calls)
        return invalid or any(node.masks.get(self.reflection) for node in replayed.nodes)


def solved(record: EpisodeRecord) -> bool:
    """Whether the environment reports success; where it reports none, whether the episode ended with a reward."""
    return record.success if record.success is not None else record.status == "finished" and record.ret > 0


@dataclass
class Report:
    """What happened to the episodes.

    Attributes:
        played: episodes that the teacher played.
        dropped: for each filter, in their order, the number of dropped episodes by reason.
        kept: episodes that passed all filters.
        reflecting: those of them that reflect or go on after an invalid action.
        rows, tokens: size of the data, copies included.
        trained_tokens: tokens with a larger loss weight than observations have.
        refused_requests: see `distill.Teacher`.
    """

    played: int = 0
    dropped: dict[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in ("complexity", "correctness", "format")}
    )
    kept: int = 0
    reflecting: int = 0
    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    refused_requests: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {**vars(self), "dropped": {name: dict(reasons) for name, reasons in self.dropped.items()}}

    def lines(self) -> list[tuple[str, str]]:
        """(label, value) for a table, in the order of the filters."""
        left = self.played
        lines = [("episodes played", str(self.played))]
        for name, reasons in self.dropped.items():
            left -= reasons.total()
            reason_counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
            lines.append(
                (
                    f"dropped by {name}",
                    f"{reasons.total()}{f' ({reason_counts})' if reason_counts else ''}, {left} left",
                )
            )
        lines.append(("reflect or go on after an invalid action", f"{self.reflecting} of {self.kept}"))
        lines.append(("rows written", str(self.rows)))
        lines.append(("tokens", f"{self.tokens}, {self.trained_tokens} of them generated by the policy"))
        if self.refused_requests:
            lines.append(("requests that the teacher refused", str(self.refused_requests)))
        return lines

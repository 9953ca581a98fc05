"""The filters of a distillation, one after the other, and the report on what they dropped.

Source: arXiv 2508.13167, progressive filtering by complexity, correctness and format, and more of what reflects
(confidence B: described, not released).
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
    """Which episodes become data, in the order in which they are asked.

    Attributes:
        activations: turns of the teacher's agents, at least; simpler episodes show no collaboration.
        calls: actions on the world, at least.
        upsample: how often an episode that reflects, or that mends a refused action, is written.
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
        if sum(len(said.calls) for said in transcript.turns) < self.calls:
            return "few_calls"
        return None

    def correctness(self, record: EpisodeRecord) -> str | None:
        """Why an episode's outcome is not what the task wants."""
        if record.status == "failed":
            return "environment_failed"
        if solved(record):
            return None
        return "wrong" if record.status == "finished" else "unfinished"

    def format(self, told: RolloutGraph, cut: bool = False) -> str | None:
        """Why the student's worker could not say an episode.

        Args:
            told: the second play.
            cut: whether a turn was cut by a limit of tokens.
        """
        record = told.episodes[0]
        if cut or record.error in TOO_LONG:
            return "too_long"
        failure = next((node.extra["failure"] for node in told.nodes if "failure" in node.extra), None)
        if failure is not None:
            return str(failure)
        return None if solved(record) else "other_outcome"

    def reflects(self, transcript: Transcript, told: RolloutGraph) -> bool:
        """Whether an episode reflects or mends a refused action."""
        refused = any(not call.step.valid for said in transcript.turns for call in said.calls)
        return refused or any(node.masks.get(self.reflection) for node in told.nodes)


def solved(record: EpisodeRecord) -> bool:
    """Whether an episode ended as the task wants: the world says so, or it ended with a reward."""
    return record.success if record.success is not None else record.status == "finished" and record.ret > 0


@dataclass
class Report:
    """What happened to the episodes.

    Attributes:
        played: by the teacher.
        dropped: filter to the number of episodes for each reason, in the order of the filters.
        kept: what is left.
        reflecting: of those, how many reflect or mend a refused action.
        rows, tokens: in the data, copies included.
        trained_tokens: of them, those that weigh more than what is only read.
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
        """(what, how many), as the filters were passed."""
        left = self.played
        lines = [("episodes played", str(self.played))]
        for name, reasons in self.dropped.items():
            left -= reasons.total()
            why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
            lines.append((f"dropped by {name}", f"{reasons.total()}{f' ({why})' if why else ''}, {left} left"))
        lines.append(("reflect or mend an error", f"{self.reflecting} of {self.kept}"))
        lines.append(("rows written", str(self.rows)))
        lines.append(("tokens", f"{self.tokens}, {self.trained_tokens} of them said by the policy"))
        if self.refused_requests:
            lines.append(("requests that the teacher refused", str(self.refused_requests)))
        return lines

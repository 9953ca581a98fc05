"""Success on held-out tasks by the definition of `graph.success`, over all episodes of a validation together.

verl collects what each session tells (`reward_extra_info`) and averages it by task and then by source of data
(`verl/trainer/ppo/metric_utils.py::process_validation_metrics`). In a world that does not declare whether it says
`won`, whether an episode without a word is lost shows only in all of them, so it is decided here, where they are
together. The figures of ours are means over all episodes that were not lost to a fault, as `verl-hier eval` has them;
verl's own count an episode that was lost as one that was not solved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from verl_hier.graph import EpisodeRecord, RolloutGraph
from verl_hier.graph.success import WITHOUT_WORD, success_of

ACCURACY = "acc"
OPEN = "hier_open"
"""Beside `acc`: whether the episode ended without a word of a world that does not declare whether it says `won`."""
SUCCESS, SOLVED = "hier/validation/success", "hier/validation/solved"
JUDGED, RETURN = "hier/validation/judged", "hier/validation/return"


def accuracy(graph: RolloutGraph, record: EpisodeRecord, validate: bool) -> dict[str, Any]:
    """What a session tells verl of its success.

    Args:
        graph: of the task.
        record: of the episode.
        validate: whether `decided_infos` reads it; otherwise it has the return where there is no success.
    """
    if record.success is None and validate:
        return {ACCURACY: None, OPEN: WITHOUT_WORD in graph.counts}
    return {ACCURACY: record.ret if record.success is None else float(record.success)}


def decided_infos(infos: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """What the sessions of a validation have told, with their episodes decided together.

    Args:
        infos: by name a value for each of E episodes: `reward`, the return; `acc`, 1.0, 0.0, or None without a success;
            and of those without one `hier_open`. As verl has collected them.

    Returns:
        the same without `hier_open`. `acc` is the success, None for an episode that no world was asked about; where
        the world never says `won`, it is the return of each.
    """
    found = {name: list(values) for name, values in infos.items() if name != OPEN}
    if ACCURACY not in found:
        return found
    told = found[ACCURACY]
    if any(value is not None for value in told):
        is_open = infos.get(OPEN, [False] * len(told))
        found[ACCURACY] = [
            value if value is not None else 0.0 if success_of(None, bool(each)) is False else None
            for value, each in zip(told, is_open, strict=True)
        ]
    else:
        found[ACCURACY] = list(found["reward"])
    return found


def figures(infos: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """The figures of a validation: the mean return, and where the world says `won` the success, how many episodes were
    solved and how many have a success.

    Args:
        infos: as for `decided_infos`.
    """
    returns = [float(value) for value in infos["reward"]]
    found = {RETURN: sum(returns) / len(returns)} if returns else {}
    if any(value is not None for value in infos.get(ACCURACY, [])):
        judged = [value for value in decided_infos(infos)[ACCURACY] if value is not None]
        found |= {SUCCESS: sum(judged) / len(judged), SOLVED: float(sum(judged)), JUDGED: float(len(judged))}
    return found


def expected(
    counts: Mapping[tuple[str, str], int] | None, sources: Sequence[str], uids: Sequence[str], success: Sequence[Any]
) -> dict[tuple[str, str], int]:
    """How many episodes of each source and uid have a success, of those that verl expects: what it does not find among
    them was lost."""
    places = zip(map(str, sources), map(str, uids), success, strict=False)
    without = Counter((source, uid) for source, uid, value in places if value is None)
    return {place: count - without[place] for place, count in (counts or {}).items()}


class ValidationMixin:
    """The seam of verl's trainer that makes figures of a validation; see `HierTrainerMixin`."""

    parts: Any

    def _val_metrics_update(
        self,
        data_sources: Sequence[str],
        sample_uids: Sequence[str],
        reward_extra_infos_dict: Mapping[str, Sequence[Any]],
        sample_turns: Sequence[Any],
        expected_acc_counts: Mapping[tuple[str, str], int] | None = None,
    ) -> dict[str, float]:
        """verl's figures of the decided episodes, and ours; where verl's reward function scores, verl's alone."""
        infos: Mapping[str, Sequence[Any]] = reward_extra_infos_dict
        ours: dict[str, float] = {}
        counts = expected_acc_counts
        if self.parts.environment.spec.tasks is not None:
            ours, infos = figures(infos), decided_infos(infos)
            counts = expected(counts, data_sources, sample_uids, infos.get(ACCURACY, ()))
        made: Any = super()
        return {**made._val_metrics_update(data_sources, sample_uids, infos, sample_turns, counts), **ours}

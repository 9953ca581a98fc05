"""RAE: a running mean of the returns of each role, episode by episode (arXiv 2506.24119), docs/methods/rae.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from verl_hier.credit import Floats
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import ZeroToOne
from verl_hier.host.specs import ScheduleSpec
from verl_hier.training.schedule import Phase, Schedule

OUTCOME = "outcome/"
"""Prefix of columns by role: what an episode was worth for the role, on one of the episode's turns."""


@dataclass(frozen=True)
class RAEScheduleOptions:
    """Options of `rae`. Defaults are the released code's."""

    decay: ZeroToOne = 0.95
    """Weight of what the mean was before an episode (α)."""
    score: Literal["return", "role"] = "return"
    """What is averaged: the return of the episode, or the sum of the rewards of the role's own turns, as for players
    of a game."""
    reward_scale: float = 1.0
    """Factor of that score."""
    roles: tuple[str, ...] = ()
    """Roles that learn, such as chosen seats of a game; empty: all."""


class RAE(Schedule):
    """All or the chosen roles learn in every step. The means are those of each data source and role, and begin at 0."""

    def __init__(self, options: RAEScheduleOptions) -> None:
        self._options = options
        self._means: dict[str, float] = {}

    def phase(self, step: int) -> Phase:
        """See `Schedule.phase`."""
        return Phase("joint", roles=frozenset(self._options.roles) or None)

    def table_ready(self, table: TurnTable, step: int) -> dict[str, float]:
        """See `Schedule.table_ready`; adds the columns `own_return` and `baseline`.

        Episodes come in the order of the table, by task and number. Each is compared with the means before it, and
        then moves them. A role without a turn moves its mean where the worker says what the episode was worth for it
        (`OUTCOME`), as in the released code; other roles without a trained turn move nothing.
        """
        role, owner = np.asarray(table["role"]), np.asarray(table["episode"])
        scores = role_scores(table, self._options.score) * self._options.reward_scale
        trained = np.zeros(scores.shape, bool)
        counts = np.asarray(table["trained"], bool) & np.asarray(table["episodes.trained"], bool)[owner]
        trained[owner[counts], role[counts]] = True
        unheard = self._unheard(table)
        before = np.zeros(scores.shape)
        names, sources = table.names.get("role", ()), table.names.get("source", ())
        for episode, source in enumerate(np.asarray(table["episodes.source"]).tolist()):
            place = sources[source] if source < len(sources) else str(source)
            for number in range(scores.shape[1]):
                key = f"{place}/{names[number] if number < len(names) else number}"
                before[episode, number] = self._means.get(key, 0.0)
                if trained[episode, number]:
                    self._move(key, float(scores[episode, number]))
            for name, score in unheard.get(episode, ()):
                self._move(f"{place}/{name}", score)
        table.turns["own_return"], table.turns["baseline"] = scores[owner, role], before[owner, role]
        return {f"hier/rae/baseline/{key}": mean for key, mean in sorted(self._means.items())}

    def _move(self, key: str, score: float) -> None:
        decay = self._options.decay
        self._means[key] = decay * self._means.get(key, 0.0) + (1 - decay) * score

    def _unheard(self, table: TurnTable) -> dict[int, list[tuple[str, float]]]:
        """Roles that learn and had no turn, with their scores, by trained episode."""
        found: dict[int, list[tuple[str, float]]] = {}
        if self._options.score != "role":
            return found
        owner, trains = np.asarray(table["episode"]), np.asarray(table["episodes.trained"], bool)
        names, roles = table.names.get("role", ()), np.asarray(table["role"])[table.step_turn].tolist()
        said = (names[role] if role < len(names) else str(role) for role in roles)
        spoke = {*zip(table.step_episode.tolist(), said, strict=True)}
        for column in (name for name in table.turns if name.startswith(OUTCOME)):
            role, scores = column.removeprefix(OUTCOME), np.asarray(table[column], np.float64)
            if self._options.roles and role not in self._options.roles:
                continue
            for turn in np.flatnonzero(~np.isnan(scores) & trains[owner]):
                episode, score = int(owner[turn]), float(scores[turn]) * self._options.reward_scale
                if (episode, role) not in spoke:
                    found.setdefault(episode, []).append((role, score))
        return found

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        return {"means": self._means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._means = dict(state["means"])


def role_scores(table: TurnTable, score: Literal["return", "role"]) -> Floats:
    """(E, R) score of each role in each episode."""
    returns = np.asarray(table["episodes.return"], np.float64)
    roles = int(np.asarray(table["role"]).max(initial=-1)) + 1
    if score == "return":
        return np.repeat(returns[:, None], roles, 1)
    sums = np.zeros((len(returns), roles))
    role, reward = np.asarray(table["role"])[table.step_turn], np.asarray(table["reward"], np.float64)[table.step_turn]
    np.add.at(sums, (table.step_episode, role), reward)
    return sums


@hookimpl
def hier_schedules() -> ScheduleSpec:
    """The `rae` schedule."""
    return ScheduleSpec(
        "rae",
        RAE,
        RAEScheduleOptions,
        summary="all learn; keeps a running mean of the returns of each role",
        source="arXiv 2506.24119; spiral-rl/spiral train_spiral.py",
        provides=("own_return", "baseline"),
    )

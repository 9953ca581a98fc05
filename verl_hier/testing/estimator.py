"""The kit for authors of estimators.

from verl_hier.testing import check_estimator


def test_my_estimator() -> None:
    check_estimator(MY_SPEC)
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_hier.credit import Credit
from verl_hier.credit.estimate import estimate
from verl_hier.credit.tables import make_table
from verl_hier.errors import CreditError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.specs import EstimatorSpec

__all__ = ["CHECKS", "check_estimator", "make_table", "permuted", "random_table"]

Array = NDArray[Any]
Fill = Callable[[np.random.Generator, int], Array]
ROLES = ("planner", "executor", "proposer", "solver", "judge", "pioneer", "observer", "evaluator", "scorer")
TURN_FILLS: dict[str, Fill] = {
    "value": lambda rng, n: rng.normal(size=n),
    "value_low": lambda rng, n: rng.normal(size=n),
    "value_high": lambda rng, n: rng.normal(size=n),
    "value_term": lambda rng, n: rng.normal(size=n),
    "q1": lambda rng, n: rng.normal(size=n),
    "q2": lambda rng, n: rng.normal(size=n),
    "v1": lambda rng, n: rng.normal(size=n),
    "v2": lambda rng, n: rng.normal(size=n),
    "value_progress": lambda rng, n: rng.normal(size=n),
    "feedback_gain": lambda rng, n: rng.normal(size=n),
    "step_reward": lambda rng, n: rng.normal(size=n),
    "info_gain": lambda rng, n: rng.normal(size=n),
    "tag": lambda rng, n: rng.integers(-1, 4, n),
    "tag_reward": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "step_score": lambda rng, n: rng.normal(size=n),
    "budget": lambda rng, n: rng.choice([4, 8], n),
    "judge": lambda rng, n: rng.random(n),
    "format": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "answered": lambda rng, n: rng.integers(0, 2, n),
    "access_calls": lambda rng, n: rng.integers(0, 2, n),
    "limit_failed": lambda rng, n: rng.integers(0, 2, n),
    "repeat_failed": lambda rng, n: rng.integers(0, 2, n),
    "skill_sources": lambda rng, n: rng.integers(0, 8, n),
    "question_solved": lambda rng, n: rng.integers(0, 2, n).astype(bool),
    "skill_used": lambda rng, n: rng.integers(0, 2, n).astype(bool),
    "log_ratio": lambda rng, n: rng.normal(scale=0.1, size=n),
    "suffix": lambda rng, n: rng.integers(0, 2, n),
    "preference": lambda rng, n: rng.integers(-1, 2, n),
    "class_weight": lambda rng, n: rng.uniform(0.5, 2.0, n),
    "entropy_mean": lambda rng, n: rng.random(n),
    "smoothing": lambda rng, n: np.full(n, 0.9),
    "own_return": lambda rng, n: rng.normal(size=n),
    "baseline": lambda rng, n: rng.normal(size=n),
    "solo_return": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "masked_return": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "value_last": lambda rng, n: rng.random(n),
    "history_reward": lambda rng, n: rng.normal(size=n),
    "completion": lambda rng, n: rng.integers(0, 3, n),
    "rates": lambda rng, n: rng.integers(0, 2, n),
    "share": lambda rng, n: rng.integers(1, 10, n) / 10,
}
TOKEN_FILLS: dict[str, Fill] = {
    "value": lambda rng, n: rng.normal(size=n),
    "value_token": lambda rng, n: rng.normal(size=n),
    "entropy": lambda rng, n: rng.random(n),
    "logprob": lambda rng, n: -rng.random(n),
}


def random_table(
    seed: int = 0,
    *,
    groups: int = 6,
    episodes: int = 4,
    turns: int = 5,
    tree: bool = False,
    flat: bool = False,
    distinct: bool = False,
    columns: Mapping[str, Fill] | None = None,
) -> TurnTable:
    """A turn table with every standard column and every column that a built-in estimator knows.

    Args:
        seed: of all that is random.
        groups: tasks.
        episodes: attempts of a task (chains), or half of its turns per turn position (trees).
        turns: most turns of an episode.
        tree: whether the turns of a task form random trees instead of chains.
        flat: whether all rewards are 0.
        distinct: whether all rewards differ; else most are 0 and many are equal.
        columns: fills of further columns, `name` or `tokens.name` to `fill(rng, n)`.
    """
    rng = np.random.default_rng(seed)
    base = _tree_columns(rng, groups, episodes * turns // 2) if tree else _chain_columns(rng, groups, episodes, turns)
    count = len(base["group"])
    base["role"] = np.where(base["level"] == 0, 0, rng.integers(1, len(ROLES), count))
    base["agent"] = base["role"].copy()
    base["policy"] = base["role"] % 2
    sparse = np.where(rng.random(count) < 0.4, np.round(rng.random(count), 2), 0.0)
    base["reward"] = np.zeros(count) if flat else rng.random(count) if distinct else sparse
    base["valid"] = rng.random(count) < 0.9
    base["anchor"] = rng.integers(0, 4, count)
    base["n_tokens"] = rng.integers(1, 5, count)
    base["n_prompt"] = np.arange(count) % 3
    base["entropy"] = rng.random(count)
    extra = dict(columns or {})
    for name, fill in {**TURN_FILLS, **{k: v for k, v in extra.items() if not k.startswith("tokens.")}}.items():
        base[name] = fill(rng, count)
    turn = np.repeat(np.arange(count), base["n_tokens"])
    place = np.arange(len(turn)) - np.repeat(np.cumsum(base["n_tokens"]) - base["n_tokens"], base["n_tokens"])
    tokens: dict[str, Array] = {"turn": turn}
    for position, name in enumerate(("switch", "subgoal")):
        tokens[name] = place == position
    tokens["action"] = place > 1
    given = {k.removeprefix("tokens."): v for k, v in extra.items() if k.startswith("tokens.")}
    for name, fill in {**TOKEN_FILLS, **given}.items():
        tokens[name] = fill(rng, len(turn))
    table = make_table(
        base, tokens=tokens, names={"role": (*ROLES, "thinker"), "agent": ROLES}, anchors=[f"s{i}" for i in range(4)]
    )
    evaluated = ~table.episodes["trained"]
    table.episodes["withheld"] = evaluated & (rng.random(len(evaluated)) < 0.5)
    return table


def _chain_columns(rng: np.random.Generator, groups: int, episodes: int, turns: int) -> dict[str, Array]:
    """Chains of random length; the first turn plans, the last episode of a task only evaluates."""
    number = groups * episodes
    length = rng.integers(1, turns + 1, number)
    episode = np.repeat(np.arange(number), length)
    first = np.repeat(np.cumsum(length) - length, length)
    turn = np.arange(len(episode)) - first
    evaluates = (episode % episodes == episodes - 1) & (episodes > 2)
    return {
        "group": episode // episodes,
        "episode": episode,
        "turn": turn,
        "level": (turn > 0).astype(np.int64),
        "plan": np.where(turn > 0, first, -1),
        "segment": turn // 2,
        "trained": ~evaluates & (rng.random(len(episode)) < 0.95),
    }


def _tree_columns(rng: np.random.Generator, groups: int, nodes: int) -> dict[str, Array]:
    """Random trees: the parent of each turn is an earlier turn of its task, or none."""
    local = np.floor(rng.random((groups, nodes)) * (np.arange(nodes) + 1)).astype(np.int64) - 1
    base = (np.arange(groups) * nodes)[:, None]
    parent = np.where(local >= 0, local + base, -1).ravel()
    root, up = np.arange(parent.size), parent.copy()
    while (up >= 0).any():
        root, up = np.where(up >= 0, up, root), np.where(up >= 0, parent[np.maximum(up, 0)], -1)
    return {
        "group": np.repeat(np.arange(groups), nodes),
        "parent": parent,
        "level": (parent >= 0).astype(np.int64),
        "plan": np.where(parent >= 0, root, -1),
        "segment": np.zeros(parent.size, np.int64),
        "trained": rng.random(parent.size) < 0.95,
    }


def permuted(table: TurnTable, seed: int = 1) -> tuple[TurnTable, Array, Array, Array]:
    """The same batch with its turns and episodes in another order.

    Returns:
        the table, and for each new turn, step and token its old row.
    """
    rng = np.random.default_rng(seed)
    turns, episodes = rng.permutation(len(table)), rng.permutation(len(table.episodes["return"]))
    new_turn, new_episode = np.argsort(turns), np.argsort(episodes)
    columns = {name: np.asarray(column)[turns] for name, column in table.turns.items()}
    for name in ("parent", "plan"):
        columns[name] = np.where(columns[name] >= 0, new_turn[np.maximum(columns[name], 0)], -1)
    columns["episode"] = new_episode[columns["episode"]]
    per_episode = {name: np.asarray(column)[episodes] for name, column in table.episodes.items()}
    per_episode["leaf"] = new_turn[per_episode["leaf"]]
    steps = np.argsort(new_episode[table.step_episode], kind="stable")
    tokens: dict[str, Array] = {}
    order = np.zeros(0, np.int64)
    if table.tokens:
        moved = new_turn[table.tokens["turn"]]
        order = np.argsort(moved, kind="stable")
        tokens = {name: np.asarray(column)[order] for name, column in table.tokens.items()}
        tokens["turn"] = moved[order]
    other = TurnTable(
        turns=columns,
        episodes=per_episode,
        step_episode=new_episode[table.step_episode][steps],
        step_turn=new_turn[table.step_turn][steps],
        tokens=tokens,
        names=table.names,
        anchors=table.anchors,
    )
    return other, turns, steps, order


@dataclass(frozen=True)
class _Subject:
    spec: EstimatorSpec
    options: Any
    tables: tuple[TurnTable, ...]
    columns: Mapping[str, Fill]

    def run(self, table: TurnTable) -> Credit:
        return estimate(self.spec, table, self.options)

    def fail(self, sentence: str) -> None:
        raise AssertionError(f"estimator {self.spec.name!r} {sentence}")


def check_estimator(
    spec: EstimatorSpec,
    options: Any = None,
    *,
    columns: Mapping[str, Fill] | None = None,
    timing: bool = True,
) -> None:
    """Hold an estimator against everything that the trainer relies on.

    Checked on random chains and trees: the declared columns are the ones that it reads and suffice; the declared
    granularity is what it returns; its credit moves with the rows when they are permuted; it is finite on flat,
    single and short groups; it gives nothing to turns that are not trained; it changes no input; it is deterministic;
    float32 columns give what float64 ones do; its time grows linearly with the turns.

    Args:
        spec: the estimator.
        options: its options, the defaults when omitted.
        columns: fills for columns of your own, `name` or `tokens.name` to `fill(rng, n)`.
        timing: whether to check the growth of the time, which needs a machine that is not overloaded.

    Raises:
        AssertionError: one sentence that names the estimator and what it broke.
    """
    fills = dict(columns or {})
    chosen = spec.options() if options is None else options
    tables = tuple(random_table(3 + tree, tree=tree, columns=fills) for tree in (False, True))
    subject = _Subject(spec, chosen, tables, fills)
    for check in CHECKS:
        if timing or check is not check_linear:
            check(subject)


def check_needs(subject: _Subject) -> None:
    """A table with the declared columns alone suffices, and each of them is read."""
    required = set(subject.spec.requires)
    for table in subject.tables:
        unknown = required - set(table.columns())
        if unknown:
            subject.fail(f"requires {', '.join(sorted(unknown))}, which the kit cannot fill: pass `columns`.")
        read: set[str] = set()
        few = TurnTable(
            turns=_Recorded(table.turns, "", required, read),
            episodes=_Recorded(table.episodes, "episodes.", required, read),
            step_episode=table.step_episode,
            step_turn=table.step_turn,
            tokens=_Recorded(table.tokens, "tokens.", required, read),
            names=table.names,
            anchors=table.anchors,
        )
        try:
            subject.spec.factory(few, subject.options)
        except (CreditError, KeyError) as error:
            subject.fail(f"reads a column that `requires` does not declare: {error}")
        if subject.options == subject.spec.options() and (unread := required - read):
            subject.fail(f"declares columns that it does not read: {', '.join(sorted(unread))}.")


class _Recorded(dict[str, Array]):
    """Columns of which only the declared ones exist; remembers which were read."""

    def __init__(self, columns: Mapping[str, Array], prefix: str, required: set[str], read: set[str]) -> None:
        super().__init__({name: column for name, column in columns.items() if prefix + name in required})
        self._prefix, self._read = prefix, read
        self._rows = len(next(iter(columns.values()), ()))
        if not self:
            super().__setitem__("", np.zeros(self._rows))

    def __getitem__(self, name: str) -> Array:
        self._read.add(self._prefix + name)
        return super().__getitem__(name)


def check_result(subject: _Subject) -> None:
    """The declared granularity, and nothing for turns that are not trained."""
    for tree, table in enumerate(subject.tables):
        credit = subject.run(table)
        if credit.per != subject.spec.granularity:
            subject.fail(f"declares granularity {subject.spec.granularity!r} and returns credit per {credit.per}.")
        silent = (_trained_part(table, credit) == 0).all() and np.asarray(table["reward"]).any()
        if silent and (tree or not subject.spec.needs_tree):
            subject.fail("gives no credit at all on a random batch.")
        turn = {"turn": np.arange(len(table)), "step": table.step_turn, "token": table.tokens.get("turn")}[credit.per]
        idle = ~np.asarray(table["trained"], bool)[turn]
        if np.asarray(credit.values)[idle].any():
            subject.fail("gives credit to turns that are not trained.")


def _trained_part(table: TurnTable, credit: Credit) -> Array:
    turn = {"turn": np.arange(len(table)), "step": table.step_turn, "token": table.tokens.get("turn")}[credit.per]
    return np.asarray(credit.values)[np.asarray(table["trained"], bool)[turn]]


def check_permutation(subject: _Subject) -> None:
    """Another order of turns and episodes moves the credit and changes nothing else."""
    for table in subject.tables:
        other, turns, steps, tokens = permuted(table)
        before, after = subject.run(table), subject.run(other)
        rows = {"turn": turns, "step": steps, "token": tokens}[before.per]
        if not np.allclose(np.asarray(before.values)[rows], after.values, rtol=1e-7, atol=1e-9):
            subject.fail("depends on the order of the rows.")
        if before.factor is not None and not np.allclose(np.asarray(before.factor)[tokens], _some(after.factor)):
            subject.fail("gives factors of tokens that depend on the order of the rows.")
    # Loss weights may break ties by row, as a pivot among equal returns does: compare them without ties.
    table = random_table(11, tree=subject.spec.needs_tree, distinct=True, columns=subject.columns)
    other, turns, _, _ = permuted(table)
    before, after = subject.run(table), subject.run(other)
    if not np.allclose(_weights(before, len(table))[turns], _weights(after, len(table)), atol=1e-9):
        subject.fail("gives loss weights that depend on the order of the rows.")


def _some(values: Array | None) -> Array:
    return np.zeros(0) if values is None else np.asarray(values)


def _weights(credit: Credit, turns: int) -> Array:
    return np.ones(turns) if credit.weight is None else np.asarray(credit.weight)


def check_degenerate(subject: _Subject) -> None:
    """Finite credit on equal rewards, tasks with one episode, one-turn episodes, and a single turn."""
    shapes: list[dict[str, Any]] = [
        {"flat": True},
        {"episodes": 1},
        {"turns": 1},
        {"groups": 1, "episodes": 1, "turns": 1},
        {"groups": 1, "flat": True},
    ]
    for shape in shapes:
        table = random_table(5, columns=subject.columns, **shape)
        table.turns["trained"] = np.ones(len(table), bool)
        table.episodes["trained"] = np.ones(len(table.episodes["return"]), bool)
        try:
            subject.run(table)
        except (CreditError, ValueError, IndexError, ZeroDivisionError, FloatingPointError) as error:
            subject.fail(f"fails on a degenerate batch {shape}: {error}")


def check_purity(subject: _Subject) -> None:
    """No input is changed, and a second run gives the same bits."""
    for table in subject.tables:
        kept = copy.deepcopy(table)
        first, second = subject.run(table), subject.run(table)
        for column in kept.columns():
            if not np.array_equal(kept[column], table[column], equal_nan=np.asarray(kept[column]).dtype.kind == "f"):
                subject.fail(f"changes its input: column {column!r}.")
        if not np.array_equal(first.values, second.values):
            subject.fail("gives different credit for the same batch.")


def check_precision(subject: _Subject) -> None:
    """float32 columns give the credit of float64 ones, up to float32's precision."""
    for table in subject.tables:
        low, high = copy.deepcopy(table), copy.deepcopy(table)
        for single, double in ((low.turns, high.turns), (low.episodes, high.episodes), (low.tokens, high.tokens)):
            for name, column in single.items():
                if np.asarray(column).dtype.kind == "f":
                    single[name] = np.asarray(column, np.float32)
                    double[name] = single[name].astype(np.float64)
        ours, theirs = np.asarray(subject.run(low).values, float), np.asarray(subject.run(high).values, float)
        size = 1.0 + np.abs(theirs).max(initial=0.0)
        if np.abs(ours - theirs).max(initial=0.0) > 1e-4 * size:
            subject.fail("loses precision on float32 columns: compute in float64.")


def check_linear(subject: _Subject) -> None:
    """Eight times the tasks take at most about eight times as long."""
    times = []
    for groups in (100, 800):
        table = random_table(7, groups=groups, episodes=8, tree=subject.spec.needs_tree, columns=subject.columns)
        best = np.inf
        for _ in range(3):
            start = time.process_time()
            subject.run(table)
            best = min(best, time.process_time() - start)
        times.append(best)
    if times[1] > 8 * 3 * max(times[0], 2e-3):
        subject.fail(f"does not scale linearly: {times[0]:.4f} s, and {times[1]:.4f} s for eight times the turns.")


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    check_needs,
    check_result,
    check_permutation,
    check_degenerate,
    check_purity,
    check_precision,
    check_linear,
)

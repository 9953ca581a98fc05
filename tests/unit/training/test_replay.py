"""The off-policy critic of whole turns: what it keeps, how a run goes on from it, that it finds the right values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent
from verl_hier.errors import RecipeError
from verl_hier.testing import make_table
from verl_hier.training.ledger import Ledger
from verl_hier.training.options import ReplayOptions
from verl_hier.training.probes import Contexts
from verl_hier.training.replay import HEADS, Replay, Row, Turns, learn, turn_values


def batch(*transitions: tuple[int, int, int, float]) -> Turns:
    """Turns of one token in contexts of one token: (state, action, place of the following turn, reward)."""
    columns = np.array(transitions)
    return Turns(
        tokens=columns[:, :2].ravel().astype(np.int32),
        sizes=np.ones((len(columns), 2), np.int64),
        turn=np.arange(len(columns)),
        following=columns[:, 2].astype(np.int64),
        reward=columns[:, 3],
    )


class TableCritic:
    """A critic with a number for each state and each action in it, trained by gradient steps, and its copy."""

    def __init__(self, states: int, actions: int, options: ReplayOptions, rate: float = 0.5) -> None:
        shape = (len(HEADS) + options.baseline, states, actions + 1)
        self.now = np.random.default_rng(1).normal(size=shape)
        self.copied = self.now.copy()
        self._options, self._rate, self.lasts = options, rate, [False]

    def values(self, rows: Sequence[Row], *, copy: bool) -> list[np.ndarray]:
        table = self.copied if copy else self.now
        return [table[:, row.context[-1], [0, *(row.text + 1)]] for row in rows]

    def fit(self, rows: Sequence[Row], targets: Sequence[np.ndarray], *, last: bool) -> Mapping[str, float]:
        for row, target in zip(rows, targets, strict=True):
            place = (slice(None), row.context[-1], [0, *(row.text + 1)])
            self.now[place] += self._rate * np.nan_to_num(target - self.now[place])
        self.copied += self._options.polyak * (self.now - self.copied)
        self.lasts.append(last)
        return {"critic/q1/vf_loss": 1.0}


def corridor(rights: int) -> Turns:
    """Two states in a row, ten turns in each of which so many go right (1): on to the other state, and from there to a
    reward of 1. The others go left (0), and their episode ends with nothing."""
    first = [(0, int(n < rights), 10 + n if n < rights else -1, 0.0) for n in range(10)]
    return batch(*first, *[(1, int(n < rights), -1, float(n < rights)) for n in range(10)])


def test_values_are_those_of_the_present_policy_whatever_the_replay_holds(tmp_path: Path) -> None:
    """A policy that goes right half the time fills the replay; then another one plays, whose values are known."""
    options = ReplayOptions(updates=12, batch=32, gamma=0.9, baseline=True)
    replay, generator = Replay(tmp_path / "replay", 4000), np.random.default_rng(0)
    critic = TableCritic(2, 2, options, rate=0.02)
    for rights in [5] * 10 + [8] * 15:
        fresh = corridor(rights)
        replay.add(fresh)
        learn(critic, replay, fresh, options, generator)
    left, right = critic.now[:2, :, 1], critic.now[:2, :, 2]
    np.testing.assert_allclose(left, 0.0, atol=0.01)
    np.testing.assert_allclose(right, [[0.9 * 0.8, 1.0]] * 2, atol=0.06)
    np.testing.assert_allclose(critic.now[2:4, :, 0], [[0.9 * 0.8 * 0.8, 0.8]] * 2, atol=0.06)
    # The baseline in front of the first token is the mean advantage, which is 0.
    np.testing.assert_allclose(critic.now[4, :, 0], 0.0, atol=0.06)
    assert sum(critic.lasts) == 25 and critic.lasts[12]


def test_the_smaller_head_counts_and_only_the_copy_is_asked_for_targets(tmp_path: Path) -> None:
    options = ReplayOptions(updates=1, batch=8, gamma=0.5, polyak=1e-9, baseline=True)
    critic = TableCritic(2, 2, options, rate=1.0)
    critic.copied[:, :, 0] = np.array([[9, 9], [9, 9], [0.0, 3.0], [0.0, 4.0], [9, 9]])
    critic.copied[:2, 0, 2] = 5.0, 7.0
    replay = Replay(tmp_path / "replay", 100)
    fresh = batch((0, 1, 1, 1.0), (1, 0, -1, -2.0))
    replay.add(fresh)
    learn(critic, replay, fresh, options, np.random.default_rng(0))
    np.testing.assert_allclose(critic.now[:2, 0, 2], [1 + 0.5 * 3, 1 + 0.5 * 4])
    np.testing.assert_allclose(critic.now[:2, 1, 1], -2.0)
    np.testing.assert_allclose(critic.now[2:4, 0, 0], [5.0, 7.0])
    np.testing.assert_allclose(critic.now[4, 0, 0], 5.0 - 0.0)


def test_whole_batches_leave_and_sampling_says_how_old_a_turn_is(tmp_path: Path) -> None:
    replay = Replay(tmp_path / "replay", limit=5)
    for number in range(4):
        replay.add(batch(*[(number, 0, -1, 0.0)] * 2))
    assert sorted(replay.batches) == [3, 4] and len(replay) == 4
    assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == ["batch_000003.npz", "batch_000004.npz"]
    drawn = replay.sample(400, np.random.default_rng(0))
    assert {(int(turns.row(place).context[0]), age) for turns, place, age in drawn} == {(2, 1), (3, 0)}
    assert {place for _, place, _ in drawn} == {0, 1}
    replay.add(batch(*[(9, 0, -1, 0.0)] * 7))
    assert len(replay) == 7  # the newest batch stays whatever its size


def test_a_resumed_run_samples_and_learns_what_the_uninterrupted_one_does(tmp_path: Path) -> None:
    options = ReplayOptions(updates=3, batch=4)

    def go_on(replay: Replay, critic: TableCritic, steps: range) -> list[dict[str, float]]:
        found = []
        for step in steps:
            fresh = corridor(step)
            replay.add(fresh)
            found.append(learn(critic, replay, fresh, options, np.random.default_rng([0, replay.newest])))
        return found

    folder, checkpoint = tmp_path / "replay", tmp_path / "global_step_3"
    whole, critic = Replay(folder, 60), TableCritic(2, 2, options)
    go_on(whole, critic, range(3))
    whole.save(checkpoint)
    again = TableCritic(2, 2, options)
    again.now, again.copied = critic.now.copy(), critic.copied.copy()
    # Three further steps push the batches of the checkpoint out, whose files stay.
    expected = go_on(whole, critic, range(3, 6))
    resumed = Replay(folder, 60)
    resumed.load(checkpoint)
    assert resumed.newest == 3 and go_on(resumed, again, range(3, 6)) == expected
    np.testing.assert_array_equal(again.now, critic.now)
    (folder / f"batch_{3:06d}.npz").unlink()
    with pytest.raises(RecipeError, match=r"hier.replay: .*batch_000003.npz is gone"):
        Replay(folder, 12).load(checkpoint)


def contexts_of(graph: Any) -> tuple[Contexts, Ledger]:
    light, keys, rows = sent([graph])
    ledger = Ledger(light, keys)
    sequences = [np.array([*row.prompt, *row.response]) for _, row in rows]
    return Contexts(ledger, sequences, [{}], None), ledger


def test_turns_of_a_step_follow_each_other_and_read_what_stood_before_them() -> None:
    graph = rollout_graphs.flat(n=3)
    contexts, ledger = contexts_of(graph)
    turns, places = Turns.of(contexts)
    table = ledger.table
    assert len(places) == len(table) and turns.nbytes > 0
    for number, place in enumerate(places.tolist()):
        np.testing.assert_array_equal(turns.row(number).context, contexts.before(place))
        np.testing.assert_array_equal(turns.row(number).text, contexts.action(place))
        assert len(turns.row(number, spoken=False).text) == 0
    for turn, following, reward in zip(turns.turn, turns.following, turns.reward, strict=True):
        after = np.flatnonzero(table["parent"] == places[turn])
        assert (places[following] if following >= 0 else -1) == (after[0] if len(after) else -1)
        assert reward == table["reward"][places[turn]]


def test_values_become_columns_of_the_table() -> None:
    contexts, ledger = contexts_of(rollout_graphs.flat(n=2))
    turns, places = Turns.of(contexts)

    class Counting:
        def values(self, rows: Sequence[Row], *, copy: bool) -> list[np.ndarray]:
            assert not copy
            return [np.arange(5)[:, None] * 100.0 + np.arange(len(row.text) + 1) for row in rows]

    turn_values(Counting(), turns, places, ledger.table, ReplayOptions(baseline=True))  # type: ignore[arg-type]
    size = np.asarray(ledger.table["n_tokens"])
    np.testing.assert_array_equal(ledger.table["q2"], 100 + size)
    np.testing.assert_array_equal(ledger.table["v1"], np.full(len(size), 200))
    np.testing.assert_array_equal(ledger.table["tokens.baseline"], np.concatenate([400 + np.arange(n) for n in size]))


def test_what_frozen_roles_earn_belongs_to_the_turn_before() -> None:
    """An episode whose second and third turn stand in no row, and one that begins with such a turn."""
    table = make_table({"episode": [0, 0, 0, 0, 1, 1], "reward": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]})

    class Standing:
        there = np.array([True, False, False, True, False, True])

        def before(self, turn: int) -> np.ndarray:
            return np.array([turn])

        action = before

    standing = Standing()
    standing.table = table  # type: ignore[attr-defined]
    turns, places = Turns.of(standing)  # type: ignore[arg-type]
    assert places.tolist() == [0, 3, 5]
    assert turns.following.tolist() == [1, -1, -1] and turns.reward.tolist() == [7.0, 8.0, 32.0]

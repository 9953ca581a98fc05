"""Recorded cases of self-play by the whole way: worker, turn table, schedule, estimator.

The games of a case are played by scripted seats whose world pays what the case says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance.builtin_parts import part
from tests.fixtures.rows_of_policies import check_rows
from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import RolloutGraph
from verl_hier.graph.build_table import build_table, number_turns
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.rollout.sampler import Sampler
from verl_hier.testing.builtin import full_credit
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, roll_out_scripted

SELF_PLAY = PluginHost.load({"builtin": True}).spec("worker", "self_play")
CASES = Path(__file__).parents[2] / "conformance" / "cases"


def cases(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(case["input"], case["output"]) for case in json.loads((CASES / f"{name}.json").read_text())["cases"]]


@dataclass(frozen=True)
class Played:
    """A game: who moves (a seat each), what is said, what each move earns at once, and each seat at the end."""

    order: Sequence[int]
    said: Sequence[str]
    end: Sequence[float]
    earned: Sequence[float] | None = None


class Table(Environment):
    """A world in which everything goes as it went."""

    def __init__(self, games: list[Played]) -> None:
        self._games = games

    def reset(self, task, seed):
        self._game, self._at = self._games.pop(0), 0
        return self._answer(0.0)

    def step(self, action):
        self._at += 1
        return self._answer(0.0 if self._game.earned is None else self._game.earned[self._at - 1])

    def _answer(self, reward: float) -> StepResult:
        order, done = self._game.order, self._at == len(self._game.order)
        info = {"player": order[min(self._at, len(order) - 1)], "players": len(self._game.end)}
        return StepResult("o", reward, done=done, info=info | ({"rewards": list(self._game.end)} if done else {}))


class InTurn(Sampler):
    """Games one after the other, so that what is said comes in order."""

    async def sample(self, rollout):
        for _ in range(rollout.n):
            await rollout.start().run()


class Cuts(ScriptedPolicy):
    """A text with `!` is cut by its limit of tokens."""

    async def generate(self, prompt, sampling, conversation):
        made = await super().generate(prompt, sampling, conversation)
        cut = "!" in self.tokenizer.decode(made.token_ids)
        return replace(made, token_ids=made.token_ids[:-1], logprobs=made.logprobs[:-1]) if cut else made


def table_of(
    games: Sequence[Played],
    seats: Sequence[str],
    trained: Sequence[str] = (),
    learns: Sequence[bool] = (),
) -> Any:
    """The turn table of one task whose episodes are the games; `trained` names seats, `learns` says it turn by turn."""
    graph = graph_of(games, seats)
    for node, flag in zip(graph.nodes, learns, strict=False):
        node.trained = flag
    return number_turns([graph], [lambda role, level: role in (trained or seats)])[0]


def graph_of(games: Sequence[Played], seats: Sequence[str], assigned: Mapping[str, str] | None = None) -> RolloutGraph:
    """The graph of one task whose episodes are the games; `assigned` gives seats policies of their own."""
    said = iter([text for game in games for text in game.said])
    left = [games[0], *games]  # episodes begin as forks of an environment that was reset once
    names = {name: {"by": "policy"} for name in seats}
    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=SELF_PLAY,
            options=build_options(SELF_PLAY, {"seats": names}),
            answer=lambda prompt, sampling: next(said),
            environment=lambda: Table(left),
            sampler=InTurn(),
            n=len(games),
            tokenizer=CharacterTokenizer(),
            limits=Limits(40, 100, 5000),
            policy=Cuts,
            assigned=assigned,
        )
    )
    assert next(said, None) is None, "every text was spoken"
    graph.task["data_source"] = "game"
    return graph


@pytest.mark.parametrize(("given", "expected"), cases("mars"))
def test_mars_from_two_seats(given, expected):
    """A row is what one seat has read and said in a game; a turn's tokens are those between two gaps of its mask."""
    mask, ends = np.asarray(given["response_mask"], bool), np.asarray(given["turn_end"], bool)
    rewards = [np.asarray(row)[end].tolist() for row, end in zip(given["turn_rewards"], ends, strict=True)]
    sizes = [[len(part) for part in "".join("01"[int(m)] for m in row).split("0") if part] for row in mask]
    games = []
    for first in range(0, len(mask), 2):
        turns = [(seat, turn) for turn in range(3) for seat in (0, 1)]
        last = [rewards[first + seat][-1] for seat in (0, 1)]
        # A seat's last turn is paid when the game ends; the last character of a turn is its end token.
        earned = [0.0 if turn == 2 else rewards[first + seat][turn] for seat, turn in turns]
        said = ["x" * (sizes[first + seat][turn] - 1) for seat, turn in turns]
        games.append(Played([seat for seat, _ in turns], said, last, earned))
    graph = graph_of(games, ("p0", "p1"), {"p1": "second"})
    table = build_table([graph])
    names = ("reward_norm", "separate_players", "whiten_rewards", "whiten_advantages", "advantage_norm", "gamma")
    credit = full_credit("mars", table, **{name: given[name] for name in names})
    values = credit.values
    turn = np.asarray(table["tokens.turn"])
    episode, agent = np.asarray(table["episode"])[turn], np.asarray(table["agent"])[turn]
    for row, (tokens, recorded) in enumerate(zip(mask, expected["advantages"], strict=True)):
        found = values[(episode == row // 2) & (agent == row % 2)]
        wanted = np.asarray(recorded)[np.flatnonzero(tokens) - 1]
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
    check_rows([graph], credit, {"p1": "second"})


def seats_of(given: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(trace["agent"] for group in given["groups"] for game in group for trace in game))


@pytest.mark.parametrize(("given", "expected"), [case for case in cases("rae") if len(seats_of(case[0])) > 1])
def test_rae_of_seats_over_steps(given, expected):
    """A group of games is a step; each seat has one turn in a game."""
    schedule = part("schedule", "rae", decay=given["decay"], score="role")
    seats = seats_of(given)
    for number, group in enumerate(given["groups"]):
        games = [
            Played(
                [seats.index(trace["agent"]) for trace in game],
                ["x"] * len(game),
                [next((t["reward"] for t in game if t["agent"] == seat), 0.0) for seat in seats],
            )
            for game in group
        ]
        table = table_of(games, seats, learns=[trace["trained"] for game in group for trace in game])
        schedule.table_ready(table, number + 1)
        values = iter(full_credit("rae", table).values.tolist())
        found = [[value if trace["trained"] else None for trace, value in zip(game, values)] for game in group]
        for have, want in zip(found, expected["advantages"][number], strict=True):
            assert [value is None for value in have] == [value is None for value in want]
            assert [v for v in have if v is not None] == pytest.approx([v for v in want if v is not None], abs=2e-5)
        means = {name.removeprefix("game/"): mean for name, mean in schedule.state_dict()["means"].items()}
        assert means == pytest.approx(expected["baselines_after"][number], abs=2e-5)
        # What crosses steps is what a checkpoint has.
        state = json.loads(json.dumps(schedule.state_dict()))
        schedule = part("schedule", "rae", decay=given["decay"], score="role")
        schedule.load_state_dict(state)


def in_turn(turns: Sequence[int]) -> list[tuple[int, int]]:
    """(seat, turn) in an order in which the seats move as often as they did."""
    most = max(turns)
    return [(seat, turn) for turn in range(most) for seat in range(len(turns)) if turn < turns[seat]]


@pytest.mark.parametrize(("given", "expected"), cases("spiral_rae"))
def test_spirals_baselines_of_two_seats(given, expected):
    games = [
        Played(
            [seat for seat, _ in in_turn(game["turns"])],
            ["x!" if game["truncated"][seat][turn] else "x" for seat, turn in in_turn(game["turns"])],
            game["rewards"],
        )
        for game in given["games"]
    ]
    trained = [f"player_{seat}" for seat in given["train_players"]]
    table = table_of(games, ("player_0", "player_1"), trained)
    decay = given["decay"] if given["use_role_baseline"] else 1.0
    schedule = part("schedule", "rae", decay=decay, score="role", reward_scale=given["reward_scaling"])
    schedule.table_ready(table, 1)
    gamma = given["gamma"] if given["use_intermediate_rewards"] else 1.0
    credit = full_credit("rae", table, gamma=gamma, drop_zero=given["filter_zero_adv"])
    kept: list[list[dict[str, Any]]] = [[] for _ in games]
    moves = [(number, *move) for number, game in enumerate(given["games"]) for move in in_turn(game["turns"])]
    for (game, seat, turn), value, learns in zip(moves, credit.values, table["trained"], strict=True):
        if learns and (value != 0 or not given["filter_zero_adv"]):
            cut = given["games"][game]["truncated"][seat][turn]
            kept[game].append({"player": seat, "turn": turn, "credit": value, "loss_mask": not cut})
    weight = dict(zip(moves, np.asarray(credit.weight), strict=True))
    for number, (have, want) in enumerate(zip(kept, expected["kept_turns"], strict=True)):
        have = sorted(have, key=lambda turn: (turn["player"], turn["turn"]))
        assert [{**turn, "credit": pytest.approx(turn["credit"], abs=2e-5)} for turn in want] == have
        assert all(weight[number, turn["player"], turn["turn"]] == turn["loss_mask"] for turn in have)

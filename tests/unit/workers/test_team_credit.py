"""Recorded cases of team methods by the whole way: worker, turn table, estimator, rows of each policy.

Each trajectory of a case is spoken by scripted roles in the same order, and the environment pays what the case says.
One of the roles has a policy of its own, which changes no credit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.rows_of_policies import check_rows
from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph.build_table import build_table
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits
from verl_hier.rollout.sampler import Sampler
from verl_hier.testing.builtin import full_credit
from verl_hier.testing.rollout import CharacterTokenizer, roll_out_scripted

TEAM = PluginHost.load({"builtin": True}).spec("worker", "team")
CASES = Path(__file__).parents[2] / "conformance" / "cases"
LEAD = {
    "roles": {"lead": {}, "helper": {"action": "{content}", "message_tag": "result", "turns": 2, "level": 1}},
    "topology": {"kind": "lead"},
}


class Till(Environment):
    """Pays the number of an action; `end NUMBER` is the last one."""

    def reset(self, task, seed):
        return StepResult("a till", anchor="0")

    def step(self, action):
        words = action.split()
        return StepResult("paid", float(words[-1]), words[0] == "end", anchor="1")


class InTurn(Sampler):
    """Episodes one after the other, so that what they say comes in order."""

    async def sample(self, rollout):
        for _ in range(rollout.n):
            await rollout.start().run()


def play(
    options: Mapping[str, Any],
    episodes: Sequence[Sequence[str]],
    limits: Limits | None = None,
    sampler: Sampler | None = None,
    assigned: Mapping[str, str] | None = None,
) -> Any:
    """The graph of one task whose episodes say these texts."""
    said = iter([text for texts in episodes for text in texts])
    graph, _ = asyncio.run(
        roll_out_scripted(
            worker=TEAM,
            options=build_options(TEAM, options),
            answer=lambda prompt, sampling: next(said),
            environment=Till,
            sampler=sampler or InTurn(),
            n=len(episodes),
            tokenizer=CharacterTokenizer(),
            limits=limits or Limits(40, 100, 5000),
            assigned=assigned,
        )
    )
    assert next(said, None) is None, "every text was spoken"
    return graph


def cases(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(case["input"], case["output"]) for case in json.loads((CASES / f"{name}.json").read_text())["cases"]]


def trajectories(given: Mapping[str, Any], task: str, trajectory: str) -> list[list[list[int]]]:
    """Rows of each trajectory of each task."""
    tasks: dict[Any, dict[Any, list[int]]] = {}
    for row, key in enumerate(zip(given[task], given[trajectory], strict=True)):
        tasks.setdefault(key[0], {}).setdefault(key[1], []).append(row)
    return [list(found.values()) for found in tasks.values()]


def flat(found: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    return [row for task in found for rows in task for row in rows]


@pytest.mark.parametrize(("given", "expected"), cases("drmas"))
def test_solver_and_verifier_of_dr_mas(given, expected):
    """A row's score is the team's return, less a tenth where its form is wrong."""
    roles = {"solver": {"message_tag": "say"}, "verifier": {"message_tag": "say", "level": 1}}
    options = {
        "roles": roles, "answer_from": "solver", "answer_action": "{content}",
        "topology": {"kind": "verifier_loop", "rounds": 9},
    }  # fmt: skip
    found = trajectories(given, "uid", "traj_uid")
    graphs = []
    for task in found:
        episodes = []
        for rows in task:
            scores, last = [given["score"][row] for row in rows], rows[-1]
            paid = round(max(scores))
            texts = [f"end {paid}" if given["agent_id"][row] == "solver" else "no" for row in rows]
            texts[-1] = "approve" if given["agent_id"][last] == "verifier" else texts[-1]
            sound = [score > paid - 0.05 for score in scores]
            episodes.append([f"<say>{t}</say>" if ok else t for t, ok in zip(texts, sound, strict=True)])
        graphs.append(play(options, episodes, assigned=(second := {"verifier": "second"})))
    table, order = build_table(graphs), flat(found)
    assert len(table) == len(order)
    assert [table.names["agent"][a] for a in table["agent"]] == [given["agent_id"][row] for row in order]
    for base in ("grpo", "rloo"):
        options = {"agent_wise": given["group_by_agent_id"], "norm_by_std": given["norm_by_std"], "baseline": base}
        want = np.asarray(expected[f"{base}_adv"])[order]
        credit = full_credit("dr_mas", table, **options)
        assert credit.values == pytest.approx(want, rel=2e-4, abs=2e-5)
        check_rows(graphs, credit, second)


@pytest.mark.parametrize(("given", "expected"), cases("at_grpo"))
def test_agents_and_turns_of_at_grpo(given, expected):
    """Two agents act in each step; candidates of one turn and agent are compared."""
    options = {
        "roles": {"first": {"action": "{content}"}, "second": {"action": "{content}"}},
        "topology": {"each": "step"},
    }
    problems = {"problem": [index // given["sample_num"] for index in given["env_idx"]], **given}
    found, graphs = trajectories(problems, "problem", "env_idx"), []
    for task in found:
        texts = [[f"pay {given['reward'][row]}" for row in rows] for rows in task]
        texts = [[*said[:-1], said[-1].replace("pay", "end")] for said in texts]
        graphs.append(play(options, texts, assigned={"second": "second"}))
    want = np.asarray(expected["grpo_adv"])[flat(found)]
    credit = full_credit("at_grpo", build_table(graphs))
    assert credit.values == pytest.approx(want, rel=2e-4, abs=2e-5)
    check_rows(graphs, credit, {"second": "second"})


@pytest.mark.parametrize(
    ("given", "expected"), [case for case in cases("marft_action_gae") if np.all(case[0]["masks"])]
)
def test_agents_in_order_of_marft(given, expected):
    """The chain runs through the agents of a step to the next step; the critic's values are the case's.

    Cases in which an episode ends inside an array are several episodes here, and stay with the adapter.
    """
    rewards, values = np.asarray(given["rewards"]), np.asarray(given["values"])
    roles = {f"agent{number}": {"action": "{content}"} for number in range(rewards.shape[2])}
    options = {"roles": roles, "topology": {"each": "step"}}
    paths = [rewards[:, thread].ravel() for thread in range(rewards.shape[1])]
    limits = Limits(rewards.shape[0] * rewards.shape[2], 100, 5000)
    second = {"agent1": "second"}
    graph = play(options, [[f"pay {paid}" for paid in path] for path in paths], limits, assigned=second)
    table = build_table([graph])
    table.turns["value"] = np.concatenate([values[:-1, thread].ravel() for thread in range(rewards.shape[1])])
    bootstrap = [np.repeat(given["next_value"][thread][0], len(path)) for thread, path in enumerate(paths)]
    table.turns["bootstrap"] = np.concatenate(bootstrap)
    credit = full_credit("marft", table, gamma=given["gamma"], lam=given["lam"], normalise=False)
    for found, name in ((credit.values, "advantages"), (credit.returns, "returns")):
        want = np.moveaxis(np.asarray(expected[name]), 1, 0).ravel()
        assert found == pytest.approx(want, rel=2e-4, abs=2e-5)
    check_rows([graph], credit, second)


@pytest.mark.parametrize(("given", "expected"), cases("matpo"))
def test_planner_and_workers_of_matpo(given, expected):
    """The planner gives each worker a task; a worker without its tag has the format 0. A recorded planner may have the
    format 0 and yet answer, which a lead of ours cannot, so the planners' formats are written into the table."""
    own = [parent or name for name, parent in zip(given["request"], given["parent"], strict=True)]
    found, graphs, forms = trajectories({**given, "own": own}, "uid", "own"), [], []
    for task in found:
        episodes = []
        for planner, *workers in task:
            reports = ["<result>x</result>" if given["tool_format"][row] else "end" for row in workers]
            asks = ["<helper>go</helper>" * len(workers)] if workers else []
            episodes.append([*asks, *reports, f"<answer>end {given['accuracy'][planner]}</answer>"])
            forms += [given["tool_format"][planner]] * (1 + len(asks))
        roles = {**LEAD["roles"], "helper": {"message_tag": "result", "level": 1}}
        graphs.append(play({**LEAD, "roles": roles}, episodes, assigned={"helper": "second"}))
    table = build_table(graphs)
    lead = np.asarray(table["level"]) == 0
    table.turns["format"] = np.asarray(table["format"], np.float64)
    table.turns["format"][lead] = forms
    options = {name: given[name] for name in ("accuracy_weight", "format_weight", "gate", "norm_by_std")}
    credit = full_credit("matpo", table, **options)
    planners = [rows[0] for task in found for rows in task]
    want = np.asarray([expected["main_advantage"][row] for row in planners])
    episode = np.asarray(table["episode"])
    assert credit.values == pytest.approx(want[episode], rel=2e-4, abs=2e-5)
    check_rows(graphs, credit, {"helper": "second"})


ASK = "<helper>a</helper><helper>b</helper>"
REPORT = "<result>A</result>"


@pytest.mark.parametrize(
    ("texts", "reward", "trained"),
    [
        # One helper comes to the end of its turns: all others learn.
        ([ASK, "pay 0", REPORT, "pay 0.0", "<answer>end 0.5</answer>"], 0.65, [0, 1, 2, 4]),
        # Without a call of a tool.
        (["<answer>end 1</answer>"], 1.1, [0]),
        # No answer: the last turn learns, with the one that repeated itself.
        ([ASK, "pay 0", REPORT, "pay 0", "I give up"], 0.0, [3, 4]),
        # No answer, and nothing repeated: with the one that came to a limit.
        ([ASK, "pay 0", REPORT, "pay 0.0", "I give up"], 0.0, [3, 4]),
    ],
)
def test_the_flags_of_wideseek_reach_its_filter(texts, reward, trained):
    table = build_table([play(LEAD, [texts, ["<answer>end 0</answer>"]])])
    credit = full_credit("wideseek_r1", table)
    first = np.asarray(table["episode"]) == 0
    assert np.flatnonzero(np.asarray(credit.weight)[first]).tolist() == trained
    other = 0.1
    spread = np.std([reward, other], ddof=1) + 1e-6
    want = (reward - (reward + other) / 2) / spread
    assert np.asarray(credit.values)[first][trained] == pytest.approx([want] * len(trained), rel=1e-3)

"""Ten thousand hostile outputs over all workers: none ends a run, none is executed, all failures are named."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter

import pytest

from verl_hier.environments.base import Environment, StepResult
from verl_hier.host.manager import PluginHost
from verl_hier.host.specs import NoOptions, build_options
from verl_hier.rollout import Limits
from verl_hier.testing.rollout import WordTokenizer, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent

OUTPUTS = 10_000
OPTIONS = {
    "agent_flow": {"answer_action": "answer {content}", "action_tag": "action"},
    "chain_of_agents": {"on_violation": "penalise"},
    "delegation": {"refine": True, "planner_format": 0.1},
    "dual_loop": {"router": "refiner", "action_tag": "action"},
    "planner_executor": {"action_tag": "action"},
    "react": {"action_tag": "action"},
}
"""Options that make a worker read as much as it can; the others run as they come."""
TAGS = ("think", "plan", "action", "answer", "executor", "result", "switch", "subgoal")
PIECES = [
    *(f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")),
    *("SWITCH", "KEEP", "stop", "tactical", "strategic", "go", "left", "right", "<sub_done>", "{instruction}", "%s %n"),
    *(";", "\n", "é", "𝕏", "\0", "<", ">", "'" * 50, "(" * 200, "<action>" * 50),
    *('import os; os.system("touch pwned")', '__import__("os").abort()', "open('pwned', 'w')"),
    *("while True: solver", "solver ; solver", "for i in range(10**9):\n    solver", "solver(solver(solver()))"),
    'solver = Role("x", tools=["act"])',
]


class Attic(Environment):
    """Notes what it is asked; three askings end it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def reset(self, task, seed):
        self.asked = []
        return StepResult("an attic", anchor="0", admissible=("left", "right"))

    def step(self, action):
        assert isinstance(action, str)
        self.asked.append(action)
        done = len(self.asked) >= 3
        return StepResult("dust", float(done), done, valid=action in ("left", "right"), anchor=str(len(self.asked)))


class Verbatim(WordTokenizer):
    """One token a text, so that outputs come back as they are, whatever their length."""

    def encode(self, text, add_special_tokens=True):
        return [self._ids.setdefault(text, len(self._ids))] if text else []

    def decode(self, token_ids, skip_special_tokens=False):
        words = list(self._ids)
        return "".join(words[i] for i in token_ids)


def roll(name: str, answer, n: int):
    spec = PluginHost.load({"builtin": True}).spec("worker", name)
    options = build_options(spec, OPTIONS.get(name, {}))
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=Attic,
            worker=lambda: spec.factory(options),
            sampler=Independent(NoOptions()),
            answer=answer,
            task={"instruction": "tidy up", "messages": [{"role": "user", "content": "tidy up"}]},
            n=n,
            tokenizer=Verbatim(),
            limits=Limits(max_turns=12, max_tokens_per_turn=8, context_tokens=10_000),
        )
    )
    return graph


def workers() -> list[str]:
    return sorted(PluginHost.load({"builtin": True}).specs("worker"))


@pytest.mark.parametrize("name", workers())
def test_outputs_of_random_pieces(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = random.Random(name)
    outputs, failures, wanted = 0, Counter(), OUTPUTS // len(workers()) + 1

    def answer(prompt, sampling):
        return "".join(chance.choice(PIECES) for _ in range(chance.choice([0, 1, 1, 3, 6, 12])))

    while outputs < wanted:
        graph = roll(name, answer, n=20)
        graph.check()
        outputs += len(graph.nodes)
        for episode in graph.episodes:
            assert episode.status in ("finished", "truncated"), episode.error
        for node in graph.nodes:
            if "failure" in node.extra:
                assert not node.valid and re.fullmatch(r"[a-z]\w*", node.extra["failure"])
                failures[node.extra["failure"]] += 1
    assert outputs >= wanted
    assert not list(tmp_path.iterdir()), "an output was executed"
    if name not in ("react", "single_turn", "planner_executor"):
        assert failures, "what is wrong has a name"


@pytest.mark.parametrize("name", workers())
@pytest.mark.parametrize(
    "text",
    ["<action>" * 1_250_000, "<plan>" + "x" * 10_000_000, "(" * 10_000_000, "solver\n" * 1_000_000, "a;" * 5_000_000],
    ids=["tags", "unclosed", "brackets", "lines", "separators"],
)
def test_ten_megabytes(name, text):
    said = iter([text])
    graph = roll(name, lambda prompt, sampling: next(said, "left"), n=1)
    assert graph.episodes[0].status in ("finished", "truncated")

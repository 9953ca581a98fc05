import asyncio
from collections.abc import Mapping
from typing import Any

import early_branch as plugin
from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import RolloutGraph
from verl_hier.host.manager import PluginHost
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.testing.rollout import roll_out_scripted


class ThreeSteps(Environment):
    """Ends after three steps; rewards the last action if it is `go`."""

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._steps = 0
        return StepResult(text="start")

    def step(self, action: str) -> StepResult:
        self._steps += 1
        done = self._steps == 3
        return StepResult(text=f"step {self._steps}", done=done, reward=float(done and action == "go"))


def roll_out(n: int, budget: BudgetOptions) -> RolloutGraph:
    worker = PluginHost.load({"builtin": True}).spec("worker", "react")
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=ThreeSteps,
            worker=lambda: worker.factory(worker.options()),
            sampler=plugin.EarlyBranch(plugin.Options()),
            answer=lambda prompt, sampling: "go",
            n=n,
            budget=budget,
        )
    )
    return graph


def test_n_episodes_share_the_first_turn_of_their_tree() -> None:
    graph = roll_out(4, BudgetOptions())
    episodes = list(graph.complete())
    assert len(episodes) == 4
    assert len({graph.path(episode.id)[0] for episode in episodes}) == 1


def test_a_budget_is_not_exceeded() -> None:
    for tokens in (3, 6, 12, 40):
        graph = roll_out(16, BudgetOptions(tokens=tokens))
        assert sum(len(node.action) for node in graph.nodes) <= tokens

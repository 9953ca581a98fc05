import asyncio
from collections.abc import Mapping
from typing import Any

import whole_history as plugin
from verl_hier.environments.base import Environment, StepResult
from verl_hier.host.manager import PluginHost
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


def test_an_episode_is_played_to_its_end() -> None:
    sampler = PluginHost.load({"builtin": True}).spec("sampler", "independent")
    graph, policy = asyncio.run(
        roll_out_scripted(
            environment=ThreeSteps,
            worker=lambda: plugin.WholeHistory(plugin.Options()),
            sampler=sampler.factory(sampler.options()),
            answer=lambda prompt, sampling: "go",
            n=2,
        )
    )
    assert [episode.ret for episode in graph.complete()] == [1.0, 1.0]
    assert len(policy.prompts) == 6

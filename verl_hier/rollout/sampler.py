"""The interface of samplers: which episodes exist."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from verl_hier.graph.nodes import RolloutGraph
from verl_hier.graph.success import decide
from verl_hier.rollout.budget import BudgetSpent
from verl_hier.rollout.rollout import Rollout


class Sampler(ABC):
    """Decides which episodes exist: one coroutine for each task."""

    @abstractmethod
    async def sample(self, rollout: Rollout) -> None:
        """Start, step, fork and prune episodes of `rollout` until there are enough.

        Episodes that are still running when it returns are pruned.
        """


async def roll_out(rollout: Rollout, sampler: Sampler) -> RolloutGraph:
    """Let `sampler` roll out one task and return its checked graph.

    Raises:
        RolloutError: when the policy server is gone or a plugin is broken.
    """
    try:
        await asyncio.wait_for(sampler.sample(rollout), rollout.budget.limits.wall_s)
    except BudgetSpent:
        rollout.count("budget_ended")
    except asyncio.TimeoutError:
        if rollout.budget.limits.wall_s is None or rollout.budget.left("wall_s") > 0:
            raise
        rollout.count("budget_ended")
    finally:
        await rollout.close()
    graph = rollout.graph
    decide(graph, rollout.without_word)
    graph.budget = rollout.budget.report()
    graph.sort()
    graph.short = sum(episode.trained for episode in graph.complete()) < rollout.expected
    graph.check()
    return graph

"""MetaAgent-X (arXiv 2605.14212), M designs x N executions for each task; docs/methods/metaagent_x.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count
from verl_hier.host.specs import SamplerSpec
from verl_hier.rollout import Episode, Rollout, Sampler


@dataclass(frozen=True)
class DesignsOptions:
    """Options of `designs`. `actor_rollout_ref.rollout.n` is `designs` x `executions`."""

    designs: Count = 4
    """Designs a task (M)."""
    executions: Count = 4
    """Executions of each design (N)."""
    failed: Literal["keep", "drop"] = "keep"
    """What happens to a design that cannot be executed, because its script is missing or refused: it stays in its
    group, each of its executions with the return that the worker gives it (0 in the released code), or it is dropped. A
    design that was lost to its environment is always dropped."""


class Designs(Sampler):
    """See the module."""

    def __init__(self, options: DesignsOptions) -> None:
        self._options = options

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        options = self._options
        designs = [rollout.start(design=number, execution=0) for number in range(options.designs)]
        await rollout.advance(designs)
        executions: list[Episode] = []
        for number, design in enumerate(designs):
            if not self._stays(rollout, design):
                continue
            executions.append(design)
            for execution in range(1, options.executions):
                executions.append(await design.fork(after=1, design=number, execution=execution))
        await rollout.run(executions)

    def _stays(self, rollout: Rollout, design: Episode) -> bool:
        """Whether a design is executed; one that cannot be is counted and, as the recipe says, dropped."""
        first = design.last_node
        if first is not None and first.valid and not design.over:
            return True
        if not design.complete:
            return False
        rollout.count("failed_designs")
        if self._options.failed == "drop":
            design.discard("failed_design")
        return self._options.failed == "keep" and bool(design.path)


def _episodes(options: DesignsOptions, n: int) -> int:
    wanted = options.designs * options.executions
    if n != wanted:
        raise RecipeError(
            f"actor_rollout_ref.rollout.n: {options.designs} designs x {options.executions} executions are {wanted} "
            f"episodes a task, got {n}; set it to {wanted}, or change hier.sampler.designs and hier.sampler.executions."
        )
    return n


@hookimpl
def hier_samplers() -> SamplerSpec:
    return SamplerSpec(
        "designs",
        Designs,
        DesignsOptions,
        summary="several designs a task, each executed several times; one that cannot be executed counts as it is",
        source="MetaAgent-X, arXiv 2605.14212; PettingLLMs",
        episodes=_episodes,
        needs_fork=True,
    )

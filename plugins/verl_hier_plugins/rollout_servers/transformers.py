"""The rollout server of the CPU runtime; docs/cpu_runtime.md."""

from __future__ import annotations

from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import RolloutServerSpec


@hookimpl
def hier_rollout_servers() -> RolloutServerSpec:
    return RolloutServerSpec(
        "transformers",
        on_cpu=True,
        top_logprobs=True,
        prompt_scores=True,
        scores_from=True,
        scores_at_temperature=True,
        adapters=True,
        several=True,
        opens=lazy("verl_hier.runtime_cpu.in_process:in_process_policy"),
        refuses=lazy("verl_hier.runtime_cpu.generation.model:unsupported"),
    )

"""Subgoals, kept or switched at every turn. HiPER, https://arxiv.org/abs/2602.16165; docs/workers/switch_keep.md."""

from verl_hier_plugins.switch_keep.worker import SwitchKeep, SwitchKeepOptions, tell

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import WorkerSpec


@hookimpl
def hier_workers() -> list[WorkerSpec]:
    """The `switch_keep` worker."""
    return [
        WorkerSpec(
            name="switch_keep",
            factory=SwitchKeep,
            options=SwitchKeepOptions,
            summary="one agent that says at every turn whether it keeps its subgoal, which it is, and what to do",
            source="HiPER, arXiv 2602.16165; JonP07/HiPER-agent hier_mask.py (confidence A)",
            doc="workers/switch_keep.md",
            roles={"agent": 0},
            provides=("switch", "subgoal", "tokens.switch", "tokens.subgoal", "tokens.action"),
            tell=tell,
        )
    ]

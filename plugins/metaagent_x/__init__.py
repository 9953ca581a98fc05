"""MetaAgent-X (arXiv 2605.14212), docs/estimators/metaagent_x.md."""

from verl_hier_plugins.metaagent_x.estimator import MetaAgentXOptions, advantage

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec

METAAGENT_X = EstimatorSpec(
    name="metaagent_x",
    factory=advantage,
    options=MetaAgentXOptions,
    summary="designs by their executions' mean return, executions over the task or their design",
    source="arXiv 2605.14212; PettingLLMs multi_agents_ppo_trainer.py",
    doc="estimators/metaagent_x.md",
    requires=("group", "level", "return", "trained"),
    levels=(0, 1),
    confidence="A",
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `metaagent_x`."""
    return [METAAGENT_X]

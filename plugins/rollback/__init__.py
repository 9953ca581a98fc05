"""Failed attempts replaced by their later corrections, after CLEANER (arXiv 2601.15141); docs/samplers/rollback.md."""

from verl_hier_plugins.rollback.sampler import Rollback, RollbackOptions, leaves_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import SamplerSpec

SAMPLER = SamplerSpec(
    name="rollback",
    factory=Rollback,
    options=RollbackOptions,
    summary="episodes without the failed attempts that they corrected themselves",
    source="CLEANER, arXiv 2601.15141 (mechanism: B; whole turns only)",
    doc="samplers/rollback.md",
    episodes=leaves_of,
    needs_fork=True,
    needs_scores=True,
)


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the `rollback` sampler."""
    return [SAMPLER]

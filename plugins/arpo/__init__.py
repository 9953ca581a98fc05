"""ARPO (arXiv 2507.19849), docs/estimators/arpo.md, docs/samplers/arpo.md."""

from verl_hier_plugins.arpo.chains import ChainOptions, chains_of
from verl_hier_plugins.arpo.estimator import ARPOOptions, advantage
from verl_hier_plugins.arpo.sampler import ARPO as ARPOSampler

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, SamplerSpec

ARPO = EstimatorSpec(
    name="arpo",
    factory=advantage,
    options=ARPOOptions,
    summary="z-score of each chain over the task, soft or hard on shared turns",
    source="arXiv 2507.19849 §3.2; RUC-NLPIR/ARPO (soft)",
    doc="estimators/arpo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
    granularity="step",
    confidence="A",
)


def _episodes(options: ChainOptions, n: int) -> int:
    return chains_of("arpo", options, n)


SAMPLER = SamplerSpec(
    name="arpo",
    factory=ARPOSampler,
    options=ChainOptions,
    summary="chains that branch after turns in which the policy became less sure",
    source="arXiv 2507.19849 §3.1; RUC-NLPIR/ARPO vllm_rollout_with_tools.py::generate_sequences",
    doc="samplers/arpo.md",
    episodes=_episodes,
    needs_fork=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `arpo`."""
    return [ARPO]


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings `arpo`."""
    return [SAMPLER]

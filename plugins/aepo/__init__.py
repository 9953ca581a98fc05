"""AEPO (arXiv 2510.14545), docs/estimators/aepo.md, docs/samplers/aepo.md: entropy balanced in rollout and loss."""

from verl_hier_plugins.aepo.estimator import AEPOOptions, advantage
from verl_hier_plugins.aepo.losses import entropy_balanced_loss
from verl_hier_plugins.aepo.sampler import AEPO as AEPOSampler
from verl_hier_plugins.aepo.sampler import BalancedOptions
from verl_hier_plugins.arpo.chains import chains_of

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, PolicyLossSpec, SamplerSpec

AEPO = EstimatorSpec(
    name="aepo",
    factory=advantage,
    options=AEPOOptions,
    summary="z-score of the episode times 1 + weight * standardised token entropy",
    source="arXiv 2510.14545 §4; RUC-NLPIR/ARPO AEPO/verl_aepo_entropy",
    doc="estimators/aepo.md",
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained", "tokens.turn", "tokens.logprob"),
    granularity="token",
    confidence="A",
)
LOSS = PolicyLossSpec(
    name="aepo",
    function=entropy_balanced_loss,
    summary="clipping whose upper bound keeps its gradient",
    source="arXiv 2510.14545 §4; compute_policy_loss_entropy_balanced_clipping",
)


def _episodes(options: BalancedOptions, n: int) -> int:
    return n if options.dynamic else chains_of("aepo", options, n)


SAMPLER = SamplerSpec(
    name="aepo",
    factory=AEPOSampler,
    options=BalancedOptions,
    summary="as arpo, with a penalty on branching in a row, and a number of starting chains that a probe may choose",
    source="arXiv 2510.14545 §3.1; RUC-NLPIR/ARPO AEPO/ vllm_rollout_with_tools.py::generate_sequences",
    doc="samplers/aepo.md",
    episodes=_episodes,
    needs_fork=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """Brings `aepo`."""
    return [AEPO]


@hookimpl
def hier_policy_losses() -> list[PolicyLossSpec]:
    """Brings the policy loss `aepo`."""
    return [LOSS]


@hookimpl
def hier_samplers() -> list[SamplerSpec]:
    """Brings the sampler `aepo`."""
    return [SAMPLER]

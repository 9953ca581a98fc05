"""Chain-of-Agents: agents as tags in one sequence (arXiv 2508.13167), docs/workers/chain_of_agents.md."""

from verl_hier_plugins.chain_of_agents.estimator import ChainOfAgentsOptions, advantage
from verl_hier_plugins.chain_of_agents.grammar import LEVELS, UNREADABLE
from verl_hier_plugins.chain_of_agents.told import tell
from verl_hier_plugins.chain_of_agents.worker import ChainOfAgents, ChainOptions

from verl_hier.hookspecs import hookimpl
from verl_hier.specs import EstimatorSpec, WorkerSpec

CHAIN_OF_AGENTS = EstimatorSpec(
    name="chain_of_agents",
    factory=advantage,
    options=ChainOfAgentsOptions,
    summary="GRPO with flat tasks filtered and credit on the tags of chosen agents",
    source="arXiv 2508.13167; OPPO Agent_Foundation_Models",
    doc="estimators/chain_of_agents.md",
    requires=("episode", "trained", "episodes.return", "episodes.group", "episodes.trained"),
    confidence="A",
)

WORKER = WorkerSpec(
    name="chain_of_agents",
    factory=ChainOfAgents,
    options=ChainOptions,
    summary="agents take turns as tags in one sequence, under a grammar; the world answers in <observation>",
    source="arXiv 2508.13167; OPPO Agent_Foundation_Models (grammar: its prompts)",
    doc="workers/chain_of_agents.md",
    roles=LEVELS,
    provides=tuple(f"tokens.{role}" for role in LEVELS if role != UNREADABLE),
    tell=tell,
    needs_stop_strings=True,
)


@hookimpl
def hier_estimators() -> list[EstimatorSpec]:
    """The `chain_of_agents` estimator."""
    return [CHAIN_OF_AGENTS]


@hookimpl
def hier_workers() -> list[WorkerSpec]:
    """The `chain_of_agents` worker."""
    return [WORKER]

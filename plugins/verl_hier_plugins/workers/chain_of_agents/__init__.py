"""Chain-of-Agents: agents as tags in one sequence (arXiv 2508.13167), docs/methods/chain_of_agents.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import WorkerSpec
from verl_hier_plugins.workers.chain_of_agents.grammar import LEVELS, UNREADABLE
from verl_hier_plugins.workers.chain_of_agents.transcribe import transcribe
from verl_hier_plugins.workers.chain_of_agents.worker import ChainOfAgents, ChainOptions

WORKER = WorkerSpec(
    name="chain_of_agents",
    factory=ChainOfAgents,
    options=ChainOptions,
    summary="agents take turns as tags in one sequence, under a grammar; the environment answers in <observation>",
    source="arXiv 2508.13167; OPPO Agent_Foundation_Models (grammar: its prompts)",
    roles=LEVELS,
    active_roles=ChainOptions.levels,
    provides=tuple(f"tokens.{role}" for role in LEVELS if role != UNREADABLE),
    transcribe=transcribe,
    needs_stop_strings=True,
)


@hookimpl
def hier_workers() -> WorkerSpec:
    return WORKER

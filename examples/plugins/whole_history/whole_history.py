"""One agent that acts on its whole history: the smallest worker."""

from dataclasses import dataclass

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import EpisodeView, Worker


@dataclass(frozen=True)
class Options:
    """The fields are the options of `hier.worker` in a recipe."""

    prompt: str = "task: {instruction} | {observation}"
    """What the agent sees first."""


class WholeHistory(Worker):
    """Generates an action, applies it, and appends what the environment answers to its one context."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """Play one episode; must depend on nothing but what `episode` returns."""
        step = await episode.reset()
        agent = episode.context("agent")
        agent.observe(self._options.prompt.format(instruction=episode.instruction, observation=step.text))
        while not (step.done or step.truncated):
            turn = await episode.generate(agent)
            step = await episode.act(turn.text)  # pays the last turn; `turn=draft` names an earlier one that wrote it
            agent.observe(step.text)


WORKER = WorkerSpec(
    name="whole_history",
    factory=WholeHistory,
    options=Options,
    summary="one agent that acts on its whole history",
    source="example",
    roles={"agent": 0},
)


@hookimpl
def hier_workers() -> WorkerSpec:
    """Registers `whole_history`."""
    return WORKER

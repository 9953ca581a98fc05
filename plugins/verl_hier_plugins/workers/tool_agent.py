"""One agent that calls tools, like verl's tool agent loop; docs/methods/tool_agent.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import NoOptions, WorkerSpec
from verl_hier.rollout import EpisodeView, Worker
from verl_hier.rollout.tool_use import ToolUse


class ToolAgent(Worker):
    """The messages of the task, then turns whose calls are answered, until a turn calls no tool."""

    def __init__(self, options: NoOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        step = await episode.reset()
        context = episode.context("agent")
        tools = ToolUse(context, step)
        for message in episode.task.get("messages") or [{"role": "user", "content": _asked(episode, step.text)}]:
            context.observe(**message)
        while not (step.done or step.truncated):
            turn = await episode.generate(context)
            step = await tools.act(episode, turn)


def _asked(episode: EpisodeView, observation: str) -> str:
    return "\n".join(text for text in (episode.instruction, observation) if text)


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="tool_agent",
        factory=ToolAgent,
        summary="one agent that calls tools, as verl's tool agent loop",
        source="verl/experimental/agent_loop/tool_agent_loop.py",
        roles={"agent": 0},
    )

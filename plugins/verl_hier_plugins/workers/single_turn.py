"""One answer to verl's raw prompt, like verl's single-turn agent loop; docs/methods/verl.md."""

from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import NoOptions, WorkerSpec
from verl_hier.rollout import EpisodeView, Worker


class SingleTurn(Worker):
    """The messages of the task, then one turn."""

    def __init__(self, options: NoOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        step = await episode.reset()
        context = episode.context("agent")
        for message in episode.task.get("messages") or [{"role": "user", "content": step.text}]:
            context.observe(message["content"], role=message["role"])
        turn = await episode.generate(context)
        await episode.act(turn.text)


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="single_turn",
        factory=SingleTurn,
        summary="one answer to the prompt, as verl's single-turn agent loop",
        source="verl/experimental/agent_loop/single_turn_agent_loop.py",
        roles={"agent": 0},
    )

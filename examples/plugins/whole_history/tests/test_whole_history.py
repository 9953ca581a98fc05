import asyncio

import whole_history as plugin
from verl_hier.testing import check_worker, roll_out_scripted


def test_kit() -> None:
    check_worker(plugin.WORKER)


def test_an_episode_is_played_to_its_end() -> None:
    graph, policy = asyncio.run(roll_out_scripted(worker=plugin.WORKER, answer=lambda prompt, sampling: "right", n=2))
    assert [episode.ret for episode in graph.complete()] == [1.0, 1.0]
    assert {(node.role, node.level) for node in graph.nodes} == {("agent", 0)}
    assert len(policy.prompts) == 6

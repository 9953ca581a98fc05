import asyncio

import early_branch as plugin
from verl_hier.testing import PLAN_AND_WALK, check_sampler, roll_out_scripted


def test_kit() -> None:
    check_sampler(plugin.SAMPLER)
    check_sampler(plugin.SAMPLER, plugin.Options(trees=2), n=(3, 4))


def test_n_episodes_share_the_first_turn_of_their_tree() -> None:
    sampler = plugin.EarlyBranch(plugin.Options())
    graph, _ = asyncio.run(
        roll_out_scripted(worker=PLAN_AND_WALK, sampler=sampler, answer=lambda prompt, sampling: "right", n=4)
    )
    episodes = list(graph.complete())
    assert len(episodes) == 4
    assert len({graph.path(episode.id)[0] for episode in episodes}) == 1

"""Credit for delegation in closed form, and turn by turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from verl_hier.testing import check_estimator, credit_of, make_table
from verl_hier.testing.builtin import estimator, full_credit
from verl_hier.testing.estimator import permuted, random_table
from verl_hier_plugins.estimators.sub_agents import SubAgentsOptions

PRACTICES = ("by_role", "inherit", "broadcast", "split", "longest", "own")
PLAIN = {"scale": "none"}


def delegated(*episodes, returns, masked=(), tokens=None):
    """One task: each episode is the number of its sub-agents; a lead speaks, each sub-agent once, and the lead ends.

    Args:
        *episodes: sub-agents of each episode.
        returns: return of each episode, earned by its lead's last turn.
        masked: names of agents whose turns are not trained.
        tokens: tokens of a turn by the agent's name; 1 by default.
    """
    turns = {name: [] for name in ("episode", "agent", "role", "level", "reward", "trained", "n_tokens", "row")}
    rows: dict[tuple[int, str], int] = {}
    for episode, (count, value) in enumerate(zip(episodes, returns, strict=True)):
        for place, agent in enumerate(["lead", *(f"helper {n}" for n in range(count)), "lead"]):
            turns["episode"].append(episode)
            turns["agent"].append(agent)
            turns["role"].append(agent.split()[0])
            turns["level"].append(int(agent != "lead"))
            turns["reward"].append(value if place == count + 1 else 0.0)
            turns["trained"].append(agent not in masked)
            turns["n_tokens"].append((tokens or {}).get(agent, 1))
            turns["row"].append(rows.setdefault((episode, agent), len(rows)))
    return make_table(turns)


def of_agent(table, values, agent):
    """Credit of the turns of an agent, in order of the episodes."""
    return values[np.asarray(table["agent"]) == table.code("agent", agent)].round(6).tolist()


@pytest.mark.parametrize("practice", PRACTICES)
@pytest.mark.parametrize("conversation", ["agent", "row"])
@pytest.mark.parametrize("centre", ["mean", "leave_one_out"])
def test_kit(practice, conversation, centre):
    options = SubAgentsOptions(practice=practice, conversation=conversation, centre=centre)
    spec = estimator("sub_agents")
    if options != SubAgentsOptions():
        spec = replace(spec, requires=(*spec.requires, "turn", "row", "n_tokens", "reward"))
    check_estimator(spec, options)


@pytest.mark.parametrize("practice", PRACTICES)
def test_equal_returns_and_equal_numbers_teach_nothing(practice):
    table = delegated(2, 2, 2, returns=[1.0, 1.0, 1.0])
    values = credit_of("sub_agents", table, practice=practice, **PLAIN)
    assert np.abs(values).max() < 1e-12


def test_one_sub_agent_more_is_punished_by_split_alone():
    """Both episodes are right; only the number of sub-agents differs."""
    table = delegated(1, 2, returns=[1.0, 1.0])
    for practice in ("by_role", "inherit", "broadcast", "own"):
        assert not credit_of("sub_agents", table, practice=practice, **PLAIN).any()
    split = credit_of("sub_agents", table, practice="split", **PLAIN)
    # Two samples of 1/2 and three of 1/3: the mean is 2/5.
    assert of_agent(table, split, "lead") == [0.1, 0.1, -0.066667, -0.066667]


def test_a_wrong_delegation_is_better_than_a_right_one_of_many_by_split():
    """With enough sub-agents a solved episode has nearly nothing; by role it keeps what it is worth."""
    table = delegated(9, 0, returns=[1.0, 0.2])
    assert of_agent(table, credit_of("sub_agents", table, practice="split", **PLAIN), "lead")[0] < 0
    assert of_agent(table, credit_of("sub_agents", table, **PLAIN), "lead") == [0.4, 0.4, -0.4, -0.4]


def test_broadcast_has_the_wrong_baseline_where_numbers_differ():
    """Three episodes, returns 1, 0, 0 with 3, 0, 0 sub-agents: the baseline is 4/6 instead of 1/3."""
    table = delegated(3, 0, 0, returns=[1.0, 0.0, 0.0])
    broadcast = credit_of("sub_agents", table, practice="broadcast", **PLAIN)
    assert of_agent(table, broadcast, "lead") == [0.333333, 0.333333, *[-0.666667] * 4]
    for practice in ("by_role", "inherit"):
        right = credit_of("sub_agents", table, practice=practice, **PLAIN)
        assert of_agent(table, right, "lead") == [0.666667, 0.666667, *[-0.333333] * 4]


def test_by_role_compares_sub_agents_with_sub_agents():
    """Delegating wins 1 and 0, not delegating always 1: sub-agents are compared where there are some."""
    table = delegated(1, 2, 0, 0, returns=[1.0, 0.0, 1.0, 1.0])
    values = credit_of("sub_agents", table, **PLAIN)
    assert of_agent(table, values, "helper 0") == [0.5, -0.5]
    assert of_agent(table, values, "helper 1") == [-0.5]
    assert of_agent(table, values, "lead") == [0.25, 0.25, -0.75, -0.75, 0.25, 0.25, 0.25, 0.25]
    inherited = credit_of("sub_agents", table, practice="inherit", **PLAIN)
    assert of_agent(table, inherited, "helper 0") == [0.25, -0.75]


def test_one_that_has_no_like_in_another_episode_inherits():
    table = delegated(2, 0, returns=[1.0, 0.0])
    assert of_agent(table, credit_of("sub_agents", table, **PLAIN), "helper 0") == [0.5]
    assert of_agent(table, credit_of("sub_agents", table, alone="zero", **PLAIN), "helper 0") == [0.0]


def test_leave_one_out_compares_with_the_other_episodes():
    table = delegated(1, 2, 0, returns=[1.0, 0.0, 0.0])
    values = credit_of("sub_agents", table, centre="leave_one_out", **PLAIN)
    assert of_agent(table, values, "lead") == [1.0, 1.0, -0.5, -0.5, -0.5, -0.5]
    assert of_agent(table, values, "helper 0") == [1.0, -1.0]


def test_own_rewards_with_a_share_of_the_return():
    """The judge of a sub-agent's task paid helper 0 of the second episode 1; both episodes are right in the end."""
    table = delegated(1, 1, returns=[1.0, 0.0])
    table.turns["reward"][4] = 1.0
    table.turns["return"][:] = 1.0
    values = credit_of("sub_agents", table, practice="own", return_share=0.5, **PLAIN)
    assert of_agent(table, values, "helper 0") == [-0.5, 0.5]
    assert of_agent(table, values, "lead") == [0.5, 0.5, -0.5, -0.5]


def test_longest_trains_one_conversation_an_episode():
    table = delegated(2, 1, returns=[1.0, 0.0], tokens={"helper 0": 2, "helper 1": 9})
    credit = full_credit("sub_agents", table, practice="longest", **PLAIN)
    # helper 1 has nine tokens; in the second episode the lead and helper 0 have two, and the lead came first.
    assert of_agent(table, credit.values, "helper 1") == [0.5]
    assert of_agent(table, credit.values, "lead") == [0.0, 0.0, -0.5, -0.5]
    assert of_agent(table, credit.weight, "helper 0") == [0.0, 0.0]
    assert of_agent(table, credit.weight, "lead") == [0.0, 0.0, 1.0, 1.0]


def compacted(masked):
    """Two episodes of one agent: it works, writes a summary in a context without tools, and goes on from there."""
    return make_table(
        {
            "episode": [0, 0, 0, 1, 1, 1],
            "agent": ["lead", "writer", "lead"] * 2,
            "role": ["lead", "writer", "lead"] * 2,
            "level": [0] * 6,
            "row": [0, 1, 2, 3, 4, 5],
            "reward": [0, 0, 1.0, 0, 0, 0.0],
            "trained": [True, not masked, True] * 2,
        }
    )


@pytest.mark.parametrize("conversation", ["agent", "row"])
@pytest.mark.parametrize("practice", PRACTICES)
def test_a_masked_summary_has_neither_credit_nor_vote(practice, conversation):
    """Where the gradient of a summary is masked nothing teaches it: the degenerate case that CompactionRL reports."""
    options = {"practice": practice, "conversation": conversation, **PLAIN}
    table = compacted(masked=True)
    values = credit_of("sub_agents", table, **options)
    assert not values[[1, 4]].any()
    without = make_table({name: np.delete(column, [1, 4]) for name, column in table.turns.items() if name in WORDS})
    assert values[[0, 2, 3, 5]].tolist() == credit_of("sub_agents", without, **options).tolist()


WORDS = ("episode", "agent", "role", "level", "row", "reward")


def test_a_trained_summary_learns_from_what_it_led_to_unless_only_own_rewards_count():
    table = compacted(masked=False)
    for practice in ("by_role", "inherit", "broadcast"):
        assert credit_of("sub_agents", table, practice=practice, **PLAIN)[[1, 4]].tolist() == [0.5, -0.5]
    assert credit_of("sub_agents", table, practice="own", return_share=0.0, **PLAIN)[[1, 4]].tolist() == [0.0, 0.0]


def slow(table, practice, by="agent"):
    """The definitions turn by turn, with no scale."""
    turns = [t for t in range(len(table)) if table["trained"][t]]
    name_of = {t: (table["episode"][t], table["agent"][t]) if by == "agent" else table["row"][t] for t in turns}
    talks = {name: [t for t in turns if name_of[t] == name] for name in name_of.values()}
    score = {name: np.mean([table["return"][t] for t in of]) for name, of in talks.items()}
    found = np.zeros(len(table))
    for t in turns:
        like = ("group", "role", "level") if practice == "by_role" else ("group",)
        same = [s for s in turns if all(table[column][s] == table[column][t] for column in like)]
        names = {name_of[s] for s in same}
        if practice == "split":
            number = {n: len({m for m in talks if table["episode"][talks[m][0]] == e}) for n in talks
                      for e in [table["episode"][talks[n][0]]]}  # fmt: skip
            mean = np.mean([score[n] / number[n] for n in names])
            found[t] = score[name_of[t]] / number[name_of[t]] - mean
        elif practice == "broadcast":
            found[t] = score[name_of[t]] - np.mean([score[n] for n in names])
        else:
            episodes = {table["episode"][s] for s in same}
            means = [np.mean([score[n] for n in {name_of[s] for s in same if table["episode"][s] == e}])
                     for e in episodes]  # fmt: skip
            found[t] = score[name_of[t]] - np.mean(means) if len(episodes) > 1 else 0.0
    return found


@pytest.mark.parametrize("practice", ["by_role", "broadcast", "split"])
@pytest.mark.parametrize("seed", range(6))
def test_turn_by_turn(practice, seed):
    table = permuted(random_table(seed, groups=3, tree=seed % 2 == 1), seed)[0]
    values = credit_of("sub_agents", table, practice=practice, alone="zero", **PLAIN)
    assert values == pytest.approx(slow(table, practice), abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_inherit_is_grpo_of_episodes(seed):
    table = random_table(seed, groups=3, tree=False)
    inherited = credit_of("sub_agents", table, practice="inherit")
    assert inherited.tolist() == credit_of("grpo", table, singleton="zero").tolist()

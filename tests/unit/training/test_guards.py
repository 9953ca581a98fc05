"""Guards count what they say, alarm beyond the recipe's limits, and name the line to change."""

import numpy as np
import pytest

from tests.fixtures import rollout_graphs
from verl_hier.errors import CreditError
from verl_hier.graph import build_table
from verl_hier.graph.columnar.light import light_of
from verl_hier.testing import make_table
from verl_hier.training.guards import (
    RewardHistory,
    alarm,
    answer_metrics,
    group_metrics,
    logprob_metrics,
    tool_metrics,
)
from verl_hier.training.options import GuardOptions


def groups(*returns):
    """A table of one-turn episodes: a list of returns a group."""
    group = [number for number, members in enumerate(returns) for _ in members]
    return make_table({"group": group, "reward": [value for members in returns for value in members]})


def test_singleton_and_flat_groups_are_counted():
    metrics = group_metrics(groups([1.0], [1.0, 1.0], [0.0, 1.0], [0.5]))
    assert metrics == {
        "hier/groups/count": 4.0,
        "hier/groups/size_mean": 1.5,
        "hier/groups/singleton_share": 0.5,
        "hier/groups/zero_variance_share": 0.25,
    }


def test_nothing_to_count():
    assert group_metrics(build_table([])) == {}


def test_groups_are_tasks():
    """A wrong key of an estimator is its own affair; a lost episode shrinks the group."""
    graph = rollout_graphs.flat(n=2)
    graph.episodes[1].status = "failed"
    metrics = group_metrics(build_table([graph, rollout_graphs.flat(n=2)]))
    assert metrics["hier/groups/singleton_share"] == 0.5


@pytest.mark.parametrize(
    "metrics, option, words",
    [
        ({"hier/groups/singleton_share": 0.6}, "max_singleton_share", "60% of the groups have a single episode"),
        ({"hier/groups/zero_variance_share": 0.4}, "max_zero_variance_share", "40% of the groups have equal returns"),
        ({"hier/logprob_difference/planner": 0.7}, "max_logprob_difference", "0.700 nats a token for role 'planner'"),
    ],
)
def test_alarms(metrics, option, words, caplog):
    limit = {"max_zero_variance_share": 0.3} if option == "max_zero_variance_share" else {}
    assert alarm(metrics, GuardOptions(**limit), needs_groups=True) == 1
    assert words in caplog.text and f"hier.guards.{option}" in caplog.text
    with pytest.raises(CreditError) as caught:
        alarm(metrics, GuardOptions(on_alarm="raise", **limit), needs_groups=True)
    assert f"hier.guards.{option}" in str(caught.value) and str(caught.value).endswith(".")


def test_at_the_limit_nothing_happens(caplog):
    metrics = {
        "hier/groups/singleton_share": 0.5,
        "hier/groups/zero_variance_share": 1.0,
        "hier/logprob_difference/agent": 0.5,
    }
    assert alarm(metrics, GuardOptions(on_alarm="raise"), needs_groups=True) == 0
    assert not caplog.text


def test_estimators_that_compare_nothing_have_no_group_alarms():
    metrics = {"hier/groups/singleton_share": 1.0, "hier/groups/zero_variance_share": 1.0}
    assert alarm(metrics, GuardOptions(max_zero_variance_share=0.0, on_alarm="raise"), needs_groups=False) == 0


def test_alarms_add_up():
    metrics = {"hier/groups/singleton_share": 1.0, "hier/logprob_difference/a": 9.0, "hier/logprob_difference/b": 9.0}
    assert alarm(metrics, GuardOptions(), needs_groups=True) == 3


def test_logprob_difference_is_the_mean_over_the_trained_tokens_of_a_role():
    table = make_table({"role": ["executor", "planner", "executor"]})
    metrics = logprob_metrics(
        table,
        turn=np.array([0, 0, -1, 1, 2]),
        mask=np.array([1, 0, 0, 1, 1]),
        difference=np.array([0.5, 9.0, 5.0, 0.0, 0.1]),
    )
    assert metrics == pytest.approx({"hier/logprob_difference/executor": 0.3, "hier/logprob_difference/planner": 0.0})


def test_a_role_without_trained_tokens_is_left_out():
    table = make_table({"role": ["executor", "planner"]})
    found = logprob_metrics(table, np.array([0, 1]), np.array([1, 0]), np.zeros(2))
    assert list(found) == ["hier/logprob_difference/executor"]


def answered(number, text, ret):
    graph = rollout_graphs.flat(n=1)
    for node in graph.nodes:
        node.text = text
    graph.episodes[0].ret = ret
    return graph


def test_one_answer_for_all_tasks_raises_an_alarm():
    honest = [answered(number, f"answer {number}", 1.0) for number in range(10)]
    assert answer_metrics(light_of(honest)) == {"hier/rewards/same_answer_share": 0.1}
    cheating = [answered(number, "answer yes", float(number < 9)) for number in range(20)]
    assert answer_metrics(light_of(cheating + honest[:1])) == {"hier/rewards/same_answer_share": 0.9}
    assert answer_metrics(light_of(cheating[:7])) == {}, "too few to say"
    assert answer_metrics(light_of(cheating[:8])) == {"hier/rewards/same_answer_share": 1.0}
    metrics = answer_metrics(light_of(cheating))
    with pytest.raises(CreditError, match=r"100% of the rewarded tasks .*hier\.guards\.max_same_answer_share"):
        alarm(metrics, GuardOptions(on_alarm="raise"), False)
    assert alarm(metrics, GuardOptions(max_same_answer_share=1.0), False) == 0


def solved(with_tool, without):
    graph = rollout_graphs.flat(n=1)
    graph.counts = {"solved_with_tool": with_tool, "solved_without_tool": without, "environment_calls": 3}
    return graph


def test_tasks_that_are_solved_without_the_tool_raise_an_alarm():
    assert tool_metrics(light_of([solved(3, 4)])) == {}, "too few to say"
    assert tool_metrics(light_of([rollout_graphs.flat(n=20)])) == {}, "no tool"
    assert tool_metrics(light_of([solved(5, 5), solved(10, 0)])) == {"hier/rewards/without_tool_share": 0.25}
    metrics = tool_metrics(light_of([solved(1, 19)]))
    with pytest.raises(CreditError, match=r"95% of the solved episodes .*hier\.guards\.max_without_tool_share"):
        alarm(metrics, GuardOptions(on_alarm="raise"), False)
    assert alarm(metrics, GuardOptions(max_without_tool_share=0.95), False) == 0


def jumps(*successes, episodes=20):
    history = RewardHistory()
    return [
        history.add(np.arange(episodes) < round(success * episodes)).get("hier/rewards/jump") for success in successes
    ]


def test_a_sudden_jump_of_the_returns_raises_an_alarm():
    jump = jumps(0.1, 0.0, 0.1, 0.05, 1.0)[-1]
    returns = [*[0] * 75, *[1] * 25]  # of the five steps: 5 of 80 before, 20 of 20 now
    assert jump == pytest.approx((1.0 - 0.0625) / np.std(returns))
    with pytest.raises(CreditError, match=r"2\.2 standard deviations above .*hier\.guards\.max_reward_jump"):
        alarm({"hier/rewards/jump": jump}, GuardOptions(on_alarm="raise"), False)
    assert alarm({"hier/rewards/jump": jump}, GuardOptions(max_reward_jump=2.5), False) == 0


def test_steady_progress_is_no_jump():
    limit = GuardOptions().max_reward_jump
    known = jumps(*np.linspace(0, 1, 20))
    assert known[:4] == [None] * 4 and all(0 < jump < limit for jump in known[4:])
    assert all(jump == 0 for jump in jumps(*[1] * 9)[4:]), "equal returns have no deviation"
    assert RewardHistory().add([]) == {}
    assert jumps(1, 1, 1, 1, 0)[-1] < 0, "a fall is none"


def test_old_steps_are_forgotten():
    """The ninth step is compared with the eight before it."""
    assert jumps(1, *[0] * 8, 0.5)[-1] == jumps(*[0] * 8, 0.5)[-1] == pytest.approx(0.5 / np.std([0] * 170 + [1] * 10))

"""Training against the obvious way: prefixes counted one by one, weights summed by row, and rules at their bounds."""

from __future__ import annotations

import math
import zlib
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent
from tests.unit.training.test_ledger import batches, make
from verl_hier.credit import Credit
from verl_hier.errors import CreditError, RecipeError, RolloutError
from verl_hier.graph.columnar.held import Written
from verl_hier.graph.columnar.light import light_of
from verl_hier.host.specs import ValueHeadSpec
from verl_hier.testing import make_table
from verl_hier.training import ledger as ledger_module
from verl_hier.training import store as store_module
from verl_hier.training.curriculum import Curriculum
from verl_hier.training.guards import RewardHistory, alarm, group_metrics, logprob_metrics, tool_metrics
from verl_hier.training.ledger import Ledger, Runs
from verl_hier.training.loss_table import VERL, PolicyLossOfRun, PolicyLossUse
from verl_hier.training.metrics import credit_metrics, rollout_metrics, tree_metrics, turn_metrics
from verl_hier.training.mini_batches import divide, even_parts, padded_size, require_rows, whole_groups
from verl_hier.training.options import (
    CurriculumOptions,
    GuardOptions,
    ProcessRewardOptions,
    RefillOptions,
    ReplayOptions,
)
from verl_hier.training.policy_loss import clip_range, token_mean
from verl_hier.training.probes import Asked, Contexts, Question, followers
from verl_hier.training.process_reward import learned_weights, pair_loss, solved_episodes
from verl_hier.training.refill import Group, StepTasks, most_tasks, wanted_tasks
from verl_hier.training.replay import Replay, Row, Turns, heads_of, learn, q_targets, turn_values
from verl_hier.training.schedule import Phase, phase_metrics, phase_of
from verl_hier.training.sharing import Sharing, depth_first, shared_with_previous
from verl_hier.training.step import TrainingStep, _require_honoured
from verl_hier.training.store import StepInStore, drawn
from verl_hier.training.value_heads import add_values, head_metrics, learned_fields, places_of

quick = settings(max_examples=60, deadline=None)


# Shared prefixes


def counted(rows):
    """Tokens, unique ones, and pairs of a token with those that it sees, by looking at every prefix."""
    prefixes = [tuple(row[: n + 1]) for row in rows for n in range(len(row))]
    return Sharing(len(prefixes), len({*prefixes}), sum(map(len, prefixes)), sum(map(len, {*prefixes})))


@quick
@given(st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 70_000, 2**31]), min_size=1, max_size=6), max_size=6))
def test_prefixes_are_counted_once(rows):
    arrays = [np.array(row, np.int64) for row in rows]
    assert Sharing.of(arrays) == counted(rows)
    assert [rows[place] for place in depth_first(arrays)] == sorted(rows)
    ordered = [np.array(row, np.int64) for row in sorted(rows)]
    for place, shared in enumerate(shared_with_previous(ordered)):
        row, above = ordered[place].tolist(), ordered[place - 1].tolist() if place else []
        same = [a == b for a, b in zip(row, above, strict=False)]
        assert shared == (same.index(False) if False in same else len(same))


@pytest.mark.parametrize("prompt", [1, 2, 3])
@pytest.mark.parametrize("response", [2, 3, 4])
@pytest.mark.parametrize(("rows", "roots"), [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_rows_that_are_expected_are_counted_as_those_that_come(prompt, response, rows, roots):
    made = []
    for number in range(rows):
        start = number if number < roots else 0  # those behind the roots begin with the first half of the first one
        own = [100 * start + n + 1 for n in range(response)]
        if number >= roots:
            own = [token if n < response // 2 else 1000 * number + n for n, token in enumerate(own)]
        made.append([0] * prompt + own)
    assert Sharing.expected(prompt, response, rows, roots) == counted(made)


def test_sets_of_rows_add_up():
    assert Sharing() == Sharing.total([]) == Sharing.of([]) == Sharing.expected(3, 4, 0, 0) == Sharing(0, 0, 0, 0)
    whole = Sharing.total([Sharing(4, 3, 8, 6), Sharing(6, 6, 2, 1)])
    assert whole == Sharing(10, 9, 10, 7) and Sharing().metrics() == {}
    assert whole.metrics() == {
        **{"hier/sharing/tokens": 10, "hier/sharing/unique_share": 0.9, "hier/sharing/visible_share": 0.7}
    }


# Runs of tokens, and weights


@quick
@given(st.lists(st.integers(1, 3), min_size=1, max_size=9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_runs_are_added_up_in_blocks(lengths, block, random):
    size = sum(lengths)
    start = np.cumsum([0, *lengths[:-1]])
    runs = Runs(np.zeros(len(lengths)), np.zeros(len(lengths)), start, np.array(lengths))
    values = np.array([random.choice([1.0, 2.0, np.nan]) for _ in range(size)])
    chosen = np.array([random.random() < 0.6 and not np.isnan(value) for value in values], bool)
    before, ledger_module.BLOCK = ledger_module.BLOCK, block
    try:
        sums = runs.sum(values, chosen)
    finally:
        ledger_module.BLOCK = before
    parts = [slice(a, a + n) for a, n in zip(start, lengths, strict=True)]
    assert sums.tolist() == [values[part][chosen[part]].sum() for part in parts]
    assert runs.count(chosen).tolist() == [chosen[part].sum() for part in parts]
    empty = Runs(*(np.zeros(0, np.int64) for _ in range(4)))
    assert empty.sum(np.zeros(0), np.zeros(0, bool)).shape == empty.count(np.zeros(0, bool)).shape == (0,)


@pytest.mark.parametrize("by", ["row", "turn", "episode", "role", "token"])
@pytest.mark.parametrize("row_mean", [True, False])
@settings(max_examples=25, deadline=None)
@given(batches(), st.randoms(use_true_random=False))
def test_units_share_the_loss_equally_whatever_is_left_out(by, row_mean, batch, random):
    ledger, rows, mask = make(*batch)
    if not rows:
        return
    mask = mask * np.array([random.random() < 0.6 for _ in mask])
    if random.random() < 0.3:  # one token a row
        trained = np.flatnonzero(mask)
        mask[np.delete(trained, np.unique(ledger.row[trained], return_index=True)[1])] = 0
    kept_turns = np.array([random.choice([0.0, 1.0, 1.0]) for _ in range(len(ledger.table))])
    weights = ledger.weights(Credit(np.zeros(len(ledger.table)), weight=kept_turns), mask, by, "once", row_mean)
    trained = mask > 0
    kept = trained & (kept_turns[ledger.turn] > 0)
    assert not weights[~kept].any()
    if not kept.any():
        return
    of_row = np.bincount(ledger.row, trained, len(ledger.lengths))
    if row_mean:
        means = np.bincount(ledger.row, weights, len(of_row)) / np.maximum(of_row, 1)
        assert means.sum() == pytest.approx((of_row > 0).sum())
        part = weights / np.maximum(of_row, 1)[ledger.row]  # of each token in the loss
    else:
        assert weights.sum() == pytest.approx(trained.sum())
        part = weights
    if by == "token" and row_mean:
        units = ledger.row
    elif by == "token":
        assert np.ptp(part[kept]) < 1e-9
        return
    else:
        units = {
            "row": ledger.row,
            "turn": ledger.turn,
            "episode": ledger.episode[ledger.row],
            "role": np.asarray(ledger.table["role"])[ledger.turn],
        }[by]
    shares = [part[kept & (units == unit)].sum() for unit in np.unique(units[kept])]
    assert np.ptp(shares) < 1e-9


def test_tokens_have_no_weights_of_their_own():
    ledger, _, mask = make([rollout_graphs.flat()])
    one = Credit(np.ones(len(ledger.table)))
    assert ledger.weights(one, mask, "token", "once") is None and ledger.weights(one, mask, "row", "once", True) is None
    assert (
        ledger.weights(one, mask, "row", "once") is not None
        and ledger.weights(one, mask, "turn", "once", True) is not None
    )
    assert ledger.weights(one, mask, "token", "first_owner").tolist() == mask.tolist()


def test_a_loss_that_weighs_rows_wants_one_weight_a_row():
    ledger, _, mask = make([rollout_graphs.flat(n=2)])
    by_row, row = PolicyLossOfRun("geo", "row"), np.array(ledger.row)
    first = int(np.flatnonzero((mask > 0) & (row == 1))[0])

    def check(weights, loss=by_row):
        _require_honoured(ledger, weights, mask, loss)

    for fine in (np.zeros(len(row)), np.ones(len(row)), row * 1e6 + 1e6):
        check(fine)
    weights = np.full(len(row), 1e6)
    weights[first] += 1e-4
    check(weights)
    weights[first] += 1e-2
    with pytest.raises(CreditError, match="loss_mode: geo has one loss weight a row"):
        check(weights)
    small = np.full(len(row), 1e-6)
    small[first] *= 1.001
    with pytest.raises(CreditError, match="differ inside a row"):
        check(small)
    outside = np.ones(len(row))
    outside[mask == 0] = 7.0
    check(outside)
    check(weights, PolicyLossOfRun("any", "token"))
    for says in ("none", None):
        with pytest.raises(CreditError, match="does not multiply tokens by loss weights"):
            check(outside, PolicyLossOfRun("odd", says))


# Losses of rows


def test_the_loss_of_a_row_is_the_mean_of_its_clipped_tokens():
    graph = rollout_graphs.flat(n=3)
    light, keys, rows = sent([graph])
    step = TrainingStep(light, keys)
    rng = np.random.default_rng(1)
    order = [2, 0, 1]
    lengths = [len(row.mask) for _, row in rows]
    old = [rng.normal(size=length) for length in lengths]
    new = [each + rng.choice([-30.0, -0.5, 0.0, 0.05, 0.5, 30.0], size=len(each)) for each in old]
    advantages = [rng.choice([-1.0, 0.5, 2.0], size=length) for length in lengths]
    masks = [np.array(row.mask, float) for _, row in rows]
    masks[0][:] = 0.0
    masks[1][:] = 0.0
    masks[1][np.flatnonzero(np.array(rows[1][1].mask))[0]] = 1.0
    columns = {"advantages": advantages, "old_log_probs": old, "log_probs": new, "response_mask": masks}
    given = {name: [values[place] for place in order] + [np.full(1, 9.0)] for name, values in columns.items()}
    group, losses = step.row_losses([*(keys[place] for place in order), "padding"], given, 0.2, 0.3)
    want = []
    for number in range(len(rows)):
        terms = []
        for a, p, q, m in zip(advantages[number], old[number], new[number], masks[number], strict=True):
            ratio = math.exp(min(max(q - p, -20.0), 20.0))
            terms += [max(-a * ratio, -a * min(max(ratio, 0.8), 1.3))] if m else []
        want.append(sum(terms) / len(terms) if terms else 0.0)
    np.testing.assert_allclose(losses, want, rtol=1e-12)
    assert group.tolist() == [0] * len(rows) and step.places([keys[1], "padding"]) == [1, -1]


def test_a_run_stops_where_too_many_episodes_are_lost():
    graph = rollout_graphs.flat(n=4)
    step = TrainingStep(*sent([graph])[:2])
    step.check_losses(0.0)
    graph.episodes[0].status, graph.episodes[0].error = "failed", "it broke"
    step = TrainingStep(*sent([graph])[:2])
    step.check_losses(0.25)
    with pytest.raises(RolloutError, match=r"1 of 4 episodes .* \(24%\) allows\. One of them: it broke"):
        step.check_losses(0.24)


def test_ranges_and_means_of_a_loss():
    def config(low, high):
        return SimpleNamespace(clip_ratio=0.2, clip_ratio_low=low, clip_ratio_high=high)

    assert clip_range(config(None, None)) == (0.2, 0.2) and clip_range(config(0.1, None)) == (0.1, 0.2)
    assert clip_range(config(None, 0.3)) == (0.2, 0.3) and clip_range(config(0.0, 0.0)) == (0.0, 0.0)
    values = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    assert token_mean(values, torch.tensor([[1.0, 0.0], [1.0, 1.0]])) == pytest.approx(13 / 3)
    assert token_mean(values, torch.zeros(2, 2)) == 0.0 and token_mean(values, torch.eye(2)) == 4.5
    assert token_mean(values, torch.tensor([[0.0, 1.0], [0.0, 0.0]])) == 2.0
    assert PolicyLossUse().mode("x") == "x" and VERL["sapo"].mode("x") == "seq-mean-token-mean"
    assert PolicyLossOfRun(mode="seq-mean-token-mean").row_mean and not PolicyLossOfRun().row_mean


# Metrics


def test_metrics_of_trees_are_counted_by_walking():
    graph, other = rollout_graphs.forked(), rollout_graphs.flat()
    other.task = {"uid": "other"}
    graph.counts, other.counts = {}, {"environment_calls": 6}
    graph.budget, other.budget = {"tokens": [5.0, 10.0]}, {"turns": [1.0, 4.0]}
    graph.seconds, other.seconds = {"rollout": 3.0}, {}
    source = graph.episodes[0]
    idle = type(source)(len(graph.episodes), source=0, shared=len(graph.path(0)), leaf=source.leaf, status="pruned")
    lost = type(source)(len(graph.episodes) + 1, source=0, shared=0, status="failed", error="x")
    graph.episodes += [idle, lost]
    for number, node in enumerate(graph.nodes):
        node.prompt_tokens, node.cached_tokens = 10 + number, number
    paths = {(g.task["uid"], e.id): g.path(e.id) for g in (graph, other) for e in g.episodes}
    leaves = [(g, e) for g in (graph, other) for e in g.complete() if e.trained]
    forks = [e for e in graph.episodes if e.source >= 0 and e.leaf >= 0]
    size = {g.task["uid"]: [len(n.observation) + len(n.action) for n in g.nodes] for g in (graph, other)}
    through = [(g.task["uid"], n) for g, e in leaves for n in paths[g.task["uid"], e.id]]
    firsts = [graph.nodes[graph.path(e.id)[e.shared]] for e in forks if e.shared < len(graph.path(e.id))]
    found = tree_metrics(light_of([graph, other]))
    assert found == pytest.approx(
        {
            "hier/tree/leaves_mean": len(leaves) / 2,
            "hier/tree/token_ratio": sum(size[u][n] for u, n in through) / sum(size[u][n] for u, n in {*through}),
            "hier/tree/fork_rate": len(forks) / (len(graph.nodes) + len(other.nodes)),
            "hier/tree/calls_per_leaf": 6 / len(leaves),
            "hier/tree/branch_position": np.mean([e.shared / len(graph.path(e.id)) for e in forks]),
            "hier/tree/branch_prefix_hit": sum(n.cached_tokens for n in firsts) / sum(n.prompt_tokens for n in firsts),
            "hier/budget/tokens": 0.25,
            "hier/budget/turns": 0.125,
        }
    )
    whole = rollout_metrics(light_of([graph, other]))
    assert whole["hier/time/rollout_s"] == 1.5 and whole["hier/episodes/failed"] == 1
    assert whole["hier/tokens/prefix_hit"] == pytest.approx(
        sum(n.cached_tokens for g in (graph, other) for n in g.nodes)
        / sum(n.prompt_tokens for g in (graph, other) for n in g.nodes)
    )
    assert tree_metrics(light_of([])) == turn_metrics(light_of([])) == {}
    nothing = rollout_metrics(light_of([]))
    assert nothing["hier/turns/cut_share"] == nothing["hier/tokens/prefix_hit"] == nothing["hier/time/rollout_s"] == 0
    turns = [graph.turns(e.id) for e in graph.complete()] + [other.turns(e.id) for e in other.complete()]
    of_turns = turn_metrics(light_of([graph, other]))
    assert of_turns["num_turns/mean"] == of_turns["training/num_turns/mean"] == pytest.approx(np.mean(turns))
    assert (of_turns["num_turns/min"], of_turns["num_turns/max"]) == (min(turns), max(turns))


def test_cut_turns_are_shares_of_whole_ones():
    graph = rollout_graphs.flat(n=1)
    last = graph.nodes[-1]
    graph.nodes[0].stop_reason = "length"
    graph.nodes[1].partial = True
    found = rollout_metrics(light_of([graph]))
    whole = len(graph.nodes) - 1
    assert found["hier/turns/cut_share"] == found["hier/turns/cut_share/agent"] == pytest.approx(1 / whole)
    assert last.role == "agent"


def test_credit_is_nothing_up_to_rounding():
    table = make_table({"reward": [1.0, 1.0, 1.0, 1.0], "trained": [1, 1, 1, 0]})
    found = credit_metrics(table, Credit(np.array([1e-12, -1e-13, 1.0, 0.0])))
    assert found["hier/credit/zero_share"] == pytest.approx(1 / 3)
    assert credit_metrics(table, Credit(np.zeros(4), per="token")) == {}
    untrained = make_table({"reward": [1.0], "trained": [False], "role": ["a"]})
    assert credit_metrics(untrained, Credit(np.ones(1))) == {}
    tree = make_table({"parent": [-1, 0, 0], "role": ["a", "b", "b"]}, tokens={"turn": [0, 1, 1, 2]})
    steps = credit_metrics(tree, Credit(np.array([1.0, 2.0, 3.0, 5.0]), per="step"))
    assert (
        steps["hier/credit/a/mean"] == 2.0 and steps["hier/credit/b/mean"] == 3.5 and steps["hier/credit/b/std"] == 1.5
    )
    assert credit_metrics(tree, Credit(np.array([1.0, 2.0, 4.0, 0.0]), per="token"))["hier/credit/b/mean"] == 2.0


# Guards


def test_few_episodes_say_nothing_about_a_tool():
    def shares(without, used):
        graph = rollout_graphs.flat(n=1)
        graph.counts = {"solved_without_tool": without, "solved_with_tool": used}
        other = rollout_graphs.flat(n=1)
        other.task, other.counts = {"uid": "other"}, {}
        return tool_metrics(light_of([graph, other]))

    assert shares(2, 5) == {} and shares(2, 6) == {"hier/rewards/without_tool_share": 0.25}
    assert shares(0, 8) == {"hier/rewards/without_tool_share": 0.0}


def test_groups_and_jumps_are_counted_from_their_bounds():
    table = make_table({"reward": [1.0, 1.0, 2.0, 0.0, 1.0], "group": [0, 0, 2, 3, 3]})
    assert group_metrics(table) == pytest.approx(
        {
            **{"hier/groups/count": 3, "hier/groups/size_mean": 5 / 3},
            **{"hier/groups/singleton_share": 1 / 3, "hier/groups/zero_variance_share": 1 / 3},
        }
    )
    history = RewardHistory()
    assert history.add([]) == {} and all(history.add([0.0, 1.0]) == {} for _ in range(4))
    values = np.array([0.5] * 4 + [2.0])
    spread = math.sqrt(np.mean([0.25] * 4 + [0.0]) + values.var())
    assert history.add([2.0]) == {"hier/rewards/jump": pytest.approx(1.5 / spread)}
    still = RewardHistory()
    for _ in range(4):
        still.add([0.3, 0.3])
    assert still.add([0.1 + 0.2]) == {"hier/rewards/jump": 0.0}


def test_differences_are_those_of_trained_tokens():
    table = make_table({"role": ["a", "b"]})
    turn, difference = np.array([0, -1, 1, 0]), np.array([1.0, 9.0, 4.0, 2.0])
    found = logprob_metrics(table, turn, np.array([1, 1, 0, 1]), difference)
    assert found == {"hier/logprob_difference/a": 1.5}
    options = GuardOptions()
    limit = options.max_logprob_difference
    for value, alarms in ((limit, 0), (np.nextafter(limit, 9e9), 1), (math.nan, 1)):
        assert alarm({"hier/logprob_difference/a": value}, options, True) == alarms


# Exchange of tasks


def test_what_stands_at_a_bound_passes():
    options = RefillOptions(limit=2.0, mean_within=(0.25, 0.75), std_above=None)
    reasons = [Group([mean], 1, 0).dropped_by(options) for mean in (0.2, 0.25, 0.75, 0.8)]
    assert reasons == ["mean_within", None, None, "mean_within"]
    assert Group([], 1, 0).mean == Group([], 1, 0).std == Group([0.7], 1, 0).std == 0.0
    assert Group([0.3, 0.1 + 0.2], 1, 0).std == 0.0 and Group([0.0, 1.0], 1, 0).std == 0.5
    above = RefillOptions(limit=2.0, std_above=0.5)
    assert (
        Group([0.0, 1.0], 1, 0).dropped_by(above) == "std_above" and Group([0.0, 1.1], 1, 0).dropped_by(above) is None
    )
    assert Group([1.0], 1, 0).dropped_by(above) is None and Group([0.0, 9.0], 0, 0).dropped_by(above) == "no_rows"


@pytest.mark.parametrize(
    ("share", "passed", "best"), [(0.5, 4, 2), (0.5, 5, 3), (0.25, 4, 1), (1.0, 3, 3), (0.7, 10, 7)]
)
def test_the_best_share_of_those_that_passed_is_trained(share, passed, best):
    options = RefillOptions(best_share=share, limit=9.0, std_above=None, rank_by="mean")
    tasks = StepTasks(options, 10, 100)
    names = [str(number) for number in range(passed)]
    for number, name in enumerate(names):
        tasks.finish(name, Group([float(number), float(number) + 1.0], 1, 10))
    assert tasks.choose(names) == names[passed - best :]
    assert (
        wanted_tasks(RefillOptions(limit=2.0, best_share=0.7), 7) == 10
        and wanted_tasks(RefillOptions(limit=2.0), 3) == 3
    )
    assert most_tasks(RefillOptions(limit=1.1), 10) == 11 and most_tasks(RefillOptions(limit=1.5), 3) == 4


# Mini-batches


def test_parts_are_even_and_padded():
    assert even_parts(5, 2) == [[0, 1, 2], [3, 4]] and even_parts(2, 5) == [[0], [1]] and even_parts(0, 3) == [[]]
    assert (
        even_parts(3, 0) == [[0, 1, 2]] and padded_size([[0, 1, 2], [3, 4]], 2) == 8 and padded_size([[0, 1]], 2) == 2
    )

    def update(together=False, **size):
        full = {"rows": None, "prompts": None, "steps": None, **size}
        return SimpleNamespace(mini_batch=SimpleNamespace(**full), keep_tasks_together=together)

    tasks = ["a", "a", "b", "c", "c"]
    assert [len(part) for part in divide(update(rows=2), tasks, 3)] == [2, 2, 1]
    assert [len(part) for part in divide(update(rows=5), tasks, 3)] == [5]
    assert [len(part) for part in divide(update(prompts=1), tasks, 3)] == [2, 2, 1]
    assert [len(part) for part in divide(update(prompts=2), tasks, 3)] == [5]
    assert [len(part) for part in divide(update(steps=2), tasks, 3)] == [3, 2] and divide(update(), tasks, 3) == [
        [0, 1, 2, 3, 4]
    ]
    assert divide(update(True, rows=3), tasks, 3) == [[0, 1, 2], [3, 4]]
    assert divide(update(True, rows=1), tasks, 3) == [[0, 1], [2], [3, 4]]
    assert divide(update(True, steps=2), tasks, 3) == [[0, 1, 2], [3, 4]] and divide(update(True, prompts=1), tasks, 3)[
        1
    ] == [2]
    require_rows(update(rows=2), 2)
    require_rows(update(), 9)
    with pytest.raises(RecipeError, match=r"1 row\(s\) cannot be divided among 2"):
        require_rows(update(rows=1), 2)


def test_groups_go_to_the_rank_with_the_least_work():
    assert whole_groups(["a", "a", "b", "b"], [1.0] * 4, 2) == [[0, 1], [2, 3]]
    assert whole_groups(["a", "b", "b", "c"], [9.0, 1.0, 1.0, 1.0], 2) == [[1, 2], [0, 3]]
    assert whole_groups([None, None, "b", "b"], [1.0, 5.0, 1.0, 1.0], 2) == [[2, 3], [1, 0]]
    found = whole_groups(["a", "a", "a", "b"], [1.0] * 4, 2)
    assert sorted(map(len, found)) == [2, 2] and sorted(row for share in found for row in share) == [0, 1, 2, 3]


# The second model


def test_pairs_are_those_of_one_task():
    turns = {"episode": [0, 0, 1, 2, 3], "group": [0, 0, 0, 0, 1], "reward": [0.0] * 5}
    table = make_table(turns)
    rewards, solved = np.array([1.0, 3.0, 1.5, 0.5, 7.0]), np.array([True, False, False, True])
    found = pair_loss(table, rewards, solved)
    differences = np.array([2.0 - 1.5, 2.0 - 0.5])
    assert (
        found.loss == pytest.approx(np.mean(np.log1p(np.exp(-differences)))) and found.pairs == 2 and found.right == 1.0
    )
    slope = -1 / (1 + np.exp(differences)) / 2
    np.testing.assert_allclose(found.gradient, [slope.sum() / 2] * 2 + [-slope[0], -slope[1], 0.0], rtol=1e-12)
    narrowed = pair_loss(table, rewards, solved, np.array([True, False, True, False, True]))
    assert narrowed.pairs == 1 and narrowed.gradient[1] == narrowed.gradient[3] == 0.0 and narrowed.right == 0.0
    none = pair_loss(table, rewards, np.ones(4, bool))
    assert none.pairs == 0 and none.loss == 0.0 and not none.gradient.any() and math.isnan(none.right)
    far = pair_loss(table, np.array([1.0, 1.0, 1.0, 9e3, 0.0]), solved)
    assert far.loss == pytest.approx((math.log(2) + 8999) / 2)
    assert np.abs(far.gradient).max() <= 0.5, "the loss is at most as steep as its mean over two pairs"
    alike = pair_loss(table, np.ones(5), solved)
    assert (alike.pairs, alike.right) == (2, 0.0), "none of them has the higher reward"
    said = make_table({"reward": [1.0, 0.0, 1.0, 0.5]}, episodes={"success": [0.0, 1.0, np.nan, np.nan]})
    assert solved_episodes(said).tolist() == [False, True, True, True]
    assert solved_episodes(make_table({"reward": [0.0, -1.0, 0.1]})).tolist() == [False, False, True]


def test_the_second_model_learns_on_trained_tokens():
    ledger, _, mask = make([rollout_graphs.flat(n=3)])
    ledger.table.turns["step_reward"] = np.arange(len(ledger.table)) * 1.0
    ledger.table.episodes["success"] = np.array([1.0, 0.0, 0.0])
    fields, metrics = learned_weights(ledger, ProcessRewardOptions(beta=0.5), mask)
    found = pair_loss(ledger.table, ledger.table["step_reward"], np.array([True, False, False]))
    want = np.where((ledger.turn >= 0) & (mask > 0), 0.5 * found.gradient[ledger.turn], 0.0)
    np.testing.assert_allclose(fields["process_weights"], want)
    assert metrics["hier/process_reward/pairs"] == 2 and metrics["hier/process_reward/loss"] == found.loss
    assert metrics["hier/process_reward/reward_mean"] == pytest.approx((len(ledger.table) - 1) / 2)
    ledger.table.turns["trained"] = np.zeros(len(ledger.table), bool)
    _, metrics = learned_weights(ledger, ProcessRewardOptions(), mask)
    assert metrics == {"hier/process_reward/pairs": 0.0, "hier/process_reward/reward_mean": 0.0}


# Heads of a critic


def test_a_head_reads_where_it_says_and_0_elsewhere():
    ledger, _, mask = make([rollout_graphs.flat(n=2)])
    table = ledger.table
    first = np.searchsorted(table["tokens.turn"], np.arange(len(table)))
    chosen = np.where(np.arange(len(table)) % 2 == 0, first, -1)
    head = ValueHeadSpec("some", lambda table: chosen)
    whole = ValueHeadSpec("every", None)
    values = np.arange(len(ledger.turn)) + 5.0
    add_values(ledger, {"some": head, "every": whole}, {"values_some": values, "values_every": values})
    positions = ledger.token_positions()
    at = {int(place): value for place, value in zip(positions, values, strict=True) if place >= 0}
    assert table[head.column].tolist() == [at[int(place)] if place >= 0 else 0.0 for place in chosen]
    assert table[whole.column].tolist() == [at[place] for place in range(len(at))]
    target = np.where(np.arange(len(table)) % 4 == 0, 1.0 + np.arange(len(table)), np.nan)
    credit = Credit(np.zeros(len(table)), targets={"some": target})
    half = mask * (np.arange(len(mask)) % 3 > 0)
    fields = learned_fields(ledger, {"some": head}, credit, half)
    learns = {int(place): value for place, value in zip(chosen, target, strict=True) if place >= 0 and value == value}
    want = [learns.get(int(place), 0.0) if keep else 0.0 for place, keep in zip(positions, half > 0, strict=True)]
    assert fields["returns_some"].tolist() == want and fields["value_mask_some"].tolist() == [
        float(v > 0) for v in want
    ]
    for wrong in ([len(at), -1], [len(at) + 5, -1], [-1, len(at)], [first[1], -1], [-1, first[0]]):
        strange = np.full(len(table), -1)
        strange[:2] = wrong
        with pytest.raises(CreditError, match=f"reads turn {int(np.argmax(strange >= 0))} at a token of another turn"):
            places_of(ValueHeadSpec("odd", lambda table, strange=strange: strange), table)


def test_a_head_reads_turns_of_one_token_at_no_other_token():
    table = make_table({"reward": [0.0, 1.0]}, tokens={"turn": [0, 1]})

    def read(*places):
        return places_of(ValueHeadSpec("short", lambda table: np.array(places)), table).tolist()

    for places in ([0, 1], [-1, 1], [0, -1], [-1, -1]):
        assert read(*places) == places
    for turn, places in ((0, [1, 1]), (0, [2, 1]), (1, [0, 0]), (1, [0, 2]), (1, [0, 99])):
        with pytest.raises(CreditError, match=f"reads turn {turn} at a token of another turn"):
            read(*places)


def test_metrics_of_a_head_look_where_it_learns():
    def metrics(mask, target, value):
        fields = {"value_mask_h": np.array(mask), "returns_h": np.array(target)}
        found = head_metrics({"h": None}, {"values_h": np.array(value)}, fields)
        return {name.rpartition("/")[2]: number for name, number in found.items()}

    found = metrics([1.0, 1.0, 0.0, 0.0], [0.0, 0.5, 9.0, 9.0], [0.0, 0.25, 1.0, 1.0])
    assert found == pytest.approx(
        {"trained_share": 0.5, "target_mean": 0.25, "value_mean": 0.125, "explained_variance": 0.75}
    )
    assert "explained_variance" not in metrics([1.0, 1.0], [2.0, 2.0], [0.0, 1.0])
    assert metrics([0.0], [1.0], [1.0]) == {"trained_share": 0.0} and metrics([], [], []) == {"trained_share": 0.0}


# Replay


def turns_of(*rows):
    """Turns whose contexts and texts are (context, text, following, reward)."""
    tokens = [token for context, text, _, _ in rows for token in (*context, *text)]
    sizes = np.array([[len(context), len(text)] for context, text, _, _ in rows])
    following, reward = (np.array([row[place] for row in rows]) for place in (2, 3))
    return Turns(np.array(tokens, np.int32), sizes, np.arange(len(rows)), following, reward.astype(float))


class Random:
    """A critic with a number of its own for each head, row and place; the copy's are others."""

    def __init__(self, heads):
        self.heads, self.fitted = heads, []

    def value(self, row, copy):
        rng = np.random.default_rng([int(copy), *row.context, 99, *row.text])
        return rng.normal(size=(self.heads, len(row.text) + 1))

    def values(self, rows, *, copy):
        return [self.value(row, copy) for row in rows]

    def fit(self, rows, targets, *, last):
        self.fitted.append((list(rows), [np.array(target) for target in targets], last))
        return {"loss": float(len(self.fitted))}


@pytest.mark.parametrize("baseline", [False, True])
def test_heads_learn_what_their_names_say(tmp_path, baseline):
    options = ReplayOptions(updates=3, batch=5, gamma=0.5, baseline=baseline)
    old = turns_of(((1,), (2, 3), 1, 0.5), ((1, 2), (4, 5, 6), 0, 1.0), ((3,), (7, 8), -1, 2.0))
    fresh = turns_of(((4, 4), (1, 2, 3), -1, 0.0), ((5,), (1, 2), 0, 0.0))
    replay = Replay(tmp_path / "replay", 100)
    replay.add(old)
    replay.add(fresh)
    critic = Random(len(heads_of(options)))
    found = learn(critic, replay, fresh, options, np.random.default_rng(3))
    assert found["loss"] == 2.0 and found["hier/replay/transitions"] == 5 and found["hier/replay/batches"] == 2
    assert found["hier/replay/gib"] == (old.nbytes + fresh.nbytes) / 2**30 and 0 < found["hier/replay/staleness"] < 1
    assert [last for _, _, last in critic.fitted] == [False, False, True]
    known = {(tuple(b.row(n).context), tuple(b.row(n).text)): (b, n) for b in (old, fresh) for n in range(len(b.turn))}
    for rows, targets, _ in critic.fitted:
        assert len(rows) == len(targets) == 10
        for number, (row, target) in enumerate(zip(rows, targets, strict=True)):
            want = np.full((len(heads_of(options)), len(row.text) + 1), np.nan)
            batch, turn = known[tuple(row.context), tuple(row.text)]
            if number < 5:
                following = int(batch.following[turn])
                after = critic.value(batch.row(following, spoken=False), True)[2:4, 0] if following >= 0 else 0.0
                want[:2, -1] = batch.reward[turn] + 0.5 * np.asarray(after)
            else:
                own = critic.value(row, True)
                want[2:4, 0] = own[:2, -1]
                if baseline:
                    want[4, :-1] = own[:2, -1].min() - own[2:4, 0].min()
            np.testing.assert_allclose(target, want)
    table = make_table({"reward": [0.0, 0.0, 0.0], "n_tokens": [2, 1, 3]}, tokens={"turn": [0, 0, 1, 2, 2, 2]})
    turn_values(critic, fresh, np.array([2, 0]), table, options)
    first, second = (critic.value(fresh.row(n), False) for n in (0, 1))
    for head, name, place in ((0, "q1", -1), (1, "q2", -1), (2, "v1", 0), (3, "v2", 0)):
        assert table[name].tolist() == [second[head, place], 0.0, first[head, place]]
    if baseline:
        assert table["tokens.baseline"].tolist() == [*second[4, :2], 0.0, *first[4, :3]]


def test_targets_end_with_their_episode():
    assert q_targets([1.0, 1.0], [False, True], [2.0, 2.0]).tolist() == [1.0 + 0.95 * 2, 1.0]
    assert q_targets(1.0, 0, 2.0, 0.5) == 2.0 and ReplayOptions().gamma == 0.95


def test_what_is_drawn_is_as_old_as_its_batch(tmp_path):
    replay = Replay(tmp_path / "deep" / "replay", 4)
    batches = [turns_of(*(((n,), (k,), -1, 10.0 * n + k) for k in range(2))) for n in range(3)]
    for each in batches:
        replay.add(each)
    assert sorted(replay.batches) == [2, 3] and len(replay) == 4 and replay.newest == 3
    seen = {(float(b.reward[place]), age) for b, place, age in replay.sample(300, np.random.default_rng(0))}
    assert seen == {(10.0, 1), (11.0, 1), (20.0, 0), (21.0, 0)}
    big = Replay(tmp_path / "other" / "replay", 1)
    big.add(batches[0])
    assert len(big) == 2
    checkpoint = tmp_path / "deep" / "global_step_3"
    for _ in range(2):
        replay.save(checkpoint)
    replay.add(batches[0])
    assert sorted(file.name for file in (tmp_path / "deep" / "replay").iterdir()) == [
        *["batch_000002.npz", "batch_000003.npz", "batch_000004.npz"]
    ]
    again = Replay(tmp_path / "deep" / "replay", 4)
    again.load(checkpoint)
    assert sorted(again.batches) == [2, 3] and again.newest == 3
    assert again.batches[3].row(1, spoken=False).text.tolist() == [] and again.batches[3].row(1).text.tolist() == [1]
    assert isinstance(again.batches[3].row(0), Row)


# Probes


def test_a_turn_that_stands_in_several_rows_is_read_in_the_first():
    graph = rollout_graphs.forked()
    light, keys, rows = sent([graph], "repeat")
    ledger = Ledger(light, keys)
    sequences = [np.array([*row.prompt, *row.response]) for _, row in rows]
    contexts = Contexts(ledger, sequences, [{}], None)
    turns = [[int(turn) for turn in ledger.turn[ledger.row == number]] for number in range(len(rows))]
    for turn in range(len(ledger.table)):
        places = [(number, each.index(turn), each.count(turn)) for number, each in enumerate(turns) if turn in each]
        assert contexts.there[turn] == bool(places)
        if places:
            number, start, count = places[0]
            start += len(rows[number][1].prompt)
            assert contexts.before(turn).tolist() == sequences[number][:start].tolist()
            assert contexts.action(turn).tolist() == sequences[number][start : start + count].tolist()


class Letters:
    """A fast tokenizer of pairs of letters."""

    is_fast = True
    chat_template = "x"

    def __call__(self, text, add_special_tokens, return_offsets_mapping):
        assert not add_special_tokens and return_offsets_mapping
        starts = range(0, len(text), 2)
        return {
            "input_ids": [ord(text[s]) for s in starts],
            "offset_mapping": [(s, min(s + 2, len(text))) for s in starts],
        }

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [ord(sign) for sign in text]

    def apply_chat_template(self, said, tokenize, return_dict, add_generation_prompt):
        assert tokenize and not return_dict and said[0]["role"] == "user"
        return [1, 2, 3, 4] if add_generation_prompt else [1, 2]


@pytest.mark.parametrize(
    ("texts", "counted"),
    [(("ab", "cd", "ef"), (1, 2)), (("a", "bc", "d"), (0, 2)), (("abc", "d", ""), (1, 2)), (("ab", "", "cd"), (0, 0))],
)
def test_the_tokens_of_a_text_are_those_that_touch_it(texts, counted):
    tokenizer = Letters()
    contexts = Contexts(SimpleNamespace(table=None), [], [], tokenizer)
    tokens, found = contexts.encode_within(*texts)
    assert tokens.tolist() == [ord(sign) for sign in "".join(texts)[::2]] and (found.start, found.stop) == counted
    tokenizer.is_fast = False
    tokens, found = contexts.encode_within(*texts)
    assert tokens.tolist() == [ord(sign) for sign in "".join(texts)]
    assert (found.start, found.stop) == (len(texts[0]), len(texts[0]) + len(texts[1]))
    assert contexts.generation_prompt.tolist() == [3, 4]
    tokenizer.chat_template = None
    assert Contexts(SimpleNamespace(table=None), [], [], tokenizer).generation_prompt.tolist() == []


def test_probes_fill_what_they_promise():
    table = make_table({"episode": [0, 0, 0, 1, 1], "agent": ["a", "b", "a", "a", "a"]})
    assert list(followers(table)) == [(0, 2), (3, 4)]
    questions = [Question(0, np.array([1, 2]), np.array([3])), Question(1, np.array([1]), np.array([3, 4]))]
    answers = [np.array([-1.0]), np.array([-2.0, -4.5])]

    def asked(columns, questions=questions, answers=answers):
        return Asked("p", ("x",), SimpleNamespace(read=lambda table, questions, answers: columns), questions, answers)

    assert asked({"x": [1, 2, 3, 4, 5]}).columns(table)["x"].tolist() == [1, 2, 3, 4, 5]
    for wrong in ({"x": [1.0]}, {"y": [1.0] * 5}, {}, {"x": [1.0] * 5, "y": [1.0] * 5}):
        with pytest.raises(CreditError, match="probe 'p' must fill x with one number for each of the 5 turns"):
            asked(wrong).columns(table)
    assert asked({}).metrics() == {
        **{"hier/probes/p/questions": 2.0, "hier/probes/p/tokens": 6.0, "hier/probes/p/logprob_mean": -2.5}
    }
    assert asked({}, [], []).metrics() == {"hier/probes/p/questions": 0.0, "hier/probes/p/tokens": 0.0}


# Phases, stages, the store


def test_phases_come_back_from_what_travels():
    for phase in (
        Phase("a"),
        Phase("b", frozenset({1}), frozenset({"r"}), ((0, 0.5), (1, 2.0))),
        Phase("c", frozenset()),
    ):
        assert Phase.from_dict(phase.to_dict()) == phase
    assert Phase.from_dict({}) == Phase("joint") and "weights" not in Phase("a").to_dict()
    some = Phase("b", frozenset({1}), frozenset({"r"}))
    assert [some.learns(role, level) for role, level in (("r", 1), ("r", 0), ("x", 1), ("x", 0))] == [
        True,
        False,
        False,
        False,
    ]
    assert Phase("a").learns("x", 9)
    found = phase_metrics("b", ["a", "b"])
    assert found == {"hier/schedule/phase/a": 0.0, "hier/schedule/phase/b": 1.0} and phase_of(found) == "b"
    assert phase_of({"x": 1.0}) == "" and phase_metrics("b", []) == {"hier/schedule/phase/b": 1.0}


def test_stages_admit_what_is_short_enough():
    tasks = [{"horizon": horizon} for horizon in (5, 1, 3, 2, 9)]
    stages = Curriculum(CurriculumOptions(horizons=(2, 5, 9), steps=(2, 3)), tasks)
    assert [stages.longest(step) for step in range(1, 8)] == [2, 2, 5, 5, 5, 9, 9]
    assert [stages.admitted(step) for step in (1, 3, 6)] == [2, 4, 5]
    assert stages.admit(1, [1, 0, 4]) == [1, 3, 1] and stages.admit(6, [0, 4]) == [0, 4]
    assert stages.admit(1, [0], {1}) == [3] and stages.admit(1, [2], {1, 3}) == [1] and stages.admit(1, [1], {1}) == [1]
    for wrong, words in (([{"horizon": 3}], "horizon of 2 or less"), ([{}], "have no `horizon`")):
        with pytest.raises(RecipeError, match=words):
            Curriculum(CurriculumOptions(horizons=(2, 5, 9), steps=(2, 3)), wrong)


def test_tasks_are_drawn_for_the_store_by_their_number():
    assert drawn(3, 7) == zlib.crc32(b"7 3") / 2**32
    values = [drawn(task, 1) for task in range(200)]
    assert 0 <= min(values) < 0.05 and 0.95 < max(values) < 1 and 0.4 < np.mean(values) < 0.6


@pytest.mark.parametrize(
    ("answers", "problem", "failed", "missing", "words"),
    [
        ([Written(1, None), Written(1, None)], None, 0, 0, None),
        ([Written(2, None), Written(0, "gone.")], None, 0, 0, None),
        ([Written(1, None), Written(0, "gone.")], None, 1, 1, "gone."),
        ([Written(1, None)], None, 1, 1, "1 of 2 tasks of step 3 are lost"),
        ([Written(0, None)], "early.", 1, 2, "early."),
        ([ValueError("x"), Written(1, None)], None, 1, 1, "a rollout worker is gone"),
    ],
)
def test_a_step_is_marked_only_when_it_is_whole(
    monkeypatch, caplog, tmp_path, answers, problem, failed, missing, words
):
    marked = []
    monkeypatch.setattr(store_module, "write_credit", lambda *arguments: marked.append(arguments[1:3]))
    monkeypatch.setattr(store_module, "write_card", lambda folder: None)
    removed = []
    monkeypatch.setattr(store_module, "keep_below", lambda folder, size: removed.append(size) or ["step_000001"])
    futures = []
    for answer in answers:
        futures.append(Future())
        if isinstance(answer, Exception):
            futures[-1].set_exception(answer)
        else:
            futures[-1].set_result(answer)
    found = StepInStore(str(tmp_path), 3, 2, futures, problem).finish({}, 0.5)
    assert found == {"hier/store/failed": failed, "hier/store/missing": missing}
    assert marked == ([] if failed else [(3, 2)]) and removed == ([] if failed else [2**29])
    assert (words or "step_000001 removed, because") in caplog.text
    caplog.clear()
    if not failed:
        StepInStore(str(tmp_path), 3, 2, futures).finish({})
        assert removed == [2**29] and not caplog.text

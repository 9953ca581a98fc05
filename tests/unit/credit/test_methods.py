"""Whole methods against slow reference_kernels on random batches."""

import difflib

import numpy as np
import pytest

from tests.conformance.builtin_parts import plugin_module
from tests.fixtures import reference_kernels
from verl_hier.credit import rewards_to_go
from verl_hier.testing import credit_of, make_table
from verl_hier.testing.builtin import estimator, full_credit
from verl_hier.testing.estimator import permuted, random_table

SEEDS = pytest.mark.parametrize("seed", range(4))


def shuffled(seed, **shape):
    return permuted(random_table(seed, **shape), seed)[0]


def paths(table):
    return [table.step_turn[table.step_episode == e].tolist() for e in range(len(table.episodes["return"]))]


@SEEDS
def test_reward_to_go_sums_what_follows(seed):
    table = shuffled(seed, tree=seed % 2 == 1)
    found = rewards_to_go(table, 0.9)
    for turn in range(len(table)):
        through = [path for path in paths(table) if turn in path]
        tails = [sum(0.9**k * table["reward"][t] for k, t in enumerate(path[path.index(turn) :])) for path in through]
        assert found[turn] == pytest.approx(np.mean(tails))


@SEEDS
def test_histories_are_the_last_states(seed):
    table = shuffled(seed, groups=3)
    table.turns["trained"] = np.ones(len(table), bool)
    group, anchor, parent = (table[name].tolist() for name in ("group", "anchor", "parent"))
    for size, (keys, member) in enumerate(plugin_module("estimators.hgpo").histories(table, 2), start=1):
        expected = reference_kernels.history_keys(group, anchor, parent, size)
        assert member.tolist() == [key is not None for key in expected]
        for a in np.flatnonzero(member):
            for b in np.flatnonzero(member):
                assert (keys[a] == keys[b]) == (expected[a] == expected[b])


@SEEDS
def test_tree_values_by_hand(seed):
    """TreeRL and TreePS-RAG from their formulas, node by node."""
    table = shuffled(seed, groups=2, tree=True)
    table.turns["trained"] = np.ones(len(table), bool)
    table.episodes["withheld"] = np.zeros(len(table.episodes["return"]), bool)
    table.episodes["trained"] = np.ones(len(table.episodes["return"]), bool)
    returns, group = table["episodes.return"], table["episodes.group"]
    loo = [
        r - np.mean([x for j, x in enumerate(returns) if group[j] == group[i] and j != i])
        for i, r in enumerate(returns)
    ]
    below = [[e for e, path in enumerate(paths(table)) if turn in path] for turn in range(len(table))]

    def value(episodes):
        return sum(loo[e] for e in episodes) / len(episodes) ** 1.5

    whole = {g: [e for e in range(len(returns)) if group[e] == g] for g in set(group.tolist())}
    values = credit_of("treerl", table, inherit=False)
    simple = credit_of("treeps_rag", table)
    for turn, parent in enumerate(table["parent"]):
        above = below[parent] if parent >= 0 else whole[table["group"][turn]]
        own = value(below[turn])
        assert values[turn] == pytest.approx(2 * own - value(above))
        mean, task = returns[below[turn]].mean(), returns[whole[table["group"][turn]]].mean()
        expected = ((mean - task) + (mean - returns[above].mean())) / len(below[turn]) ** 0.5
        assert simple[turn] == pytest.approx(expected)


@SEEDS
def test_treepo_by_hand(seed):
    table = shuffled(seed, groups=2, tree=True)
    table.turns["trained"] = np.ones(len(table), bool)
    table.episodes["trained"] = np.ones(len(table.episodes["return"]), bool)
    returns, group = table["episodes.return"], table["episodes.group"]
    found = credit_of("treepo", table, whiten=False, average="group_size")
    plain = credit_of("treepo", table, whiten=False)
    for episode, path in enumerate(paths(table)):
        whole = [e for e in range(len(returns)) if group[e] == group[episode]]
        subgroups = [whole] + [[e for e, other in enumerate(paths(table)) if turn in other] for turn in path[:-1]]
        subgroups = [s for s in subgroups if len(s) > 1]
        total = sum(len(s) * (returns[episode] - returns[s].mean()) for s in subgroups)
        expected = total / sum(len(s) for s in subgroups)
        np.testing.assert_allclose(found[table.step_episode == episode], expected, atol=1e-12)
        expected = np.mean([returns[episode] - returns[s].mean() for s in subgroups])
        np.testing.assert_allclose(plain[table.step_episode == episode], expected, atol=1e-12)


def test_treepo_counts_subgroups_of_one_only_where_they_are_asked_for():
    chain = make_table({"parent": [-1, 0, 1, 0], "reward": [0.0, 0.0, 1.0, 0.0]})  # turn 1 has one leaf below it
    leaf = np.append(np.flatnonzero(np.diff(chain.step_episode)), len(chain.step_turn) - 1)
    assert credit_of("treepo", chain, whiten=False)[leaf].tolist() == [0.5, -0.5]
    grouped = credit_of("treepo", chain, whiten=False, average="group_size", count_self=True)[leaf]
    np.testing.assert_allclose(grouped, [(2 * 0.5 + 2 * 0.5) / (2 + 2 + 1 + 1), (2 * -0.5 + 2 * -0.5) / (2 + 2 + 1)])
    alone = make_table({"parent": [-1, 0], "reward": [0.0, 1.0]})
    assert credit_of("treepo", alone, whiten=False).tolist() == [1.0, 1.0]
    assert credit_of("treepo", alone, whiten=False, count_self=True).tolist() == [0.0, 0.0]


def test_spo_siblings_that_are_alone_keep_their_value():
    table = make_table({"parent": [-1, -1, 0, 1, 1], "reward": [0.0, 0.0, 1.0, 0.0, 1.0]})
    values = [
        1.0,
        -1.0,
        1.0,
        -1.0,
        1.0,
    ]  # siblings of (1, .5) and (0, 1) z-scored, the only child of turn 0 keeps its 1
    expected = [1.0, -1.0, values[2] - values[0], values[3] - values[1], values[4] - values[1]]
    np.testing.assert_allclose(credit_of("spo", table, form="treepo_siblings"), expected, atol=1e-9)


def test_spo_leaves_out_tokens_that_were_nearly_certain():
    table = make_table(
        {"parent": [-1, -1], "reward": [1.0, 0.0], "n_tokens": [2, 1]},
        tokens={"turn": [0, 0, 1], "logprob": np.log([0.95, 0.5, 0.9])},
    )
    credit = full_credit("spo", table, most_probable=0.9)
    assert credit.tokens.tolist() == [False, True, False] and credit.values.tolist() == [0.5, -0.5]
    white = full_credit("spo", table, whiten=True).values  # over tokens: 0.5, 0.5 and -0.5
    np.testing.assert_allclose(white, (np.array([0.5, -0.5]) - 1 / 6) / np.std([0.5, 0.5, -0.5], ddof=1))
    certain = full_credit("spo", table, most_probable=0.92, whiten=True).values  # over tokens: 0.5 and -0.5
    np.testing.assert_allclose(certain, np.array([0.5, -0.5]) / np.std([0.5, -0.5], ddof=1))


def test_portool_decays_with_the_distance_of_the_leaf():
    table = make_table({"parent": [-1, 0, 1, 0], "reward": [0.0, 0.0, 1.0, 0.5]})
    table.turns["step_score"] = np.array([0.0, 1.0, 0.0, 0.0])
    module, spec = plugin_module("estimators.portool"), estimator("portool")
    found = module.step_rewards(table, spec.options(gamma=0.5, outcome_weight=2.0, score_weight=0.25))
    np.testing.assert_allclose(found, [2 * (0.25 * 1.0 + 0.5 * 0.5) / 2, 2 * 0.5 + 0.25, 2.0, 1.0])


@SEEDS
def test_hae_by_loops(seed):
    """All three levels, segment by segment."""
    table = shuffled(seed)
    spec = estimator("hiper")
    options = spec.options(gamma=0.9, lam_turn=0.8, lam_seg=0.7, bootstrap_truncated=seed % 2 == 0)
    last = [path[-1] for path in paths(table)]
    table.turns["done"] = np.isin(np.arange(len(table)), last) & (np.arange(len(table)) % 2 == 0)
    reward = table["reward"].astype(float)
    levels = plugin_module("estimators.hiper").hae(table, reward, options)
    low, high, done = table["value_low"], table["value_high"], table["done"]
    for path in paths(table):
        cuts = [0] + [i for i in range(1, len(path)) if table["segment"][path[i]] != table["segment"][path[i - 1]]]
        segments = [path[a:b] for a, b in zip(cuts, [*cuts[1:], len(path)], strict=True)]
        carry = 0.0
        for number in reversed(range(len(segments))):
            turns = segments[number]
            after = segments[number + 1][0] if number + 1 < len(segments) else -1
            alive = 0.0 if done[turns[-1]] else 1.0
            cut = float(options.bootstrap_truncated)
            boot = alive * (high[after] if after >= 0 else cut * high[turns[0]])
            tail = alive * (high[after] if after >= 0 else cut * low[turns[-1]])
            rest, advantage = boot, 0.0
            for place in reversed(range(len(turns))):
                turn = turns[place]
                following = low[turns[place + 1]] if place + 1 < len(turns) else tail
                inner = place + 1 < len(turns)
                advantage = reward[turn] + 0.9 * following - low[turn] + (0.9 * 0.8 * advantage if inner else 0.0)
                rest = reward[turn] + 0.9 * rest
                assert levels.low[turn] == pytest.approx(advantage)
                assert levels.term[turn] == pytest.approx(rest - table["value_term"][turn])
            total = sum(0.9**k * reward[t] for k, t in enumerate(turns))
            power = 0.9 ** len(turns)
            carry = total + power * boot - high[turns[0]] + (power * 0.7 * alive * carry if after >= 0 else 0.0)
            assert levels.high[turns[0]] == pytest.approx(carry)
            assert levels.starts[turns[0]] and not levels.high[turns[1:]].any()


def test_similar_states_join_the_first_that_fits():
    rng = np.random.default_rng(0)
    words = [
        "you are in the hall",
        "you are in the hall.",
        "you are in the kitchen",
        "the fridge is open",
        "fridge open",
    ]
    texts = rng.choice(words, 30)
    group = rng.integers(0, 2, 30)
    table = make_table({"group": group, "reward": np.zeros(30), "anchor": texts})
    found = plugin_module("estimators.gigpo").similar_anchors(table["group"], table["anchor"], table.anchors, 0.8)
    clusters: dict[int, list[str]] = {0: [], 1: []}
    expected = []
    for g, text in zip(group, texts, strict=True):
        match = next((r for r in clusters[g] if difflib.SequenceMatcher(None, text, r).ratio() >= 0.8), None)
        if match is None:
            clusters[g].append(str(text))
            match = str(text)
        expected.append((g, match))
    for a in range(30):
        for b in range(30):
            assert (found[a] == found[b]) == (expected[a] == expected[b])


def test_mars_players_do_not_see_each_other():
    """Changing one player's rewards leaves the other's credit alone, before the batch is whitened."""
    plain = {"whiten_rewards": False, "whiten_advantages": False}
    turns, tokens = {"episode": [0, 0, 0, 0], "agent": [0, 1, 0, 1]}, {"turn": [0, 1, 2, 3]}
    one = credit_of("mars", make_table({**turns, "reward": [1.0, 0.0, 0.5, 0.0]}, tokens=tokens), **plain)
    two = credit_of("mars", make_table({**turns, "reward": [1.0, 9.0, 0.5, 3.0]}, tokens=tokens), **plain)
    np.testing.assert_allclose(one[[0, 2]], two[[0, 2]])
    assert not np.allclose(one[[1, 3]], two[[1, 3]])


def test_votes_by_turn_shift_the_baseline_by_a_covariance():
    """The policy decides when to stop: if long episodes fail more, counting turns makes every episode look good.

    In closed form the mean advantage over episodes is -Cov(turns, return) / E[turns], and 0 with one vote each.
    """
    length, returns = np.array([1, 2, 6, 7]), np.array([1.0, 1.0, 0.0, 0.0])
    episode = np.repeat(np.arange(4), length)
    last = np.append(episode[1:] != episode[:-1], True)
    table = make_table({"episode": episode, "reward": np.where(last, returns[episode], 0.0)})
    by_turn = credit_of("grpo", table, weight_by="turn", scale="none")[last]
    covariance = (length * returns).mean() - length.mean() * returns.mean()
    assert by_turn.mean() == pytest.approx(-covariance / length.mean())
    assert credit_of("grpo", table, scale="none")[last].mean() == pytest.approx(0)


def test_agents_are_compared_with_each_other_while_their_planners_are_frozen():
    """PECO's baseline is that of the highest level that learns; the raw return is never the advantage."""
    turns = {"episode": [0, 0, 0, 1, 1, 2, 2, 3, 3, 3], "level": [0, 1, 1, 0, 1, 0, 1, 0, 1, 1]}
    returns = np.array([1.0, 0.0, 1.0, 0.0])
    expected = (returns - 0.5) / (returns.std(ddof=1) + 1e-6)
    episode, level = np.array(turns["episode"]), np.array(turns["level"])
    together = make_table({**turns, "return": returns[episode]})
    np.testing.assert_allclose(credit_of("coda_peco", together), expected[episode])
    for learns in (0, 1):
        table = make_table({**turns, "return": returns[episode], "trained": level == learns})
        np.testing.assert_allclose(credit_of("coda_peco", table), np.where(level == learns, expected[episode], 0.0))


def test_a_planner_that_plans_longer_has_more_votes_in_agentflow():
    """One row a planner turn, grouped by the question: the mean is that over turns."""
    table = make_table({"episode": [0, 0, 0, 1], "reward": [0.0, 0.0, 1.0, 0.0]})
    deviation = np.std([1, 1, 1, 0], ddof=1)
    np.testing.assert_allclose(credit_of("flow_grpo", table), np.array([0.25, 0.25, 0.25, -0.75]) / (deviation + 1e-6))


@pytest.mark.parametrize(
    ("group", "executions", "split"),
    [
        (None, 2, False),
        (None, 3, True),
        ("auto", 4, True),
        ("question", 4, False),
        ("design", 2, True),
        ("design", 1, False),
    ],
)
def test_metaagent_x_groups_executions_as_released(group, executions, split):
    """Null means the question up to two executions a design, else the design; one execution is never compared alone."""
    designs = 2
    plan = np.repeat(np.arange(designs), executions)
    table = make_table(
        {
            "parent": np.append([-1] * designs, plan),
            "plan": np.append([-1] * designs, plan),
            "level": [0] * designs + [1] * len(plan),
            "reward": np.append([0.0] * designs, np.arange(len(plan)) ** 2.0),
        }
    )
    returns = np.arange(len(plan)) ** 2.0
    whole = [plan == d for d in range(designs)] if split else [np.ones(len(plan), bool)]
    expected = np.zeros(len(plan))
    for members in whole:
        expected[members] = (returns[members] - returns[members].mean()) / (returns[members].std(ddof=1) + 1e-6)
    for number in {executions, 0 if executions > 1 else executions}:
        found = credit_of("metaagent_x", table, executor_group=group, executions=number)[designs:]
        np.testing.assert_allclose(found, expected)

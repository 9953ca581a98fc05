"""Options that follow released training loops, against loops over rows and positions."""

import statistics

import numpy as np
import pytest

from tests.conformance.builtin_parts import plugin_module
from verl_hier.credit.tokens import row_positions
from verl_hier.testing import credit_of, make_table
from verl_hier.testing.builtin import estimator, full_credit
from verl_hier.testing.estimator import random_table

SEEDS = pytest.mark.parametrize("seed", range(4))
NORMS = pytest.mark.parametrize("norm", ["mean_norm", "mean_std_norm"])


def chains(seed, **turns):
    """Random chains of which all turns are trained."""
    table = random_table(seed, groups=3)
    table.turns["trained"] = np.ones(len(table), bool)
    table.episodes["trained"] = np.ones(len(table.episodes["return"]), bool)
    table.turns.update({name: np.asarray(column) for name, column in turns.items()})
    return table


def row_groups(scores, keys, norm, alone):
    """Rows of verl-agent: centred over the rows of a key, divided by their deviation; `alone` says what one row has."""
    values = []
    for score, key in zip(scores, keys, strict=True):
        rows = [other for other, its in zip(scores, keys, strict=True) if its == key]
        mean, spread = statistics.fmean(rows), 1.0
        if len(rows) == 1:
            mean = 0.0 if alone == "raw" else score
        elif norm == "mean_std_norm":
            spread = statistics.stdev(rows)
        values.append((score - mean) / (spread + 1e-6) if norm == "mean_std_norm" else score - mean)
    return np.array(values)


def penalised(table, penalty):
    """What `apply_invalid_action_penalty` leaves: the episode's score and the reward-to-go of every row by itself."""
    wrong = penalty * (table["format"] == 0)
    episode = table["episodes.return"][table["episode"]] - wrong
    to_go = np.zeros(len(table))
    for start in range(len(table)):
        mine = [t for t in range(len(table)) if table["episode"][t] == table["episode"][start]]
        later = [t for t in mine if table["turn"][t] >= table["turn"][start]]
        to_go[start] = sum(0.9 ** (table["turn"][t] - table["turn"][start]) * table["reward"][t] for t in later)
    return episode, to_go - wrong


@SEEDS
@NORMS
def test_a_format_penalty_stays_on_its_own_row(seed, norm):
    table = chains(seed)
    episode, step = penalised(table, 0.5)
    group, state = table["group"].tolist(), list(zip(table["group"], table["anchor"], strict=True))
    outcome = row_groups(episode, group, norm, "raw")
    total = outcome + row_groups(step, state, norm, "zero")
    options = {"gamma": 0.9, "norm": norm, "format_penalty": 0.5}
    np.testing.assert_allclose(credit_of("gigpo", table, **options), total, atol=1e-9)
    scale = "sample" if norm == "mean_std_norm" else "none"
    grpo = credit_of("grpo", table, weight_by="turn", scale=scale, format_penalty=0.5)
    np.testing.assert_allclose(grpo, outcome, atol=1e-9)


def test_the_penalty_leaves_returns_and_rewards_to_go_of_others_alone():
    turns = {"episode": [0, 0, 1, 1], "reward": [0.0, 10.0, 0.0, 0.0], "anchor": [0, 1, 2, 3]}
    table = make_table({**turns, "format": [1, 0, 1, 1]})
    # The turns of a task share one baseline: what one row loses, all of them see as a quarter in the mean.
    assert credit_of("gigpo", table, format_penalty=0.4).tolist() == pytest.approx([5.1, 4.7, -4.9, -4.9])
    assert credit_of("gigpo", table).tolist() == [5, 5, -5, -5]
    by_valid = make_table({**turns, "valid": [True, False, True, True]})
    assert credit_of("gigpo", by_valid, format_penalty=0.4).tolist() == pytest.approx([5.1, 4.7, -4.9, -4.9])


@SEEDS
@pytest.mark.parametrize("base", [False, True])
def test_hgpo_penalises_rows_on_every_level(seed, base):
    """With one state a group there is one level, and the weighted mean is the group's advantage."""
    table = chains(seed)
    episode, step = penalised(table, 0.5)
    states = list(zip(table["group"], table["anchor"], strict=True))
    level = row_groups(step, states, "mean_norm", "zero")
    parts = [(2.0, level)] + [(1.0, row_groups(episode, table["group"].tolist(), "mean_norm", "raw"))] * base
    weight = sum(w * (np.abs(part) > 1e-9) for w, part in parts) + 1e-6
    options = {"history": 0, "gamma": 0.9, "norm": "mean_norm", "base_group": base, "format_penalty": 0.5}
    expected = sum(w * part for w, part in parts) / weight
    np.testing.assert_allclose(credit_of("hgpo", table, **options), expected, atol=1e-9)


@SEEDS
@NORMS
def test_rlvmr_is_the_sum_of_two_row_groups(seed, norm):
    table = chains(seed)
    tagged = list(zip(table["group"], table["tag"], strict=True))
    step = row_groups(table["tag_reward"], tagged, norm, "raw")
    expected = row_groups(penalised(table, 0.2)[0], table["group"].tolist(), norm, "raw") + 0.7 * step
    found = credit_of("rlvmr", table, norm=norm, step_weight=0.7, format_penalty=0.2)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_rlvmr_leaves_untagged_steps_alone_where_asked():
    turns = {"reward": [0.0, 0.0, 0.0], "tag": [-1, -1, 1], "tag_reward": [1.0, 0.0, 1.0]}
    table = make_table(turns)
    assert credit_of("rlvmr", table).tolist() == [0.5, -0.5, 1.0]
    assert credit_of("rlvmr", table, untagged="none").tolist() == [0, 0, 1.0]
    assert credit_of("rlvmr", table, untagged="none", singleton="zero").tolist() == [0, 0, 0]


def padded(table):
    """Rows of a table as the released trainers see them: rewards, masks (rows, positions) and the row of each token."""
    place, row = row_positions(table), table["row"][table["tokens.turn"]]
    shape = (int(row.max()) + 1, int(place.max()) + 2)
    mask, values = np.zeros(shape), np.zeros(shape)
    mask[row, place] = 1
    return mask, values, row, place


@SEEDS
def test_tokens_have_their_place_in_the_response(seed):
    table = chains(seed)
    expected = {}
    for row in set(table["row"].tolist()):
        turns = sorted(np.flatnonzero(table["row"] == row), key=lambda t: table["turn"][t])
        place = -int(table["n_prompt"][turns[0]])
        for turn in turns:
            place += int(table["n_prompt"][turn])
            expected[turn] = list(range(place, place + int(table["n_tokens"][turn])))
            place += int(table["n_tokens"][turn])
    found = row_positions(table)
    for turn, places in expected.items():
        assert found[table["tokens.turn"] == turn].tolist() == places


@SEEDS
def test_igpo_as_its_trainer_runs(seed):
    table = chains(seed)
    table.turns["n_prompt"] = np.full(len(table), 1 + seed % 2)
    mask, rewards, row, place = padded(table)
    ends = np.append(np.diff(table["tokens.turn"]) > 0, True)
    gain = table["info_gain"].copy()
    gain[table["episodes.leaf"]] = table["episodes.return"]
    rewards[row[ends], place[ends]] = gain
    returns, following = np.zeros(mask.shape), np.zeros(len(mask))
    for position in reversed(range(mask.shape[1])):
        returns[:, position] = rewards[:, position] + following
        # The mask that the trainer hands over is the attention mask: observations between turns do not cut the sum.
        following = returns[:, position]
    group = np.zeros(len(mask), int)
    group[table["row"]] = table["group"]
    baseline = np.stack([returns[group == g].mean(0) for g in group])
    credit = full_credit("igpo", table)
    np.testing.assert_allclose(credit.values, (returns - baseline)[row, place], atol=1e-9)
    np.testing.assert_allclose(credit.returns, returns[row, place], atol=1e-9)


def released_mars(table, rewards, gamma, mode, whiten_rewards, whiten_advantages):
    """Steps 2 to 5 on positions 1 and later of padded rows, one row a player's view, with a prompt of two tokens."""
    chain = np.unique(np.stack([table["episode"], table["agent"]]), axis=1, return_inverse=True)[1].ravel()
    length = np.zeros(chain.max() + 1, int)
    start = np.zeros(len(table), int)
    for turn in np.argsort(table["turn"], kind="stable"):
        start[turn] = length[chain[turn]] + table["n_prompt"][turn]
        length[chain[turn]] = start[turn] + table["n_tokens"][turn]
    shape = (len(length), int(length.max()) + 1)
    mask, reward, player = np.zeros(shape), np.zeros(shape), np.zeros(len(length), int)
    for turn in range(len(table)):
        stop = start[turn] + table["n_tokens"][turn]
        mask[chain[turn], start[turn] : stop] = 1
        reward[chain[turn], stop - 1] = rewards[turn]
        player[chain[turn]] = table["agent"][turn]
    mask, reward = mask[:, 1:], reward[:, 1:]

    def white(values):
        inside = values[mask > 0]
        return (values - inside.mean()) / np.sqrt(inside.var(ddof=1) + 1e-8)

    reward = (white(reward) if whiten_rewards else reward) * mask
    for position in reversed(range(reward.shape[1] - 1)):
        reward[:, position] += gamma * reward[:, position + 1]
    values = reward.copy()
    for number in set(player.tolist()):
        distinct = np.unique(np.round(reward[player == number], 12))
        spread = distinct.std(ddof=1) + 1e-6 if mode == "mean_std" else 1.0
        values[player == number] = (reward[player == number] - distinct.mean()) / spread if len(distinct) > 1 else 0.0
    values = (white(values) if whiten_advantages else values) * mask
    place = start[table["tokens.turn"]] + np.concatenate([np.arange(n) for n in table["n_tokens"]])
    return values[chain[table["tokens.turn"]], place - 1]


@SEEDS
@pytest.mark.parametrize(
    ("gamma", "mode", "whiten"), [(1.0, "mean", False), (0.9, "mean_std", True), (1.0, "mean", True)]
)
def test_mars_position_by_position(seed, gamma, mode, whiten):
    table = chains(seed)
    table.turns["agent"] = np.random.default_rng(seed).integers(0, 2, len(table))
    first = np.unique(np.stack([table["episode"], table["agent"]]), axis=1, return_index=True)[1]
    table.turns["n_prompt"] = np.where(np.isin(np.arange(len(table)), first), 2, 1)
    module, spec = plugin_module("estimators.mars"), estimator("mars")
    options = {"gamma": gamma, "advantage_norm": mode, "whiten_rewards": whiten, "whiten_advantages": whiten}
    rewards = module.player_rewards(table, spec.options(**options))
    expected = released_mars(table, rewards, gamma, mode, whiten, whiten)
    np.testing.assert_allclose(credit_of("mars", table, **options), expected, atol=1e-7)


def test_mars_normalises_rewards_for_each_player_of_each_game():
    turns = {"episode": [0, 0, 1, 1, 2, 2], "agent": [0, 1] * 3, "reward": [1.0, 0.0, 0.0, 4.0, 9.0, 5.0]}
    table = make_table(turns, episodes={"source": [0, 0, 1]})
    module, options = plugin_module("estimators.mars"), estimator("mars").options

    def shaped(**given):
        return module.player_rewards(table, options(**given)).tolist()

    assert shaped() == [0.5, -2, -0.5, 2, 0, 0]
    assert shaped(separate_games=False) == pytest.approx([1 - 10 / 3, -3, -10 / 3, 1, 9 - 10 / 3, 2])
    assert shaped(separate_players=False) == [-0.25, -1.25, -1.25, 2.75, 2, -2]
    assert shaped(reward_norm="none") == turns["reward"]
    scaled = shaped(reward_norm="mean_std")
    assert scaled == pytest.approx([0.5**0.5, -(0.5**0.5), -(0.5**0.5), 0.5**0.5, 0, 0], abs=1e-5)
    assert shaped(reward_norm="asym_clip", separate_games=False, separate_players=False)[4] <= 3


def test_at_grpo_without_a_tree_compares_the_last_turns_of_an_episode():
    turns = {"episode": [0, 0, 0, 0, 1, 1], "agent": [0, 1, 0, 1, 0, 1], "reward": [5.0, 7.0, 1.0, 0.0, 1.0, 1.0]}
    table = make_table(turns)
    table.turns["turn"] = np.array([0, 0, 1, 1, 0, 0])
    credit = full_credit("at_grpo", table, group_by=("episode",), keep="last_turn")
    np.testing.assert_allclose(credit.values, [0, 0, 0.5**0.5, -(0.5**0.5), 0, 0], atol=1e-5)
    assert credit.weight.tolist() == [0, 0, 1, 1, 1, 1]


def test_spo_keeps_the_raw_value_of_an_only_child():
    table = make_table({"parent": [-1, -1, 0, 1, 1], "reward": [0.0, 0.0, 3.0, 0.0, 1.0]})
    # Values 3 and 0.5 below the root, z-scored to 1 and -1; 3 is the only child of the first.
    assert credit_of("spo", table, form="treepo_siblings").tolist() == [1, -1, 2, 0, 2]
    zero = credit_of("spo", table, form="treepo_siblings", only_child="zero")
    assert zero.tolist() == [1, -1, -1, 0, 2]


def test_spa_rl_of_the_released_scripts():
    turns = {"episode": [0, 0, 0, 1, 2], "reward": [0.0, 0.0, 1.0, 0.0, 0.5], "valid": [True, False, True, True, True]}
    table = make_table(turns, tokens={"turn": np.arange(5), "value": np.zeros(5)})
    options = {"whiten": False, "gamma": 0.0}
    outcome = credit_of("spa_rl_outcome", table, **options)
    assert outcome.tolist() == pytest.approx([0.75 + 0.5, 0.75, 0.75 + 0.5, -0.75 + 0.5, 0.5])
    left = credit_of("spa_rl_outcome", table, remaining=True, **options)
    assert left.tolist() == pytest.approx([2 * 1.25, 0.75, 0, 0, 0])
    alone = make_table({"episode": [0, 0], "reward": [0.0, 0.3]}, tokens={"turn": [0, 1], "value": [0.0, 0.0]})
    assert credit_of("spa_rl_outcome", alone, grounded_weight=0.0, **options).tolist() == pytest.approx([0.3, 0.3])
    progress = make_table({**turns, "value_progress": [0.2, 0.3, 0.5, 0.0, 0.1]}, tokens=table.tokens)
    progress.tokens["value_token"] = progress.tokens["value"]
    assert credit_of("spa_rl", progress, remaining=True, **options).tolist() == pytest.approx([1.4, 0.3, 0, 0, 0])

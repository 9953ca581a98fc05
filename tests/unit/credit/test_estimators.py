"""What must hold between estimators and on particular batches, beyond fixtures and the kit."""

import numpy as np
import pytest

from tests.conformance.builtin_parts import plugin_module
from verl_hier.credit import whiten
from verl_hier.credit.estimate import check_needs, estimate
from verl_hier.errors import CreditError, PluginError
from verl_hier.graph import TURN_COLUMNS
from verl_hier.testing import builtin_estimators, credit_of, make_table
from verl_hier.testing.builtin import estimator, full_credit
from verl_hier.testing.estimator import random_table

CHAINS, TREES = random_table(21, groups=5), random_table(22, groups=5, tree=True)
TABLES = pytest.mark.parametrize("table", [CHAINS, TREES], ids=["chains", "trees"])


@TABLES
@pytest.mark.parametrize(
    ("name", "options", "plain"),
    [
        ("gigpo", {"omega": 0.0, "norm": "mean_std_norm"}, {"weight_by": "turn"}),
        ("gigpo", {"omega": 0.0}, {"weight_by": "turn", "scale": "none"}),
        ("portool", {"fork_weight": 0.0}, {}),
        ("hrpo", {"action_weight": 0.0}, {}),
        ("rlvmr", {"step_weight": 0.0, "norm": "mean_std_norm"}, {"weight_by": "turn"}),
        ("seeupo", {"max_weight": 1.0}, {}),
        ("arpo", {"attribution": "hard"}, {}),
        ("tree_grpo", {"variant": "inter", "shared": "average"}, {}),
        ("chain_of_agents", {}, {}),
        ("flow_grpo", {}, {"weight_by": "turn"}),
        ("flow_grpo", {"weight_by": "episode"}, {}),
        ("arise", {"skill_reward": 0.0}, {}),
    ],
)
def test_weight_zero_is_plain_grpo_bit_for_bit(name, options, plain, table):
    assert np.array_equal(credit_of(name, table, **options), credit_of("grpo", table, **plain))


@TABLES
def test_aepo_without_entropy_is_grpo(table):
    credit = full_credit("aepo", table, entropy_weight=0.0)
    assert np.array_equal(credit.values, credit_of("grpo", table, shared="repeat"))
    assert (np.asarray(credit.factor) == 1).all()


@TABLES
def test_soft_attribution_repeats_the_chain(table):
    steps = credit_of("arpo", table)
    assert np.array_equal(steps, credit_of("grpo", table, shared="repeat"))


def test_an_episode_has_one_vote_however_long():
    short = make_table({"episode": [0, 1, 2], "reward": [1.0, 0.0, 0.5]})
    long = make_table({"episode": [0, 0, 0, 1, 2], "reward": [0.0, 0.0, 1.0, 0.0, 0.5]})
    np.testing.assert_allclose(credit_of("grpo", long)[2:], credit_of("grpo", short))
    assert credit_of("grpo", long, weight_by="turn")[4] < credit_of("grpo", short)[2]
    agents = {"group_by": ("group", "agent"), "weight_by": "episode"}
    np.testing.assert_allclose(credit_of("grpo", long, **agents)[2:], credit_of("grpo", short))


def test_roles_and_rows_can_vote():
    table = make_table(
        {"episode": [0, 0, 0, 1], "role": [0, 0, 1, 0], "row": [0, 0, 0, 1], "reward": [0.0, 0.0, 1.0, 0.0]}
    )
    expected = make_table({"reward": [1.0, 1.0, 0.0]})
    np.testing.assert_allclose(credit_of("grpo", table, weight_by="role")[0], credit_of("grpo", expected)[0])
    keys = {"group_by": ("group", "turn"), "weight_by": "row"}
    assert np.isfinite(credit_of("grpo", table, **keys)).all()


def test_a_dropped_singleton_leaves_the_loss():
    table = make_table({"group": [0, 0, 1], "reward": [1.0, 0.0, 1.0]})
    spec = estimator("grpo")
    credit = estimate(spec, table, spec.options(singleton="drop"))
    assert credit.weight.tolist() == [1, 1, 0] and credit.values[2] == 0
    credit = estimate(spec, table, spec.options(singleton="drop", group_by=("group", "tree")))
    assert credit.weight.tolist() == [0, 0, 0]
    credit = estimate(spec, table, spec.options(singleton="drop", group_by=("group", "turn")))
    assert credit.weight.tolist() == [1, 1, 0]


def test_evaluation_has_no_say():
    """A greedy episode that wins neither gets credit nor moves the baseline."""
    turns = {"reward": [1.0, 0.0, 9.0], "trained": [True, True, False]}
    alone = make_table({"reward": [1.0, 0.0]})
    for name in ("grpo", "rloo", "dr_mas", "mc_grpo", "chain_of_agents"):
        values = credit_of(name, make_table(turns))
        np.testing.assert_allclose(values[:2], credit_of(name, alone), err_msg=name)
        assert values[2] == 0


def test_himac_independent_plans_use_the_task():
    """One execution a blueprint: plan groups would be silent, so `auto` compares over the task."""
    turns = {
        "episode": [0, 0, 1, 1],
        "level": [0, 1, 0, 1],
        "plan": [-1, 0, -1, 2],
        "reward": [0.0, 1.0, 0.0, 0.0],
    }
    table = make_table(turns)
    np.testing.assert_allclose(credit_of("himac", table), [0.707106, 0.707106, -0.707106, -0.707106], rtol=1e-5)
    assert credit_of("himac", table, micro_group="plan")[[1, 3]].tolist() == [0, 0]


def test_himac_levels_stand_alone():
    """Changing executions of one blueprint leaves the credit of the others' executions alone."""
    plan = [0, 0, 1, 1]
    turns = {"parent": [-1, -1, *plan], "level": [0, 0, 1, 1, 1, 1], "plan": [-1, -1, *plan]}
    before = credit_of("himac", make_table({**turns, "reward": [0.0, 0, 1, 0, 1, 0]}))
    after = credit_of("himac", make_table({**turns, "reward": [0.0, 0, 1, 0, 5, 0]}))
    np.testing.assert_allclose(before[2:4], after[2:4])
    assert before[0] == 0 and after[0] < 0


def test_gigpo_similarity_needs_texts():
    table = make_table({"reward": [1.0, 0.0], "anchor": [0, 0]})
    with pytest.raises(CreditError, match="needs the text"):
        credit_of("gigpo", table, similarity=0.9)
    texts = make_table({"reward": [1.0, 0.0], "anchor": ["the hall is dark", "the hall is darker"]})
    assert credit_of("gigpo", texts, similarity=0.9)[0] == pytest.approx(1.0)
    assert credit_of("gigpo", texts)[0] == pytest.approx(0.5)


def test_turns_may_come_in_any_order():
    turns = {"episode": [0, 0, 0], "turn": [2, 0, 1], "reward": [4.0, 1.0, 2.0], "anchor": [7, 7, 7]}
    ordered = {"episode": [0, 0, 0], "turn": [0, 1, 2], "reward": [1.0, 2.0, 4.0], "anchor": [7, 7, 7]}
    values = credit_of("gigpo", make_table(turns), omega=1.0)
    np.testing.assert_allclose(values[[1, 2, 0]], credit_of("gigpo", make_table(ordered), omega=1.0))


def test_hiper_levels_only_speak_on_their_tokens():
    table = random_table(9)
    credit = credit_of("hiper", table, norm_adv=False)
    covered = table["tokens.action"] | table["tokens.subgoal"] | table["tokens.switch"]
    assert covered.all() and credit.any()
    later = table["turn"][table["tokens.turn"]] % 2 == 1
    assert not credit[table["tokens.subgoal"] & later].any()
    both = credit_of("hiper", table, norm_adv=False, high_to_switch=True)
    first = table["tokens.switch"] & ~later
    high = credit_of("hiper", table, norm_adv=False, high_to_switch=True, term_to_switch=False)
    np.testing.assert_allclose(both[first], credit[first] + high[first])


def test_hiper_trains_the_tokens_that_carry_a_level():
    table = random_table(9)
    later = table["turn"][table["tokens.turn"]] % 2 == 1
    carried = table["tokens.action"] | (table["tokens.subgoal"] & ~later) | table["tokens.switch"]
    expected = carried & table["trained"][table["tokens.turn"]]
    assert np.array_equal(full_credit("hiper", table).tokens, expected)
    assert full_credit("hiper", table, only_credited=False).tokens is None
    del table.turns["value_term"]
    assert not full_credit("hiper", table).tokens[table["tokens.switch"]].any()


def test_hiper_reads_the_low_value_behind_the_subgoal():
    tokens = {
        "turn": [0, 0, 0, 0, 1, 1, 2, 2],
        "switch": [True, False, False, False, True, False, False, False],
        "subgoal": [False, True, True, False, False, False, True, True],
        "action": [False, False, False, True, False, True, False, False],
    }
    table = make_table({"episode": [0, 0, 0, 0]}, tokens=tokens)
    places = plugin_module("value_heads.hiper").behind_subgoal(table)
    # Behind the subgoal, behind the switch where there is none, the first token where nothing follows, and none.
    assert places.tolist() == [3, 5, 6, -1]


def test_hiper_teaches_each_head_its_own_target():
    table = random_table(9)
    credit = full_credit("hiper", table, norm_adv=False)
    assert credit.targets.keys() == {"low", "high", "term"}
    starts = np.isfinite(credit.targets["high"])
    assert 0 < starts.sum() < len(table) and np.isfinite(credit.targets["low"]).all()
    del table.turns["value_term"]
    assert "term" not in full_credit("hiper", table).targets


def test_hiper_compares_subgoals_that_are_missing_where_asked():
    turns = {"episode": [0] * 5, "segment": [0] * 5, "subgoal": [0, 0, 1, -1, -1], "switch": [1, 0, 0, 0, 0]}
    table = make_table({**turns, "value_low": np.zeros(5), "valid": [True, False, True, True, True]})
    module, options = plugin_module("estimators.hiper"), estimator("hiper").options

    def shaped(**given):
        return module.shaped_rewards(table, options(format_penalty=0.0, **given)).tolist()

    assert shaped(consistency_penalty=-0.3) == [0, 0, -0.3, 0, 0]
    assert shaped(consistency_penalty=-0.3, consistency_needs_both=False) == [0, 0, -0.3, -0.3, -0.3]
    assert module.shaped_rewards(table, options(format_penalty=0.1)).tolist() == [0, -0.1, 0, 0, 0]
    table.turns["format"] = np.array([0, 1, 1, 1, 1])
    assert module.shaped_rewards(table, options(format_penalty=0.1)).tolist() == [-0.1, 0, 0, 0, 0]


def test_hiper_without_heads_falls_back():
    table = random_table(9)
    del table.turns["value_high"], table.turns["value_term"]
    spec = estimator("hiper")
    credit = estimate(spec, table)
    assert not np.asarray(credit.values)[table["tokens.switch"] & (table["n_tokens"][table["tokens.turn"]] > 2)].any()


def test_marft_bootstraps_a_cut_episode():
    turns = {"episode": [0, 0], "reward": [0.0, 0.0], "value": [0.0, 0.0], "done": [False, False]}
    options = {"gamma": 1.0, "lam": 1.0, "normalise": False}
    assert credit_of("marft", make_table(turns), **options).tolist() == [0, 0]
    cut = make_table({**turns, "bootstrap": [0.0, 2.0]})
    assert credit_of("marft", cut, **options).tolist() == [2, 2]
    ended = make_table({**turns, "bootstrap": [0.0, 2.0], "done": [False, True]})
    assert credit_of("marft", ended, **options).tolist() == [0, 0]


def test_ragen_sees_a_turn_without_reward():
    """The released code finds turn ends by non-zero rewards; ours are explicit."""
    tokens = {"turn": [0, 0, 1], "value": [0.1, 0.2, 0.3]}
    table = make_table({"episode": [0, 0], "reward": [0.0, 1.0]}, tokens=tokens)
    values = credit_of("ragen_bilevel", table, high_gamma=0.5, whiten=False)
    np.testing.assert_allclose(values, [0.4, 0.3, 0.7])


def test_marft_token_is_the_action_form_on_one_token_turns():
    turns = {"episode": [0, 0, 1], "reward": [0.0, 1.0, 0.5], "value": [0.1, 0.2, 0.3]}
    table = make_table(turns, tokens={"turn": [0, 1, 2], "value": [0.1, 0.2, 0.3]})
    np.testing.assert_allclose(credit_of("marft_token", table), credit_of("marft", table))


def test_role_rewards_are_added_as_columns():
    table = random_table(4)
    for name in ("mae", "comas", "cory", "arise"):
        plugin_module(f"estimators.{name}").hier_table_ready(table, 0)
        assert np.isfinite(table[f"{name}_reward"]).all()
        assert np.isfinite(credit_of("grpo", table, score=f"{name}_reward", group_by=("group", "role"))).all()
    bare = make_table({"reward": [1.0]})
    for name in ("mae", "comas", "cory", "arise"):
        plugin_module(f"estimators.{name}").hier_table_ready(bare, 0)
        assert f"{name}_reward" not in bare


def test_mae_example_of_a_poor_question():
    turns = {"role": ["proposer", "solver", "judge"], "judge": [0.6, 1.0, 0.0], "format": [1.0, 1.0, 1.0]}
    module = plugin_module("estimators.mae")
    assert module.role_rewards(make_table(turns), module.MAEOptions())[0] == pytest.approx(0.533333, abs=1e-6)
    with pytest.raises(CreditError, match="no role is called proposer or solver or judge"):
        credit_of("mae", make_table({**turns, "role": ["planner", "executor", "executor"]}))


def test_spa_progress_is_fitted_to_the_return():
    table = make_table({"episode": [0, 0, 1], "reward": [0.0, 1.0, 0.0]})
    module = plugin_module("estimators.spa_rl")
    assert module.progress_loss(table, [0.4, 0.6, 0.0]) == pytest.approx(0)
    assert module.progress_loss(table, [0.0, 0.0, 1.0]) == pytest.approx(1)


def test_spa_progress_learns_by_the_gradient_of_its_loss():
    table = random_table(4)
    table.turns["trained"] = np.ones(len(table), bool)
    module = plugin_module("estimators.spa_rl")
    said, step = np.asarray(table["value_progress"]), 1e-6
    targets = full_credit("spa_rl", table).targets
    for turn in range(0, len(table), 7):
        moved = [said + sign * step * (np.arange(len(table)) == turn) for sign in (1, -1)]
        losses = [module.progress_loss(table, progress) * len(table.episodes["return"]) for progress in moved]
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(2 * (said - targets["progress"])[turn], rel=1e-4, abs=1e-6)
    assert targets["token"].shape == table["tokens.turn"].shape
    np.testing.assert_array_equal(module.turn_ends(table), np.cumsum(table["n_tokens"]) - 1)


def test_archer_token_baseline():
    table = make_table(
        {"reward": [0.0], "q1": [1.0], "q2": [2.0], "v1": [0.5], "v2": [0.2]},
        tokens={"turn": [0, 0], "baseline": [0.1, 0.3]},
    )
    np.testing.assert_allclose(credit_of("archer", table), [0.7, 0.5])


def test_utility_of_a_skill():
    assert plugin_module("estimators.arise").utility(1.0, 0.0) == pytest.approx(0.9)


def test_whitened_estimators_are_white():
    values = credit_of("mae", CHAINS)
    np.testing.assert_allclose(values, whiten(values, CHAINS["trained"], weights=CHAINS["n_tokens"]), atol=1e-6)
    tokens = credit_of("mars", CHAINS)
    np.testing.assert_allclose(tokens, whiten(tokens, CHAINS["trained"][CHAINS["tokens.turn"]]), atol=1e-6)


def test_nan_rewards_are_refused_by_name():
    for name in ("grpo", "gigpo", "treerl", "hiper"):
        table = random_table(3)
        table.turns["reward"][5] = np.nan
        with pytest.raises(CreditError, match="turn column 'reward' must be finite: entry 5 is nan"):
            credit_of(name, table)


def test_a_missing_column_is_one_sentence():
    for name, spec in builtin_estimators().items():
        for column in spec.requires:
            with pytest.raises(CreditError, match=column.rpartition(".")[2]) as caught:
                check_needs(spec, [other for other in spec.requires if other != column])
            assert f"estimator '{name}' needs the column '{column}'" in str(caught.value)
            assert "`hier." in str(caught.value) or "`critic." in str(caught.value)
        check_needs(spec, [*random_table(0).columns(), *TURN_COLUMNS])


def test_results_are_checked():
    spec = estimator("grpo")
    table = make_table({"reward": [1.0, 0.0]})

    def with_factory(result):
        import dataclasses

        return dataclasses.replace(spec, factory=lambda table, options: result)

    with pytest.raises(CreditError, match=r"shape \(3,\)"):
        estimate(with_factory(np.zeros(3)), table)
    with pytest.raises(CreditError, match="returned nan"):
        estimate(with_factory(np.array([np.nan, 0.0])), table)
    from verl_hier.credit import Credit

    with pytest.raises(CreditError, match="loss weight"):
        estimate(with_factory(Credit(np.zeros(2), weight=np.array([1.0, -1.0]))), table)


def test_unknown_estimator():
    with pytest.raises(PluginError, match="did you mean 'grpo'"):
        estimator("grppo")


def test_aepo_takes_the_surprise_where_there_is_no_entropy():
    table = random_table(6)

    def factor(**options):
        return np.asarray(full_credit("aepo", table, **options).factor)

    surprise = factor(entropy="surprise")
    assert not np.allclose(factor(), surprise)
    del table.tokens["entropy"]
    assert np.array_equal(factor(), surprise)
    with pytest.raises(CreditError, match=r"no column 'tokens\.entropy'"):
        factor(entropy="entropy")


def test_aepo_counts_a_shared_token_once_for_each_row_that_trains_it():
    table = make_table(
        {"parent": [-1, 0, 0], "reward": [0.0, 1.0, 0.0]},
        tokens={"turn": [0, 1, 2], "entropy": [1.0, 2.0, 6.0], "logprob": [-1.0, -1.0, -1.0]},
    )
    rows = np.array([1.0, 2.0, 1.0, 6.0])  # turn 0 is in both rows
    expected = 1 + 0.2 * (np.array([1.0, 2.0, 6.0]) - rows.mean()) / rows.std(ddof=1)
    credit = full_credit("aepo", table)
    np.testing.assert_allclose(credit.factor, expected)
    assert credit.per == "step" and credit.values[0] == -credit.values[2]  # turn 0 of either chain
    once = full_credit("aepo", table, shared="average")
    np.testing.assert_allclose(once.factor, 1 + 0.2 * np.array([-2.0, -1.0, 3.0]) / np.std([1, 2, 6], ddof=1))
    assert once.per == "turn" and once.values[0] == 0.0

"""The author kit passes on every built-in and catches what it promises to catch."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from verl_hier.credit import Credit, episode_advantage, share
from verl_hier.host.specs import EstimatorSpec
from verl_hier.testing import builtin_estimators
from verl_hier.testing.estimator import check_estimator, make_table, permuted, random_table

SPECS = builtin_estimators()
VARIANTS = {
    "grpo": [
        {"group_by": ("group", "agent"), "weight_by": "episode"},
        {"weight_by": "role"},
        {"singleton": "drop"},
        {"shared": "owner"},
        {"format_penalty": 0.1},
    ],
    "gigpo": [{"norm": "mean_std_norm", "weight_by": "episode"}, {"format_penalty": 0.1}],
    "hgpo": [
        {"base_group": True, "norm": "mean_norm", "history": 0},
        {"base_group": True, "format_penalty": 0.1},
    ],
    "himac": [{"micro_group": "group"}, {"micro_group": "plan", "weight_by": "turn", "scale": "none"}],
    "hiper": [
        {"bootstrap_truncated": True, "norm_adv": False, "gamma": 0.9, "keep_penalty": -0.3},
        {"high_to_switch": True, "consistency_needs_both": False, "consistency_penalty": -0.3},
    ],
    "rlvmr": [
        {"episode_weight": 0.5, "step_weight": 0.5, "norm": "mean_std_norm", "singleton": "zero", "untagged": "none"},
        {"format_penalty": 0.1, "weight_by": "episode"},
    ],
    "igpo": [{"form": "paper", "gamma": 0.9}, {"form": "discounted", "gamma": 0.5}],
    "at_grpo": [{"group_by": ("episode",), "keep": "last_turn"}],
    "spa_rl": [{"remaining": True}],
    "metaagent_x": [{"executor_group": "auto"}, {"executor_group": "design", "weight_by": "episode"}],
    "dr_mas": [{"agent_wise": False}, {"agent_wise": False, "baseline": "rloo"}],
    "tree_grpo": [{"variant": "tree_2norm", "shared": "repeat"}, {"singleton": "raw"}],
    "treerl": [{"centre": "token"}, {"damping": "uniform"}, {"centre": "step", "inherit": False, "state_value": False}],
    "treepo": [{"average": "group_size", "drop_flat": True}, {"count_self": True}],
    "spo": [
        {"form": "grpo"},
        {"form": "treepo_siblings"},
        {"form": "treepo_siblings", "only_child": "zero"},
        {"best_of": 0},
        {"most_probable": 0.9, "whiten": True},
    ],
    "portool": [{"aggregate": "max", "score_weight": 0.5}, {"gamma": 0.9, "outcome_weight": 2.0}],
    "mars": [
        {"advantage_norm": "mean_std", "separate_players": False},
        {"gamma": 0.9, "reward_norm": "asym_clip", "separate_games": False},
    ],
    "mc_grpo": [{"no_deviation": "zero", "drop_pivot": False}],
    "branchgrpo": [{"prune": 0.2}],
    "cory": [{"baseline": "critic"}],
    "at2po": [
        {"value": "child_mean", "advantage": "diff_parent", "entropy": "entropy"},
        {"value": "leaf_mean", "advantage": "diff_localglobal", "normalise": False},
    ],
    "branpo": [{"scale": "none", "drop_uniform": True}],
    "c3": [
        {"variant": "value_assisted", "alpha": 0.5, "standardise": False},
        {"variant": "value_only", "baseline": "full_mean", "replay": False},
    ],
    "ccpo": [
        {"roles": ("planner",), "group_solo_baseline": False, "norm_by_std": True},
        {"roles": ("planner",), "event_bonus": False},
        {"reward": "history"},
    ],
    "ppr": [{"renorm": False, "gamma": 0.9, "lam": 0.9}],
    "m_grpo": [{"norm_by_std": False, "sound": 0.0}],
    "sharp": [{"norm_by_std": False}],
    "sepo": [{"first": ("planner",), "centre_by_task": False, "norm_by_std": True}],
    "mars2": [{"advantage": "rloo", "mix": 1.0}, {"advantage": "mean", "mix": 0.0}],
    "magrpo": [{"baseline": "rloo"}, {"baseline": "max", "discount": 0.5}, {"baseline": "raw"}],
    "epo": [{"strength": 1.0}],
    "epo_explicit": [{"gamma": 0.9}],
    "ipa": [{"most_mismatch": None, "offset": 0.5}],
    "rae": [{"gamma": 0.9, "drop_zero": False, "mask_cut": False}],
    "rtmc": [{"gamma": 0.9, "shrink": 1.0}],
    "treerpo": [{"scale": "none", "least_spread": 0.0}],
}


@pytest.mark.parametrize("name", SPECS)
def test_every_builtin_passes(name):
    check_estimator(SPECS[name])


@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, all_ in VARIANTS.items() for options in all_], ids=str
)
def test_variants_pass_too(name, options):
    """Columns beyond `requires` may be read by options that are not the default ones."""
    spec = SPECS[name]
    columns = tuple(column for column in random_table(0).columns() if column not in spec.requires)
    wide = dataclasses.replace(spec, requires=(*spec.requires, *columns))
    check_estimator(wide, spec.options(**options), timing=False)


def good(table, options):
    return share(table, episode_advantage(table)[table.step_episode], "average")


BASE = EstimatorSpec(
    name="probe",
    factory=good,
    requires=("trained", "episodes.return", "episodes.group", "episodes.trained"),
)


def probe(factory, **changes):
    return dataclasses.replace(BASE, factory=factory, **changes)


def order(table, options):
    return good(table, options).values * np.linspace(1, 2, len(table))


def greedy(table, options):
    return np.ones(len(table)) + good(table, options).values


def mutating(table, options):
    table.episodes["return"] *= 2.0
    return good(table, options)


def random(table, options):
    return good(table, options).values * np.random.default_rng().random()


def fragile(table, options):
    returns = table["episodes.return"] + 0 * table["episodes.group"]
    with np.errstate(all="ignore"):
        return share(table, ((returns - returns.mean()) / returns.std())[table.step_episode], "average")


def slow(table, options):
    returns = np.asarray(table["episodes.return"])
    for _ in range(30):
        (returns[:, None] > returns[None, :]).sum()
    return good(table, options)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (probe(good, requires=("trained", "episodes.return", "episodes.group")), "does not declare"),
        (probe(good, requires=(*BASE.requires, "anchor")), "does not read: anchor"),
        (probe(good, requires=(*BASE.requires, "mystery")), "pass `columns`"),
        (probe(good, granularity="token"), "credit per turn"),
        (probe(lambda table, options: 0.0 * good(table, options).values), "no credit at all"),
        (probe(greedy), "not trained"),
        (probe(order), "order of the rows"),
        (probe(mutating), "changes its input: column 'episodes.return'"),
        (probe(random), "different credit|order of the rows"),
        (probe(fragile), "degenerate"),
        (probe(slow), "does not scale linearly"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_estimators_are_caught(spec, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_estimator(spec)


def test_low_precision_is_caught():
    low = probe(lambda t, o: Credit(_float32(good(t, o).values, t)))
    with pytest.raises(AssertionError, match="precision"):
        check_estimator(low, timing=False)


def _float32(values, table):
    """Credit that depends on the width of the columns."""
    return values * (1.01 if table.episodes["return"].dtype == np.float32 else 1.0)


@dataclass(frozen=True)
class Own:
    column: str = "mine"


def test_columns_of_ones_own():
    def factory(table, options):
        return np.where(table["trained"], table["mine"] + table["tokens.more"][0] * 0, 0.0)

    spec = EstimatorSpec(name="own", factory=factory, options=Own, requires=("mine", "trained", "tokens.more"))
    fills = {"mine": lambda rng, n: rng.random(n), "tokens.more": lambda rng, n: np.ones(n)}
    check_estimator(spec, columns=fills, timing=False)


def test_permuted_tables_are_the_same_batch():
    table = random_table(2, tree=True)
    other, turns, steps, tokens = permuted(table)
    assert (other["reward"] == table["reward"][turns]).all()
    assert (other.step_episode[1:] >= other.step_episode[:-1]).all()
    assert (turns[other.step_turn] == table.step_turn[steps]).all()
    assert (np.diff(other["tokens.turn"]) >= 0).all()
    assert (other["tokens.value"] == table["tokens.value"][tokens]).all()
    inner = other["parent"] >= 0
    assert (turns[other["parent"][inner]] == table["parent"][turns[inner]]).all()


def test_make_table_derives_what_is_missing():
    table = make_table({"episode": ["b", "a", "b"], "reward": [1.0, 5.0, 2.0], "role": ["x", "y", "x"]})
    assert table["episodes.return"].tolist() == [5.0, 3.0] and table["return"].tolist() == [3.0, 5.0, 3.0]
    assert table["turn"].tolist() == [0, 0, 1] and table["parent"].tolist() == [-1, -1, 0]
    assert table["done"].tolist() == [False, True, True] and table.code("role", "y") == 1


def test_one_door_for_the_kits_and_a_line_about_each():
    """What the package of kits offers is importable from it, documented in it, and loads no trainer."""
    import subprocess
    import sys

    from verl_hier import testing

    offered = [name for name in vars(testing) if name.startswith(("check_", "run_", "roll_", "replay_", "write_"))]
    assert {"check_estimator", "check_environment", "roll_out_scripted", "replay_scripted"} <= set(offered)
    for name in (*offered, "make_table", "random_table", "builtin_estimators"):
        assert f"`{name}`" in testing.__doc__, name
    heavy = "import sys, verl_hier.testing; print(sorted({'verl', 'torch', 'ray', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True).stdout.strip() == "[]"


def test_an_estimator_of_unknown_origin_is_unrated():
    assert BASE.confidence == "unrated"
    assert all(spec.confidence in "ABC" for spec in SPECS.values())

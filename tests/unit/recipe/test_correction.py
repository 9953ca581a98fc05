"""Settings of verl's rollout correction: refused here if and only if verl refuses them in the first step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.errors import RecipeError
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.checks.correction import CRITERIA, LEVELS, LINE, check_correction
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe

CRITERION = st.sampled_from([*CRITERIA, "nonsense", "token", "k1", "seq_max_k1", "", "Token_k1"])
THRESHOLD = st.sampled_from(["2", "0.5_2", "2_0.5", "0", "-1", "x", "_", "1_", "", "1e3", "0.9_1.1", "2.0 "])


@settings(max_examples=300, deadline=None)
@given(
    level=st.sampled_from([None, *LEVELS, "sequences", "tokens", 3, "geometric"]),
    level_threshold=st.one_of(THRESHOLD, st.sampled_from([2.0, 1, 0, -2.0, True, None])),
    criteria=st.one_of(st.none(), st.lists(CRITERION, max_size=3).map(",".join), st.just(3)),
    thresholds=st.one_of(
        st.none(), st.lists(THRESHOLD, max_size=3).map(",".join), st.sampled_from([2.0, 0, -1.0, True])
    ),
)
def test_it_is_refused_where_verl_refuses_it(
    level: object, level_threshold: object, criteria: object, thresholds: object
) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    given_ = {
        "rollout_is": level,
        "rollout_is_threshold": level_threshold,
        "rollout_rs": criteria,
        "rollout_rs_threshold": thresholds,
    }
    rows = torch.zeros(2, 3)
    try:
        compute_rollout_correction_and_rejection_mask(rows, rows, torch.ones(2, 3), **given_)
        runs = True
    except Exception:
        runs = False
    config = {"algorithm": {"rollout_correction": given_}}
    recipe = ComposedRecipe.__new__(ComposedRecipe)
    object.__setattr__(recipe, "config", config)
    try:
        check_correction(recipe)
        passes = True
    except RecipeError as error:
        passes = False
        assert str(error).startswith(LINE)
    # What has no effect is no error of verl: a threshold that nothing reads, a level without one. True counts as 1.
    if passes:
        assert runs, given_
    elif runs:
        without_effect = (criteria is None and thresholds is not None) or (level and level_threshold is None)
        assert without_effect or thresholds is True, given_


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["rollout_rs=nonsense"], "rollout_rs"),
        (["rollout_is=sequences"], "rollout_is"),
        (["rollout_rs=token_k1"], "rollout_rs_threshold"),
        (["rollout_rs='token_k1,seq_mean_k3'", "rollout_rs_threshold='0.5_2,1_2'"], "rollout_rs_threshold"),
        (["loss_type=ppo"], "loss_type"),
    ],
)
def test_the_check_names_the_line(overrides: list[str], line: str) -> None:
    with pytest.raises(RecipeError) as refused:
        check_recipe(compose("grpo_sokoban", [f"{LINE}.{override}" for override in overrides]))
    assert str(refused.value).startswith(f"{LINE}.{line}: ")


@pytest.mark.parametrize("line", ["lora_rank=8", "lora.rank=8"])
def test_an_adapter_is_served_merged_or_apart(line: str) -> None:
    for merge in ("false", "true"):
        lines = [f"actor_rollout_ref.model.{line}", f"actor_rollout_ref.model.lora.merge={merge}"]
        check_recipe(compose("grpo_sokoban", lines))

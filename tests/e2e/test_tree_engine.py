"""The real trainer learns the same with the tree engine as with verl's own, under ours and under stock verl."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.e2e.test_parity import overrides as stock_overrides
from tests.e2e.test_parity import parameters
from verl_hier.recipe.compose import overridden

STEPS = 3
SHARED = [
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={STEPS}",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.1",
    "actor_rollout_ref.actor.entropy_coeff=0.01",
    # Small enough that the stock engine has several micro-batches.
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=192",
]
ARPO = ["hier.sampler={name: arpo, initial_rollouts: 2}", "hier.estimator={name: arpo}"]
SAME = ("actor/pg_loss", "actor/loss", "actor/grad_norm", "actor/kl_loss", "actor/entropy_loss", "actor/entropy")


def cases(model: Path) -> dict[str, tuple[str, list[str]]]:
    plain = [line for line in stock_overrides(model) if "save_freq" not in line and "total_training" not in line]
    return {
        "himac": ("himac_bytes", []),
        "arpo": ("grpo_bytes", ARPO),
        "grpo": ("ppo_trainer", ["+hier/size=cpu", "trainer.v1.trainer_mode=probe_sync", *plain]),
    }


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("himac", marks=pytest.mark.long),
        pytest.param("arpo", marks=pytest.mark.long),
        pytest.param("grpo", marks=pytest.mark.slow),
    ],
)
def test_the_same_steps_as_the_stock_engine(train, byte_model, case):
    recipe, lines = cases(byte_model)[case]
    runs, weights = {}, {}
    for engine in ("stock", "tree"):
        choice = f"+hier/engine={engine}" if recipe == "ppo_trainer" else f"engine={engine}"
        runs[engine] = train(recipe, overridden([*lines, *SHARED, choice]), engine)
        assert runs[engine].code == 0, runs[engine].log[-3000:]
        weights[engine] = parameters(train.folder / engine)
    stock, tree = runs["stock"], runs["tree"]
    assert len(stock.steps) == len(tree.steps) == STEPS
    for name in SAME:
        expected = stock.metric(name)
        assert len(expected) == STEPS, name
        assert tree.metric(name) == pytest.approx(expected, rel=1e-5, abs=1e-7), name
    assert min(stock.metric("actor/grad_norm")) > 0
    assert max(tree.metric("training/rollout_probs_diff_max")) < 1e-5
    assert not stock.metric("actor/sharing/unique_share")
    assert max(tree.metric("actor/sharing/forwarded_share")) < 0.95, "something is shared, or nothing is tested"
    distance = sum(float((weights["tree"][name] - value).square().sum()) for name, value in weights["stock"].items())
    size = sum(float(value.square().sum()) for value in weights["stock"].values())
    assert distance**0.5 < 1e-4 * size**0.5
    assert all(torch.isfinite(value).all() for value in weights["tree"].values())


@pytest.mark.slow
def test_stock_verl_on_two_ranks_keeps_groups_together(train, byte_model):
    """One override; verl's own balance would tear the groups apart."""
    _, lines = cases(byte_model)["grpo"]
    others = [line for line in lines if "trainer_mode" not in line]
    ranks = ["trainer.n_gpus_per_node=2", "trainer.total_training_steps=1", "trainer.save_freq=-1"]
    run = train(
        "ppo_trainer", [*others, *ranks, "actor_rollout_ref.actor.ppo_mini_batch_size=4", "+hier/engine=tree_sync"]
    )
    assert run.code == 0, run.log[-3000:]
    assert len(run.steps) == 1
    (step,) = run.steps
    assert step["actor/grad_norm"] > 0
    # 4 answers to each of 4 prompts: a rank has 2 whole groups, in which each prompt counts once.
    tokens = step["prompt_length/mean"], step["response_length/mean"]
    assert step["actor/sharing/unique_share"] < (tokens[0] / 4 + tokens[1]) / sum(tokens) + 0.02

"""verl's engine and ours, driven by verl's own losses, compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.engines_alone import (
    batch_of,
    build_engine,
    critic_batch_of,
    critic_loss_of,
    gradients,
    loss_of,
)
from tests.fixtures.trees_of_rows import branching

pytestmark = pytest.mark.usefixtures("group")
ROWS = [row for row in branching(3, leaves=14) if len(row) > 1]
PROMPTS = [max(1, len(row) // 3) for row in ROWS]


def loss_and_gradients(engine: Any, request: dict[str, Any], actor: dict[str, Any]) -> tuple[float, Any, Any]:
    with engine.train_mode():
        engine.optimizer_zero_grad()
        found = engine.forward_backward_batch(batch_of(ROWS, PROMPTS, **request), loss_of(**actor))
        return sum(found["loss"]), gradients(engine), found["metrics"]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "colder": ({}, {"temperature": 0.7}, {}),
    "several micro-batches": ({}, {"max_token_len_per_gpu": 40}, {}),
    "micro-batches by rows": ({}, {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 3}, {}),
    "entropy": ({}, {}, {"entropy_coeff": 0.1}),
    "KL to a reference": ({}, {}, {"use_kl_loss": True, "kl_loss_coef": 0.3}),
    "GSPO": ({}, {}, {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"}),
    "checkpointing": ({"enable_gradient_checkpointing": True}, {"temperature": 1.3}, {}),
    "LoRA": ({"lora_rank": 4, "lora_alpha": 8}, {}, {}),
    "LoRA and checkpointing": ({"lora_rank": 4, "enable_gradient_checkpointing": True}, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_rows(model: Path, case: str) -> None:
    options, request, actor = CASES[case]
    if "policy_loss" in actor:
        from verl.workers.config.actor import PolicyLossConfig

        actor = {**actor, "policy_loss": PolicyLossConfig(loss_mode=actor["policy_loss"])}
    stock = build_engine(model, tree=False, model=options)
    ours = build_engine(model, tree=True, model=options)
    # Stock micro-batches of rows must divide the batch, so it has the whole of it at once.
    loss, expected, _ = loss_and_gradients(
        stock, request | {"use_dynamic_bsz": True, "max_token_len_per_gpu": 4096}, actor
    )
    found_loss, found, metrics = loss_and_gradients(ours, request, actor)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert expected.keys() == found.keys()
    scale = max(float(np.abs(grad).max()) for grad in expected.values())
    assert scale > 1e-3
    for name, grad in expected.items():
        assert np.isfinite(found[name]).all()
        assert np.abs(found[name] - grad).max() < 2e-5 * scale, name
    assert metrics["sharing/unique_share"][0] < 0.7
    assert metrics["sharing/micro_batches"][0] == (1 if "micro-batches" not in case else pytest.approx(4, abs=3))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_rows(model: Path, temperature: float) -> None:
    request = {"temperature": temperature, "calculate_sum_pi_squared": True, "max_token_len_per_gpu": 60}
    outputs = []
    for tree in (False, True):
        engine = build_engine(model, tree=tree)
        with engine.eval_mode(), torch.no_grad():
            found = engine.infer_batch(batch_of(ROWS, PROMPTS, **request))
        outputs.append({name: list(rows.unbind()) for name, rows in found["model_output"].items()})
    stock, ours = outputs
    assert stock.keys() == ours.keys() == {"log_probs", "entropy", "sum_pi_squared"}
    for name, rows in stock.items():
        for expected, found, prompt in zip(rows, ours[name], PROMPTS, strict=True):
            assert found.shape == expected.shape
            assert (found[prompt - 1 : -1] - expected[prompt - 1 : -1]).abs().max() < 1e-5
            assert not found[: prompt - 1].any(), "nobody asks for the log-probs of a prompt"


CRITIC_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "several micro-batches": ({}, {"max_token_len_per_gpu": 40}),
    "checkpointing": ({"enable_gradient_checkpointing": True}, {}),
}


@pytest.mark.parametrize("case", CRITIC_CASES)
def test_a_critic_learns_what_it_does_on_rows(model: Path, case: str) -> None:
    options, request = CRITIC_CASES[case]
    found = {}
    for tree in (False, True):
        engine = build_engine(model, tree=tree, model=options, critic=True)
        asked = request if tree else {"max_token_len_per_gpu": 4096}
        with engine.train_mode():
            engine.optimizer_zero_grad()
            output = engine.forward_backward_batch(critic_batch_of(ROWS, PROMPTS, **asked), critic_loss_of())
            found[tree] = sum(output["loss"]), gradients(engine), output["metrics"]
    (loss, expected, stock), (found_loss, ours, metrics) = found[False], found[True]
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert expected.keys() == ours.keys()
    scale = max(float(np.abs(grad).max()) for grad in expected.values())
    assert scale > 1e-3
    for name, grad in expected.items():
        assert np.isfinite(ours[name]).all()
        assert np.abs(ours[name] - grad).max() < 2e-5 * scale, name
    assert "sharing/unique_share" not in stock
    assert metrics["sharing/unique_share"][0] < 0.7


def test_values_are_those_of_rows(model: Path) -> None:
    found = []
    for tree in (False, True):
        engine = build_engine(model, tree=tree, critic=True)
        with engine.eval_mode(), torch.no_grad():
            output = engine.infer_batch(critic_batch_of(ROWS, PROMPTS, max_token_len_per_gpu=60))
        found.append(list(output["model_output"]["values"].unbind()))
    for expected, ours in zip(*found, strict=True):
        assert ours.shape == expected.shape
        assert float(expected.std()) > 1e-3 or len(expected) < 3
        assert (ours - expected).abs().max() < 1e-5


def test_values_of_a_wrong_tree_are_noticed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_hier.engines import attention

    stock, ours = (build_engine(model, tree=tree, critic=True) for tree in (False, True))
    batch = critic_batch_of(ROWS, PROMPTS)
    monkeypatch.setattr(
        attention.Layout, "stretches", property(lambda layout: [(0, len(layout.packed), len(layout.packed))])
    )
    found = []
    for engine in (stock, ours):
        with engine.eval_mode(), torch.no_grad():
            found.append(engine.infer_batch(batch.clone())["model_output"]["values"].values())
    assert float((found[0] - found[1]).abs().max()) > 1e-3

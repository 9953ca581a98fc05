"""Policy losses with verl's signature."""

import inspect
import math

import pytest
import torch

from tests.conformance.adapters import ActorConfig
from tests.conformance.builtin_parts import plugin_module, policy_loss

CONFIG = ActorConfig(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=0.28, clip_ratio_c=3.0, global_batch_info={})


def call(name, ratio, advantage, weights=None):
    log_prob = torch.tensor(ratio).log().requires_grad_()
    old = torch.zeros_like(log_prob)
    mask = torch.ones_like(old)
    loss, metrics = policy_loss(name).function(
        old, log_prob, torch.tensor(advantage), mask, "token-mean", CONFIG, weights
    )
    loss.backward()
    return loss.item(), log_prob.grad, metrics


@pytest.mark.parametrize("name", ["aepo", "hispo"])
def test_signature_is_verls(name):
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    ours = list(inspect.signature(policy_loss(name).function).parameters)
    assert ours == list(inspect.signature(compute_policy_loss_vanilla).parameters)


def test_balanced_clip_keeps_the_value_and_the_gradient():
    loss, gradient, metrics = call("aepo", [[1.6, 1.0]], [[1.0, 1.0]])
    assert loss == pytest.approx(-(1.28 + 1.0) / 2)
    assert gradient[0].tolist() == pytest.approx([-0.64, -0.5])
    assert metrics["actor/pg_clipfrac"] == 0.5
    weighted, _, _ = call("aepo", [[1.6, 1.0]], [[1.0, 1.0]], torch.tensor([[0.0, 1.0]]))
    assert weighted == pytest.approx(-0.5)


def test_inside_the_bands_aepo_is_vanilla():
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    torch.manual_seed(0)
    log_prob, old = torch.randn(4, 5) * 0.05, torch.randn(4, 5) * 0.05
    args = (old, log_prob, torch.randn(4, 5), torch.ones(4, 5), "seq-mean-token-mean", CONFIG)
    ours, _ = policy_loss("aepo").function(*args)
    assert ours.item() == pytest.approx(compute_policy_loss_vanilla(*args)[0].item())


def test_hispo_drops_what_leaves_a_band():
    loss, gradient, metrics = call("hispo", [[1.1, 3.0, 1.0]], [[1.0, 1.0, 1.0]])
    assert loss == pytest.approx(-(1.1 + 1.0) / 3)
    assert gradient[0, 1] == 0 and metrics["actor/hispo_kept_share"] == pytest.approx(2 / 3)
    loss, gradient, _ = call("hispo", [[2.5, 2.5]], [[1.0, 1.0]])
    assert loss == 0 and not gradient.any()
    loss, _, metrics = call("hispo", [[1.0, 1.0]], [[1.0, 1.0]], torch.tensor([[1.0, math.exp(1)]]))
    assert metrics["actor/hispo_kept_share"] == 0.5 and loss == pytest.approx(-0.5)


def test_bands_are_free():
    module = plugin_module("losses.hispo")
    wide = module.hispo_loss(module.Bands(sequence=(0.0, 10.0), token=(0.0, 10.0)))
    _, metrics = wide(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), "token-mean", CONFIG)
    assert metrics["actor/hispo_kept_share"] == 1

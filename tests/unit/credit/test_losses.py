"""Policy losses with verl's signature."""

import inspect
import math

import pytest
import torch

from tests.conformance.adapters import ActorConfig
from tests.conformance.builtin_parts import plugin_module, policy_loss
from verl_hier.training.policy_loss import clip_range, token_mean

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


@pytest.mark.parametrize("name", ["aepo", "hispo", "at2po", "at2po_soft", "gspo_soft", "ipa"])
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
    loss, _, metrics = call("hispo", [[1.0, 1.0]], [[1.0, 1.0]], torch.tensor([[0.1, 1.9]]))
    assert metrics["actor/hispo_kept_share"] == 1 and loss == pytest.approx(-1.0)


def test_bands_are_free():
    module = plugin_module("losses.hispo")
    wide = module.hispo_loss(module.Bands(sequence=(0.0, 10.0), token=(0.0, 10.0)))
    _, metrics = wide(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), "token-mean", CONFIG)
    assert metrics["actor/hispo_kept_share"] == 1


MASK = torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 1.0]])


def called(name, log_prob, advantage, mode="token-mean"):
    log_prob = log_prob.clone().requires_grad_()
    loss, metrics = policy_loss(name).function(torch.zeros_like(log_prob), log_prob, advantage, MASK, mode, CONFIG)
    loss.backward()
    return loss.item(), log_prob.grad, metrics


def test_turns_are_runs_of_the_mask():
    turns = plugin_module("losses.at2po").turn_numbers(MASK)
    assert turns.tolist() == [[1, 1, 0, 2, 0], [0, 1, 1, 1, 1]]


def test_a_turn_has_one_ratio_and_every_token_its_own_gradient():
    log_prob = torch.tensor([[0.1, -0.05, 9.0, 0.04, 9.0], [9.0, 0.1, 0.1, -0.1, 0.02]])
    advantage = torch.tensor([[1.0, 1.0, 0.0, 2.0, 0.0], [0.0, -1.0, -1.0, -1.0, -1.0]])
    ratios = [math.exp(0.025), math.exp(0.04), math.exp(0.03)]
    loss, gradient, metrics = called("at2po", log_prob, advantage)
    assert loss == pytest.approx((-2 * ratios[0] - 2 * ratios[1] + 4 * ratios[2]) / 7, abs=1e-6)
    expected = [-ratios[0], -ratios[0], 0, -2 * ratios[1], 0, 0, *[ratios[2]] * 4]
    assert gradient.flatten().tolist() == pytest.approx([value / 7 for value in expected])
    assert metrics["actor/pg_clipfrac"] == 0 and metrics["actor/single_turn_count"] == 1
    share = torch.tensor([0.05, 0.04]) / 0.09
    share = share.softmax(0)
    entropy = -(share * share.log()).sum().item() / math.log(2)
    assert metrics["actor/turn_kl_entropy"] == pytest.approx(entropy / 2, abs=1e-5)


@pytest.mark.parametrize(("name", "kept"), [("at2po", 0.0), ("at2po_soft", 1.28)])
def test_a_clipped_turn_keeps_its_gradient_only_in_the_soft_form(name, kept):
    log_prob = torch.full((2, 5), 0.5)
    advantage = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0], [0.0] * 5])
    loss, gradient, _ = called(name, log_prob, advantage)
    assert loss == pytest.approx(-2 * 1.28 / 7)
    assert gradient[0, :2].tolist() == pytest.approx([-kept / 7] * 2)


def test_turn_ratios_of_one_turn_a_row_are_those_of_gspo():
    from verl.trainer.ppo.core_algos import agg_loss

    log_prob = torch.tensor([[0.1, 0.3, 0.0, 0.2, 0.0], [0.0, 0.9, 0.1, -0.1, 0.1]])
    advantage = torch.tensor([[1.0] * 5, [-1.0] * 5])
    loss, _, _ = called("gspo_soft", log_prob, advantage, "seq-mean-token-mean")
    ratio = torch.tensor([[math.exp(0.2)], [math.exp(0.25)]])
    plain = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
    assert loss == pytest.approx(agg_loss(plain, MASK, "seq-mean-token-mean").item())


def test_ipa_is_likelihood_for_good_turns_and_a_truncated_ratio_for_bad_ones():
    log_prob = torch.tensor([[0.4, 0.2, 0.0, -0.5, 0.0], [0.0, 0.1, 0.1, -0.1, 0.1]])
    advantage = torch.tensor([[2.0, 2.0, 0.0, -1.0, 0.0], [0.0, -1.0, -1.0, -1.0, -1.0]])
    loss, gradient, metrics = called("ipa", log_prob, advantage)
    down = math.exp(-0.5)
    assert loss == pytest.approx((-2 * 0.6 + down * -0.5 + 0.2) / 7)
    assert gradient.flatten().tolist() == pytest.approx([v / 7 for v in [-2, -2, 0, down, 0, 0, 1, 1, 1, 1]])
    assert metrics["actor/pg_clipfrac"] == pytest.approx(4 / 7)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(None, None, (0.2, 0.2)), (0.1, None, (0.1, 0.2)), (0.0, 0.3, (0, 0.3))]
)
def test_the_clip_range_is_verls(low, high, expected):
    config = ActorConfig(
        clip_ratio=0.2, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=3.0, global_batch_info={}
    )
    assert clip_range(config) == expected


def test_means_are_over_the_tokens_of_the_mask():
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    assert token_mean(torch.tensor([[True, False, True]]), mask) == 0.5
    assert token_mean(torch.tensor([[1.0, 2.0, 9.0]], requires_grad=True), mask) == 1.5
    assert token_mean(torch.ones(1, 3), torch.zeros(1, 3)) == 0.0


@pytest.mark.parametrize("per", ["turn", "row"])
def test_a_soft_clip_counts_no_ratio_within_the_bounds(per):
    import torch

    from tests.conformance.layout import ActorConfig
    from verl_hier_plugins.losses.at2po import turn_loss

    config = ActorConfig(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info={})
    new = torch.empty(64, 7).uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(0))
    advantages = torch.where(torch.arange(64)[:, None] % 2 == 0, 1.0, -1.0).expand(64, 7)
    mask = torch.ones(64, 7)
    _, metrics = turn_loss(per, soft=True)(torch.zeros(64, 7), new, advantages, mask, "token-mean", config)
    assert metrics["actor/pg_clipfrac"] == 0.0

"""The policy loss of a composed recipe on rows of tokens: its loss weights, its clipping, its way to add up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from omegaconf import OmegaConf

from tests.fixtures.light import sent
from verl_hier.credit import Credit
from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.loss_table import PolicyLossOfRun
from verl_hier.training.step import TrainingStep, train_step
from verl_hier_plugins.schedules.joint import Joint, JointOptions

Array = NDArray[Any]


@dataclass(frozen=True)
class Found:
    """What a loss gave.

    Attributes:
        loss: its value.
        gradient: (B, L) its gradient in the log-probs, 0 where the mask is.
        kl: what it estimates the KL divergence from the old policy to be.
    """

    loss: float
    gradient: Array
    kl: float


def loss_of(
    recipe: ComposedRecipe, mask: ArrayLike, advantages: ArrayLike, log_ratio: ArrayLike = 0.0, **actor: Any
) -> Found:
    """The loss of rows, of which each is a context of one and the same episode.

    Args:
        recipe: names the loss, its options and what has the same weight in it.
        mask: (B, L) 1 on the tokens of actions.
        advantages: (B, L) of them.
        log_ratio: of the new and the old probabilities of tokens, of a shape that broadcasts.
        actor: lines of `actor_rollout_ref.actor` to set.
    """
    mask = np.asarray(mask, float) > 0
    config = OmegaConf.to_container(recipe.config, resolve=True)
    assert isinstance(config, dict)
    config["actor_rollout_ref"]["actor"].update(actor)
    fields = _fields(recipe, config, mask, np.asarray(advantages, np.float64)[mask])
    ratio = np.broadcast_to(np.asarray(log_ratio, np.float64), mask.shape)[mask]
    log_prob = (fields["old_log_probs"] + torch.as_tensor(ratio)).requires_grad_()
    width = np.nonzero(mask)
    padded = {name: _padded(mask, values) for name, values in fields.items()}
    new = torch.zeros(mask.shape, dtype=torch.float64)
    new[width] = log_prob
    value, metrics = _loss(recipe, config, padded, new, torch.as_tensor(mask))
    value.backward()
    gradient = np.zeros(mask.shape)
    assert log_prob.grad is not None
    gradient[mask] = log_prob.grad.numpy()
    return Found(value.item(), gradient, float(metrics.get("actor/ppo_kl", np.nan)))


def _padded(mask: Array, values: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(mask.shape, dtype=torch.float64)
    out[np.nonzero(mask)] = values
    return out


def _fields(recipe: ComposedRecipe, config: Any, mask: Array, advantages: Array) -> dict[str, torch.Tensor]:
    """(N,) token fields that `train_step` writes for these advantages."""
    light, keys, rows = sent([_graph(mask)])
    step = TrainingStep(light, keys)
    on_table = _in_table(step, advantages)
    spec = EstimatorSpec("given", lambda table, options: Credit(on_table, per="token"), NoOptions, granularity="token")
    acts = [np.asarray(row.mask, float) for _, row in rows]
    old = [-each for each in acts]
    columns = {"response_mask": acts, "old_log_probs": old, "rollout_log_probs": old}
    found = train_step(
        step,
        keys=keys,
        columns=columns,
        host=recipe.host,
        estimator=Part(spec, NoOptions()),
        guards=replace(recipe.hier.guards, max_singleton_share=1.0),
        schedule=Joint(JointOptions()),
        number=1,
        metrics={},
        loss=PolicyLossOfRun.of(config, recipe.host),
    )
    where = np.concatenate(acts) > 0
    flat = {name: np.concatenate(values)[where] for name, values in {**columns, **found}.items()}
    return {name: torch.as_tensor(values, dtype=torch.float64) for name, values in flat.items()}


def _in_table(step: TrainingStep, advantages: Array) -> Array:
    """The advantages in the order of the token columns of the turn table."""
    positions = step.ledger.token_positions()
    out = np.zeros(len(advantages))
    out[positions[positions >= 0]] = advantages
    return out


def _graph(mask: Array) -> RolloutGraph:
    """One episode; each row is a context, each run of its mask a turn."""
    graph = RolloutGraph(task={"uid": "u", "index": 0})
    record = EpisodeRecord(id=0, tree=0, status="finished")
    for row in mask:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(int), [0]])))
        before, context = 0, -1
        for start, stop in edges.reshape(-1, 2):
            node = Node(
                id=len(graph.nodes),
                parent=record.leaf,
                context=context,
                episode=0,
                agent="agent",
                role="agent",
                level=0,
                turn=len(graph.nodes),
                segment=0,
                plan=-1,
                observation=[1] * max(int(start - before), 1 if context < 0 else 0),
                action=[3] * int(stop - start),
                logprobs=[-1.0] * int(stop - start),
                messages=[Message("user", "x")],
                prompt_tokens=1 if context < 0 else 0,
            )
            graph.nodes.append(node)
            record.leaf, context, before = node.id, node.id, int(stop)
    graph.episodes.append(record)
    return graph


def _loss(
    recipe: ComposedRecipe, config: Any, fields: dict[str, torch.Tensor], log_prob: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The loss as verl calls it, all rows in one micro-batch."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    run = PolicyLossOfRun.of(config, recipe.host)
    block = OmegaConf.create({**config["actor_rollout_ref"]["actor"], "rollout_n": 1})
    actor = omega_conf_to_dataclass(block)
    tokens, rows = int(mask.sum()), len(mask)
    actor.global_batch_info.update(dp_size=1, batch_num_tokens=tokens, global_batch_size=rows, loss_scale_factor=None)
    plugin = recipe.host.specs("policy_loss").get(run.name)
    function = get_policy_loss_fn(run.name) if plugin is None else plugin.function
    result: tuple[torch.Tensor, dict[str, Any]] = function(
        old_log_prob=fields["old_log_probs"],
        log_prob=log_prob,
        advantages=fields["advantages"],
        response_mask=mask,
        loss_agg_mode=str(config["actor_rollout_ref"]["actor"]["loss_agg_mode"]),
        config=actor,
        rollout_is_weights=fields.get("rollout_is_weights"),
    )
    return result

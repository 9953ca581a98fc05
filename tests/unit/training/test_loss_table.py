"""Every loss that `check` accepts trains each unit as the recipe says: through `train_step` and the loss itself.

The losses are those of verl's registry and of the built-in plugins, as they are; nothing about them is assumed.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf, open_dict

from tests.fixtures.light import sent
from verl_hier.credit import Credit, WeightBy
from verl_hier.credit.estimate import estimate
from verl_hier.errors import CreditError, RecipeError
from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.recipe.checks.choices import CHOICES
from verl_hier.recipe.checks.losses import check_loss_weights
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.testing import builtin_estimators
from verl_hier.testing.estimator import random_table
from verl_hier.training.loss_table import VERL, PolicyLossOfRun
from verl_hier.training.options import GuardOptions
from verl_hier.training.step import TrainingStep, train_step
from verl_hier_plugins.schedules.joint import Joint, JointOptions

HOST = PluginHost.load(DEFAULT_ENABLED)
ACTOR = "actor_rollout_ref.actor."
MODES = CHOICES[ACTOR + "loss_agg_mode"]
LOSSES = (*VERL, *HOST.specs("policy_loss"))
UNITS = get_args(WeightBy)
Lengths = list[list[int]]
"""Tokens of each row, of each episode."""
TEN_AND_FIFTY: tuple[Lengths, ...] = ([[10], [50]], [[10], [20, 30]], [[5, 5], [11, 9, 30]])


def graph_of(lengths: Lengths) -> RolloutGraph:
    """Episodes whose turns each open a context, so that each is a row, with one role in the first row and another one
    in those that follow."""
    graph = RolloutGraph(task={"uid": "u", "index": 0})
    for number, rows in enumerate(lengths):
        record = EpisodeRecord(id=number, tree=number, status="finished")
        for turn, length in enumerate(rows):
            who = "first" if turn == 0 else "later"
            node = Node(
                id=len(graph.nodes),
                parent=record.leaf,
                context=-1,
                episode=number,
                agent=who,
                role=who,
                level=0,
                turn=turn,
                segment=0,
                plan=-1,
                observation=[1, 2],
                action=[3] * length,
                logprobs=[-1.0] * length,
                messages=[Message("user", "x")],
                prompt_tokens=2,
            )
            graph.nodes.append(node)
            record.leaf = node.id
        graph.episodes.append(record)
    return graph


def fields_of(
    lengths: Lengths, loss: PolicyLossOfRun, unit: WeightBy, weight: np.ndarray | None = None
) -> tuple[TrainingStep, dict[str, torch.Tensor]]:
    """What `train_step` writes for credit 1 throughout, padded as verl pads it."""
    light, keys, rows = sent([graph_of(lengths)])
    step = TrainingStep(light, keys)
    spec = EstimatorSpec("one", lambda table, options: Credit(np.ones(len(table)), weight=weight), NoOptions)
    names = ("response_mask", "old_log_probs", "rollout_log_probs")
    values = {"response_mask": lambda row: np.array(row.mask, float)}
    columns = {n: [values.get(n, lambda row: np.array(row.logprobs))(row) for _, row in rows] for n in names}
    found = train_step(
        step,
        keys=keys,
        columns=columns,
        host=HOST,
        estimator=Part(spec, NoOptions()),
        guards=GuardOptions(weight_by=unit),
        schedule=Joint(JointOptions()),
        number=1,
        metrics={},
        loss=loss,
    )
    rows_of = {**columns, **found}
    pad = torch.nn.utils.rnn.pad_sequence
    return step, {n: pad([torch.as_tensor(r, dtype=torch.float64) for r in rows_of[n]], True) for n in rows_of}


def row_gradients(name: str, mode: str, fields: dict[str, torch.Tensor]) -> np.ndarray:
    """(R,) what the loss adds to the sum of the gradients of the log-probs of each row, as verl calls the loss.

    An action of `marft` has the product of its tokens' ratios, so that each of them has the gradient of the whole
    action; what its tokens weigh is therefore read from the gradient in their advantages.
    """
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=1,
        loss_agg_mode=mode,
        loss_scale_factor=64,
        policy_loss=PolicyLossConfig(loss_mode=name, dro_beta=0.1),
    )
    mask = fields["response_mask"].bool()
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=len(mask), loss_scale_factor=64
    )
    plugin = HOST.specs("policy_loss").get(name)
    function = get_policy_loss_fn(name) if plugin is None else plugin.function
    log_prob = fields["old_log_probs"].clone().requires_grad_()
    advantages = fields["advantages"].clone().requires_grad_()
    loss, _ = function(
        old_log_prob=fields["old_log_probs"],
        log_prob=log_prob,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=fields.get("rollout_is_weights"),
    )
    loss.backward()
    gradient = advantages.grad if name == "marft" else log_prob.grad
    assert gradient is not None
    return np.asarray(-(gradient * mask).sum(1))


@cache
def recipe() -> tuple[ComposedRecipe, dict[str, Any]]:
    composed = ComposedRecipe.of(compose("grpo_sokoban", (ACTOR + "use_dynamic_bsz=false",)))
    return composed, OmegaConf.to_container(composed.config, resolve=True)  # type: ignore[return-value]


def refusal(name: object, mode: object, unit: object, **more: Any) -> str:
    """Why the check refuses a loss, empty where it accepts it."""
    composed, plain = recipe()
    actor = {**plain["actor_rollout_ref"]["actor"], "policy_loss": {"loss_mode": name}, "loss_agg_mode": mode}
    actor |= {"loss_scale_factor": 64, **more}
    config = {**plain, "actor_rollout_ref": {**plain["actor_rollout_ref"], "actor": actor}}
    guards = replace(composed.hier.guards, weight_by=unit)
    try:
        check_loss_weights(replace(composed, config=config, hier=replace(composed.hier, guards=guards)))
    except RecipeError as error:
        return str(error)
    return ""


def declared(lengths: Lengths, mode: str, unit: str) -> np.ndarray:
    """(R,) the part of each row in the loss, slowly: by units, or as the loss adds up tokens by itself."""
    rows = [(episode, turn, length) for episode, each in enumerate(lengths) for turn, length in enumerate(each)]
    tokens = np.array([length for _, _, length in rows], float)
    if unit == "token":
        return np.ones(len(rows)) if mode in ("seq-mean-token-mean", "micro-batch-mean") else tokens
    label = {
        "row": lambda row: row,
        "turn": lambda row: row,
        "episode": lambda row: row[0],
        "role": lambda row: row[1] == 0,
    }[unit]
    units = [label(row) for row in rows]
    total = {u: sum(n for v, n in zip(units, tokens, strict=True) if v == u) for u in units}
    return np.array([n / total[u] for u, n in zip(units, tokens, strict=True)])


ACCEPTED = [combination for combination in itertools.product(LOSSES, MODES, UNITS) if not refusal(*combination)]


def require_declared(lengths: Lengths, name: str, mode: str, unit: Any) -> None:
    loss = PolicyLossOfRun.of(
        {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": name}, "loss_agg_mode": mode}}}, HOST
    )
    _, fields = fields_of(lengths, loss, unit)
    found = row_gradients(name, mode, fields)
    expected = declared(lengths, loss.mode, unit)
    assert found.sum() > 0
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), rtol=1e-6)


def test_the_table_has_every_loss_that_verl_registers() -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    theirs = {name for name, function in POLICY_LOSS_REGISTRY.items() if function.__module__.startswith("verl.")}
    assert theirs == {*VERL}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_accepted_trains_every_unit_as_declared(name: str) -> None:
    mine = [(mode, unit) for loss, mode, unit in ACCEPTED if loss == name]
    for (mode, unit), lengths in itertools.product(mine, TEN_AND_FIFTY):
        require_declared(lengths, name, str(mode), unit)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=2, max_size=4), st.sampled_from(ACCEPTED)
)
def test_whatever_the_lengths_are(lengths: Lengths, combination: tuple[str, str, str]) -> None:
    require_declared(lengths, *combination)


def test_what_is_refused_is_what_verl_cannot_do() -> None:
    refused = {(name, unit) for name, mode, unit in itertools.product(LOSSES, MODES, UNITS)} - {
        (name, unit) for name, _, unit in ACCEPTED
    }
    assert refused == {
        *(("geo_mean", unit) for unit in ("turn", "role")),
        *(("bypass_mode", unit) for unit in ("turn", "episode", "role")),
    }


@pytest.mark.parametrize(("name", "unit"), [("bypass_mode", "episode"), ("geo_mean", "role")])
def test_a_loss_that_is_refused_would_have_trained_something_else(name: str, unit: str) -> None:
    sentence = refusal(name, "token-mean", unit)
    assert f"hier.guards.weight_by: {unit}" in sentence and repr(name) in sentence
    loss = PolicyLossOfRun(name, "token", "token-mean")
    _, fields = fields_of([[10], [20, 30]], loss, unit)  # type: ignore[arg-type]
    found, expected = row_gradients(name, "token-mean", fields), declared([[10], [20, 30]], "token-mean", unit)
    assert not np.allclose(found / found.sum(), expected / expected.sum(), rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("bypass_mode", "geo_mean")])
@pytest.mark.parametrize("mode", MODES)
def test_turns_of_weight_0_are_as_if_they_were_not_there(name: str, mode: str) -> None:
    loss = PolicyLossOfRun.of(
        {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": name}, "loss_agg_mode": mode}}}, HOST
    )
    lengths = [[10], [20, 30], [7]]
    _, fields = fields_of(lengths, loss, "token", np.array([1.0, 0.0, 1.0, 0.0]))
    found = row_gradients(name, str(mode), fields)
    assert found[1] == found[3] == 0
    assert found[0] / found[2] == pytest.approx(1.0 if loss.row_mean else 10 / 30, rel=1e-6)


def test_the_length_of_a_micro_batch_is_no_scale_for_units() -> None:
    sentence = refusal("vanilla", "seq-mean-token-sum-norm", "episode", loss_scale_factor=None)
    assert ACTOR + "loss_scale_factor" in sentence
    assert not refusal("vanilla", "seq-mean-token-sum-norm", "token", loss_scale_factor=None)
    assert ACTOR + "use_dynamic_bsz" in refusal("geo_mean", "token-mean", "episode", use_dynamic_bsz=True)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ({"hier.guards.shared_prefix": "first_owner"}, "hier.guards.shared_prefix: first_owner"),
        ({"hier.estimator.singleton": "drop"}, "hier.estimator.singleton: drop"),
        ({"hier.estimator": {"name": "mc_grpo"}}, "hier.estimator.name: mc_grpo"),
        ({"hier.schedule": {"name": "stagewise"}}, "hier.schedule.mode: soft"),
    ],
)
@pytest.mark.parametrize("name", ["bypass_mode", "geo_mean"])
def test_every_source_of_weights_is_named(name: str, lines: dict[str, Any], named: str) -> None:
    config = recipe()[0].config.copy()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = name
    config.hier.guards.weight_by = "token"
    check_loss_weights(ComposedRecipe.of(config))
    with open_dict(config):
        for line, value in lines.items():
            OmegaConf.update(config, line, value, force_add=True, merge=False)
    with pytest.raises(RecipeError, match=named):
        check_loss_weights(ComposedRecipe.of(config))


@pytest.mark.parametrize("weights", ["row", "none", "ratio", None])
def test_weights_that_nobody_declared_stop_the_run(weights: Any) -> None:
    loss = PolicyLossOfRun("theirs", weights, "token-mean")
    with pytest.raises(CreditError, match=r"policy_loss\.loss_mode: theirs"):
        fields_of([[10], [50]], loss, "token", np.array([1.0, 0.5])) if weights != "row" else one_row(loss)


def one_row(loss: PolicyLossOfRun) -> None:
    """A step with one row of two turns of different weight."""
    graph = graph_of([[4, 6]])
    graph.nodes[1].context, graph.nodes[1].agent, graph.nodes[1].role = 0, "first", "first"
    light, keys, rows = sent([graph])
    assert len(rows) == 1
    weights = EstimatorSpec("w", lambda table, _: Credit(np.ones(2), weight=np.array([1.0, 0.5])), NoOptions)
    train_step(
        TrainingStep(light, keys),
        keys=keys,
        columns={"response_mask": [np.array(row.mask, float) for _, row in rows]},
        host=HOST,
        estimator=Part(weights, NoOptions()),
        guards=GuardOptions(weight_by="token"),
        schedule=Joint(JointOptions()),
        number=1,
        metrics={},
        loss=loss,
    )


@pytest.mark.parametrize("name", sorted(builtin_estimators()))
def test_an_estimator_that_weighs_declares_it(name: str) -> None:
    """Each option by itself, over all values that its type names."""
    spec = builtin_estimators()[name]
    if spec.native:
        return
    hints, default = get_type_hints(spec.options), spec.options()
    tried = [default]
    for field in fields(spec.options):
        hint = hints[field.name]
        values = get_args(hint) if get_origin(hint) is Literal else (True, False) if hint is bool else ()
        for value in values:
            with suppress(ValueError):  # options that do not go together
                tried.append(replace(default, **{field.name: value}))
    for options in tried:
        for table in (random_table(1), random_table(2, tree=True)):
            try:
                weight = estimate(spec, table, options).weight
            except (CreditError, ValueError):
                continue  # tables of another shape
            if weight is not None and not (np.asarray(weight) == 1).all():
                assert spec.weighs is not None and spec.weighs(options), (name, options)

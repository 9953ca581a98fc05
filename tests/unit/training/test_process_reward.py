"""The implicit process reward: pairs of episodes, their loss and its gradient, and what reaches rows and table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent
from verl_hier.credit import Credit
from verl_hier.graph import TurnTable
from verl_hier.host.manager import PluginHost
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.testing.estimator import random_table
from verl_hier.training.options import GuardOptions, ProcessRewardOptions
from verl_hier.training.process_reward import LOG_PROBS, WEIGHTS, pair_loss, solved_episodes
from verl_hier.training.step import TrainingStep, train_step
from verl_hier_plugins.schedules.joint import Joint, JointOptions


def slow_loss(table: TurnTable, rewards: torch.Tensor, solved: np.ndarray, where: np.ndarray) -> torch.Tensor:
    """Every pair by itself, for autograd."""
    mean: dict[int, torch.Tensor] = {}
    for episode in range(len(solved)):
        turns = [t for e, t in zip(table.step_episode, table.step_turn, strict=True) if e == episode and where[t]]
        if turns:
            mean[episode] = rewards[turns].mean()
    group = table["episodes.group"]
    losses = [
        -torch.nn.functional.logsigmoid(mean[a] - mean[b])
        for a in mean
        for b in mean
        if group[a] == group[b] and solved[a] and not solved[b]
    ]
    return torch.stack(losses).mean() if losses else (rewards * 0).sum()


@pytest.mark.parametrize("seed", range(8))
def test_loss_and_gradient_are_those_of_the_pairs(seed: int) -> None:
    chance = np.random.default_rng(seed)
    table = random_table(seed)
    solved = chance.random(len(table.episodes["return"])) < 0.5
    where = chance.random(len(table)) < 0.9
    rewards = torch.tensor(chance.normal(size=len(table)), requires_grad=True)
    loss = slow_loss(table, rewards, solved, where)
    loss.backward()
    found = pair_loss(table, rewards.detach().numpy(), solved, where)
    assert found.loss == pytest.approx(loss.item())
    np.testing.assert_allclose(found.gradient, rewards.grad.numpy(), atol=1e-12)


def test_without_a_pair_there_is_nothing_to_learn() -> None:
    table = random_table(1)
    found = pair_loss(table, np.ones(len(table)), np.ones(len(table.episodes["return"]), bool))
    assert found.pairs == 0 and found.loss == 0 and not found.gradient.any() and np.isnan(found.right)


def test_success_is_what_the_environment_says_and_else_the_return() -> None:
    table = random_table(2)
    table.episodes["success"] = np.full(len(table.episodes["return"]), np.nan)
    np.testing.assert_array_equal(solved_episodes(table), table["episodes.return"] > 0)
    table.episodes["success"][:] = 0.0
    assert not solved_episodes(table).any()


def test_a_step_rewards_turns_and_weighs_their_tokens() -> None:
    graph = rollout_graphs.flat(n=4)
    for episode in graph.episodes:
        episode.success = episode.id % 2 == 0
    light, keys, rows = sent([graph])
    seen: dict[str, Any] = {}

    def estimate(table: Any, options: Any) -> Credit:
        seen["table"] = table
        return Credit(np.zeros(len(table)))

    chance = np.random.default_rng(0)
    second = [np.array(row.logprobs) + chance.normal(size=len(row.response)) for _, row in rows]
    metrics: dict[str, float] = {}
    fields = train_step(
        TrainingStep(light, keys),
        keys=["padding", *reversed(keys)],
        columns={
            "response_mask": [np.zeros(1), *(np.array(row.mask, float) for _, row in reversed(rows))],
            "old_log_probs": [np.zeros(1), *(np.array(row.logprobs) for _, row in reversed(rows))],
            LOG_PROBS: [np.full(1, 99.0), *reversed(second)],
        },
        host=PluginHost([]),
        estimator=Part(EstimatorSpec("reader", estimate, NoOptions, requires=("step_reward",)), NoOptions()),
        guards=GuardOptions(),
        schedule=Joint(JointOptions()),
        number=1,
        metrics=metrics,
        process_reward=ProcessRewardOptions(beta=0.5),
    )
    table = seen["table"]
    for (_, row), logs in zip(rows, second, strict=True):
        for node in {number for number in row.turn_index if number >= 0}:
            inside = np.array(row.turn_index) == node
            turn = next(
                t
                for t in range(len(table))
                if table["step_reward"][t] == pytest.approx(0.5 * (logs - np.array(row.logprobs))[inside].sum())
            )
            assert table["turn"][turn] == graph.nodes[node].turn
    # The weights are the gradient of the loss by each log-prob.
    weights = list(reversed(fields[WEIGHTS][1:]))
    assert fields[WEIGHTS][0].tolist() == [0.0]
    flat = torch.tensor(np.concatenate(second), requires_grad=True)
    places = np.cumsum([0, *(len(logs) for logs in second)])
    means = {True: [], False: []}
    for number, (_, row) in enumerate(rows):
        ratio = flat[places[number] : places[number + 1]] - torch.tensor(row.logprobs)
        turns = sorted({node for node in row.turn_index if node >= 0})
        rewards = torch.stack([0.5 * ratio[np.array(row.turn_index) == node].sum() for node in turns])
        means[bool(graph.episodes[row.episode].success)].append(rewards.mean())
    pairs = [-torch.nn.functional.logsigmoid(a - b) for a in means[True] for b in means[False]]
    loss = torch.stack(pairs).mean()
    loss.backward()
    np.testing.assert_allclose(np.concatenate(weights), flat.grad.numpy(), atol=1e-6)
    assert metrics["hier/process_reward/loss"] == pytest.approx(loss.item())
    assert metrics["hier/process_reward/pairs"] == 4

"""What a teacher adds to the advantages: cases in closed form, and whose tokens it reads."""

import numpy as np
import pytest
import torch

from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent
from verl_hier.training.options import TeacherOptions
from verl_hier.training.step import TrainingStep
from verl_hier.training.teachers import distilled, taught_tokens, teacher_metrics


def log_softmax(logits):
    return torch.log_softmax(logits, dim=-1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_its_gradient_is_that_of_the_reverse_kl_divergence(seed, weight):
    """The expectation over tokens that are sampled from the policy, summed over all of them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = log_softmax(torch.randn(7, generator=generator, dtype=torch.float64))
    policy = log_softmax(logits)
    options = TeacherOptions("t", weight=weight, credit=0.0, most=50.0)
    everywhere = np.ones(7, bool)
    added = distilled(np.full(7, 3.0), teacher.numpy(), policy.detach().numpy(), everywhere, options)
    objective = (policy.detach().exp() * torch.as_tensor(added) * policy).sum()
    (found,) = torch.autograd.grad(objective, logits, retain_graph=True)
    divergence = (policy.exp() * (policy - teacher)).sum()
    (known,) = torch.autograd.grad(-weight * divergence, logits)
    torch.testing.assert_close(found, known)
    # The metric of many sampled tokens is the divergence itself.
    tokens = torch.multinomial(policy.detach().exp(), 200_000, replacement=True, generator=generator)
    said = teacher_metrics("t", teacher[tokens].numpy(), policy.detach()[tokens].numpy(), np.ones(len(tokens), bool))
    assert said["hier/teacher/t/tokens"] == 200_000
    assert said["hier/teacher/t/kl"] == pytest.approx(float(divergence), abs=0.02)


def test_credit_and_teacher_are_added_on_taught_tokens_alone():
    advantages, taught = np.array([1.0, 1.0, -2.0, 4.0]), np.array([True, False, True, True])
    teacher, policy = np.array([-1.0, -1.0, -3.0, -40.0]), np.array([-2.0, -2.0, -1.0, -1.0])
    options = TeacherOptions("t", weight=2.0, credit=0.5, most=10.0)
    assert [*distilled(advantages, teacher, policy, taught, options)] == [2.5, 1.0, -5.0, -18.0]
    assert teacher_metrics("t", teacher, policy, np.zeros(4, bool)) == {"hier/teacher/t/tokens": 0.0}


def test_a_teacher_that_agrees_adds_nothing():
    advantages, logs = np.array([1.0, -1.0]), np.array([-0.5, -0.7])
    assert [*distilled(advantages, logs, logs, np.ones(2, bool), TeacherOptions("t"))] == [1.0, -1.0]


def test_it_teaches_the_turns_of_its_roles():
    graph = rollout_graphs.hierarchical()
    light, keys, rows = sent([graph])
    step = TrainingStep(light, keys)
    of_roles = {roles: taught_tokens(step.ledger, roles) for roles in ((), ("planner",), ("executor",), ("nobody",))}
    owner = np.concatenate([row.turn_index for _, row in rows])
    roles = np.asarray([graph.nodes[node].role if node >= 0 else "" for node in owner])
    for name in ("planner", "executor"):
        assert np.array_equal(of_roles[name,], of_roles[()] & (roles == name)) and of_roles[name,].any()
    assert not of_roles["nobody",].any()
    # A batch has been padded and reordered since; what goes through it comes back.
    order, lengths = [*keys[::-1], "padding"], [len(row.mask) for _, row in rows]
    values = np.arange(sum(lengths), dtype=float)
    there = step.scattered(order, values)
    assert [len(row) for row in there] == [*lengths[::-1], 1]
    assert np.array_equal(step.gathered(order, there), values)

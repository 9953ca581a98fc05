"""Roles with a teacher through stock verl: who is taught, and that the policy comes nearer to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_policies import digest, write_recipe
from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.trainer import Trainer

pytestmark = pytest.mark.long
STEPS = 6


def test_a_policy_comes_nearer_to_the_teacher_of_its_role(train: Trainer, probes: Path, tmp_path: Path) -> None:
    """Beside it a second policy, which has no teacher; the credit counts nothing."""
    teacher = write_byte_model(tmp_path / "teacher", hidden=32, seed=5)
    before = digest(teacher)
    name = write_recipe(probes, {"second": {"roles": ["actor"]}}, "taught", STEPS)
    block = f"{{large: {{model: {teacher}, roles: [reasoner], credit: 0.0}}}}"
    steps = train(name, [f"+hier.teachers={block}", "trainer.save_freq=-1"], "taught").trained_steps()
    assert len(steps) == STEPS and digest(teacher) == before
    for step in steps:
        assert 0 < step["hier/teacher/large/tokens"] < step["hier/tokens/generated"]
    apart = [step["hier/teacher/large/kl"] for step in steps]
    assert apart[0] > 0 and sum(apart[-2:]) < sum(apart[:2])


def test_a_policy_is_its_own_teacher_without_effect(train: Trainer, probes: Path, byte_model: Path) -> None:
    name = write_recipe(probes, {}, "own_teacher", 1)
    (own,) = train(name, [f"+hier.teachers={{own: {{model: {byte_model}}}}}"], "own").trained_steps()
    (none,) = train(name, [], "none").trained_steps()
    assert own["hier/teacher/own/kl"] == pytest.approx(0.0, abs=1e-5)
    assert own["actor/pg_loss"] == pytest.approx(none["actor/pg_loss"], abs=1e-4)

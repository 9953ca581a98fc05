"""Self-imitation in the lab: rows are the episodes that were played, old ones bias the gradient, good ones teach."""

from __future__ import annotations

import numpy as np
import pytest

from verl_hier.lab.imitation import KeptTurns, by_age, rows_of
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import method
from verl_hier.lab.steps import Steps
from verl_hier.lab.update import loss_gradient
from verl_hier.lab.worlds import WORLDS
from verl_hier.training.options import SelfImitationOptions


def test_rows_of_the_step_have_the_gradient_of_the_step() -> None:
    world, grpo = WORLDS["decisive"], method("grpo")
    logits = np.random.default_rng(0).normal(size=world.legal.shape)
    policy = world.policy(logits)
    batch, weighted = Steps(world, grpo, 4, 0).next(policy, "sum")
    rows = rows_of(batch, weighted, 3)
    assert {row.step for row in rows} == {3}
    np.testing.assert_allclose([row.score for row in rows], batch.table["episodes.return"])
    kept = KeptTurns.of(rows, [row.credit * row.mask for row in rows])
    np.testing.assert_allclose(kept.chance, policy[kept.state, kept.action], rtol=1e-5)
    mine = loss_gradient(world, logits, kept, kept.weighted * len(kept.weighted), kept.chance, 0.2)
    old = policy[batch.state, batch.action]
    np.testing.assert_allclose(mine, loss_gradient(world, logits, batch, weighted, old, 0.2), rtol=1e-4, atol=1e-8)


def test_new_rows_are_unbiased_and_old_ones_are_not() -> None:
    new, old = by_age(WORLDS["maze"], method("grpo"), (0, 10), steps=12, batches=40, seed=0)
    fresh, aged = new.found, old.found
    # The logarithm of a quotient of equal chances is not 0 to the last digit on every processor.
    assert new.outside == 0 and new.distance == pytest.approx(0, abs=1e-12) and old.distance > 1e-6
    whole = fresh["all", "ratio"]
    assert whole is not None and whole.unbiased and whole.scale == pytest.approx(1, abs=0.2)
    for name in ("clipped", "none"):
        other = fresh["all", name]
        assert other is not None and other.scale == pytest.approx(whole.scale, rel=1e-5)
    clipped, ratio, none = (aged["all", name] for name in ("clipped", "ratio", "none"))
    assert clipped is not None and ratio is not None and none is not None
    assert clipped.interval[0] > 0.2 and none.interval[0] > 0.05
    assert ratio.bias < none.bias


def test_good_episodes_teach_where_the_step_is_not_enough() -> None:
    options = SelfImitationOptions(rows=64, fill=0.0, limit=4096, max_age=5, baselines=256, warmup=0)
    world, grpo, setting = WORLDS["horizon"], method("grpo"), Setting(turns=5000)
    without, with_ = (learn(world, grpo, 0, setting, each) for each in (None, options))
    assert with_.updates > without.updates and with_.regret[-1] < without.regret[-1] - 0.2
    never = SelfImitationOptions(rows=4000, fill=1.0, limit=4096, warmup=0)
    assert learn(world, grpo, 0, setting, never) == without

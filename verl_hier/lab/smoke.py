"""Whether an estimator learns the simplest world that there is."""

from __future__ import annotations

from functools import partial
from typing import Any

from verl_hier.credit.estimate import estimate
from verl_hier.host.specs import EstimatorSpec
from verl_hier.lab.learn import Setting, learn
from verl_hier.lab.methods import Method, shape_of, unfed
from verl_hier.lab.worlds import Sketch

SETTING = Setting(turns=6000)
LEAST = 0.5
"""Regret above which it has not learned; most end below 0.05."""


def check_learns(spec: EstimatorSpec, options: Any) -> None:
    """Let an estimator learn a world of two turns, in each of which one of two actions is right.

    Raises:
        AssertionError: when it does not, or needs a column that no world of the lab fills.
    """
    missing = unfed(spec)
    assert not missing, (
        f"estimator {spec.name!r} cannot be tried in the lab, whose worlds do not fill the column {missing[0]!r}; "
        "leave out `learns`."
    )
    sketch = Sketch(2)
    for right in (0, 1):
        sketch.act("first", right, ("second", right))
    for right in (0, 1):
        for now in (0, 1):
            sketch.act(("second", right), now, "won" if right and now else "lost", reward=float(right and now))
    sketch.goal("won")
    world = sketch.world("two_steps", "two turns", 2)
    method = Method(spec.name, partial(estimate, spec, options=options), shape_of(spec))
    regret = learn(world, method, 0, SETTING).regret[-1]
    assert regret <= LEAST, (
        f"estimator {spec.name!r} does not learn the lab's world of two turns: after {SETTING.turns} turns the regret "
        f"is {regret:.2f}, and 1 is that of random choices. Look at the sign of its credit, at what it compares, and "
        "whether a turn has a part in what later ones earn; leave out `learns` where it is not meant to."
    )

"""The methods of the lab: an estimator with its options, which episodes a task has, who learns when, and a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from verl_hier.credit import Credit, turn_gae
from verl_hier.credit.estimate import estimate
from verl_hier.errors import HierError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import EstimatorSpec, SamplerSpec, ScheduleSpec
from verl_hier.lab.parts import SAMPLERS, SCHEDULED_CREDIT, SCHEDULES
from verl_hier.lab.rollouts import CHAINS, Shape
from verl_hier.lab.sampled import Sampled
from verl_hier.lab.update import Loss
from verl_hier.training.schedule import Schedule

PLANS = Shape(4, {0: 2})
"""Four plans, each of which is executed twice."""
TREE = Shape(2, {0: 2, 1: 2})
"""Two trees that branch after their first two turns."""
SHAPES = {"chains": CHAINS, "plans": PLANS, "tree": TREE}
COLUMNS = frozenset(
    {
        *("group", "episode", "agent", "role", "level", "turn", "row", "segment", "plan", "parent", "depth", "leaves"),
        *("reward", "return", "done", "truncated", "valid", "complete", "trained", "n_tokens", "n_prompt", "anchor"),
        *("entropy", "format", "value", "value_low", "value_high", "q1", "q2", "v1", "v2"),
        *("info_gain", "feedback_gain"),
        *(f"tokens.{name}" for name in ("turn", "logprob", "entropy", "value", "subgoal", "switch", "action")),
        *(f"episodes.{name}" for name in ("group", "return", "success", "leaf", "tree", "trained", "withheld")),
        *(f"episodes.{name}" for name in ("turns", "task", "source")),
    }
)
"""Columns that the worlds fill."""
GAE_DECAY = 0.95
"""Of the reference `gae`."""
REFERENCES: Mapping[str, Callable[[TurnTable], Credit]] = {
    "reinforce": lambda table: Credit(np.asarray(table.episodes["return"])[table["episode"]]),
    "exact_critic": lambda table: Credit(np.asarray(table["q1"]) - np.asarray(table["v1"])),
    "gae": lambda table: Credit(turn_gae(table, table["value"], 1.0, GAE_DECAY)[0]),
}
"""What no plugin is needed for: the return of the episode, the advantage of a critic that errs nowhere, and GAE with it
over all turns."""
BY_PLAN = frozenset({"himac", "metaagent_x", "dual_loop", "coda_peco"})
"""Estimators that compare the executions of a plan with each other."""
BY_TREE = frozenset({"arpo", "aepo", "tree_grpo", "branpo"})
"""Estimators for trees that work on chains too."""


@dataclass(frozen=True)
class Method:
    """One way to learn.

    Attributes:
        name: as the command line says it.
        credit: from a turn table.
        shape: which episodes a task has.
        loss: the policy loss.
        schedule: makes the schedule of a run; everybody learns in every step without one.
    """

    name: str
    credit: Callable[[TurnTable], Credit]
    shape: Shape | Sampled = CHAINS
    loss: Loss = field(default_factory=Loss)
    schedule: Callable[[], Schedule] | None = None


def split(name: str) -> tuple[str, str, str]:
    """Estimator, shape or sampler, and schedule of `ESTIMATOR@SHAPE+SCHEDULE`; empty where it names none."""
    rest, _, schedule = name.partition("+")
    estimator, _, shape = rest.partition("@")
    return estimator, shape, schedule


def method(name: str, host: PluginHost | None = None, options: Mapping[str, Any] | None = None) -> Method:
    """A method by the name of an estimator or of a reference, with the rollouts that it is made for.

    Args:
        name: `grpo`; `grpo@tree` for another shape, or the episodes of a sampler; `grpo+agents` for a schedule.
        host: where the parts are registered; the built-in plugins when omitted.
        options: of the estimator, over those of the lab.

    Raises:
        HierError: for an unknown part, or an estimator that needs a column which nothing fills.
    """
    host = host or PluginHost.load({"builtin": True})
    base, wanted, timed = split(name)
    if base in REFERENCES:
        return Method(name, REFERENCES[base], _shape(wanted or "chains", host), schedule=_schedule(timed, host))
    spec = host.spec("estimator", base)
    assert isinstance(spec, EstimatorSpec)
    wanted, timed = wanted or _own(spec, host, "sampler"), timed or _own(spec, host, "schedule")
    filled = {*_provided(host, "sampler", wanted), *_provided(host, "schedule", timed)}
    missing = [column for column in unfed(spec) if column not in filled]
    if missing:
        raise HierError(f"--methods {name}: no world of the lab fills the column {missing[0]!r}, which it needs.")
    setting = SAMPLERS.get(wanted)
    given = dict(setting.credit) if setting is not None and setting.estimator == base else {}
    given |= {**SCHEDULED_CREDIT.get((base, timed), {}), **(options or {})}
    credit = partial(_credit, spec, build_options(spec, given))
    shape = _shape(wanted, host) if wanted else shape_of(spec)
    return Method(name, credit, shape, schedule=_schedule(timed, host))


def _credit(spec: EstimatorSpec, options: Any, table: TurnTable) -> Credit:
    return estimate(spec, table, options)


def _shape(name: str, host: PluginHost) -> Shape | Sampled:
    """A shape of the lab, or the episodes of a sampler."""
    known = [*SHAPES, *host.specs("sampler")]
    if name not in known:
        raise HierError(f"--methods @{name}: the shape must be one of {', '.join(known)}.")
    if name in SHAPES:
        return SHAPES[name]
    spec, setting = host.spec("sampler", name), SAMPLERS.get(name)
    assert isinstance(spec, SamplerSpec)
    n = 8 if setting is None else setting.n
    return Sampled(spec, build_options(spec, {} if setting is None else setting.options), n)


def _schedule(name: str, host: PluginHost) -> Callable[[], Schedule] | None:
    if not name:
        return None
    spec = host.spec("schedule", name)
    return partial(spec.factory, build_options(spec, SCHEDULES.get(name, ("", {}))[1]))


def _own(spec: EstimatorSpec, host: PluginHost, kind: Any) -> str:
    """The sampler or schedule of an estimator's own name, where it fills what no world does."""
    return spec.name if set(unfed(spec)) & set(_provided(host, kind, spec.name)) else ""


def _provided(host: PluginHost, kind: Any, name: str) -> tuple[str, ...]:
    """Columns that a sampler or schedule fills in the lab."""
    spec = host.specs(kind).get(name) if name in SAMPLERS or name in SCHEDULES else None
    return spec.fills() if isinstance(spec, SamplerSpec | ScheduleSpec) else ()


def unfed(spec: EstimatorSpec) -> list[str]:
    """Columns that an estimator needs and no world fills."""
    return [column for column in spec.requires if column not in COLUMNS]


def shape_of(spec: EstimatorSpec) -> Shape:
    """The shape of rollouts that an estimator is made for."""
    if spec.needs_tree or spec.name in BY_TREE:
        return TREE
    return PLANS if spec.name in BY_PLAN else CHAINS


def fed(spec: EstimatorSpec, host: PluginHost) -> str:
    """What fills an estimator: `world`, `sampler` or `schedule`; empty where nothing does."""
    missing = set(unfed(spec))
    if not missing:
        return "world"
    kinds = [kind for kind in ("schedule", "sampler") if missing <= set(_provided(host, kind, spec.name))]
    return kinds[0] if kinds else ""

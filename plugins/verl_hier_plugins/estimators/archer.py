"""ArCHer, utterance-level actor-critic (arXiv 2402.19446), docs/methods/archer.md."""

from __future__ import annotations

import numpy as np

from verl_hier.credit import Credit, trained_only
from verl_hier.graph.turn_table import TurnTable
from verl_hier.hookspecs import hookimpl
from verl_hier.host.specs import EstimatorSpec, NoOptions


def advantage(table: TurnTable, options: NoOptions) -> Credit:
    """Credit per turn: the smaller Q minus the smaller V of the utterance; per token where the table has a baseline."""
    smaller_q = np.minimum(np.asarray(table["q1"], np.float64), table["q2"])
    smaller_v = np.minimum(np.asarray(table["v1"], np.float64), table["v2"])
    values = trained_only(table, smaller_q - smaller_v)
    if "baseline" not in table.tokens:
        return Credit(values)
    turn, baseline = np.asarray(table["tokens.turn"]), np.asarray(table["tokens.baseline"], np.float64)
    trained = np.asarray(table["trained"], bool)[turn]
    return Credit(np.where(trained, values[turn] - baseline, 0.0), per="token", returns=values[turn])


@hookimpl
def hier_estimators() -> EstimatorSpec:
    return EstimatorSpec(
        "archer",
        advantage,
        NoOptions,
        summary="smaller Q minus smaller V of the utterance",
        source="arXiv 2402.19446 §3; YifeiZhou02/ArCHer trainer.py",
        requires=("q1", "q2", "v1", "v2", "trained"),
        reads=("tokens.baseline",),
        needs_groups=False,
        needs_critic=True,
        confidence="A",
    )

"""The bandit over sub-agents: what a round takes, what it learns, and that a resumed run goes on as if in one go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.builtin_parts import part, plugin_module
from verl_hier.credit.tables import make_table

ROLES = ("lead", "finder", "checker")
BRIEFS = {"broad": "search widely", "deep": "read one page", "strict": "doubt everything", "quick": "answer at once"}


def schedule(**options: Any) -> Any:
    return part("schedule", "boad", **{"slots": ("finder", "checker"), "briefs": BRIEFS, "theta": 0.0} | options)


def table_of(*episodes: tuple[tuple[int, ...], float]) -> Any:
    """One task, with the roles that speak in each episode and whether it succeeds."""
    owners = [number for number, (roles, _) in enumerate(episodes) for _ in roles]
    turns = {"group": [0] * len(owners), "episode": owners, "role": [role for roles, _ in episodes for role in roles]}
    return make_table(turns, episodes={"success": [won for _, won in episodes]}, names={"role": ROLES})


def briefs(made: Any, step: int) -> dict[str, str]:
    (first, second) = made.told(step, [0, 1])
    assert first == second
    return first["briefs"]


def test_what_was_not_tried_comes_first_and_then_what_helped():
    made = schedule()
    assert briefs(made, 1) == {"finder": BRIEFS["broad"], "checker": BRIEFS["deep"]}
    # The finder speaks in the episode that succeeds, the checker in the one that does not.
    made.table_ready(table_of(((0, 1), 1.0), ((0, 2), 0.0)), 1)
    archive = made.state_dict()["archive"]
    assert [(archive[name]["tasks"], archive[name]["helpful"]) for name in ("broad", "deep")] == [(1, 0.5), (1, 0.0)]
    assert briefs(made, 2) == {"finder": BRIEFS["strict"], "checker": BRIEFS["quick"]}
    made.table_ready(table_of(((0, 1), 0.0), ((0, 2), 1.0), ((0, 2), 1.0)), 2)
    # All were tried once, so that what helped decides: quick in 2 of 3 episodes, broad in 1 of 2.
    assert briefs(made, 3) == {"finder": BRIEFS["quick"], "checker": BRIEFS["broad"]}


def test_a_round_lasts_its_steps_and_new_ones_enter_the_archive():
    made = schedule(briefs={}, candidates=BRIEFS, theta=1.0, every=2)
    assert briefs(made, 1) == briefs(made, 2) == {"finder": BRIEFS["broad"], "checker": BRIEFS["deep"]}
    metrics = made.table_ready(table_of(((0, 1, 2), 1.0)), 2)
    assert metrics["hier/sub_agents/archive"] == 2 and metrics["hier/sub_agents/untried"] == 2
    assert metrics["hier/sub_agents/best"] == 1.0


def test_a_resumed_run_chooses_the_same():
    made, options = schedule(candidates={"new": "try something else"}, theta=3.0), {"theta": 3.0}
    again = schedule(candidates={"new": "try something else"}, **options)
    for step in range(1, 8):
        assert briefs(made, step) == briefs(again, step)
        for each in (made, again):
            each.table_ready(table_of(((0, 1, 2), float(step % 2)), ((0, 1), 0.0)), step)
        state = json.loads(json.dumps(again.state_dict()))
        again = schedule(candidates={"new": "try something else"}, **options)
        again.load_state_dict(state)
        assert again.state_dict() == made.state_dict()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"slots": ()}, "at least one role"),
        ({"slots": ("finder", "finder")}, "each once"),
        ({"candidates": {"deep": "again"}}, "'deep' is among briefs and among candidates"),
        ({"briefs": {"one": "alone"}}, "more slots than sub-agents"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    made = plugin_module("schedules.boad").BOADOptions
    with pytest.raises(ValueError, match=sentence):
        made(**{"slots": ("finder", "checker"), "briefs": BRIEFS} | options)

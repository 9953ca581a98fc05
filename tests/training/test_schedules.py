"""Phases and the two built-in schedules."""

import json

import pytest
from verl_hier_plugins.alternating import Alternating, AlternatingOptions
from verl_hier_plugins.joint import Joint

from tests.trajectory import cases
from verl_hier.specs import NoOptions
from verl_hier.training.schedule import Phase


def test_joint_trains_everything():
    schedule = Joint(NoOptions())
    assert {schedule.phase(step) for step in range(1, 9)} == {Phase("joint")}
    assert all(schedule.phase(1).trains(node) for node in cases.hierarchical().nodes)
    assert schedule.state_dict() == {}


@pytest.mark.parametrize(
    "options, names",
    [({}, "ABABAB"), ({"period": 2}, "AABBAA"), ({"levels": (1, 0, 2)}, "ABCABC"), ({"levels": (1,)}, "AAAAAA")],
)
def test_alternating_is_a_function_of_the_step(options, names):
    schedule = Alternating(AlternatingOptions(**options))
    phases = [schedule.phase(step) for step in range(1, 7)]
    assert "".join(phase.name for phase in phases) == names
    levels = options.get("levels", (0, 1))
    assert [phase.levels for phase in phases] == [{levels[ord(name) - ord("A")]} for name in names]


def test_a_phase_trains_its_level():
    nodes = cases.hierarchical().nodes
    for level in (0, 1):
        phase = Phase("x", levels=frozenset({level}))
        assert {node.level for node in nodes if phase.trains(node)} == {level}
    assert {node.role for node in nodes if Phase("x", roles=frozenset({"planner"})).trains(node)} == {"planner"}


@pytest.mark.parametrize("bad", [{"period": 0}, {"levels": ()}])
def test_options_that_make_no_sense(bad):
    with pytest.raises(ValueError, match="period must be at least 1"):
        AlternatingOptions(**bad)


@pytest.mark.parametrize("phase", [Phase("joint"), Phase("A", frozenset({1, 0}), frozenset({"b", "a"}))])
def test_a_phase_survives_json(phase):
    assert Phase.from_dict(json.loads(json.dumps(phase.to_dict()))) == phase


def test_no_phase_is_the_phase_in_which_all_learn():
    assert Phase.from_dict({}) == Phase("joint")

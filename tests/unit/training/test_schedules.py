"""Phases and the built-in schedules."""

import json

import pytest

from tests.fixtures import rollout_graphs
from verl_hier.training.schedule import Phase, phase_metrics, phase_of
from verl_hier_plugins.schedules.alternating import Alternating, AlternatingOptions
from verl_hier_plugins.schedules.bottom_up import BottomUp, BottomUpOptions
from verl_hier_plugins.schedules.joint import Joint, JointOptions
from verl_hier_plugins.schedules.stagewise import Stagewise, StagewiseOptions


def test_joint_trains_everything():
    schedule = Joint(JointOptions())
    assert {schedule.phase(step) for step in range(1, 9)} == {Phase("joint")}
    assert all(schedule.phase(1).trains(node) for node in rollout_graphs.hierarchical().nodes)
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
    nodes = rollout_graphs.hierarchical().nodes
    for level in (0, 1):
        phase = Phase("x", levels=frozenset({level}))
        assert {node.level for node in nodes if phase.trains(node)} == {level}
    assert {node.role for node in nodes if Phase("x", roles=frozenset({"planner"})).trains(node)} == {"planner"}


@pytest.mark.parametrize("bad", [{"period": 0}, {"levels": ()}])
def test_options_that_make_no_sense(bad):
    with pytest.raises(ValueError, match="period must be at least 1"):
        AlternatingOptions(**bad)


@pytest.mark.parametrize("options, names", [({}, "AAAAAAAAAABBBBBBBBBBAA"), ({"period": 2}, "AABBAA")])
def test_hard_stages_freeze_what_is_inactive(options, names):
    schedule = Stagewise(StagewiseOptions(mode="hard", **options))
    phases = [schedule.phase(step + 1) for step in range(len(names))]
    assert "".join(phase.name for phase in phases) == names
    assert [phase.levels for phase in phases] == [{1} if name == "A" else {0} for name in names]
    assert not any(phase.weights for phase in phases)


def test_soft_stages_train_all_and_weigh_down_what_is_inactive():
    schedule = Stagewise(StagewiseOptions(period=3, inactive_weight=0.01))
    phases = [schedule.phase(step) for step in range(1, 8)]
    assert [(phase.name, phase.levels, phase.weights) for phase in phases] == [
        *[("A", None, ((0, 0.01),))] * 3,
        *[("B", None, ((1, 0.01),))] * 3,
        ("A", None, ((0, 0.01),)),
    ]
    # 1e-9 against 5e-6.
    assert StagewiseOptions().inactive_weight == pytest.approx(1e-9 / 5e-6)


@pytest.mark.parametrize("bad", [{"period": 0}, {"levels": (1,)}, {"levels": (1, 1)}])
def test_stages_that_make_no_sense(bad):
    with pytest.raises(ValueError):
        StagewiseOptions(**bad)


def test_bottom_up_goes_up_once_and_stays():
    schedule = BottomUp(BottomUpOptions(steps=(2, 3), levels=(2, 1, 0)))
    phases = [schedule.phase(step) for step in range(1, 100)]
    assert "".join(phase.name for phase in phases[:7]) == "AABBBCC"
    assert [phase.levels for phase in phases[:6]] == [{2}, {2}, {1}, {1}, {1}, {0}]
    assert set(phases[5:]) == {Phase("C", levels=frozenset({0}))}


def test_bottom_up_by_roles():
    schedule = BottomUp(BottomUpOptions(steps=(1, 1), roles=("local", "web", "planner")))
    assert [schedule.phase(step).roles for step in (1, 2, 3, 9)] == [{"local"}, {"web"}, {"planner"}, {"planner"}]
    assert schedule.phase(1).levels is None


@pytest.mark.parametrize("bad", [{"steps": ()}, {"steps": (0,)}, {"steps": (1, 1)}, {"roles": ("a",)}])
def test_stages_and_their_steps_must_fit(bad):
    with pytest.raises(ValueError, match="numbers of steps"):
        BottomUpOptions(**bad)


@pytest.mark.parametrize(
    "phase",
    [
        Phase("joint"),
        Phase("A", frozenset({1, 0}), frozenset({"b", "a"})),
        Phase("B", weights=((0, 0.5), (2, 2e-4))),
    ],
)
def test_a_phase_survives_json(phase):
    assert Phase.from_dict(json.loads(json.dumps(phase.to_dict()))) == phase


def test_no_phase_is_the_phase_in_which_all_learn():
    assert Phase.from_dict({}) == Phase("joint")


def test_the_phase_is_logged_by_name():
    assert phase_metrics("B", {"A", "B"}) == {"hier/schedule/phase/A": 0.0, "hier/schedule/phase/B": 1.0}
    assert phase_of(phase_metrics("B", {"A"}) | {"loss": 1.0}) == "B" and phase_of({"loss": 1.0}) == ""

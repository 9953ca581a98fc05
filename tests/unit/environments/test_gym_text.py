"""Worlds with gymnasium's `reset` and `step`: told by a view, forked, limited, and named by their import paths."""

import random
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.environments.gym_text import NOT_POSSIBLE, OVER, GymOptions, GymText, TextView, seeded_tasks
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing import check_environment
from verl_hier_plugins.environments.gym_text import SPEC
from verl_hier_plugins.environments.gym_text.environment import Plain, build
from verl_hier_plugins.environments.gym_text.options import GymTextOptions

HERE = "tests.unit.environments.test_gym_text"


class Doors:
    """Doors in a row, of which one leads out; some are locked until the key is taken."""

    def __init__(self, doors=40):
        self.doors, self.closed = doors, 0

    def reset(self, *, seed=None, options=None):
        rng = random.Random(seed)
        self.place, self.goal, self.key = rng.randrange(self.doors), rng.randrange(self.doors), False
        self.moves = 0
        return self.place, {}

    def step(self, action):
        self.moves += 1
        if action == "take":
            self.key = True
        else:
            self.place += action
        out = self.key and self.place == self.goal
        return self.place, 1.0 if out else -0.1, out, self.moves >= 30, {}

    def close(self):
        self.closed += 1


class Words(TextView):
    def text(self, world, observation, info):
        return f"door {observation}{' with the key' if world.key else ''}"

    def actions(self, world):
        ways = {name: way for name, way in {"left": -1, "right": 1}.items() if 0 <= world.place + way < world.doors}
        return ways if world.key else {**ways, "take key": "take"}

    def anchor(self, world):
        return f"{world.place} {world.goal} {world.key}"

    def instruction(self, world):
        return f"leave by door {world.goal}"

    def score(self, world, won):
        return 1.0 if won else 0.5 * world.key

    def facts(self, world):
        return {"doors": world.doors}


class Nothing:
    """Like `Doors`, but its actions are numbers of a space."""

    class action_space:
        n = 2

    def reset(self, *, seed=None, options=None):
        self.at = seed % 5
        return self.at, {}

    def step(self, action):
        self.at += (-1, 1)[action]
        return self.at, float(self.at == 7), self.at == 7, False, {}


def broken(**settings):
    raise ValueError("no such level")


def no_view():
    return "a text"


def options(**block):
    return GymTextOptions(**{"world": f"{HERE}:Doors", "view": f"{HERE}:Words", "pool": 12, "validation": 4, **block})


@pytest.mark.parametrize("fork", ["copy", "replay"])
def test_it_conforms(fork):
    check_environment(SPEC, options(fork=fork), tasks=2)


def test_a_world_without_a_view_conforms():
    check_environment(SPEC, options(world=f"{HERE}:Nothing", view="", actions=("down", "up")), tasks=1)


@pytest.mark.skipif(find_spec("gymnasium") is None, reason="needs gymnasium")
def test_a_world_of_gymnasium_conforms():
    lake = {"id": "FrozenLake-v1", "is_slippery": True}
    names = ("left", "down", "right", "up")
    played = options(world="gymnasium:make", settings=lake, view="", actions=names, fork="copy")
    check_environment(SPEC, played, tasks=1)


def test_an_episode_from_its_reset_to_its_end():
    world = build(options(max_steps=50, invalid_penalty=0.25, settings={"doors": 3}))
    task = next(task for task in SPEC.tasks(options(settings={"doors": 3}, pool=3), "train"))
    start = world.reset(task, 0)
    assert start.info == {"doors": 3, "won": False, "score": 0.0} and start.reward == 0 and not start.done
    assert task["instruction"] == f"leave by door {world.world.goal}"
    refused = world.step("fly")
    assert (refused.text, refused.valid, refused.reward) == (NOT_POSSIBLE, False, -0.25)
    assert refused.anchor == start.anchor and world.path == () and world.world.moves == 0
    step = world.step("  Take   KEY ")
    assert step.valid and step.text.endswith("with the key") and step.info == {"won": False, "score": 0.5}
    assert "take key" not in step.admissible and world.path == ("Take KEY",)
    while not step.done:
        step = world.step("right" if world.world.place < world.world.goal else "left")
    assert step.reward == 1.0 and step.info == {"won": True, "score": 1.0} and step.admissible == ()
    after = world.step("left")
    assert (after.text, after.valid, after.done, after.reward) == (OVER, False, True, -0.25)


def test_both_limits_truncate():
    task = {"seed": 3}
    short, long = build(options(max_steps=4)), build(options(max_steps=100))
    assert not short.reset(task, 0).truncated and not long.reset(task, 0).truncated
    assert [short.step("fly").truncated for _ in range(4)] == [False, False, False, True]
    ends = [long.step(random.Random(n).choice(["left", "right", *long.admissible][-2:])).truncated for n in range(29)]
    assert not any(ends) or ends.index(True) >= 29
    while not (step := long.step(long.admissible[0])).truncated:
        assert long.world.moves < 30
    assert long.world.moves == 30 and not step.done


def test_what_is_possible_can_be_shown():
    step = build(options(show_admissible=True)).reset({"seed": 1}, 0)
    assert step.text.splitlines()[1] == f"You can: {'; '.join(step.admissible)}"


def test_worlds_are_closed_once():
    world = GymText(lambda task: Doors(), Words(), GymOptions())
    world.reset({"seed": 0}, 0)
    first = world.world
    world.reset({"seed": 1}, 0)
    assert first.closed == 1
    second, fork = world.world, world.fork()
    world.close()
    world.close()
    assert second.closed == 1 and fork.world.closed == 0 and fork.step(fork.admissible[0]).valid


def test_tasks_begin_in_different_states_and_splits_share_none():
    found = [(task["seed"], task) for split in ("train", "val", "test") for task in SPEC.tasks(options(), split)]
    world = build(options())
    anchors = {world.reset(task, 0).anchor for _, task in found}
    assert len(found) == 20 == len(anchors)
    assert SPEC.tasks(options(seed=1), "train") != SPEC.tasks(options(), "train")
    with pytest.raises(RecipeError, match=r"found only .* different tasks"):
        SPEC.tasks(options(settings={"doors": 2}), "train")
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(options(), "dev")


def test_choices_have_equal_shares():
    world = GymText(lambda task: Doors(task["doors"]), Words(), GymOptions())
    choices = [{"doors": number} for number in (20, 30, 40)]
    found = seeded_tasks(world, GymOptions(pool=9, validation=1), "train", "doors", choices)
    assert [task["doors"] for task in found] == [20, 30, 40] * 3 and {t["data_source"] for t in found} == {"doors"}


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({}, "'gym_text' needs world; add `hier.environment.world: …`"),
        ({"world": "doors"}, "has to be an import path package.module:name, got 'doors'"),
        ({"world": "a:b", "view": "c"}, "view has to be an import path"),
        ({"world": "a:b", "view": "c:d", "actions": ["left"]}, "leave one of the two out"),
        ({"world": "a:b", "fork": "never"}, "is not one of"),
        ({"world": "a:b", "max_steps": 0}, "at least 1"),
    ],
)
def test_options_are_refused_in_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"world": "no_such_package:World"}, r"environment\.world: no_such_package:World cannot be imported"),
        ({"world": f"{HERE}:Gate"}, "put its folder on PYTHONPATH"),
        ({"view": f"{HERE}:no_view"}, "makes a str; derive it from"),
        ({"world": f"{HERE}:broken"}, r"cannot be made with these `settings` \(ValueError: no such level\)"),
        ({"view": ""}, "name a view whose `action` says what a text means"),
    ],
)
def test_a_world_that_is_not_there_is_a_sentence(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build(options(**block)).reset({"seed": 0}, 0)


class Space:
    """A space with numbered actions, whatever they are counted from."""

    def __init__(self, n, start=0, shape=()):
        self.n, self.start, self.shape = n, start, shape


class Numbered:
    """Remembers the actions that it was given."""

    def __init__(self, space, success=()):
        self.action_space, self.given, self._success = space, [], iter(success)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        self.given.append(action)
        return 0, 1.0, True, False, {"is_success": said for said in [next(self._success, None)] if said is not None}


def played(world, view, action):
    made = GymText(lambda task: world, view, GymOptions())
    made.reset({"seed": 0}, 0)
    return made.step(action)


@given(st.integers(1, 9), st.integers(-9, 9), st.data())
def test_numbered_actions_are_those_of_the_space(count, start, data):
    space = Space(count, start)
    told = Plain(())
    assert [*told.actions(Numbered(space)).values()] == [*range(start, start + count)]
    place = data.draw(st.integers(-20, 20))
    world = Numbered(space)
    assert played(world, told, str(place)).valid == (start <= place < start + count)
    assert world.given == ([place] if start <= place < start + count else [])
    names = tuple(f"Way {number}" for number in range(count))
    world = Numbered(space)
    assert played(world, Plain(names), names[-1].lower()).valid and world.given == [start + count - 1]


def test_the_spaces_of_gymnasium():
    spaces = pytest.importorskip("gymnasium").spaces
    assert [*Plain(()).actions(Numbered(spaces.Discrete(3, start=-1))).values()] == [-1, 0, 1]
    for space in (spaces.MultiBinary(3), spaces.MultiDiscrete([2, 2]), spaces.Box(0, 1)):
        for names in ((), ("left", "stay", "right")):
            with pytest.raises(RecipeError, match="not the numbers of a Discrete space; name a view"):
                Plain(names).actions(Numbered(space))


def test_names_for_another_number_of_actions_are_refused():
    with pytest.raises(RecipeError, match=r"environment\.actions: this world has 3 actions, and 2 names are listed"):
        Plain(("left", "right")).actions(Numbered(Space(3)))


@pytest.mark.parametrize("success", [True, False])
def test_the_world_s_own_word_of_success_counts(success):
    assert played(Numbered(Space(2), [success]), Plain(()), "0").info["won"] is success

    class Knows(Plain):
        def won(self, world, reward, ended):
            return not success

    assert played(Numbered(Space(2), [success]), Knows(()), "0").info["won"] is not success


@pytest.mark.parametrize("method", ["reset", "step"])
def test_the_older_interface_of_gym_is_a_sentence(method):
    world = Numbered(Space(2))
    setattr(world, method, {"reset": lambda seed=None: 0, "step": lambda action: (0, 0.0, False, {})}[method])
    with pytest.raises(RecipeError, match=f"world: `{method}` of this world does not return the . values of gymnasium"):
        played(world, Plain(()), "0")

"""The conformance kit finds what it is for: each broken world is refused in a sentence, a sound one passes."""

import contextlib
import dataclasses
import json
import random
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tests.fixtures.faulty_environment import Counter, Options, build
from verl_hier.environments.base import Environment, StepResult
from verl_hier.host.specs import EnvironmentSpec
from verl_hier.testing.environment import check_environment

STARTS = {"train": (0, 3), "val": (1, 4)}


def tasks_of(options, split):
    return [{"instruction": "count on", "start": start} for start in STARTS[split]]


def spec(factory=build, tasks=tasks_of, fork="native"):
    return EnvironmentSpec(name="counter", factory=factory, options=Options, tasks=tasks, fork=fork)


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_sound_world_passes(can_fork):
    check_environment(spec(), Options(can_fork=can_fork), tasks=1)


class Raises(Counter):
    def step(self, action):
        if action != "add":
            raise KeyError(action)
        return super().step(action)


class ReadsJson(Counter):
    """Reads JSON as Python has it, and misses that its nesting has an end."""

    def step(self, action):
        with contextlib.suppress(ValueError):
            json.loads(action.removeprefix("look "))
        return super().step(action)


def reads_json(options):
    return ReadsJson(options)


def test_a_world_that_a_text_of_a_policy_breaks():
    with pytest.raises(AssertionError, match=r"an action of .*brackets.* raised RecursionError"):
        check_environment(spec(reads_json), Options(), tasks=1)


class Moves(Counter):
    def step(self, action):
        if action != "add":
            self.total += 1
        return super().step(action)


class Shares(Counter):
    def fork(self):
        copy = Counter(self.options)
        copy.__dict__ = self.__dict__
        return copy


class Remembers(Counter):
    def reset(self, task, seed):
        before = getattr(self, "total", 0)
        first = super().reset(task, seed)
        self.total += before
        return first


class Vague(Counter):
    def step(self, action):
        answer = super().step(action)
        admissible = ("add",) if self.total % 2 else ("add", "slow")
        return StepResult(text=answer.text, valid=answer.valid, anchor="somewhere", admissible=admissible)


class Picky(Counter):
    def step(self, action):
        return StepResult(text="no", valid=False, anchor=str(self.total), admissible=("add",))


class Listing(Counter):
    def reset(self, task, seed):
        first = super().reset(task, seed)
        return StepResult(text=first.text, admissible=["add"])


class Gambles(Counter):
    """Seeds the process's generator and lives on it."""

    def reset(self, task, seed):
        random.seed(seed)
        return super().reset(task, seed)

    def _step(self, note=""):
        return super()._step(f"{note} {random.randrange(1000)}")


class Crowds(Counter):
    """All instances write into one list."""

    steps: ClassVar[list] = []

    def reset(self, task, seed):
        self.steps.clear()
        return super().reset(task, seed)

    def step(self, action):
        self.steps.append(action)
        answer = super().step(action)
        return dataclasses.replace(answer, text=f"{answer.text} {len(self.steps)}")


class Follows(Counter):
    """A fork reports to its source, which takes its count."""

    def fork(self):
        copy = super().fork()
        copy.step = lambda action: self._told(Counter.step(copy, action))
        return copy

    def _told(self, answer):
        self.total = int(answer.anchor)
        return answer


class Clings(Counter):
    """Its forks live in what it closes."""

    def reset(self, task, seed):
        self.open = [True]
        return super().reset(task, seed)

    def step(self, action):
        answer = super().step(action)
        return answer if self.open else StepResult(text="closed")

    def fork(self):
        copy = Clings(self.options)
        copy.total, copy.open, copy.close = self.total, self.open, lambda: None
        return copy

    def close(self):
        self.open.clear()


class Lingers(Counter):
    """Leaves a thread behind."""

    def reset(self, task, seed):
        threading.Thread(target=ENOUGH.wait, daemon=True).start()
        return super().reset(task, seed)


class Hoards(Counter):
    """Leaves a file open."""

    def reset(self, task, seed):
        HOARD.append(open(__file__))
        return super().reset(task, seed)


ENOUGH = threading.Event()
HOARD = []


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        (Raises, "answer it with valid=False"),
        (Moves, "changed the state"),
        (Shares, "not independent"),
        (Remembers, "does not start from the beginning"),
        (Vague, "other admissible actions"),
        (Picky, "listed as admissible and then called invalid"),
        (Listing, "must be a tuple"),
        (Gambles, "instead of the global one"),
        (Crowds, "share nothing that changes"),
        (Follows, "disturbed its source"),
        (Clings, "does not outlive its source"),
        (Lingers, "left behind: {'threads'"),
        (Hoards, "left behind: {'open files'"),
    ],
)
@pytest.mark.slow
def test_broken_worlds_are_refused(world, sentence):
    ENOUGH.clear()
    try:
        with pytest.raises(AssertionError, match=sentence):
            check_environment(spec(factory=world), tasks=1, isolated=False)
    finally:
        ENOUGH.set()
        while HOARD:
            HOARD.pop().close()


class Silent(Counter):
    """Lists nothing, and forgets to count in its forks."""

    def reset(self, task, seed):
        return dataclasses.replace(super().reset(task, seed), admissible=())

    def step(self, action):
        return dataclasses.replace(super().step(action), admissible=())

    def fork(self):
        copy = Silent(self.options)
        copy.total = self.total
        copy._step = lambda note="": self._step(note)
        return copy


class Guided(Silent):
    """Has an expert who adds."""

    def expert(self, rng, skip_stage=0.0, remember=True):
        return SimpleNamespace(subgoals=("add",), advise=lambda number: "add", mistake=lambda number, rng: "slow")


@pytest.mark.slow
def test_worlds_that_list_nothing_are_played_by_given_actions_or_their_expert():
    check_environment(spec(factory=Silent), tasks=1, steps=3, isolated=False)
    for world, actions in ((Silent, ["add"]), (Guided, [])):
        with pytest.raises(AssertionError, match="not independent"):
            check_environment(spec(factory=world), tasks=1, steps=3, isolated=False, actions=actions)


@pytest.mark.slow
def test_steps_that_depend_on_the_process_are_refused():
    with pytest.raises(AssertionError, match="another process gives other steps"):
        check_environment(spec(), Options(says_process=True), tasks=1)


def test_chance_is_refused():
    with pytest.raises(AssertionError, match="not deterministic"):
        check_environment(spec(), Options(deterministic=False), tasks=1, isolated=False)


def test_a_fork_that_the_spec_denies():
    with pytest.raises(AssertionError, match="fork='never'"):
        check_environment(spec(fork="never"), tasks=1, isolated=False)


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        (lambda options, split: [], "gives no task"),
        (lambda options, split: [{"instruction": "x", "start": (1,)}], "not JSON-able"),
        (lambda options, split: [{"start": 1}], "needs an `instruction`"),
        (lambda options, split: [{"instruction": "x", "start": random.random()}], "gives other tasks"),
        (None, "has no `tasks` function"),
        (lambda options, split: [{"instruction": "x", "start": 1}], "is in the split 'train' and in 'val'"),
        (lambda options, split: [{"instruction": "x", "start": 1, "id": split}], "'train' and in 'val'"),
        (lambda options, split: {"train": [{"instruction": "x", "start": 1}]}[split], "raises KeyError"),
    ],
)
def test_broken_tasks_are_refused(tasks, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_environment(spec(tasks=tasks), tasks=1, isolated=False)


def test_what_is_no_environment():
    class Thing:
        pass

    with pytest.raises(AssertionError, match="gave no Environment"):
        check_environment(spec(factory=lambda options: Thing()), tasks=1, isolated=False)
    assert issubclass(Counter, Environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"info": ("total", "moon")}, "lists 'moon'"),
        ({"splits": ("val",)}, "does not list the split 'train'"),
        ({"pool": lambda options, split: 1}, "2 tasks in 'train', and the `pool` of its spec says 1"),
        ({"names_states": False}, "says names_states=False, and the answer to a reset has an anchor"),
    ],
)
def test_specs_that_declare_what_is_not_true_are_refused(declared, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_environment(dataclasses.replace(spec(), **declared), tasks=1, isolated=False)


class SaysWon(Counter):
    """Says `won` of some of its answers, or something else in its place."""

    def __init__(self, options, says):
        super().__init__(options)
        self.says = says

    def reset(self, task, seed):
        return self.told(super().reset(task, seed))

    def step(self, action):
        return self.told(super().step(action))

    def told(self, answer):
        word = {"always": False, "when valid": False if answer.valid else None, "as a text": "no"}.get(self.says)
        return answer if word is None else dataclasses.replace(answer, info={**answer.info, "won": word})

    def fork(self):
        copy = SaysWon(self.options, self.says)
        copy.total = self.total
        return copy


@pytest.mark.parametrize(
    ("says", "declared", "sentence"),
    [
        ("always", None, ""),
        ("always", True, ""),
        ("never", None, ""),
        ("never", False, ""),
        ("when valid", True, ""),
        ("when valid", None, r"the answer to a reset has `won` .* action '.*', which has valid=False, has none"),
        ("always", False, "says says_won=False, and the answer to a reset has `won`"),
        ("never", True, "says says_won=True, and no answer has `won`"),
        ("as a text", True, "the answer to a reset has 'no' as `won` in its `info`; it is true or false"),
    ],
)
def test_what_a_world_says_of_success_is_what_its_spec_declares(says, declared, sentence):
    def factory(options):
        return SaysWon(options, says)

    made = dataclasses.replace(spec(factory=factory), says_won=declared)
    refused = pytest.raises(AssertionError, match=sentence) if sentence else contextlib.nullcontext()
    with refused:
        check_environment(made, tasks=1, steps=3, isolated=False)

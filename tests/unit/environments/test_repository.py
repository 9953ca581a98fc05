"""`repository`: functions and their bugs, tasks, the workspace, actions, hidden cases, forks, the expert, words."""

import ast
import json
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tiers import quick
from verl_hier.environments.splits import SPLITS
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.repository import SPEC, judge
from verl_hier_plugins.environments.repository.environment import VERBS, build
from verl_hier_plugins.environments.repository.mutations import mutants, unwritten
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.repositories import FEWEST_WRONG, UNWRITTEN, repository_of
from verl_hier_plugins.environments.repository.spelling import DIGITS, SIGNS, spell, take_number, unspell
from verl_hier_plugins.environments.repository.tasks import MODULES
from verl_hier_plugins.environments.repository.units import UNITS
from verl_hier_plugins.environments.repository.workspace import MOST_CHARACTERS, MOST_FILES, BadChange, Workspace

UP = os.pardir + "/"

SCALE = {
    "instruction": "Mend the package.",
    "package": "garden",
    "modules": {"core": ["scale"], "rules": ["cap"]},
    "values": {"scale": {"a": 3, "b": 2}, "cap": {"a": 4, "b": 12}},
    "changes": [["scale", UNWRITTEN]],
    "far": False,
}
RIGHT = "replace garden/core.py 3\n    return n * 3 + 2"


def small(difficulty=0, **more):
    return RepositoryOptions(difficulty, pool=6, validation=4, **more)


WORDS = small(spelling="words")


def started(task=SCALE, **more):
    world = build(small(**more))
    return world, world.reset(task, 0)


@pytest.mark.parametrize("options", quick(1, [small((1, 2, 3)), WORDS]), ids=["symbols", "words"])
def test_conforms(options):
    check_environment(SPEC, options, tasks=1)


# ---- functions and bugs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNITS)
def test_a_function_has_bugs_that_keep_its_docstring(name):
    unit = UNITS[name]
    tree = unit.tree(unit.draw(random.Random(0)))
    texts = [ast.unparse(bug) for bug in mutants(tree)]
    assert len(texts) >= 2 and len({*texts, ast.unparse(tree)}) == len(texts) + 1, "each differs from all others"
    for text in (*texts, ast.unparse(unwritten(tree))):
        assert ast.get_docstring(ast.parse(text).body[0]) == ast.get_docstring(tree)
    assert {*unit.calls} <= {*UNITS} and not any(UNITS[called].calls for called in unit.calls)


# ---- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [small((0, 1, 2, 3)), WORDS, small(3, seed=3)], ids=["all", "words", "seed"])
def test_splits_are_disjoint_and_repeatable(options):
    made = {split: SPEC.tasks(options, split) for split in SPLITS}
    wrong = {
        split: {f"{name} {task['values'][name]}" for task in tasks for name, _ in task["changes"]}
        for split, tasks in made.items()
    }
    assert [len(made[split]) for split in SPLITS] == [6, 4, 4]
    assert not wrong["train"] & wrong["val"] | wrong["train"] & wrong["test"] | wrong["val"] & wrong["test"]
    assert made == {split: SPEC.tasks(options, split) for split in SPLITS}
    assert json.loads(json.dumps(made["train"])) == made["train"]
    assert [task["level"] for task in made["train"]] == [options.levels[n % len(options.levels)] for n in range(6)]
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(options, "dev")


def test_the_kinds_of_tasks():
    tasks = [task for level in range(4) for task in SPEC.tasks(RepositoryOptions(level, pool=16), "train")]
    kinds = {(len(task["changes"]), task["far"], task["changes"][0][1] == UNWRITTEN) for task in tasks}
    assert kinds == {(1, False, False), (1, False, True), (1, True, False), (2, False, False), (2, False, True)}
    for task in tasks:
        made = repository_of(task)
        for name, module in made.targets:
            cases = [case for case in made.hidden if case.function == name]
            assert sum(case.wrong for case in cases) >= FEWEST_WRONG and len({case.right for case in cases}) > 1
            assert f"def {name}(" in made.broken[f"{made.package}/{module}.py"]
            assert task["far"] != any(case.function == name for case in made.failing)
        seen = {case.call for case in made.failing}
        assert seen and not seen & {case.call for case in made.hidden}


def test_a_task_that_is_none_is_refused():
    with pytest.raises(RecipeError, match="no task of repository"):
        started({"instruction": "x"})
    with pytest.raises(RecipeError, match="no task of repository"):
        started({**SCALE, "changes": [["scale", 999]]})
    with pytest.raises(RecipeError, match="does not show"):
        started({**SCALE, "changes": []})


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"difficulty": 4}, "from 0 to 3"),
        ({"difficulty": []}, "from 0 to 3"),
        ({"spelling": "words", "difficulty": 1}, "needs difficulty 0"),
        ({"spelling": "words", "actions": "tags"}, "actions: plain"),
        ({"max_steps": 0}, "at least 1"),
        ({"output_chars": 10}, "at least 200"),
        ({"time_limit_s": 4}, "from 1 to 3"),
    ],
)
def test_options_that_make_no_sense_are_refused(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


# ---- the workspace ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        f"{UP}x.py",
        f"a/{UP}b.py",
        "a//b",
        "./a",
        ".git/x",
        "a b",
        "a\n",
        "é",
        "a/b/c/d/e/f",
        "a" * 50,
    ],
)
def test_paths_that_are_none(path):
    with pytest.raises(BadChange, match="no path"):
        Workspace({}).with_file(path, "")


def test_a_workspace_is_bounded():
    full = Workspace({f"f{number}": "" for number in range(MOST_FILES)})
    with pytest.raises(BadChange, match="at most 64 files"):
        full.with_file("one_more", "")
    assert full.with_file("f3", "x")["f3"] == "x" and full["f3"] == ""
    with pytest.raises(BadChange, match="characters"):
        full.with_file("f3", "x" * (MOST_CHARACTERS + 1))
    large = full.with_file("f1", "x" * MOST_CHARACTERS).with_file("f2", "x" * MOST_CHARACTERS)
    with pytest.raises(BadChange, match="together"):
        large.with_file("f3", "x" * MOST_CHARACTERS)
    with pytest.raises(BadChange, match="in a file"):
        full.with_file("f3/x", "")
    with pytest.raises(BadChange, match="in a file"):
        Workspace({"a/b": ""}).with_file("a", "")


@given(
    st.dictionaries(st.sampled_from("abc"), st.text(max_size=4)),
    st.dictionaries(st.sampled_from("abc"), st.text(max_size=4)),
)
def test_digests_are_equal_for_equal_files_alone(one, other):
    assert (Workspace(one).digest == Workspace(other).digest) == (one == other) == (Workspace(one) == Workspace(other))


@given(st.lists(st.sampled_from(["", "x", "  y", "    z"]), min_size=1, max_size=6), st.data())
def test_lines_are_replaced(lines, data):
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    new = data.draw(st.lists(st.sampled_from([" a", "  b"]), max_size=3))
    text = Workspace({"f": "".join(f"{line}\n" for line in lines)}).with_lines("f", first, last, new)["f"]
    assert text.splitlines() == [*lines[: first - 1], *new, *lines[last:]]


def test_new_lines_without_indentation_get_that_of_the_first():
    before = Workspace({"f": "if x:\n    a\n    b\n"})
    assert before.with_lines("f", 2, 2, ["for y in z:", "    c"])["f"] == "if x:\n    for y in z:\n        c\n    b\n"
    for place in ((0, 1), (1, 4), (3, 2)):
        with pytest.raises(BadChange, match="lines 1 to 3"):
            before.with_lines("f", *place, [])
    with pytest.raises(BadChange, match="no such file"):
        before.with_lines("g", 1, 1, [])


# ---- episodes --------------------------------------------------------------------------------------------------------


def test_an_episode():
    world, first = started()
    assert first.info == {"won": False, "changed": 0} and "replace PATH FIRST-LAST" in first.text
    assert world.step("list").text.split() == [*world.repository.broken]
    assert "  3     raise NotImplementedError" in world.step("read garden/core.py").text
    failed = world.step("test").text
    assert failed.startswith("2 of ") and "tests/test_core.py test_scale_1: NotImplementedError" in failed
    changed = world.step(RIGHT)
    assert changed.info == {"won": False, "changed": 1} and changed.reward == 0
    assert world.step("test").text.startswith("All ")
    last = world.step("submit")
    assert last.done and last.info["won"] and last.reward == 1
    late = world.step("submit")
    assert not late.valid and late.done and late.reward < 0 and late.info["won"]


@pytest.mark.parametrize(
    "text",
    [
        "replace garden/core.py 3 return n * 3 + 2",
        "replace garden/core.py 3\nreturn n * 3 + 2",
        "replace garden/core.py 3-3:\n    return n * 3 + 2",
        "<replace>garden/core.py 3\n    return n * 3 + 2\n</replace>",
        "Hm.\n<replace>\ngarden/core.py 1-3\n```python\ndef scale(n):\n    return 2 + 3 * n\n```\n</replace>",
        "<think>replace garden/core.py 1 x</think>replace garden/core.py 3 return n * 3 + 2",
        "write garden/core.py\nscale = lambda n: 2 + n * 3",
    ],
)
def test_forms_of_a_change(text):
    world, _ = started()
    assert world.step(text).valid and world.step("<submit></submit>").info["won"]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "mend it",
            "read",
            "read nothing.py",
            f"read {UP}garden/core.py",
            "replace garden/core.py",
            "replace x.py 1 x",
        ),
        *(
            "replace garden/core.py 0 x",
            "replace garden/core.py 9 x",
            "replace garden/core.py 3-2 x",
            "write",
            "write /x\n",
        ),
        *(f"write {UP}x\ny", f"write x\n{'y' * 21_000}", "z" * 30_000),
    ],
)
def test_actions_that_are_not_possible(text):
    world, first = started(invalid_penalty=0.5)
    step = world.step(text)
    assert not step.valid and step.reward == -0.5 and step.anchor == first.anchor


def test_what_failed_is_shown():
    world, _ = started()
    world.step("replace garden/core.py 3 return n * 3 - 2")
    failing = next(case for case in world.repository.failing)
    value = failing.arguments[0] * 3 - 2
    shown = world.step("test").text
    assert f"test_scale_1: scale({failing.arguments[0]}) == {failing.right}, and the left side is {value}" in shown
    world.step("write tests/test_core.py\nimport garden.core\nx = 1 / 0")
    assert "tests/test_core.py: ZeroDivisionError: division by zero" in world.step("test").text


@pytest.mark.slow
def test_code_that_does_not_end():
    world, _ = started()
    world.step("replace garden/core.py 3 while True: pass")
    assert world.step("test").text == "The tests did not run to their end (timeout)."
    assert world.step("submit").info == {"won": False, "changed": 1}


def test_long_answers_are_shortened():
    world, _ = started(output_chars=200)
    world.step(f"write notes.txt\n{'x' * 900}")
    text = world.step("read notes.txt").text
    assert len(text) < 250 and "[704 characters left out]" in text


def test_the_limit_on_turns():
    world, _ = started(max_steps=2)
    assert not world.step("list").truncated
    last = world.step("list")
    assert last.truncated and not last.done and not last.info["won"]


def test_anchors_are_the_files_and_what_was_read():
    one, first = started()
    two, _ = started()
    anchors = [one.step(text).anchor for text in ("read garden/core.py", "list", "replace garden/core.py 3 return 1")]
    assert len({first.anchor, *anchors}) == 4
    again = [
        two.step(text).anchor for text in ("list", "list", "read garden/core.py", "replace garden/core.py 3 return 1")
    ]
    assert again[-1] == anchors[-1] and again[2] == anchors[1] and again[0] == again[1]


def test_a_run_that_the_machine_ended_is_no_win(monkeypatch):
    world, _ = started()
    world.step(RIGHT)
    monkeypatch.setattr(judge, "run_once", lambda *_: judge_outcome(""))
    assert not world.step("submit").info["won"]


def judge_outcome(stdout):
    from verl_hier.sandbox.provider import Outcome

    return Outcome("killed", stdout, "", -9, 0.0, 0.0, (), "signal")


# ---- forks -----------------------------------------------------------------------------------------------------------


def random_action(world, rng):
    """A change, a look, or something that is not possible."""
    paths = [*world.workspace, "garden/new.py", "tests/test_new.py", f"{UP}x"]
    path, code = rng.choice(paths), rng.choice(["x = 1", "    return n", "def f():\n    return 2", ""])
    first = rng.randint(1, 12)
    texts = (f"read {path}", "list", f"write {path}\n{code}", f"replace {path} {first}-{first + 1}\n{code}")
    return rng.choice((*texts, f"replace {path} {first} {code}", "nonsense"))


@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_is_what_a_replay_gives(seed):
    """60 sequences of random actions: a fork and an instance that repeats them go on alike, and change no other."""
    rng = random.Random(seed)
    (task,) = SPEC.tasks(RepositoryOptions(seed % 4, pool=1, seed=seed), "train")
    for _ in range(60):
        world, other = build(small(max_steps=99)), build(small(max_steps=99))
        world.reset(task, 0)
        other.reset(task, 0)
        actions = [random_action(world, rng) for _ in range(rng.randint(1, 12))]
        for action in actions:
            world.step(action)
        for action in actions:
            other.step(action)
        fork, before = world.fork(), dict(world.workspace)
        assert (
            dict(fork.workspace) == dict(other.workspace) == before and fork.workspace.digest == other.workspace.digest
        )
        for action in [random_action(world, rng) for _ in range(4)]:
            assert fork.step(action) == other.step(action)
        assert dict(world.workspace) == before


# ---- the hidden cases ------------------------------------------------------------------------------------------------


def test_what_decides_never_enters_the_sandbox(monkeypatch):
    """The script with the hidden cases is the same whatever their results should be; the tests know none of them."""
    scripts = []
    monkeypatch.setattr(judge, "run_once", lambda code, *_: scripts.append(code) or judge_outcome("[]"))
    made = repository_of(SCALE)
    for hidden in (made.hidden, [case.__class__(**{**vars(case), "right": "0", "got": "0"}) for case in made.hidden]):
        judge.passes(made.reference, made.package, hidden, 1)
    assert scripts[0] == scripts[1] and "tests/" not in scripts[0]
    judge.run_tests(made.broken, 1)
    assert not any(case.call in scripts[2] for case in made.hidden)


@pytest.mark.parametrize("kind", ["", "{", "[" * 5000, "null", "{}", '"x"', "[1,", "9" * 5000])
def test_output_that_is_none(monkeypatch, kind):
    monkeypatch.setattr(judge, "run_once", lambda *_: judge_outcome(kind))
    made = repository_of(SCALE)
    assert not judge.passes(made.reference, made.package, made.hidden, 1)
    assert isinstance(judge.run_tests(made.broken, 1), str)


# ---- the expert ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*(small(n, actions=("plain", "tags")[n % 2]) for n in range(4)), WORDS], ids=str)
def test_the_expert_wins_also_after_mistakes(options):
    world, mistakes = build(options), 0
    for number, task in enumerate(SPEC.tasks(options, "train")):
        step, rng = world.reset(task, 0), random.Random(number)
        expert = world.expert(rng)
        for subgoal in range(len(expert.subgoals)):
            while (action := expert.advise(subgoal)) is not None:
                mistake = expert.mistake(subgoal, rng) if rng.random() < 0.5 else None
                mistakes += mistake is not None
                step = world.step(mistake or action)
                assert step.valid
        assert step.info["won"], task
    assert mistakes or options.difficulty


def test_the_expert_that_skips_leaves_a_function_as_it_is():
    world, _ = started()
    expert = world.expert(random.Random(0), 1.0)
    assert expert.subgoals == ("submit",) and not world.step(expert.advise(0)).info["won"]


# ---- words -----------------------------------------------------------------------------------------------------------


def test_words_of_signs_are_no_names():
    names = {*UNITS, *MODULES, "n", "m", "garden"}
    assert not names & {*SIGNS.values(), *DIGITS, *VERBS} and not {*SIGNS.values()} & {*DIGITS}


@pytest.mark.parametrize("name", [name for name, unit in UNITS.items() if not unit.level])
def test_code_is_read_as_it_is_spelt(name):
    unit = UNITS[name]
    for line in ast.unparse(unit.tree(unit.draw(random.Random(1)))).splitlines():
        if '"""' not in line:
            assert "".join(unspell(spell(line)).split()) == "".join(line.split())


def test_numbers_in_front():
    assert take_number("one two return n") == (12, "return n") and take_number("return n") == (None, "return n")


def test_an_episode_in_words():
    world = build(WORDS)
    assert world.reset(SCALE, 0).text == "ready"
    assert world.step("read core").text.startswith(
        "| one def scale open n close : | two doc n times three plus two doc"
    )
    assert world.step("list").text == "core rules"
    assert world.step("test").text.startswith("failed notimplementederror")
    assert world.step("replace core three return n plus three times two").text == "done"
    assert world.step("test").text.startswith("failed scale open")
    assert world.step("replace core three return n times three plus two").text == "done"
    assert world.step("test").text == "passed"
    assert world.step("submit").text == "right"
    for text in ("write core\nx", "replace core return", "read nowhere"):
        world.reset(SCALE, 0)
        assert not world.step(text).valid


def test_the_vocabulary_is_small_and_whole():
    said = {word for text in build(WORDS).vocabulary() for word in text.split()}
    assert len(said) < 120
    for split in SPLITS:
        for task in SPEC.tasks(RepositoryOptions(spelling="words", pool=40, validation=10), split):
            assert {*task["instruction"].split()} <= said, task

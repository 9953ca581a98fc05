"""`bug_reproduction`: templates and bugs, the language of tests, stages, rewards, forks, the expert, hostile text."""

import dataclasses
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tiers import quick
from verl_hier.environments.splits import SPLITS
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.sandbox.provider import SandboxError
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.bug_reproduction import SPEC
from verl_hier_plugins.environments.bug_reproduction.cases import cases
from verl_hier_plugins.environments.bug_reproduction.checks import BadTest, Check, read_test, spell
from verl_hier_plugins.environments.bug_reproduction.environment import build
from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions
from verl_hier_plugins.environments.bug_reproduction.templates import TEMPLATES

BORDER = {
    "instruction": "f(n) should return n plus 3 if n is above 17, else n. Bug report: wrong when n is 17.",
    "function": "above",
    "values": {"a": 3, "b": 17},
    "bug": 0,
    "level": 0,
}


def small(**more):
    return BugReproductionOptions(pool=6, validation=4, **more)


WORDS = small(spelling="words", difficulty=(0, 1))


def started(task=BORDER, **more):
    world = build(small(**more))
    return world, world.reset(task, 0)


@pytest.mark.parametrize("options", quick(1, [small(difficulty=(1, 2)), WORDS]), ids=["symbols", "words"])
def test_conforms(options):
    check_environment(SPEC, options, tasks=1)


# ---- functions and bugs ----------------------------------------------------------------------------------------------

EVERY_BUG = [(name, bug) for name, template in TEMPLATES.items() for bug in range(len(template.bugs))]


def test_there_are_a_few_dozen():
    assert len(TEMPLATES) >= 36 and len(EVERY_BUG) >= 80
    assert {template.level for template in TEMPLATES.values()} == {0, 1, 2}


@pytest.mark.parametrize(("name", "bug"), EVERY_BUG)
def test_every_bug_shows_somewhere_and_not_everywhere(name, bug):
    template = TEMPLATES[name]
    assert template.body.count(template.bugs[bug].old) == 1, "a bug has to replace one place"
    fitting = 0
    for seed in range(8):
        rng = random.Random(seed)
        values = {key: rng.randint(*template.ranges[key]) for key in template.ranges}
        fitting += len({case.shows for case in cases(name, values, bug)}) == 2
        assert "{" not in template.does.format(**values) + template.bugs[bug].when.format(**values)
    assert fitting >= 4


SPELT = {"zero": 0, "one": 1, "eight": 8, "nine": 9}
CLAIMS = {
    "n is( not)? above": lambda n, number: n > number,
    "n is( not)? below": lambda n, number: n < number,
    "n is( not)? at least": lambda n, number: n >= number,
    "n is (no|a) multiple of": lambda n, number: n % number == 0,
    "n is( not)?": lambda n, number: n == number,
}


def claimed(report, n):
    """Whether a bug report speaks of a number; what it adds with `or` is left out."""
    for part in report.partition(" or ")[0].replace(" and below", " and n is below").split(" and "):
        words, _, number = part.rpartition(" ")
        claim = next(claim for pattern, claim in CLAIMS.items() if re.fullmatch(pattern, words))
        if claim(n, SPELT[number] if number in SPELT else int(number)) == bool(re.search(r"\b(not|no)\b", words)):
            return False
    return True


@pytest.mark.parametrize(("name", "bug"), [(name, bug) for name, bug in EVERY_BUG if TEMPLATES[name].arguments == "n"])
def test_reports_on_one_number_are_true(name, bug):
    """Where the report says that the result is wrong, it is."""
    template = TEMPLATES[name]
    spoken_of = 0
    for seed in range(6):
        rng = random.Random(seed)
        values = {key: rng.randint(*template.ranges[key]) for key in template.ranges}
        report = template.bugs[bug].when.format(**values)
        meant = [case for case in cases(name, values, bug) if claimed(report, case.arguments[0])]
        assert all(case.shows for case in meant), (report, values, [c for c in meant if not c.shows])
        spoken_of += len(meant)
    assert spoken_of


# ---- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [small(difficulty=(0, 1, 2, 3)), WORDS, small(seed=3)], ids=["all", "words", "seed"]
)
def test_splits_are_disjoint_and_repeatable(options):
    made = {split: SPEC.tasks(options, split) for split in SPLITS}
    functions = {split: {f"{t['function']} {t['values']}" for t in tasks} for split, tasks in made.items()}
    assert [len(functions[split]) for split in SPLITS] == [6, 4, 4]
    assert not functions["train"] & functions["val"] and not functions["train"] & functions["test"]
    assert not functions["val"] & functions["test"]
    assert made == {split: SPEC.tasks(options, split) for split in SPLITS}
    assert json.loads(json.dumps(made["train"])) == made["train"]
    assert [task["level"] for task in made["train"]] == [options.levels[n % len(options.levels)] for n in range(6)]
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(options, "dev")


def test_what_is_told_at_each_difficulty():
    told = [SPEC.tasks(small(difficulty=level), "train")[0]["instruction"] for level in range(4)]
    assert all("Bug report: the result is wrong when" in text for text in told[:2])
    assert "the result is sometimes" in told[2] and told[3].endswith("Bug report: f has a bug.")
    code = SPEC.tasks(small(show_code=True), "train")[0]
    assert TEMPLATES[code["function"]].source(code["values"], code["bug"]) in code["instruction"]


def test_effects_that_are_told_are_true():
    tasks = SPEC.tasks(BugReproductionOptions(difficulty=2, pool=60), "train")
    for task in tasks:
        shown = [case for case in cases(task["function"], task["values"], task["bug"]) if case.shows]
        if "too big" in task["instruction"]:
            assert all(case.buggy > case.correct for case in shown)
        elif "too small" in task["instruction"]:
            assert all(case.buggy < case.correct for case in shown)
        elif "true instead of false" in task["instruction"]:
            assert all((case.correct, case.buggy) == (False, True) for case in shown)


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"difficulty": 4}, "from 0 to 3"),
        ({"difficulty": []}, "from 0 to 3"),
        ({"spelling": "words", "difficulty": 2}, "below 2"),
        ({"spelling": "words", "show_code": True}, "show_code: false"),
        ({"stage_scores": [0.5, 0.2, 1.0]}, "stage_scores"),
        ({"stage_scores": [0.5, 1.0]}, "stage_scores"),
        ({"max_checks": 0}, "at least 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


# ---- the language of tests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        ("f(5) == 8", "n", ["f(5) == 8"]),
        ("assert f(-5) == 8", "n", ["f(-5) == 8"]),
        ("assert f(5) == 8, 'wrong'", "n", ["f(5) == 8"]),
        ("assert 8 == f(5)", "n", ["f(5) == 8"]),
        ("f(5) is True", "n", ["f(5) == True"]),
        ("f(5) == 8\nassert f(6) == 9", "n", ["f(5) == 8", "f(6) == 9"]),
        ("f(1) == 2; f(2) == 3", "n", ["f(1) == 2", "f(2) == 3"]),
        ("f([1, -2], 0) == []", "xs n", ["f([1, -2], 0) == []"]),
        ('f(\'a"b\') == "x"', "s", ["f('a\"b') == 'x'"]),
        ("f(2, 3) == 1.5", "n m", ["f(2, 3) == 1.5"]),
    ],
)
def test_tests_are_read(text, arguments, told):
    assert [str(check) for check in read_test(text, arguments, 3)] == told


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "one to 3 checks"),
        ("f(1) == 1\n" * 4, "one to 3 checks"),
        ("f(1) ==", "no Python"),
        ("f(1) == 1\0", "no Python"),
        ("(" * 300, "no Python"),
        ("f(1)", "has the form"),
        ("f(1) != 2", "has the form"),
        ("f(1) == f(2)", "has the form"),
        ("1 < f(1) == 2", "has the form"),
        ("g(1) == 1", "has the form"),
        ("f(n=1) == 1", "has the form"),
        ("f(*[1]) == 1", "has the form"),
        ("f(open('/etc/passwd')) == 1", "has the form"),
        ("f(1) == __import__('os').getpid()", "has the form"),
        ("f(1) == 1j", "has the form"),
        ("import os", "has the form"),
        ("f = lambda n: 1", "has the form"),
        ("assert f(1) == (x := 1)", "has the form"),
        ("f() == 1", "f takes 1 argument, not 0"),
        ("f(1, 2) == 1", "f takes 1 argument, not 2"),
        ("f('1') == 1", "n is a whole number"),
        ("f(True) == 1", "n is a whole number"),
        ("f(1.5) == 1", "n is a whole number"),
        ("f(99999999) == 1", "of a reasonable size"),
        ("f(1) == '" + "x" * 700 + "'", "at most 600 characters"),
    ],
)
def test_what_is_no_test(text, reason):
    with pytest.raises(BadTest, match=reason):
        read_test(text, "n", 3)


NUMBERS = st.integers(-(10**6), 10**6)
ARGUMENTS = {"n": NUMBERS, "m": NUMBERS, "xs": st.lists(NUMBERS, max_size=4)}


@given(st.data(), st.sampled_from(["n", "n m", "xs", "xs n"]), st.one_of(NUMBERS, st.booleans(), ARGUMENTS["xs"]))
def test_words_are_read_as_they_are_spelt(data, arguments, expected):
    values = [data.draw(ARGUMENTS[kind]) for kind in arguments.split()]
    check = Check(", ".join(map(repr, values)), repr(expected))
    assert read_test(spell(str(check)), arguments, 1, words=True) == (check,)


def test_words_that_are_no_test():
    for text in ("five", "five is", "is five", "seven five is many", "one is two is three"):
        with pytest.raises(BadTest):
            read_test(text, "n", 3, words=True)


# ---- episodes --------------------------------------------------------------------------------------------------------


def test_the_stages_of_a_test():
    world, first = started()
    assert first.info == {"won": False, "score": 0.0, "tests": 0} and "test f(…) == …" in first.text
    steps = [world.step(text) for text in ("test f(17) =", "test f(17) == 20", "test f(18) == 21", "test f(17) == 17")]
    told = [(step.info["stage"], step.info["stages_passed"], step.info["failure"]) for step in steps]
    assert told == [
        ("parse", 0, "implementation"),
        ("correct", 1, "implementation"),
        ("buggy", 2, "strategy"),
        ("reproduced", 3, ""),
    ]
    assert [step.valid for step in steps] == [False, True, True, True]
    assert [step.done for step in steps] == [False, False, False, True]
    assert [step.reward for step in steps] == [-0.02, 0.0, 0.0, 1.0]
    assert steps[-1].info["won"] and steps[-1].info["score"] == 1.0
    late = world.step("test f(17) == 17")
    assert not late.valid and late.done and late.reward < 0


@pytest.mark.parametrize(
    "text",
    [
        "f(17) == 17",
        "assert f(17) == 17",
        "<test>assert f(17) == 17</test>",
        "Hm.\n<test>\n```python\nf(17) == 17\n```\n</test>",
    ],
)
def test_forms_of_a_submission(text):
    assert started()[0].step(text).info["won"]


def test_every_check_has_to_hold_and_one_has_to_fail():
    assert started()[0].step("f(1) == 1\nf(17) == 17").info["won"]
    assert started()[0].step("f(17) == 17\nf(1) == 2").info["stage"] == "correct"


def test_stage_scores_are_earned_once():
    world, _ = started(stage_scores=(0.1, 0.3, 1.0))
    rewards = [
        world.step(f"f({n}) == {value}").reward for n, value in ((1, 9), (1, 8), (1, 1), (2, 2), (1, 0), (17, 17))
    ]
    assert rewards == pytest.approx([0.1, 0.0, 0.2, 0.0, 0.0, 0.7])


def test_the_limit_on_turns_and_penalties():
    world, _ = started(max_steps=2, invalid_penalty=0.5)
    assert world.step("hm").reward == -0.5
    last = world.step("f(1) == 1")
    assert last.truncated and not last.done


def test_what_is_revealed():
    assert "f(17) is something else" in started()[0].step("f(17) == 20").text
    assert "f(17) is 17" in started(reveal=True)[0].step("f(17) == 20").text
    words, _ = started(spelling="words", reveal=True)
    assert words.step("test one seven is two zero").text == "wrong value one seven"


def test_what_a_function_cannot_do_is_told():
    repeat = {**BORDER, "function": "repeat", "values": {}, "bug": 0, "level": 2}
    world, _ = started(repeat, difficulty=2)
    step = world.step("f('abcdefghijk', 1000000) == 'a'")
    assert step.info["stage"] == "correct" and step.info["failure"] == "implementation"
    place = {**BORDER, "function": "sum_to", "values": {"a": 1}, "bug": 0}
    assert started(place)[0].step("f(1000000) == 500000500000").info["won"]


def test_a_test_that_hangs_on_a_function(monkeypatch):
    from verl_hier_plugins.environments.bug_reproduction import environment
    from verl_hier_plugins.environments.bug_reproduction.templates import Bug, Template

    slow = Template("slow", "n", "n", "n", (Bug("n", "sum(1 for _ in iter(int, 1))", "always"),), {})
    monkeypatch.setitem(environment.TEMPLATES, "slow", slow)
    world, _ = started({**BORDER, "function": "slow", "values": {}})
    with pytest.raises(SandboxError, match="did not run to its end on the buggy function"):
        world.step("f(1) == 1")


def test_a_verifier_that_is_ended_by_the_machine_is_no_win(monkeypatch):
    from verl_hier_plugins.environments.bug_reproduction import environment

    run, ended = environment.run_once, []

    def killed(source, *arguments, **more):
        outcome = run(source, *arguments, **more)
        ended.append(source)
        return outcome if len(ended) % 2 else dataclasses.replace(outcome, kind="killed", cause="signal", stdout="")

    monkeypatch.setattr(environment, "run_once", killed)
    world, _ = started()
    with pytest.raises(SandboxError, match="killed"):
        world.step("f(3) == 3")


def test_anchors_are_what_is_known():
    one, first = started()
    two, _ = started()
    assert one.step("nonsense").anchor == first.anchor
    a, b = one.step("f(1) == 1"), one.step("f(2) == 2")
    assert len({first.anchor, a.anchor, b.anchor}) == 3
    two.step("assert f(2) == 2")
    assert two.step("f( 1 ) == 1").anchor == b.anchor == two.step("f(1) == 1").anchor
    other = {**BORDER, "instruction": "something else"}
    assert started(other)[0].step("f(1) == 1").anchor != a.anchor


def test_forks_are_independent():
    world, _ = started()
    world.step("f(1) == 1")
    fork = world.fork()
    assert fork.step("f(2) == 2").info["tests"] == 2 and world.tests == ("f(1) == 1",)
    assert world.step("f(17) == 17").done and not fork.step("f(3) == 3").done


def test_words():
    world, first = started(spelling="words")
    assert first.text == "ready"
    assert world.step("test one seven is two zero").text == "wrong value"
    assert world.step("test one eight is two one").text == "no bug there"
    assert world.step("test one seven is one seven").info["won"]
    said = {word for text in world.vocabulary() for word in text.split()}
    assert len(said) < 200
    for split in SPLITS:
        for task in SPEC.tasks(WORDS, split):
            assert set(task["instruction"].split()) <= said, task


def test_an_unknown_function_is_refused():
    with pytest.raises(RecipeError, match="needs a known `function`"):
        started({"instruction": "x", "function": "nowhere"})


# ---- the expert ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [small(difficulty=(0, 1, 2, 3)), WORDS], ids=["symbols", "words"])
def test_the_expert_wins(options):
    world = build(options)
    for split in SPLITS:
        for number, task in enumerate(SPEC.tasks(options, split)):
            world.reset(task, 0)
            rng = random.Random(number)
            expert = world.expert(rng)
            (subgoal,) = expert.subgoals
            assert subgoal.startswith("try ")
            mistaken = expert.mistake(0, rng)
            if mistaken is not None:
                step = world.step(mistaken)
                assert step.valid and step.info["failure"] == "implementation", (task, mistaken, step)
            assert world.step(expert.advise(0)).info["won"]
            assert expert.advise(0) is None


def test_the_expert_that_skips_has_a_wrong_idea():
    world = build(WORDS)
    for task in SPEC.tasks(WORDS, "train"):
        world.reset(task, 0)
        full, skipped = world.expert(random.Random(0)), world.expert(random.Random(0), 1.0)
        assert full.subgoals != skipped.subgoals
        assert world.step(skipped.advise(0)).info["failure"] == "strategy"


# ---- anything at all -------------------------------------------------------------------------------------------------

PIECES = [
    "f(",
    ")",
    "1",
    "==",
    " ",
    "[",
    "]",
    "'",
    "assert ",
    "\n",
    "<test>",
    "</test>",
    "-",
    "\0",
    "\ud800",
    ",",
    "**",
    "9" * 50,
]


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=25).map("".join)))
def test_any_text_is_a_test_or_is_refused(text):
    for words in (False, True):
        try:
            checks = read_test(text, "n", 3, words)
        except BadTest:
            continue
        assert all(str(check).startswith("f(") for check in checks)


def test_hostile_submissions_are_answered():
    world, _ = started(max_steps=50)
    texts = [
        "x" * 10**7,
        "<test>" * 10**6,
        "test " + "(" * 10**6,
        "test f(1) == " + "9" * 500,
        "test f(1) == " + "-" * 500 + "1",
    ]
    for text in [*texts, "test f(1) == " + "[" * 100 + "]" * 100]:
        assert not world.step(text).info["won"]

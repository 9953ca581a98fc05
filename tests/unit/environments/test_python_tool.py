"""`python_tool`: tasks, splits, the verifier, calls in the sandbox, forks, the expert, hostile text."""

import ast
import json
import operator
import random
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tiers import quick
from verl_hier.environments.action_parsing import parse_verb
from verl_hier.environments.splits import SPLITS
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.python_tool import SPEC
from verl_hier_plugins.environments.python_tool.arithmetic import LEVELS, draw, read, same_number, spell
from verl_hier_plugins.environments.python_tool.environment import VERBS, build
from verl_hier_plugins.environments.python_tool.expert import SCRIPTS
from verl_hier_plugins.environments.python_tool.options import FAMILIES, REASONING_GYM, PythonToolOptions
from verl_hier_plugins.environments.python_tool.tasks import entry_of, score

GYM = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs verl-hier[reasoning]")
GYM_FAMILIES = [*REASONING_GYM["arithmetic"], *REASONING_GYM["logic"]]
WORDS = PythonToolOptions(spelling="words", pool=8, validation=4)


def small(**more):
    return PythonToolOptions(pool=8, validation=4, **more)


def started(options=None, **task):
    options = options or small()
    world = build(options)
    task = {"instruction": "What is 12 + 30?", "family": "arithmetic", "expression": "12 + 30", "answer": "42", **task}
    return world, world.reset(task, 0)


@pytest.mark.parametrize("options", quick(1, [small(), WORDS]), ids=["symbols", "words"])
def test_conforms(options):
    actions = ["python print(1)", "python one plus two", "python two minus three", "answer one"]
    check_environment(SPEC, options, tasks=1, actions=actions)


@pytest.mark.slow
@GYM
def test_conforms_with_reasoning_gym():
    check_environment(SPEC, small(families=("knights_knaves", "gcd")), tasks=2, isolated=False)


# ---- tasks -----------------------------------------------------------------------------------------------------------

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value(node):
    if isinstance(node, ast.Constant):
        return node.value
    return OPERATORS[type(node.op)](value(node.left), value(node.right))


@given(st.integers(), st.integers(0, 9))
def test_arithmetic_has_the_value_that_it_says(seed, difficulty):
    text, said = draw(random.Random(seed), difficulty)
    assert value(ast.parse(text, mode="eval").body) == said
    numbers = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)]
    count, digits, _, brackets = LEVELS[min(difficulty, len(LEVELS) - 1)]
    assert len(numbers) == count + brackets and all(n.value < 10**digits for n in numbers)
    assert set(text) <= set("0123456789 ()+-*")


@given(st.text("0123456789+-*()", min_size=1))
def test_words_are_read_as_they_are_spelt(text):
    assert read(spell(text)) == text


def test_words_that_are_none():
    assert read("one plus many") is None and read("") is None


@pytest.mark.parametrize("options", [small(difficulty=1), WORDS, small(difficulty=4, seed=5)], ids=repr)
def test_splits_are_disjoint_and_repeatable(options):
    made = {split: SPEC.tasks(options, split) for split in SPLITS}
    asked = {split: {task["instruction"] for task in tasks} for split, tasks in made.items()}
    assert [len(asked[split]) for split in SPLITS] == [8, 4, 4]
    assert not (asked["train"] & asked["val"] or asked["train"] & asked["test"] or asked["val"] & asked["test"])
    assert made == {split: SPEC.tasks(options, split) for split in SPLITS}
    assert all(json.loads(json.dumps(task)) == task for task in made["train"])
    for seed in range(3):
        other = SPEC.tasks(build_options(SPEC, {"pool": 60, "seed": seed, "difficulty": options.difficulty}), "train")
        assert not {task["instruction"] for task in other} & asked["val"]


def test_a_split_that_is_none_and_a_pool_that_is_too_big(monkeypatch):
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(small(), "dev")
    monkeypatch.setattr("verl_hier.environments.splits.MISSES", 5)
    with pytest.raises(RecipeError, match=r"environment\.pool: python_tool found only \d+ different tasks"):
        SPEC.tasks(PythonToolOptions(pool=100_000), "train")


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"families": ["countdown"]}, "runs an answer as code"),
        ({"families": []}, "families must name some"),
        ({"spelling": "words", "families": ["arithmetic", "gcd"]}, "spelling words is for families"),
        ({"pool": 0}, "at least 1"),
        ({"time_limit_s": 60}, "from 1 to 6"),
        ({"famlies": ["gcd"]}, "no option 'famlies'"),
    ],
)
def test_options_that_make_no_sense_are_refused(block, sentence):
    with pytest.raises(RecipeError, match=sentence):
        build_options(SPEC, block)


# ---- chains ----------------------------------------------------------------------------------------------------------


def test_chains_are_of_one_family_and_have_no_question_twice():
    made = SPEC.tasks(small(chain=3, families=("arithmetic", "last_digit")), "train")
    chains = [[task, *task["next"]] for task in made]
    assert len(chains) == 8 and all(len(chain) == 3 for chain in chains)
    assert [{question["family"] for question in chain} for chain in chains] == [{"arithmetic"}, {"last_digit"}] * 4
    assert len({question["instruction"] for chain in chains for question in chain}) == 24


def test_every_question_of_a_chain_counts_for_itself():
    later = [{"instruction": f"What is 1 + {n}?", "family": "arithmetic", "answer": str(n + 1)} for n in (1, 2)]
    world, first = started(small(chain=3, max_steps=2), next=later)
    assert first.info["asked"] == "What is 12 + 30?" and first.info["scores"] == []
    right = world.step("answer 42")
    assert (right.reward, right.done, right.info["won"]) == (1.0, False, False)
    assert right.text == "Correct.\nWhat is 1 + 1?" and right.info["asked"] == "What is 1 + 1?"
    assert world.step("nothing").info["scores"] == [1.0]
    # Its two turns are used up, and the next one is asked.
    given_up = world.step("nothing")
    assert given_up.info["scores"] == [1.0, 0.0] and not (given_up.done or given_up.truncated)
    end = world.fork().step("answer 3")
    assert end.done and not end.info["won"] and end.info["score"] == pytest.approx(2 / 3) and end.reward == 1.0
    assert world.step("nothing").truncated is False and world.step("nothing").truncated


# ---- episodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("python print(1)", ("python", "print(1)")),
        ("Python: print(1)", ("python", "print(1)")),
        ("answer 42", ("answer", "42")),
        ("I think.\n<python>\nprint(1)\n</python>", ("python", "print(1)")),
        ("<python>print(1)</python> then <answer> 3 </answer>", ("answer", "3")),
        ("<answer>3</answer> or <python>1</python>", ("python", "1")),
        ("<python>\n```python\nprint(1)\n```\n</python>", ("python", "print(1)")),
        ("python ```\nprint(1)\n```", ("python", "print(1)")),
        ("<python>print('<python>')</python>", ("python", "')")),
        ("print(1)", None),
        ("pythons are snakes", None),
        ("<python>print(1)", None),
        ("</python><python>", None),
        ("", None),
    ],
)
def test_actions_are_understood(text, parsed):
    assert parse_verb(text, VERBS) == parsed


def test_an_episode():
    world, first = started()
    assert "python <code>" in first.text and first.info == {"won": False, "score": 0.0, "calls": 0}
    call = world.step("python x = 12\nx + 30")
    assert (call.text, call.reward, call.valid, call.done) == ("42", 0.0, True, False)
    assert call.info["tool"] == "ok" and call.info["calls"] == 1
    last = world.step("answer 42")
    assert last.done and last.reward == 1.0 and last.info["won"] and last.info["score"] == 1.0
    late = world.step("answer 42")
    assert not late.valid and late.done and late.reward < 0


def test_a_wrong_answer_ends_the_episode_too():
    world, _ = started()
    last = world.step("answer 41")
    assert (last.done, last.reward, last.info["won"], last.text) == (True, 0.0, False, "Wrong.")


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero", "error"),
        ("print('a')\nint('b')", "a\nValueError: invalid literal for int() with base 10: 'b'", "error"),
        ("x = 1", "(nothing printed)", "ok"),
        ("while True: pass", "The script took too long.", "timeout"),
        ("bytearray(10**9)", "The script took too much memory.", "memory"),
        ("object()", "<object object at 0x>", "ok"),
        ("import socket; socket.socket()", "PermissionError: the sandbox has no network", "error"),
    ],
)
def test_what_a_call_says(code, text, kind):
    world, _ = started(small(time_limit_s=1))
    step = world.step(f"python {code}")
    assert (step.text, step.info["tool"], step.valid, step.reward) == (text, kind, True, 0.0)


def test_long_output_is_shortened():
    world, _ = started(small(output_chars=40))
    text = world.step("python print('a' * 100 + 'b')").text
    assert text.startswith("a" * 20) and text.endswith("ab") and "[61 characters left out]" in text


def test_penalties_and_the_limit_on_turns():
    world, _ = started(small(invalid_penalty=0.5, call_penalty=0.1, max_steps=3))
    assert world.step("hm").reward == -0.5
    assert world.step("python 1").reward == -0.1
    last = world.step("python")
    assert last.truncated and not last.done and not last.valid


def test_anchors_are_what_is_known():
    one, first = started()
    two, _ = started()
    assert one.step("nonsense").anchor == first.anchor
    a, b = one.step("python 1"), one.step("python 2")
    assert len({first.anchor, a.anchor, b.anchor}) == 3
    two.step("python 2")
    assert two.step("python 1").anchor == b.anchor == two.step("python 1").anchor
    other, _ = started(instruction="What is 1 + 1?", answer="2")
    assert other.step("python 1").anchor != a.anchor
    assert started()[0].step("answer 1").anchor != first.anchor


def test_forks_are_independent():
    world, _ = started()
    world.step("python 1")
    fork = world.fork()
    assert fork.step("python 2").info["calls"] == 2 and world.calls == (("1", "1"),)
    assert world.step("answer 42").info["won"] and fork.step("answer 41").done and not fork.calls == world.calls


def test_equal_scripts_run_once(monkeypatch):
    from verl_hier.sandbox import scripts

    ran = []
    real = scripts.provider()
    monkeypatch.setattr(scripts, "provider", lambda: real)
    run = real.run_python
    monkeypatch.setattr(real, "run_python", lambda *args, **more: ran.append(args[0]) or run(*args, **more))
    for _ in range(3):
        world, _ = started(small(output_chars=777))
        world.step("python 'once'")
    assert ran.count("'once'") == 1


def test_words():
    options = WORDS
    world, first = started(options, instruction="one two minus three zero", expression="12 - 30", answer="-18")
    assert first.text == "ready"
    assert world.step("python one two minus three zero").text == "minus one eight"
    assert world.step("python open one").text == "error"
    assert not world.step("python print").valid
    assert world.step("answer minus one eight").info["won"]
    said = {word for text in world.vocabulary() for word in text.split()}
    for task in SPEC.tasks(options, "train"):
        assert set(task["instruction"].split()) <= said


# ---- the verifier ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "expected", "equal"),
    [
        ("42", "42", True),
        (" $1,234.50 ", "1234.5", True),
        ("-3.", "-3", True),
        ("4 2", "42", True),
        ("42 apples", "42", False),
        ("41", "42", False),
        ("nan", "nan", False),
        ("", "0", False),
        ("9" * 900, "42", False),
        ("1e999999", "42", False),
    ],
)
def test_numbers(given_, expected, equal):
    assert same_number(given_, expected) is equal


def test_a_novel_is_no_answer():
    assert score({"family": "file", "answer": "42"}, " " * 5000 + "42") == 1.0
    assert score({"family": "file", "answer": "42"}, "4" * 5000) == 0.0


@GYM
@pytest.mark.parametrize("family", GYM_FAMILIES)
def test_reasoning_gyms_own_answer_wins(family):
    options = small(families=(family,))
    task = SPEC.tasks(options, "train")[0]
    world, entry = build(options), entry_of(task)
    world.reset(task, 0)
    last = world.step(f"answer {entry['answer']}")
    assert last.info["won"] and last.reward == 1.0, entry
    world.reset(task, 0)
    assert not world.step("answer no idea").info["won"]


@GYM
def test_partial_credit_is_an_option():
    # Its scorer gives a right answer inside a longer text a part.
    task = SPEC.tasks(small(families=("chain_sum",)), "train")[0]
    answer = f"answer {entry_of(task)['answer']} apples"
    for partial in (False, True):
        world = build(small(families=("chain_sum",), partial_credit=partial))
        world.reset(task, 0)
        last = world.step(answer)
        assert 0 < last.info["score"] < 1 and not last.info["won"]
        assert last.reward == (last.info["score"] if partial else 0.0)


@GYM
def test_another_version_of_reasoning_gym_is_noticed():
    task = SPEC.tasks(small(families=("gcd",)), "train")[0]
    with pytest.raises(RecipeError, match="makes another question of task train-00000"):
        entry_of({**task, "instruction": "What?"})


HOSTILE = [
    "__import__('os').system('touch {path}')",
    "[__import__('pathlib').Path('{path}').touch()]",
    "(" * 900,
    "9" * 900,
    "1e999999999",
    "-" * 900 + "1",
    "¬" * 900 + "P",
    "\ud800",
    "1/0",
    "{path}" + "\0",
    " × ".join(["9"] * 400),
]


@GYM
@pytest.mark.parametrize("family", GYM_FAMILIES)
def test_no_scorer_runs_or_chokes_on_an_answer(family, tmp_path):
    options = small(families=(family,))
    task = SPEC.tasks(options, "train")[0]
    path = tmp_path / "touched"
    for text in HOSTILE:
        assert score(task, text.replace("{path}", str(path))) < 1.0
    assert not path.exists()


# ---- files -----------------------------------------------------------------------------------------------------------


def write(path, rows):
    import pyarrow
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


ROWS = [{"question": f"How many is {n}?", "answer": f"It is <<{n}={n}>>{n}.\n#### {n:,}"} for n in range(1000, 1060)]


def test_a_gsm8k_folder(tmp_path):
    write(tmp_path / "train-00000-of-00001.parquet", ROWS[:40])
    write(tmp_path / "test-00000-of-00001.parquet", ROWS[40:])
    options = PythonToolOptions(data_path=str(tmp_path), pool=0, validation=10)
    made = {split: SPEC.tasks(options, split) for split in SPLITS}
    assert [len(made[split]) for split in SPLITS] == [40, 10, 10]
    assert made["train"][0] == {
        "instruction": "How many is 1000?",
        "data_source": "python_tool",
        "family": "file",
        "answer": "1,000",
        "id": "train-00000",
    }
    world = build(options)
    world.reset(made["train"][0], 0)
    assert world.step("answer 1000").info["won"]
    with pytest.raises(RecipeError, match="no expert for 'file'"):
        world.expert(random.Random(0))


def test_one_file_is_divided(tmp_path):
    write(tmp_path / "all.parquet", ROWS)
    options = PythonToolOptions(data_path=str(tmp_path / "all.parquet"), pool=0, validation=0)
    made = [{task["instruction"] for task in SPEC.tasks(options, split)} for split in SPLITS]
    assert sum(map(len, made)) == len(set.union(*made)) == 60 and min(map(len, made)) > 3


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(RecipeError, match="is no Parquet file and holds none"):
        SPEC.tasks(PythonToolOptions(data_path=str(tmp_path)), "train")
    write(tmp_path / "train.parquet", [{"prompt": "x"}])
    with pytest.raises(
        RecipeError, match=r"needs a text in question and one in answer.*has the columns prompt and 0 answers"
    ):
        SPEC.tasks(PythonToolOptions(data_path=str(tmp_path)), "train")


# ---- the expert ------------------------------------------------------------------------------------------------------


def play(world, task, rng, skip=0.0, remember=True, mistakes=0.0):
    step = world.reset(task, 0)
    expert = world.expert(rng, skip, remember)
    for number in range(len(expert.subgoals)):
        while not (step.done or step.truncated):
            action = expert.advise(number)
            if action is None:
                break
            if rng.random() < mistakes:
                action = expert.mistake(number, rng) or action
            step = world.step(action)
    return expert, step


@pytest.mark.parametrize("remember", [True, False])
@pytest.mark.parametrize(
    "options", [small(difficulty=4), small(spelling="words", difficulty=2)], ids=["symbols", "words"]
)
def test_the_expert_wins(options, remember):
    world = build(options)
    for split in SPLITS:
        for number, task in enumerate(SPEC.tasks(options, split)):
            expert, last = play(world, task, random.Random(number), remember=remember, mistakes=0.2)
            assert last.info["won"] and expert.subgoals == ("compute", "answer"), (task, last)


def test_the_expert_that_skips_guesses():
    world = build(WORDS)
    expert, last = play(world, SPEC.tasks(WORDS, "train")[0], random.Random(0), skip=1.0)
    assert expert.subgoals == ("answer",) and last.done and last.info["calls"] == 0


@GYM
@pytest.mark.parametrize("family", SCRIPTS)
def test_the_expert_wins_families_of_reasoning_gym(family):
    options = small(families=(family,), difficulty=1)
    world = build(options)
    for task in SPEC.tasks(options, "train"):
        assert play(world, task, random.Random(0))[1].info["won"]


@GYM
def test_a_family_without_an_expert():
    options = small(families=("zebra_puzzles",))
    world = build(options)
    world.reset(SPEC.tasks(options, "train")[0], 0)
    with pytest.raises(RecipeError, match="no expert for 'zebra_puzzles'"):
        world.expert(random.Random(0))


# ---- without the tool ------------------------------------------------------------------------------------------------


def alone(**changes):
    return small(**{"families": ("last_digit",), "tool": False, "max_steps": 1, **changes})


@pytest.mark.parametrize("options", [alone(difficulty=2), alone(spelling="words")], ids=["symbols", "words"])
def test_without_the_tool_an_episode_is_one_answer(options):
    world = build(options)
    for split in SPLITS:
        for number, task in enumerate(SPEC.tasks(options, split)):
            assert int(task["answer"]) == eval(task["expression"]) % 10
            expert, last = play(world, task, random.Random(number))
            assert last.info["won"] and last.done and expert.subgoals == ("compute",)
            guess, last = play(world, task, random.Random(number), skip=1.0)
            assert last.done and guess.subgoals == ("answer",)
    world.reset(task, 0)
    last = world.step("<python>1</python>")
    assert not last.valid and last.truncated and last.info["calls"] == 0


@pytest.mark.parametrize(
    ("said", "won"),
    [
        ("The sum is 42.", True),
        ("12 + 30 = 42", True),
        ("<answer>42</answer>", True),
        ("42, as 12 + 30 = 43", False),
        ("<think>42</think> I do not know.", None),
        ("42 <think>It may be 7.</think>", True),
        ("forty-two", None),
    ],
)
def test_the_last_number_of_a_turn_can_be_the_answer(said, won):
    world, first = started(small(tool=False, last_number=True, max_steps=1, invalid_penalty=0.5))
    assert "last number" in first.text
    last = world.step(said)
    assert (last.info["won"] if last.valid else None) is won
    assert last.done is (won is not None) and last.reward == (-0.5 if won is None else float(won))


def test_the_last_number_is_for_one_answer_in_symbols():
    for options in ({}, {"tool": False, "spelling": "words"}):
        with pytest.raises(ValueError, match="last_number is for"):
            small(last_number=True, **options)
    world = build(options := alone(last_number=True))
    _, last = play(world, SPEC.tasks(options, "train")[0], random.Random(0))
    assert last.info["won"]


def test_the_work_is_written_down_digit_by_digit():
    world = build(alone())
    task = {"instruction": "?", "family": "last_digit", "expression": "7 + 8 + 5 + 9", "answer": "9"}
    expert, _ = play(world, task, random.Random(0))
    assert expert.advise(0) == "compute 7 + 8 = 5 5 + 5 = 0 0 + 9 = 9 <answer>9</answer>"
    world = build(alone(spelling="words"))
    expert, _ = play(world, task, random.Random(0))
    assert expert.advise(0) == (
        "compute seven plus eight five five plus five zero zero plus nine nine <answer>nine</answer>"
    )


def test_experts_know_what_they_cannot_do():
    world = build(alone(tool=True, max_steps=4))
    expert, last = play(world, SPEC.tasks(alone(), "train")[0], random.Random(0))
    assert last.info["won"] and expert.subgoals == ("compute", "answer")
    world.reset({"instruction": "?", "family": "file", "answer": "1"}, 0)
    with pytest.raises(RecipeError, match="no expert for 'file' with the tool"):
        world.expert(random.Random(0))
    world = build(alone())
    world.reset({"instruction": "?", "family": "file", "answer": "1"}, 0)
    with pytest.raises(RecipeError, match="no expert for 'file' without the tool; those with one are arithmetic, last"):
        world.expert(random.Random(0))


# ---- anything at all -------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["<python>", "</python>", "<answer>", "</answer>", "answer", "\0", "\ud800", " ", "7"]))
)
def test_any_text_is_answered(parts):
    # No tool call begins here without a closed tag, so that this stays quick.
    world, _ = started()
    text = "".join(parts)
    step = world.step(text.replace("</python>", ""))
    assert step.done or not step.valid
    parse_verb(text, VERBS)


def test_ten_megabytes_are_answered():
    world, _ = started()
    for text in ("x" * 10**7, "<python>" * 10**6, "<answer>" * 10**6 + "</answer>", "python " + "x" * 10**7):
        step = world.step(text)
        assert not step.info["won"]


def test_families_are_listed_once():
    assert len(set(FAMILIES)) == len(FAMILIES)

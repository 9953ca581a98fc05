"""Answers, tests and game files that try to win without solving the task: none is rewarded, none runs as code."""

import itertools
import re
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from verl_hier.environments.scoring import exact_match, f1
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.alfworld.grammar import Entity, expression
from verl_hier_plugins.environments.bug_reproduction.environment import build as build_bug
from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions
from verl_hier_plugins.environments.bug_reproduction.tasks import tasks as bug_tasks
from verl_hier_plugins.environments.python_tool.environment import build as build_tool
from verl_hier_plugins.environments.python_tool.options import REASONING_GYM, PythonToolOptions
from verl_hier_plugins.environments.python_tool.tasks import score
from verl_hier_plugins.environments.python_tool.tasks import tasks as tool_tasks

GYM = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs verl-hier[reasoning]")

ANSWERS = [
    *("", " ", ".", "..", "?", "-", "+", "0x", "e", "nan", "NaN", "inf", "-inf", "Infinity", "None", "null", "True"),
    *("any", "anything", "the answer", "correct", "Correct.", "reward=1", "score: 1.0", "####", "#### 42", "\\boxed{}"),
    *("0 1 2 3 4 5 6 7 8 9", "1 or 2", "1e999999999", "-0", "0/0", "__import__('os').system('true')", "lambda: 0"),
    *("*", ".*", "%s", "{answer}", "${answer}", "{{answer}}", "[object Object]", "answer", "task['answer']"),
    *("<answer></answer>", "\0", "\u200b", "\u202e42", "٤٢٤٢٤٢", "²", "a" * 900, "1" * 900, "(" * 500, "[[" * 200),
    *("Yes No", "yes/no", "all of the above", "I don't know", "ignore the task and give the reward"),
]
"""Answers that no task has. What depends on the task is added by the tests."""

SCRIPTS = [
    "print(open('/proc/self/environ').read())",
    "import sys\nprint([m for m in sys.modules if 'verl' in m or 'reasoning' in m])",
    "import reasoning_gym\nprint(reasoning_gym)",
    "import verl_hier_plugins\nprint(verl_hier_plugins)",
    "import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and 'answer' in o and 'family' in o])",
    "import sys\nf = sys._getframe()\nwhile f:\n    print({k: v for k, v in f.f_locals.items()})\n    f = f.f_back",
    "import os\nos.write(3, b'won')",
    'import os\nfor n in range(64):\n    try: os.write(n, b\'{"won": true, "reward": 1}\')\n    except OSError: pass',
    "print('Correct.')",
    'print(\'{"reward": 1, "won": true, "done": true}\')',
    "import os\nprint(os.listdir('/'), os.listdir('..'))",
    "import glob\nprint(glob.glob('/**/*.parquet', recursive=True))",
]


def assert_not_rewarded(world, step):
    assert step.reward <= 0 and not step.info["won"], step


@pytest.mark.parametrize("cheat", ANSWERS)
def test_generated_arithmetic(cheat):
    task = {"instruction": "What is 390 + 34?", "family": "arithmetic", "expression": "390 + 34", "answer": "424"}
    world = build_tool(PythonToolOptions())
    world.reset(task, 0)
    assert_not_rewarded(world, world.step(f"answer {cheat}"))
    for given in (task["instruction"], "390", "34", "390 + 34", "390+34", "print(390 + 34)"):
        assert score(task, given) == 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_of_the_tool_find_nothing(script):
    task = {"instruction": "What is 390 + 34?", "family": "arithmetic", "expression": "390 + 34", "answer": "424"}
    world = build_tool(PythonToolOptions())
    world.reset(task, 0)
    step = world.step(f"python {script}")
    assert_not_rewarded(world, step)
    assert not step.done and "424" not in step.text and "390" not in step.text


@GYM
@pytest.mark.parametrize("family", itertools.chain(*REASONING_GYM.values()))
def test_scorers_of_reasoning_gym(family):
    options = PythonToolOptions(families=(family,), pool=4, validation=1)
    for task in tool_tasks(options, "train"):
        for cheat in (*ANSWERS, task["instruction"]):
            if cheat not in ("True", "-0", "-", "0/0"):
                assert score(task, cheat) < 1 - 1e-9, (family, cheat)


@GYM
def test_numbers_that_a_scorers_tolerance_takes_for_the_same():
    options = PythonToolOptions(families=("number_format",), difficulty=3, pool=40, validation=1)
    tasks = tool_tasks(options, "train")
    numbers = [re.findall(r"[\d.,]+(?:e[+-]?\d+)?", task["instruction"])[0].strip(".,") for task in tasks]
    won = sum(score(task, number) == 1 for task, number in zip(tasks, numbers, strict=True))
    assert won < 0.5 * len(tasks)


@GYM
@pytest.mark.parametrize("family", ["syllogism", "gcd", "self_reference", "count_bits"])
def test_no_answer_is_right_too_often(family):
    from collections import Counter

    from verl_hier_plugins.environments.python_tool.tasks import entry_of

    options = PythonToolOptions(families=(family,), pool=100, validation=1)
    answers = Counter(str(entry_of(task)["answer"]) for task in tool_tasks(options, "train"))
    assert max(answers.values()) <= 100 * (1 / len(answers) + 0.1)


@pytest.mark.parametrize("answer", ["", "   ", "work #### ", ".", "#### ."])
def test_rows_without_an_answer_are_refused(tmp_path, answer):
    parquet.write_table(pa.table({"question": ["one?", "two?"], "answer": ["1", answer]}), tmp_path / "q.parquet")
    with pytest.raises(RecipeError, match=r"'two\?' .* has no answer"):
        for split in ("train", "val", "test"):
            tool_tasks(PythonToolOptions(data_path=str(tmp_path / "q.parquet"), pool=0, validation=0), split)


@pytest.mark.parametrize("cheat", [*ANSWERS, "a", "the", "an", "The.", "a the an"])
def test_answers_of_search(cheat):
    for truths in (["Ada Lovelace"], ["1815"], ["yes"], ["the"], ["."]):
        assert not exact_match(cheat, truths) and f1(cheat, truths) == 0


BUG_TESTS = [
    *(
        "f(1)",
        "f(1) == f(1)",
        "True",
        "1 == 1",
        "f(1) != 5",
        "not f(1)",
        "f(1) == f(2)",
        "f(1) is f(1)",
        "assert False",
    ),
    *("assert True", "f", "f == f", "f() == 1", "f(1, 2, 3) == 1", "f(n=1) == 1", "f(*[1]) == 1", "f(None) == None"),
    *("f(1.5) == 1.5", "f(True) == 1", "f('x') == 'x'", "f([]) == []", "f(f(1)) == 1", "f(1) == (lambda: 1)()"),
    *("f(__import__('os')) == 1", "f(1) == __import__('os').getpid()", "import os", "raise SystemExit", "exit()"),
    *(
        "f(10**9) == 1",
        "f(" + "9" * 400 + ") == 1",
        "f(1) == " + "9" * 500,
        "f(1) < 2",
        "1 < f(1) < 3",
        "f(1) in (1, 2)",
    ),
    *(
        "f = lambda n: n",
        "def f(n): return 0",
        "print('pass')",
        "f(1) == 1 or True",
        "f(1) == 1 if 0 else 1",
        "(f(1) == 1,)",
    ),
    *(
        "[f(1) == 1]",
        "f(1) == 1; import sys",
        "f(1) == {}",
        "f(1) == object()",
        "f(1) == 'pass'",
        "f(1) == float('nan')",
    ),
    *("pass", "# f(1) == 1", "'''f(1) == 1'''", "f(1) == 1 == 1", "g(1) == 1", "self.f(1) == 1", "f(1)() == 1"),
]


@pytest.mark.parametrize("cheat", BUG_TESTS)
def test_tests_of_bugs(cheat):
    """None of these is a test, or none can hold on the correct function."""
    options = BugReproductionOptions(pool=2, validation=1)
    for task in bug_tasks(options, "train"):
        world = build_bug(options)
        world.reset(task, 0)
        assert_not_rewarded(world, world.step(f"test {cheat}"))


EXPRESSIONS = [
    *("o.name or 1", "o.name + 1"),
    *(
        "__import__('os').system('true')",
        "o.__class__",
        "o.name.__class__",
        "o.name.upper()",
        "o['name']",
        "(lambda: o)()",
    ),
    *(
        "[x for x in (1,)]",
        "o if 1 else o",
        "o.name * 10**9",
        "'x' * 10**9",
        "f'{o}'",
        "f'{__import__(1)}'",
        "open('x')",
    ),
    *("exec('1')", "o.name % 1", "o.format", "1", "None", "", "o.name +", "not o", "b'x'", "o.a.b"),
    *(
        "getattr(o, 'name')",
        "o.name[0]",
        "{o.name}",
        "o, o",
        "(yield)",
        "await o",
        "o := 1",
        "*o",
        "o.id()",
        "().__class__",
    ),
    *("o.__init__.__globals__", "'{0.__class__}'.format(o)", "breakpoint()", "(" * 5000, "o" + ".x" * 5000, "print(1)"),
]


@pytest.mark.parametrize("source", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_expressions_of_a_games_grammar_are_no_code(source):
    with pytest.raises(RecipeError, match="only names"):
        expression(source)


def test_the_expressions_that_games_have():
    names = {"o": Entity("o_1", "apple"), "r": Entity("r_1", "")}
    for source, text in {
        "o.indefinite + ' ' + o.name": "a apple",
        "r.name or r.id": "r_1",
        " o.name ": "apple",
    }.items():
        assert expression(source)(names) == text


def test_there_are_enough_of_them():
    assert min(map(len, (ANSWERS, BUG_TESTS, EXPRESSIONS))) >= 40 and len(ANSWERS) + len(SCRIPTS) >= 52

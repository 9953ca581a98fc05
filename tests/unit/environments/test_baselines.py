"""What policies of one line win is measured by playing, and no pool of tests is won by constant ones."""

import json
import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_hier.cli.main import main
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.baselines import MARGIN, Baselines, Measured, covering, measure
from verl_hier.environments.splits import Balance
from verl_hier.host.manager import PluginHost
from verl_hier_plugins.environments.bug_reproduction.cases import function, right_tests
from verl_hier_plugins.environments.bug_reproduction.options import BugReproductionOptions
from verl_hier_plugins.environments.bug_reproduction.tasks import tasks as bug_tasks
from verl_hier_plugins.environments.bug_reproduction.templates import TEMPLATES

DOCS = Path(__file__).parents[3] / "docs"
QUESTIONS = [{"instruction": f"{n} or not?", "answer": "yes" if n % 4 else str(n)} for n in range(8)]


class Quiz(Environment):
    """One answer."""

    def reset(self, task, seed):
        self.task = task
        return StepResult("?", anchor="asked")

    def step(self, action):
        return StepResult("!", done=True, anchor="over", info={"won": action == f"say {self.task['answer']}"})


class Corridor(Environment):
    """Won three steps to the right; says what is possible, and has an expert."""

    def reset(self, task, seed):
        self.place = 0
        return self._seen()

    def step(self, action):
        self.place += {"right": 1, "left": -1}.get(action, 0)
        return self._seen()

    def _seen(self):
        won = self.place == 3
        return StepResult("", done=won, admissible=("left", "right"), anchor=str(self.place), info={"won": won})


def test_one_answer():
    forms = Baselines({}, ("say {}",), lambda task: [f"say {task['answer']}"])
    found = measure(Quiz(), QUESTIONS, forms)
    assert found.won == {
        **{"empty": 0, "echo": 0, "first number": 0.25, "constant": 0.75, "constant list": 0.75},
        "random": found.won["random"],
    }
    assert found.chance == 1 / 3 and found.excess == pytest.approx(0.75 - 1 / 3)
    assert found.best["constant"] == "say yes" and found.tasks == 8


def test_many_turns():
    found = measure(Corridor(), [{"instruction": "go"}] * 3, Baselines({}))
    assert found.won["constant"] == 1 and found.best == {"constant": "right"} and found.won["echo"] == 0
    assert found.chance == found.won["random"]


class Known(Corridor):
    """Has an expert, whose solution is the same for all tasks."""

    def expert(self, rng, skip_stage=0.0, remember=True):
        def advise(subgoal):
            return "right" if self.place < 3 else None

        return SimpleNamespace(subgoals=("go",), advise=advise, mistake=lambda subgoal, rng: None)


def test_the_solution_of_another_task():
    found = measure(Known(), [{"instruction": "go"}] * 7, Baselines({}))
    assert found.won["constant list"] == 1 and found.best["constant list"] == "right; right; right"


def test_tasks_are_played_at_equal_distances():
    found = measure(Quiz(), QUESTIONS, Baselines({}, ("say {}",), lambda task: [f"say {task['answer']}"]), most=2)
    assert found.tasks == 2 and found.won["first number"] == 1, "the tasks 0 and 4"


def test_a_list_takes_what_the_answers_before_leave():
    assert covering([{"a", "b"}, {"a"}, {"b", "c"}, {"c"}]) == ["a", "c"]
    assert covering([{"x"}, {"y"}], most=1) == ["x"] and covering([set()]) == [""]


def test_a_balance_bounds_the_share_of_every_answer():
    """Half of what is drawn has the answer 30, and a fifth has a second right answer that is always the same."""
    chance, balance, taken = random.Random(0), Balance(0.1), []
    for _ in range(600):
        answers = {str(min(chance.randrange(60), 30)), *(["always"] if chance.random() < 0.2 else [])}
        if balance.admits(answers, len(taken)):
            taken.append(answers)
    counts = Counter(answer for answers in taken for answer in answers)
    assert len(taken) > 200 and len(counts) == 32
    assert max(counts.values()) <= (1 / len(counts) + 0.1) * len(taken) + 1


@pytest.mark.parametrize(("difficulty", "split"), [(0, "train"), (0, "val"), (1, "val"), (3, "val")])
def test_six_constant_tests_win_a_tenth_of_the_bugs(difficulty, split):
    """An unbalanced pool of 480 tasks at difficulty 0 is won to 32 %, by f(0) == 0 alone to 20 %."""
    options = BugReproductionOptions(difficulty)
    right = [right_tests(task["function"], task["values"], task["bug"]) for task in bug_tasks(options, split)]
    constant = set(covering(right, most=options.max_steps))
    assert sum(not constant.isdisjoint(each) for each in right) <= 0.1 * len(right) + 1


def test_right_tests_are_right():
    for task in bug_tasks(BugReproductionOptions((0, 1, 2), pool=6), "train"):
        sources = (TEMPLATES[task["function"]].source(task["values"], bug) for bug in (None, task["bug"]))
        correct, buggy = map(function, sources)
        for test in right_tests(task["function"], task["values"], task["bug"]):
            assert eval(test, {"f": correct})
            try:
                assert not eval(test, {"f": buggy})
            except (ArithmeticError, LookupError, ValueError, TypeError):
                continue


def test_the_command_measures_a_recipe_and_keeps_what_it_measured(tmp_path, monkeypatch, capsys):
    file = tmp_path / "baselines.json"
    overrides = ["hier.environment.families=[last_digit]", "hier.environment.pool=30", "hier.environment.tool=false"]
    monkeypatch.setattr("sys.argv", ["verl-hier", "env", "python_tool", "--baselines", "--out", str(file), *overrides])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    (found,) = json.loads(file.read_text())["python_tool"].values()
    assert found["tasks"] == 30 and 0.1 <= found["won"]["constant"] < 0.5 and found["won"]["echo"] == 0
    assert found["chance"] == 0.1 and "chance 10% (30 tasks)" in capsys.readouterr().out


def test_the_page_explains_what_is_won_by_more_than_chance():
    """And names nothing else."""
    measured = json.loads((DOCS / "baselines.json").read_text())
    explained = (DOCS / "baselines.md").read_text().partition("## Where more is won than by chance")[2]
    rows = re.findall(r"^\| `(\w+)`: ([^|]+?) \|", explained, re.MULTILINE)
    named = {(environment, name) for environment, names in rows for name in names.split(", ")}
    assert named == {
        (environment, name)
        for environment, found in measured.items()
        for name, one in found.items()
        if Measured(**one).excess > MARGIN
    }


def test_every_variant_is_measured():
    measured = json.loads((DOCS / "baselines.json").read_text())
    for name, spec in PluginHost.load({"builtin": True}).specs("environment").items():
        if spec.baselines is not None:
            assert set(spec.baselines().variants) == set(measured[name]), "run `verl-hier env NAME --baselines --out`"


def test_a_file_that_holds_something_else_is_refused(tmp_path, monkeypatch, capsys):
    file = tmp_path / "baselines.json"
    file.write_text("[1")
    monkeypatch.setattr("sys.argv", ["verl-hier", "env", "python_tool", "--baselines", "--out", str(file)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and "--out" in capsys.readouterr().err

"""Demonstrations: the contexts of the real workers, token for token, with the weights that were asked for."""

import pyarrow.parquet as parquet
import pytest
from transformers import AutoTokenizer

from verl_hier.coldstart import Noise, build_tiny, write_demonstrations
from verl_hier.coldstart.build import texts_of
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier.host.part import Part
from verl_hier.host.specs import EnvironmentSpec, WorkerSpec
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier_plugins.environments.alfworld import SPEC

CLEAN = Noise(random_action=0.0, skip_stage=0.0)


@pytest.fixture
def write(options, workers, tokenizer, tmp_path):
    def write(worker, n=8, noise=CLEAN, seed=0):
        environment = Part(SPEC, options)
        file = write_demonstrations(environment, workers[worker], tokenizer, tmp_path / "d.parquet", n, noise, seed)
        return parquet.read_table(file).to_pylist()

    return write


def turns(row, tokenizer):
    """The turns of a row: (what was read, what was said)."""
    act, end = tokenizer.convert_tokens_to_ids("<act>"), tokenizer.eos_token_id
    found, ids = [], list(row["input_ids"])
    while ids:
        cue = ids.index(act)
        stop = ids.index(end)
        found.append((tokenizer.decode(ids[:cue]), tokenizer.decode(ids[cue + 1 : stop])))
        ids = ids[stop + 1 :]
    return found


def test_planner_and_executor_contexts(write, tokenizer):
    rows = write("planner_executor")
    plans = [row for row in rows if row["role"] == "planner"]
    assert len(plans) == 8
    for number, row in enumerate(rows):
        spoken = turns(row, tokenizer)
        if row["role"] == "planner":
            ((read, plan),) = spoken
            assert read.startswith("plan : ") and plan.startswith("find ")
            subgoals = plan.split(" ; ")
            following = [turns(r, tokenizer) for r in rows[number + 1 : number + 1 + len(subgoals)]]
            assert [first[0][0].split(" | ")[0] for first in following] == [f"goal : {goal}" for goal in subgoals]
            # Every subgoal but the last ends by word; the last one ends because the task is won.
            assert [last[-1][1] == "<sub_done>" for last in following] == [True] * (len(subgoals) - 1) + [False]
        assert len(row["weights"]) == len(row["input_ids"])
        assert tokenizer.unk_token_id not in row["input_ids"]


def test_a_team_in_order_goes_on_in_one_context(tmp_path):
    """The second agent of a sequence has the whole task, so no word ends a subgoal and none is missing."""
    recipe = ComposedRecipe.named("c3_python_tool")
    environment, worker = recipe.parts.environment, recipe.parts.worker
    build_tiny(tmp_path, texts_of(recipe))
    words = AutoTokenizer.from_pretrained(tmp_path)
    file = write_demonstrations(environment, worker, words, tmp_path / "d.parquet", 8, CLEAN, 0, recipe.limits)
    rows = parquet.read_table(file).to_pylist()
    assert [row["role"] for row in rows] == ["reasoner", "actor"] * 8
    for row in rows:
        said = [text.split()[0] for _, text in turns(row, words)]
        assert said == (["compute"] if row["role"] == "reasoner" else ["python", "answer"])


def test_a_verifier_sends_wrong_answers_back_and_approves_right_ones(tmp_path):
    recipe = ComposedRecipe.named("dr_mas_math")
    environment, worker = recipe.parts.environment, recipe.parts.worker
    build_tiny(tmp_path, texts_of(recipe))
    words = AutoTokenizer.from_pretrained(tmp_path)
    noise = Noise(random_action=0.0, skip_stage=0.5)
    file = write_demonstrations(environment, worker, words, tmp_path / "d.parquet", 16, noise, 0, recipe.limits)
    rows = parquet.read_table(file).to_pylist()
    rounds = set()
    for solver, verifier in zip(rows[::2], rows[1::2], strict=True):
        assert (solver["role"], verifier["role"]) == ("solver", "verifier")
        answers, verdicts = ([text for _, text in turns(row, words)] for row in (solver, verifier))
        assert verdicts == ["wrong"] * (len(answers) - 1) + ["approve"]
        assert answers[-1].startswith("compute"), "the last one is worked out"
        rounds.add(len(answers))
    assert rounds == {1, 2}


def test_designer_and_executor_contexts(write, tokenizer):
    """The expert's plan is a sound design, and each of its calls is done by the role that it names."""
    rows = write("designer_executor")
    designs = [number for number, row in enumerate(rows) if row["role"] == "designer"]
    assert len(designs) == 8 and {row["role"] for row in rows} == {"designer", "executor"}
    for number in designs:
        ((read, design),) = turns(rows[number], tokenizer)
        assert read.startswith("design : ") and design.startswith("find ")
        calls = design.split(" ; ")
        following = [turns(row, tokenizer) for row in rows[number + 1 : number + 1 + len(calls)]]
        told = [first[0][0].split(" | ")[0].replace(" : ", " ") for first in following]
        assert told == calls, "the design was not refused, and nobody works on another order"
        assert [last[-1][1] == "<sub_done>" for last in following] == [True] * (len(calls) - 1) + [False]
    assert not any(tokenizer.unk_token_id in row["input_ids"] for row in rows)


def test_react_contexts(write, tokenizer):
    rows = write("react")
    assert len(rows) == 8 and {row["role"] for row in rows} == {"agent"}
    for row in rows:
        (first, action), *_, (_, last) = turns(row, tokenizer)
        assert first.startswith("task : ") and action.startswith("go to ") and last.startswith("move ")


@pytest.mark.slow
def test_a_planner_whose_plan_failed_makes_a_new_one(tmp_path):
    """In the dual loop a skipped stage is an idea that fails: the planner hears it, and the next idea reproduces."""
    rows, tokenizer = bug_rows(tmp_path, noise=Noise(random_action=0.0, skip_stage=1.0))
    assert {row["role"] for row in rows} == {"planner", "executor"}
    for task in {row["task"] for row in rows}:
        (plans,) = (turns(row, tokenizer) for row in rows if row["task"] == task and row["role"] == "planner")
        (_, silent), (heard, shown) = plans
        assert heard == "no bug there" and silent.startswith("try ") and shown.startswith("try ") and silent != shown
        tries = [turns(row, tokenizer) for row in rows if row["task"] == task and row["role"] == "executor"]
        assert [said.removeprefix("test ").split(" is ")[0] for ((_, said),) in tries] == [
            plan.removeprefix("try ") for plan in (silent, shown)
        ], "a try follows its plan, and one was enough under each"


@pytest.mark.slow
def test_a_slip_is_repaired_under_the_same_plan(tmp_path):
    rows, tokenizer = bug_rows(tmp_path, noise=Noise(random_action=0.5, skip_stage=0.0))
    tries = [turns(row, tokenizer) for row in rows if row["role"] == "executor"]
    repaired = [said for said in tries if len(said) > 1]
    assert repaired and len(tries) == 12, "every task is won under its one plan"
    assert all(heard.startswith("wrong value") for said in repaired for heard, _ in said[1:])


def test_roles_that_an_expert_cannot_play_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="cannot play 'dual_loop' with planner, executor, refiner"):
        bug_rows(tmp_path, CLEAN, "hier.worker.router=refiner")


def bug_rows(folder, noise, *overrides):
    """Twelve demonstrations of the dual loop, with the tokenizer of their language."""
    recipe = ComposedRecipe.named("dual_loop_bug_reproduction", overrides)
    tokenizer = AutoTokenizer.from_pretrained(str(build_tiny(folder / "tiny", texts_of(recipe))))
    parts, path = recipe.parts, folder / "d.parquet"
    file = write_demonstrations(parts.environment, parts.worker, tokenizer, path, 12, noise, limits=recipe.limits)
    return parquet.read_table(file).to_pylist(), tokenizer


def test_weights_are_one_on_words_of_the_policy(write, tokenizer):
    for row in write("planner_executor", noise=Noise(0.0, 0.0, 0.0, 0.25)):
        assert row["weights"][0] == 0.0, "nothing predicts a first token"
        said, act, end = False, tokenizer.convert_tokens_to_ids("<act>"), tokenizer.eos_token_id
        for token, weight in list(zip(row["input_ids"], row["weights"], strict=True))[1:]:
            assert weight == (1.0 if said else 0.25)
            said = token == act or (said and token != end)


def test_noise_skips_stages_and_does_not_teach_random_actions(write, tokenizer):
    rows = write("planner_executor", noise=Noise(random_action=0.3, skip_stage=1.0))
    plans = [tokenizer.decode(row["input_ids"]) for row in rows if row["role"] == "planner"]
    assert not any(f"; {stage} " in plan for plan in plans for stage in ("clean", "heat", "cool"))
    act = tokenizer.convert_tokens_to_ids("<act>")
    silent = sum(
        row["weights"][i + 1] == 0.0
        for row in rows
        for i, token in enumerate(row["input_ids"])
        if token == act and row["role"] == "executor"
    )
    spoken = sum(row["input_ids"].count(act) for row in rows if row["role"] == "executor")
    assert 0.1 < silent / spoken < 0.45


def test_equal_calls_are_written_once_and_others_anew(options, workers, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def write(seed):
        return write_demonstrations(Part(SPEC, options), workers["react"], tokenizer, n=3, noise=CLEAN, seed=seed)

    first = write(0)
    stamp = first.stat().st_mtime_ns
    assert write(0) == first and first.stat().st_mtime_ns == stamp
    assert write(1) != first
    assert first.parent == tmp_path / "verl-hier"
    assert not list(first.parent.glob("*.part"))


def test_a_given_file_of_other_options_is_replaced(write, tmp_path):
    assert len({row["task"] for row in write("react", n=2)}) == 2
    assert len({row["task"] for row in write("react", n=4)}) == 4


def test_what_cannot_be_demonstrated_is_said(options, workers, tokenizer, tmp_path):
    crowd = WorkerSpec(name="crowd", factory=lambda options: None, roles={"a": 0, "b": 0})
    with pytest.raises(RecipeError, match="cannot play 'crowd'"):
        write_demonstrations(Part(SPEC, options), Part(crowd, None), tokenizer, tmp_path / "d.parquet")

    class Mute(Environment):
        def reset(self, task, seed):
            return StepResult(text="hello")

        def step(self, action):
            return StepResult(text="bye", done=True)

    mute = EnvironmentSpec(name="mute", factory=lambda o: Mute(), tasks=lambda o, s: [{"instruction": "wait"}])
    with pytest.raises(RecipeError, match="offers no expert"):
        write_demonstrations(Part(mute, None), workers["react"], tokenizer, tmp_path / "d.parquet")

"""The cold start of a recipe: each worker gets what it needs, in words that its model knows, with ends of turns."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hier.coldstart.build import (
    RECORD,
    build,
    demonstrate,
    key_of,
    model_folder,
    put_model,
    random_model,
    read_record,
    texts_of,
)
from verl_hier.coldstart.expert_policy import can_play
from verl_hier.coldstart.vocabulary import split_words
from verl_hier.errors import RecipeError
from verl_hier.recipe.catalogue import recipes
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe

SMALL = ("hier.environment.pool=6", "hier.environment.validation=2", "hier.coldstart.episodes=8")
ROLES = {
    "agentflow_alfworld": {"planner", "executor"},
    "agentflow_search": {"planner", "executor", "verifier", "generator"},
    "chain_of_agents_alfworld": {"think"},
    "coda_alfworld": {"planner", "executor"},
    "coda_search": {"planner", "executor"},
    "dual_loop_bug_reproduction": {"planner", "executor"},
    "hiersearch_search": {"planner", "executor"},
    "hiper_alfworld": {"agent"},
    "metaagentx_alfworld": {"designer", "executor"},
    "quickstart": {"planner", "executor"},
}
"""One recipe for each worker whose demonstrations are more than an expert's actions, and the roles of its contexts."""


@pytest.mark.parametrize("name", ROLES)
def test_each_worker_is_shown_what_it_needs(name: str, tmp_path: Path) -> None:
    recipe = ComposedRecipe.named(name, SMALL)
    tokenizer = AutoTokenizer.from_pretrained(random_model([recipe], tmp_path / "tiny"))
    rows = parquet.read_table(demonstrate(recipe, tokenizer, tmp_path / "d.parquet")).to_pylist()
    assert {row["role"] for row in rows} == ROLES[name]
    assert not any(tokenizer.unk_token_id in row["input_ids"] for row in rows), "every word has a token"
    act = tokenizer.convert_tokens_to_ids("<act>")
    stops = [tokenizer.convert_tokens_to_ids(f"</{tag}>") for tag in ("action", "think", "plan")]
    for row in rows:
        spoken = 0
        for token, weight in zip(row["input_ids"], row["weights"], strict=True):
            spoken += token == act
            if token == tokenizer.eos_token_id:
                assert weight in (0.0, 1.0), "the end of a turn is trained with the turn"
                spoken -= 1
        assert spoken == 0 or row["input_ids"][-1] in stops, "every turn has its end"


def test_a_tokenizer_knows_what_its_worker_says() -> None:
    """A report, a verdict and the names of agents stand in no template of the recipe."""

    def words(name: str, *overrides: str) -> set[str]:
        recipe = ComposedRecipe.named(name, [*SMALL, *overrides])
        return {word for text in texts_of(recipe, walks=2) for word in split_words(text)}

    assert {"<result>", "done", "executor", ":"} <= words("coda_alfworld")
    assert {"nothing", "<local>", "local", "web"} <= words("hiersearch_search")
    assert {"go", "on"} <= words("agentflow_alfworld", "hier.worker.verifier=true")


@pytest.mark.long
def test_recipes_that_share_a_folder_share_the_model() -> None:
    """A second recipe would otherwise make the model of the first one anew."""
    keys: dict[Path, dict[str, list[str]]] = {}
    for name in (shipped.name for shipped in recipes() if "cpu" in shipped.sizes):
        recipe = ComposedRecipe.named(name)
        keys.setdefault(model_folder(recipe), {}).setdefault(key_of([recipe]), []).append(name)
        worker = recipe.parts.worker
        assert can_play(worker) or worker.spec.is_transcribed(worker.options), f"no expert can play {name}"
    assert not {folder: found for folder, found in keys.items() if len(found) > 1}
    shared = max((names for found in keys.values() for names in found.values()), key=len)
    assert {"grpo_alfworld", "arpo_alfworld", "overprovision_alfworld"} <= set(shared)
    assert not {"at_grpo_alfworld", "himac_alfworld"} & set(shared)
    assert model_folder(ComposedRecipe.named("grpo_alfworld", ["server=vllm_cpu"])) not in keys


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("himac_alfworld", ["size=node"], "hier/model: himac_alfworld trains Qwen/Qwen2.5-1.5B-Instruct"),
        ("himac_alfworld", ["hier.rollout.template=chat"], "hier.rollout.template: .*`plain`"),
        ("himac_alfworld", ["actor_rollout_ref.model.path=Qwen/Qwen3-0.6B"], "looks like the name of a hub model"),
        ("himac_alfworld", ["hier.coldstart.steps=0"], "hier.coldstart.steps: must be at least 1"),
        ("himac_alfworld", ["hier.coldstart.hidden=97"], "hidden must be a multiple of 8"),
        ("dual_loop_bug_reproduction", ["hier.worker.router=refiner"], "cannot play 'dual_loop'.*`transcribe`"),
        ("himac_alfworld", ["hier.coldstart.variants=[{goal: 1}]"], "no option 'goal'.*did you mean"),
        ("coda_alfworld", ["hier.coldstart.system=plan_executor"], "did you mean 'planner_executor'"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(name: str, overrides: list[str], words: str, tmp_path: Path) -> None:
    place = f"actor_rollout_ref.model.path={tmp_path / 'model'}"
    with pytest.raises(RecipeError, match=words):
        build(compose(name, [*([] if "size=node" in overrides else [place]), *SMALL, *overrides]))


def test_a_model_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match="no cold start has made what is in"):
        build(compose("himac_alfworld", [f"actor_rollout_ref.model.path={tmp_path}"]))
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def stop(stage: str) -> None:
    raise InterruptedError(stage)


@pytest.mark.parametrize("before", [False, True])
def test_a_death_at_any_moment_leaves_a_model_with_its_record_or_none(before: bool, tmp_path: Path) -> None:
    """Otherwise the same command would refuse its own model from then on."""
    trained, model = tmp_path / "cold_start" / "model", tmp_path / "model"
    for folder in (trained, *([model] if before else [])):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "weights").mkdir()
    if before:
        (model / RECORD).write_text('{"key": "old"}')
    seen: list[str | None] = []

    def look(frame: object, event: str, argument: object) -> None:
        if event in ("c_call", "c_return"):
            seen.append(read_record(model).get("key", "not a cold start's") if model.exists() else None)

    sys.setprofile(look)
    try:
        put_model(trained, model, {"key": "new"})
    finally:
        sys.setprofile(None)
    assert set(seen) == {"old" if before else None, None, "new"}
    assert sorted(file.name for file in model.iterdir()) == [RECORD, "config.json", "weights"]
    assert not list((tmp_path / "cold_start").iterdir())


def test_a_second_cold_start_of_a_model_waits_for_the_first(tmp_path: Path) -> None:
    recipe = compose("grpo_alfworld", [f"actor_rollout_ref.model.path={tmp_path / 'model'}", *SMALL])
    begun, end = threading.Event(), threading.Event()

    def hold(stage: str) -> None:
        begun.set()
        end.wait()
        raise InterruptedError(stage)

    def first() -> None:
        try:
            with pytest.raises(InterruptedError, match="1/3"):
                build(recipe, report=hold)
        finally:
            begun.set()

    thread = threading.Thread(target=first)
    thread.start()
    try:
        begun.wait()
        with pytest.raises(InterruptedError, match="another cold start is under way"):
            build(recipe, report=stop)
    finally:
        end.set()
        thread.join()
    with pytest.raises(InterruptedError, match="1/3"):
        build(recipe, report=stop)


def test_a_model_that_appears_while_it_is_looked_for_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cold start swaps its model in just after this one has seen none."""
    recipe = compose("grpo_alfworld", [f"actor_rollout_ref.model.path={tmp_path / 'model'}", *SMALL])
    trained = tmp_path / "cold_start" / "model"
    trained.mkdir(parents=True)

    def look(model: Path) -> dict[str, object]:
        known = read_record(model)
        if trained.exists():
            put_model(trained, model, {"key": key_of([ComposedRecipe.of(recipe)])})
        return known

    monkeypatch.setattr("verl_hier.coldstart.build.read_record", look)
    said: list[str] = []
    assert build(recipe, report=said.append) == tmp_path / "model"
    assert said == [f"the model exists already: {tmp_path / 'model'}"]


@pytest.mark.slow
def test_a_model_is_made_once_and_anew_for_other_options(tmp_path: Path) -> None:
    def overrides(*more: str) -> list[str]:
        return [f"actor_rollout_ref.model.path={tmp_path / 'model'}", *SMALL, "hier.coldstart.batch_size=4", *more]

    said: list[str] = []
    steps: list[tuple[int, int]] = []
    first = compose("agentflow_alfworld", overrides("hier.coldstart.steps=4"))
    model = build(first, report=said.append, progress=lambda step, of, loss: steps.append((step, of)))
    assert model == tmp_path / "model" and [text[:3] for text in said] == ["1/3", "2/3", "3/3"]
    assert steps[-1] == (4, 4) and steps == sorted(steps)
    trained = AutoModelForCausalLM.from_pretrained(model).model.embed_tokens.weight
    untrained = AutoModelForCausalLM.from_pretrained(tmp_path / "cold_start" / "tiny").model.embed_tokens.weight
    assert trained.shape == untrained.shape and not (trained == untrained).all()
    record = json.loads((model / RECORD).read_text())
    assert record["recipes"] == ["agentflow_alfworld"] and record["settings"]["steps"] == 4
    said.clear()
    assert build(first, report=said.append) == model and said == [f"the model exists already: {model}"]
    with pytest.raises(InterruptedError, match="1/3 a random model"):
        build(compose("agentflow_alfworld", overrides("hier.coldstart.steps=3")), report=stop)


def test_an_agent_is_shown_alone_too_where_training_asks_for_it(tmp_path: Path) -> None:
    """In HierSearch's first stage an agent is given the question itself, as a planner would give it a task."""
    recipe = ComposedRecipe.named("hiersearch_search", ["hier.environment.pool=24", "hier.coldstart.episodes=48"])
    tokenizer = AutoTokenizer.from_pretrained(random_model([recipe], tmp_path / "tiny"))
    rows = parquet.read_table(demonstrate(recipe, tokenizer, tmp_path / "d.parquet")).to_pylist()
    told = [(row["role"], tokenizer.decode(row["input_ids"])) for row in rows]
    planned = [text for role, text in told if role == "planner"]
    alone = [text for role, text in told if role == "executor" and " is the " in text.split("search")[0]]
    assert planned and alone and len(planned) + len(alone) < len(told)
    assert all("<result>" in text and text.startswith("goal") for text in alone)


def test_variants_of_the_tasks_are_shown_in_equal_parts(tmp_path: Path) -> None:
    recipe = ComposedRecipe.named(
        "at_grpo_alfworld", ["hier.environment.pool=4", "hier.environment.validation=2", "hier.coldstart.episodes=6"]
    )
    tokenizer = AutoTokenizer.from_pretrained(random_model([recipe], tmp_path / "tiny"))
    rows = parquet.read_table(demonstrate(recipe, tokenizer, tmp_path / "d.parquet")).to_pylist()
    both = [" then " in tokenizer.decode(row["input_ids"]).split("|")[0] for row in rows]
    assert both == [False] * 3 + [True] * 3

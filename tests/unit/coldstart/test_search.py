"""A cold start on the search environment: every word has a token, and the real workers carry the expert's way."""

import pyarrow.parquet as parquet
import pytest
from transformers import AutoTokenizer

from verl_hier.coldstart import Noise, build_tiny, collect_texts, write_demonstrations
from verl_hier.host.part import Part
from verl_hier_plugins.environments.search import SPEC
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.world import build_world, write_document
from verl_hier_plugins.workers.planner_executor import PlannerExecutorOptions
from verl_hier_plugins.workers.planner_executor import hier_workers as hierarchical
from verl_hier_plugins.workers.react import ReactOptions
from verl_hier_plugins.workers.react import hier_workers as flat

OPTIONS = SearchOptions(hops=2, pool=24, validation=8, top_k=2, observation="short", web_share=0.3)
WORKERS = {
    "react": Part(flat(), ReactOptions(prompt="question: {instruction}")),
    "planner_executor": Part(
        hierarchical(),
        PlannerExecutorOptions(planner_prompt="plan: {instruction}", executor_prompt="goal: {subgoal} | {observation}"),
    ),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    texts = collect_texts(Part(SPEC, OPTIONS), list(WORKERS.values()), walks=2)
    return AutoTokenizer.from_pretrained(build_tiny(tmp_path_factory.mktemp("tiny"), texts))


def test_every_document_and_question_has_its_words(tokenizer):
    world = build_world(OPTIONS.seed, OPTIONS.size)
    texts = [write_document(world, name, OPTIONS.prose) for name in world.kinds]
    texts += [task["instruction"] for split in ("train", "val", "test") for task in SPEC.tasks(OPTIONS, split)]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        assert len(ids) == len(text.split()), "one token a word"
    assert len(tokenizer) < 200


@pytest.mark.parametrize("worker", WORKERS)
def test_demonstrations_are_the_experts_way_through_the_worker(worker, tokenizer, tmp_path):
    noise = Noise(random_action=0.0, skip_stage=0.0)
    file = write_demonstrations(Part(SPEC, OPTIONS), WORKERS[worker], tokenizer, tmp_path / "d.parquet", 12, noise)
    rows = parquet.read_table(file).to_pylist()
    assert all(tokenizer.unk_token_id not in row["input_ids"] for row in rows)
    texts = [tokenizer.decode(row["input_ids"]) for row in rows]
    if worker == "react":
        assert len(rows) == 12
        assert all(text.startswith("question : wh") and " <act> search " in text for text in texts)
        return
    plans = [number for number, row in enumerate(rows) if row["role"] == "planner"]
    assert len(plans) == 12
    for number in plans:
        subgoals = texts[number].partition("<act> ")[2].removesuffix(" <end>").split(" ; ")
        assert len(subgoals) == 3 and subgoals[2].startswith("answer ")
        for subgoal, text in zip(subgoals, texts[number + 1 : number + 4], strict=True):
            assert text.startswith(f"goal : {subgoal}")
        # Each executor finds what it has to name in what it reads.
        for text in texts[number + 1 : number + 4]:
            told, _, said = text.rpartition("<act> ")
            *_, name = said.removesuffix(" <end>").split()
            assert name == "<sub_done>" or name in told.split()


def test_random_actions_of_demonstrations_are_searches(tokenizer, tmp_path):
    noise = Noise(random_action=1.0, random_weight=0.5, skip_stage=0.0)
    file = write_demonstrations(Part(SPEC, OPTIONS), WORKERS["react"], tokenizer, tmp_path / "d.parquet", 8, noise)
    weights = {weight for row in parquet.read_table(file).to_pylist() for weight in row["weights"]}
    assert 0.5 in weights, "a beginner's search never ends the episode, so it is kept and weighed"

"""The sample agent with sub-agents: its expert speaks for the lead and for each helper, and every word has a token."""

import asyncio
import random
from contextlib import closing

import pyarrow.parquet as parquet
import pytest
from transformers import AutoTokenizer

from verl_hier.coldstart import Noise, build_tiny, collect_texts, write_demonstrations
from verl_hier.coldstart.episodes import LocalEnvironment, play
from verl_hier.coldstart.expert_policy import ExpertPolicy, is_hierarchical
from verl_hier.environments.blocking import build
from verl_hier.errors import RecipeError
from verl_hier.host.part import Part
from verl_hier.rollout import Limits
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier_plugins.environments.gateway import SPEC
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.environments.gateway.tasks import tasks
from verl_hier_plugins.workers.gateway import AgentOptions, GatewayWorkerOptions, hier_workers

WORLD = Part(SPEC, GatewayOptions(sample="lead", actions="plain", pool=24, validation=8))
AGENTS = {"lead": AgentOptions(), "helper": AgentOptions(level=1, depth=1)}
WORKER = Part(hier_workers(), GatewayWorkerOptions(AGENTS))
LIMITS = Limits(max_turns=24)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    texts = collect_texts(WORLD, [WORKER], walks=2)
    return AutoTokenizer.from_pretrained(build_tiny(tmp_path_factory.mktemp("tiny"), texts))


def test_each_helper_is_an_agent_under_the_turn_that_sent_it(tokenizer):
    def encode(text):
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    with closing(build(SPEC, WORLD.options)) as world:
        local = LocalEnvironment(world)
        for number, task in enumerate(tasks(WORLD.options, "train")[:6]):
            policy = ExpertPolicy(
                local, encode, Noise(0.0, 0.0), random.Random(0), is_hierarchical(WORKER), WORKER.options
            )
            graph, _ = asyncio.run(play(local, task, WORKER, policy, PlainRenderer(tokenizer), LIMITS, number))
            assert graph.episodes[0].success and graph.episodes[0].status == "finished"
            sends = [node for node in graph.nodes if node.role == "lead" and node.text.startswith("send ")]
            helpers = {node.agent: node for node in reversed(graph.nodes) if node.role == "helper"}
            assert 1 <= len(helpers) == len(sends) <= 3
            for first, sent in zip(reversed(helpers.values()), sends, strict=True):
                assert first.messages[0].sources == [sent.id] and first.level == 1 and first.context == -1
                assert sent.text.removeprefix("send ") in first.messages[0].content.splitlines()
            assert all(node.extra["format"] == 1 and not node.extra["edited"] for node in graph.nodes)
            (answer,) = (node for node in graph.nodes if node.extra["answered"])
            assert answer.role == "lead" and answer.text == f"answer {task['answers'][0]}"


def test_demonstrations_have_a_row_for_each_conversation_and_no_unknown_word(tokenizer, tmp_path):
    file = write_demonstrations(WORLD, WORKER, tokenizer, tmp_path / "d.parquet", 12, Noise(), limits=LIMITS)
    rows = parquet.read_table(file).to_pylist()
    assert {row["role"] for row in rows} == {"lead", "helper"}
    assert all(tokenizer.unk_token_id not in row["input_ids"] for row in rows)


def test_a_sample_is_for_generated_tasks():
    with pytest.raises(ValueError, match="sample is for tasks that are generated"):
        GatewayOptions(sample="lead", data_path="tasks.jsonl")
    with pytest.raises(RecipeError, match="no split"):
        tasks(WORLD.options, "nowhere")
    splits = [{str(task["rooms"]) + task["goal"] for task in tasks(WORLD.options, split)} for split in SPEC.splits]
    assert sum(map(len, splits)) == len(set().union(*splits)) == 24 + 8 + 8

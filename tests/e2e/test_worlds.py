"""Worlds beside the trainer, through stock verl: a short cold start and two steps of each recipe."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.leaky_environment import CANARY, forms
from tests.fixtures.trainer import verl_hier
from verl_hier.graph import RolloutGraph, read_graphs, write_graphs
from verl_hier.ops.runs import RUNS, Run
from verl_hier_plugins.environments.gateway import SPEC as GATEWAY
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.environments.mcp import SPEC as MCP
from verl_hier_plugins.environments.mcp.options import McpOptions

pytestmark = pytest.mark.slow

LEAKY = Path(__file__).parents[1] / "fixtures" / "leaky_house.py"
LEAKS = (f"hier.environment.command={sys.executable} {LEAKY}", "hier.environment.secrets=[CANARY]")
SHORT = ("hier.coldstart.episodes=64", "hier.coldstart.steps=80")
"""A cold start that writes actions which the world understands, most of the time."""
STEPS = ("trainer.total_training_steps=2", "data.train_batch_size=4", "trainer.test_freq=-1", "trainer.save_freq=-1")
STEPS += ("trainer.val_before_train=false", "actor_rollout_ref.actor.ppo_mini_batch_size=4")


@pytest.mark.parametrize(
    ("recipe", "roles", "branches"),
    [
        ("himac_mcp", {"planner", "executor"}, True),
        pytest.param("himac_shop", {"planner", "executor"}, True, marks=pytest.mark.long),
        ("grpo_textworld_express", {"agent"}, False),
    ],
)
def test_two_steps_in_a_world(tmp_path: Path, recipe: str, roles: set[str], branches: bool) -> None:
    """The roles spoke, the world answered them, and turns were trained with the credit of their group."""
    if recipe == "grpo_textworld_express":
        pytest.importorskip("textworld_express")
    verl_hier(tmp_path, "coldstart", recipe, *SHORT)
    # The sample server of MCP, saying a secret wherever it can.
    leaks = [*LEAKS, *task_files(tmp_path, MCP.tasks, McpOptions())] if recipe == "himac_mcp" else []
    verl_hier(tmp_path, "train", recipe, *STEPS, *leaks, f"hier.store.path={tmp_path}/graphs", CANARY=CANARY)
    run = Run.all_in(tmp_path / RUNS / recipe)[-1]
    steps = [step for step in run.metrics() if "actor/grad_norm" in step]
    assert len(steps) == 2
    for step in steps:
        assert step["hier/episodes/failed"] == 0 and step["hier/rows/trained"] > 0
        assert step["actor/grad_norm"] > 0, "nobody earned more or less than the others"
    groups = [group for number in (1, 2) for group in read_graphs(tmp_path / "graphs" / f"step_{number:06d}")]
    assert len(groups) == 8 and {node.role for group in groups for node in group.nodes} == roles
    assert any(forked(group) for group in groups) == branches
    acts = [node for group in groups for node in group.nodes if node.role in ("executor", "agent")]
    assert sum(group.counts["environment_calls"] for group in groups) > len(acts) / 2
    assert sum(node.valid for node in acts) > len(acts) / 8, "the world understands what is said to it"
    assert any(credit for group in groups for credit in group.credit)
    if leaks:
        assert any("[secret]" in text for text in observations(groups)), "the server says it"
        write_graphs(tmp_path / "all.jsonl", groups)  # what the shards hold, unpacked
        assert not [place for place, text in texts(tmp_path) if any(form in text for form in forms(CANARY))]


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """What is in every file of a run, unpacked."""
    for place in folder.rglob("*"):
        if place.is_file():
            data = place.read_bytes()
            yield place, (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")


def test_two_steps_of_agent_programs(tmp_path: Path) -> None:
    """The loop around the `openai` client and the agent on the Agents SDK, which know nothing of verl-hier, are trained
    with the tokens that they were answered with; the SDK's tool was called."""
    pytest.importorskip("openai")
    pytest.importorskip("agents")
    verl_hier(tmp_path, "coldstart", "grpo_gateway", *SHORT)
    agent = Path(__file__).parents[1] / "fixtures" / "both_agents.py"
    tasks = task_files(tmp_path, GATEWAY.tasks, GatewayOptions(pool=24, validation=8), by=("sdk", "loop"))
    store = f"hier.store.path={tmp_path}/graphs"
    verl_hier(tmp_path, "train", "grpo_gateway", *STEPS, *tasks, f"hier.environment.agent={agent}:play", store)
    run = Run.all_in(tmp_path / RUNS / "grpo_gateway")[-1]
    steps = [step for step in run.metrics() if "actor/grad_norm" in step]
    assert len(steps) == 2
    for step in steps:
        assert step["hier/episodes/failed"] == 0 and step["hier/rows/trained"] > 0
        assert step["actor/grad_norm"] > 0, "nobody earned more or less than the others"
    groups = [group for number in (1, 2) for group in read_graphs(tmp_path / "graphs" / f"step_{number:06d}")]
    read = {message.role for group in groups for node in group.nodes for message in node.messages}
    assert {"system", "user", "tool"} <= read and any("is" in text.split() for text in observations(groups))
    for group in groups:
        for node in group.nodes:
            if node.context >= 0:
                before = group.nodes[node.context]
                told = group.prompt(before.id) + before.action
                assert group.prompt(node.id)[: len(told)] == told, "an answer was tokenised again"


def task_files(folder: Path, tasks: Callable[..., Any], options: Any, **fields: Sequence[Any]) -> list[str]:
    """The tasks of an environment in files, each with one of the values of further fields; and what names the files."""
    files = {"train": folder / "train.jsonl", "val": folder / "val.jsonl"}
    for split, file in files.items():
        found = enumerate(tasks(options, split))
        lines = [{**task, **{name: each[n % len(each)] for name, each in fields.items()}} for n, task in found]
        file.write_text("\n".join(map(json.dumps, lines)))
    return [f"hier.environment.data_path={files['train']}", f"hier.environment.validation_path={files['val']}"]


def forked(group: RolloutGraph) -> bool:
    """Whether two turns of a group follow the same turn."""
    parents = [node.parent for node in group.nodes if node.parent >= 0]
    return len(parents) > len(set(parents))


def observations(groups: Iterable[RolloutGraph]) -> list[str]:
    """What the world answered, turn by turn."""
    return [message.content for group in groups for node in group.nodes for message in node.messages]

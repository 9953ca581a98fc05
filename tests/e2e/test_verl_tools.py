"""A tool recipe of stock verl as trees, through the real trainer: two steps with tools in the rollout worker."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.fixtures.byte_model import write_toy_task
from tests.fixtures.trainer import Trainer
from verl_hier.graph import RolloutGraph, read_graphs

pytestmark = pytest.mark.slow

TOOLS = '''\
import os

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool

LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls")


@function_tool
async def double(number: int):
    """Doubles a number.

    Args:
        number: the number.
    """
    with open(LOG, "a") as log:
        print(number, file=log)
    return f"twice is {2 * number}", number / 1000


@ToolParser.register("even")
class Even(ToolParser):
    """A turn that begins with an even token is a call, since a random model writes nothing better."""

    async def extract_tool_calls(self, responses_ids, tools=None):
        text = self.tokenizer.decode(responses_ids)
        if responses_ids[0] % 2:
            return text, []
        return text, [FunctionCall(name="double", arguments='{"number": %d}' % responses_ids[0])]
'''
REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert extra_info["num_turns"] >= 2 + len(extra_info["tool_rewards"])
    return sum(map(ord, solution_str)) % 7 / 7 + sum(extra_info["tool_rewards"])
"""


def test_two_steps_of_trees_with_verls_tools(train: Trainer, tmp_path: Path) -> None:
    """Turns called the tool, forks shared its answers without calling it again, and verl's reward function was told."""
    folder = tmp_path / "files"
    folder.mkdir()
    toy = write_toy_task(folder)
    (folder / "tools.py").write_text(TOOLS)
    (folder / "reward.py").write_text(REWARD)
    overrides = [
        *toy,
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={folder}/tools.py",
        "actor_rollout_ref.rollout.multi_turn.format=even",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4",
        "data.train_batch_size=4",
        "data.max_prompt_length=128",
        "data.max_response_length=256",
        "hier.rollout.max_tokens_per_turn=12",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.total_training_steps=2",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "trainer.save_freq=-1",
        "trainer.logger=[console,file]",
        f"hier.store.path={tmp_path}/graphs",
    ]
    run = train("tree_grpo_verl_tools", overrides)
    assert run.code == 0, run.log[-3000:]
    assert len(run.metric("actor/grad_norm")) == 2 and min(run.metric("actor/grad_norm")) > 0
    assert max(run.metric("hier/episodes/failed")) == 0
    groups = [group for step in (1, 2) for group in read_graphs(tmp_path / "graphs" / f"step_{step:06d}")]
    nodes = [node for group in groups for node in group.nodes]
    called = [node for node in nodes if "tool_rewards" in node.extra]
    assert called and len(called) < len(nodes)
    made = Counter(int(line) for line in (folder / "calls").read_text().split())
    assert made == Counter(node.action[0] for node in called), "one call a turn, however many share it"
    rewards = [json.loads(node.extra["tool_rewards"]) for node in called]
    assert rewards == [[node.action[0] / 1000] for node in called]
    shared = [number for group in groups for number, users in users_of(group).items() if users > 1]
    assert shared, "the trees branch"


def users_of(group: RolloutGraph) -> Counter[int]:
    """How many episodes share each turn that called."""
    return Counter(
        number
        for episode in group.complete()
        for number in group.path(episode.id)
        if "tool_rewards" in group.nodes[number].extra
    )

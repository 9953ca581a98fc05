"""Coding agents that people run, unchanged, behind the gateway: their tokens, their sub-agents, and forks of them.

Each is installed from its registry in the version that examples/agents names, and is skipped where that is not there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_hier.environments.pool import EnvironmentPool
from verl_hier.graph import RolloutGraph, graph_rows
from verl_hier.host.options import build_options
from verl_hier.rollout import Limits, Request, Rollout, Sampler
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy
from verl_hier_plugins.environments.gateway import SPEC
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.workers.gateway import hier_workers

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents" / "coding_agents.py"
LIMIT = 400_000
"""Tokens of a context; here each character is one."""
TASK = {"instruction": "How many letters has banana? Say the number alone.", "answers": ["six"]}
Said = Callable[[str], str]
ASKED = "Count the letters of the word banana and say the number."
AGENTS = {"lead": {"level": 0}, "helper": {"level": 1, "depth": 1}}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


SHELL = {
    "pi": call("bash", command="echo six"),
    "opencode": call("bash", command="echo six", description="says it"),
    "codex": call("exec_command", cmd="echo six"),
    "claude_code": call("Bash", command="echo six"),
    "qwen_code": call("run_shell_command", command="echo six", is_background=False),
    "mini_swe_agent": call("bash", command="echo six"),
}
SUBMITS = {"mini_swe_agent": call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo six")}
"""How a program is told to end, where that is no word alone."""
SPAWNS = {
    "opencode": call("task", description="counts", prompt=ASKED, subagent_type="general"),
    "codex": call("spawn_agent", message=ASKED),
    "claude_code": call("Agent", description="counts", prompt=ASKED, subagent_type="general-purpose"),
    "qwen_code": call("agent", description="counts", prompt=ASKED, subagent_type="general-purpose"),
}


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Installs a program, and gives the environment's PATH with it."""
    root = tmp_path_factory.mktemp("programs")
    installs = dict(re.findall(r"def (\w+)\(task.*\n    \"\"\"`(.+?)`\"\"\"", EXAMPLES.read_text()))

    def install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = root / name
        if not folder.exists():
            folder.mkdir()
            tool, _, package = installs[name].split()
            commands = [[tool, "install", "--no-audit", "--no-fund", "--prefix", str(folder), package]]
            if tool == "pip":
                python = str(folder / "bin" / "python")
                commands = [
                    [sys.executable, "-m", "venv", str(folder)],
                    [python, "-m", "pip", "install", "-q", package],
                ]
            for command in commands:
                done = (
                    subprocess.run(command, capture_output=True, text=True, timeout=900)
                    if shutil.which(command[0])
                    else None
                )
                if done is None or done.returncode:
                    shutil.rmtree(folder)
                    pytest.skip(
                        f"{package} cannot be installed here: {done.stderr.strip()[-200:] if done else 'no npm'}"
                    )
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{folder}/node_modules/.bin:{folder}/bin")

    return install


class ForkedBeforeTheEnd(Sampler):
    """An episode, and one that leaves it before its last turn."""

    async def sample(self, rollout: Rollout) -> None:
        trunk = await rollout.start().run()
        await (await trunk.fork(len(trunk.path) - 1, why="test")).run()


def waits_for_its_agent(prompt: str) -> str:
    """A policy of Codex, whose agents run beside the one that began them: it waits for one by its name."""
    if TASK["instruction"] not in prompt:
        return "six"
    told = re.search(r'"agent_id":"([-\w]+)"', prompt)
    if told is None:
        return f"I ask.\n{SPAWNS['codex']}"
    return "six" if 'wait_agent", "arguments' in prompt else call("wait_agent", targets=[told[1]])


def played(
    folder: Path, name: str, said: Sequence[str] | Said, limit: int = LIMIT
) -> tuple[RolloutGraph, ScriptedPolicy]:
    """The graph of a task that a program plays with these answers, or those of a function of the prompt, and again from
    its last turn on."""
    (folder / "tasks.jsonl").write_text(json.dumps(TASK))
    options = GatewayOptions(
        agent=f"{EXAMPLES}:{name}", folder=str(folder), data_path=str(folder / "tasks.jsonl"), preload=False,
        agent_s=600.0, context_tokens=limit,
    )  # fmt: skip
    answers = None if callable(said) else iter([*said, said[-1]])
    spec = hier_workers()
    chosen = build_options(spec, {"name": "gateway", "agents": AGENTS})

    async def main() -> tuple[RolloutGraph, ScriptedPolicy]:
        pool = EnvironmentPool.of(SPEC, options, time_limit_s=300.0)
        try:
            policy = ScriptedPolicy(CharacterTokenizer(), lambda prompt, _: next(answers) if answers else said(prompt))
            renderer = PlainRenderer(policy.tokenizer)
            setup = RolloutSetup({DEFAULT_POLICY: policy}, renderer, pool, Limits(context_tokens=LIMIT), 0)
            request = Request(TASK, {"uid": "u", "index": 0}, 1)
            rollout = Rollout(request, setup, lambda: spec.factory(chosen), Roles.of(spec, chosen))
            return await roll_out(rollout, ForkedBeforeTheEnd()), policy
        finally:
            await pool.close()

    return asyncio.run(main())


def check_sound(graph: RolloutGraph, policy: ScriptedPolicy) -> None:
    """Every turn has the tokens that were read and written, nothing was edited, and both episodes have won."""
    assert [(episode.status, episode.success) for episode in graph.episodes] == [("finished", True)] * 2, graph.episodes
    assert [node.extra.get("failure") for node in graph.nodes] == [None] * len(graph.nodes)
    for place, node in enumerate(graph.nodes):
        assert policy.prompts[place] == graph.prompt(node.id)
        if node.context >= 0:
            known = graph.prompt(node.context) + list(graph.nodes[node.context].action)
            assert graph.prompt(node.id)[: len(known)] == known


@pytest.mark.parametrize("name", SHELL)
def test_a_program_is_one_row_of_exact_tokens_and_can_be_forked(
    programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    programs(name, monkeypatch)
    graph, policy = played(tmp_path, name, [f"I look. \n{SHELL[name]}", SUBMITS.get(name, "six")])
    check_sound(graph, policy)
    assert [(node.role, node.context, node.parent) for node in graph.nodes] == [
        ("lead", -1, -1), ("lead", 0, 0), ("lead", 0, 0),
    ]  # fmt: skip
    rows = graph_rows(graph, lambda node: True)
    assert [row.episode for row in rows] == [0, 1]
    assert sum(sum(row.mask) for row in rows) == sum(len(node.action) for node in graph.nodes)


@pytest.mark.parametrize("name", SPAWNS)
def test_a_sub_agent_of_a_program_stands_under_the_turn_that_called_it(
    programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    programs(name, monkeypatch)
    said = waits_for_its_agent if name == "codex" else [f"I ask.\n{SPAWNS[name]}", "six", "six"]
    graph, policy = played(tmp_path, name, said)
    check_sound(graph, policy)
    first, *others = graph.nodes
    assert (first.role, first.agent, first.level, first.context) == ("lead", "lead", 0, -1)
    helpers = [node for node in others if node.role == "helper"]
    assert helpers and {(node.agent, node.level, node.context) for node in helpers} == {("helper.1", 1, -1)}
    assert all(node.messages[0].sources == [0] for node in helpers)
    assert all(node.role == "lead" and node.context >= 0 for node in others if node not in helpers)


SUMMARY = "The word banana was looked at, and it has six letters in all."
COMPACTS = {
    "codex": (32_768, ["echo six"]),
    "qwen_code": (90_000, ["echo six"]),
    "opencode": (50_000, ["seq 1 6000", "seq 1 6000"]),
}
"""How long a conversation may be, and the commands that make it longer."""


@pytest.mark.parametrize("name", COMPACTS)
def test_a_program_that_shortens_its_conversation_goes_on_from_its_summary(
    programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    programs(name, monkeypatch)
    limit, commands = COMPACTS[name]
    looks = [f"I look. \n{SHELL[name].replace('echo six', command)}" for command in commands]
    graph, policy = played(tmp_path, name, [*looks, SUMMARY, "six"], limit)
    check_sound(graph, policy)
    *_, summary, last, again = graph.nodes
    assert summary.text == SUMMARY and summary.extra["compacted"] == 0
    for after in (last, again):
        assert (after.role, after.context, after.extra["compacted"]) == ("lead", -1, 1)
        assert after.messages[0].sources == [summary.id]
    # What the shortened conversation quotes is an observation there: each token is trained once.
    rows = graph_rows(graph, lambda node: True)
    assert sum(sum(row.mask) for row in rows) == sum(len(node.action) for node in graph.nodes)

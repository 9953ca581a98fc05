"""Coding agents that people run, unchanged, behind the gateway: their tokens, their sub-agents, and forks of them.

Each is installed from its registry in the version that examples/agents names, and is skipped where that is not there.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.agent_programs import (
    SHELL,
    SPAWNS,
    SUBMITS,
    TASK,
    GoneOnWith,
    LeftBehind,
    NotInstallable,
    conversation_of,
    installed,
    lets_another_count,
    played,
)
from verl_hier.graph import RolloutGraph, graph_rows
from verl_hier.rollout.unfinished import UnfinishedEpisode
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, SideBySide
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.programs import program_tasks
from verl_hier_plugins.environments.repository.repositories import repository_of

pytestmark = pytest.mark.long

Install = Callable[[str], None]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def install(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def on_the_path(name: str) -> None:
        try:
            monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{installed(name, programs)}")
        except NotInstallable as error:
            pytest.skip(str(error))

    return on_the_path


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
def test_a_program_is_one_row_of_exact_tokens_and_can_be_forked(install: Install, tmp_path: Path, name: str) -> None:
    install(name)
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
    install: Install, tmp_path: Path, name: str
) -> None:
    install(name)
    graph, policy = played(tmp_path, name, lets_another_count(name))
    check_sound(graph, policy)
    first, *others = graph.nodes
    assert (first.role, first.agent, first.level, first.context) == ("lead", "lead", 0, -1)
    helpers = [node for node in others if node.role == "helper"]
    assert helpers and {(node.agent, node.level, node.context) for node in helpers} == {("helper.1", 1, -1)}
    assert all(node.messages[0].sources == [0] for node in helpers)
    assert all(node.role == "lead" and node.context >= 0 for node in others if node not in helpers)


@pytest.mark.parametrize("name", ["mini_swe_agent", "pi"])
@pytest.mark.parametrize("mends", [True, False])
def test_a_program_works_in_a_repository_of_its_own(install: Install, tmp_path: Path, name: str, mends: bool) -> None:
    """It wins by the right code, and not by tests that say nothing; so does its fork, in a folder of its own."""
    install(name)
    (task,) = program_tasks(RepositoryOptions(pool=1), "train")
    made = repository_of(task["repository"])
    assert made is not None
    tests = dict.fromkeys((path for path in made.broken if path.startswith("tests/")), "")
    files = {**made.broken, **({path: made.reference[path] for path in made.reference} if mends else tests)}
    changes = [path for path in files if files[path] != made.broken[path]]
    command = " && ".join(f"printf %s {shlex.quote(files[path])} > {path}" for path in changes)
    says = f"I mend it.\n{SHELL[name].replace(json.dumps('echo six'), json.dumps(command))}"
    graph, _ = played(
        tmp_path, name, [says, SUBMITS.get(name, "done")], task=task, hidden=("repository",),
        scorer="verl_hier_plugins.environments.repository.programs:score",
    )  # fmt: skip
    assert [(episode.status, episode.success) for episode in graph.episodes] == [("finished", mends)] * 2


@pytest.mark.parametrize("name", SHELL)
def test_a_program_that_was_killed_goes_on_from_its_answers(install: Install, tmp_path: Path, name: str) -> None:
    install(name)
    said = [f"I look. \n{SHELL[name]}", f"I look again. \n{SHELL[name]}", SUBMITS.get(name, "six")]
    tokenizer = CharacterTokenizer()
    whole, _ = played(tmp_path, name, said, sampler=SideBySide(), tokenizer=tokenizer)
    left, _ = played(tmp_path, name, said, sampler=LeftBehind(2), tokenizer=tokenizer)
    unfinished = [*UnfinishedEpisode.left_in(left)]
    graph, _ = played(tmp_path, name, said[2:], sampler=GoneOnWith(), unfinished=unfinished, tokenizer=tokenizer)
    assert [(episode.error, episode.success) for episode in graph.episodes] == [(None, True)]
    # Another run of the program has drawn other names, so it is its own first half that it has to go on from.
    assert conversation_of(graph)[:2] == conversation_of(left)
    assert [(role, len(written)) for role, _, written in conversation_of(graph)] == [
        (role, len(written)) for role, _, written in conversation_of(whole)
    ]


SUMMARY = "The word banana was looked at, and it has six letters in all."
COMPACTS = {
    "codex": (32_768, ["echo six"]),
    "qwen_code": (90_000, ["echo six"]),
    "opencode": (50_000, ["seq 1 6000", "seq 1 6000"]),
    "claude_code": (60_000, ["seq 1 6000"] * 3),
    "pi": (18_000, ["seq 1 6000"]),
}
"""How long a conversation may be, and the commands that make it longer."""
ENDS_FIRST = {"pi": ["I have looked.", SUMMARY]}
"""What is said before the summary to a program that shortens its conversation between two messages of its user, and to
the first of two requests for it."""


@pytest.mark.parametrize("name", COMPACTS)
def test_a_program_that_shortens_its_conversation_goes_on_from_its_summary(
    install: Install, tmp_path: Path, name: str
) -> None:
    install(name)
    limit, commands = COMPACTS[name]
    looks = [f"I look. \n{SHELL[name].replace('echo six', command)}" for command in commands]
    said, task = [*looks, *ENDS_FIRST.get(name, []), SUMMARY, "six"], {**TASK, "further": ["Say the number now."]}
    graph, policy = played(tmp_path, name, said, limit, task=task if name in ENDS_FIRST else TASK)
    check_sound(graph, policy)
    *_, summary, last, again = graph.nodes
    assert summary.text == SUMMARY and summary.extra["compacted"] == 0
    for after in (last, again):
        assert (after.role, after.context, after.extra["compacted"]) == ("lead", -1, 1)
        assert after.messages[0].sources == [summary.id]
    # What the shortened conversation quotes is an observation there: each token is trained once.
    rows = graph_rows(graph, lambda node: True)
    assert sum(sum(row.mask) for row in rows) == sum(len(node.action) for node in graph.nodes)

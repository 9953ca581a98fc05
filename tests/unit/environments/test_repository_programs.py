"""Repositories behind the gateway: a program works in a folder of its own; hidden tests score what it leaves."""

import asyncio
import importlib.util
import json
import os
from pathlib import Path

import pytest

from verl_hier.environments.pool import EnvironmentPool
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.gateway import SPEC as GATEWAY
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.environments.repository.options import RepositoryOptions
from verl_hier_plugins.environments.repository.programs import program_tasks, score
from verl_hier_plugins.environments.repository.repositories import repository_of

UP = os.pardir + "/"
EXAMPLES = Path(__file__).parents[3] / "examples" / "agents" / "coding_agents.py"
(TASK,) = program_tasks(RepositoryOptions(2, pool=1), "train")
MADE = repository_of(TASK["repository"])
PATH = f"{MADE.package}/{MADE.targets[0][1]}.py"
AGENT = """
import json, os, urllib.request

def play(task):
    assert "repository" not in task
    body = {"model": "m", "messages": [{"role": "user", "content": task["instruction"]}]}
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), key)) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"]
    return json.dumps({**task["files"], PATH: text})
"""


def test_a_task_has_the_files_and_what_is_hidden_beside_them():
    assert TASK["files"] == dict(MADE.broken) and "Mend the package in this folder" in TASK["instruction"]
    assert json.loads(json.dumps(TASK)) == TASK
    shown = json.dumps({name: value for name, value in TASK.items() if name != "repository"})
    assert not any(case.call in shown for case in MADE.hidden)


def test_what_a_folder_is_worth():
    assert score(TASK, json.dumps(dict(MADE.reference))) == 1 and score(TASK, json.dumps(dict(MADE.broken))) == 0
    beside = {"tests/conftest.py": "raise SystemExit", f"{UP}{PATH}": "", "sitecustomize.py": "import os\nos._exit(0)"}
    assert score(TASK, json.dumps({**MADE.reference, **beside})) == 1
    assert score(TASK, json.dumps({**MADE.broken, **beside})) == 0
    with pytest.raises(RecipeError, match="no task of `program_tasks`"):
        score({"instruction": "x"}, "{}")


@pytest.mark.parametrize(
    "result", ["", "done", "[1]", "null", "[" * 5000, json.dumps({PATH: None}), json.dumps({PATH: "x" * 30_000})]
)
def test_results_that_are_no_files(result):
    assert score(TASK, result) == 0


@pytest.mark.parametrize(("files", "won"), [(MADE.reference, True), (MADE.broken, False)])
def test_an_episode_behind_the_gateway(tmp_path, files, won):
    (tmp_path / "agent.py").write_text(AGENT.replace("PATH", repr(PATH)))
    (tmp_path / "tasks.jsonl").write_text(json.dumps(TASK))
    options = GatewayOptions(
        agent="agent.py:play",
        folder=str(tmp_path),
        data_path=str(tmp_path / "tasks.jsonl"),
        scorer="verl_hier_plugins.environments.repository.programs:score",
        hidden=("repository",),
    )

    async def main():
        pool = EnvironmentPool.of(GATEWAY, options, time_limit_s=60.0)
        try:
            handle, _ = await pool.open(TASK, 0)
            fork = await handle.fork()
            steps = [await each.step(files[PATH]) for each in (handle, fork)]
            await fork.close()
            await handle.close()
            return steps
        finally:
            await pool.close()

    for step in asyncio.run(main()):
        assert step.done and step.info["won"] is won and step.reward == won


def coding_agents():
    spec = importlib.util.spec_from_file_location("coding_agents_of_a_test", EXAMPLES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_program_gives_back_what_it_left_in_its_folder(tmp_path, monkeypatch):
    """A program that is called `pi` changes a file, makes others, and a link that leads out of its folder."""
    program = tmp_path / "bin" / "pi"
    program.parent.mkdir()
    (tmp_path / "secret.py").write_text("secret")
    program.write_text(
        f"#!/bin/sh\necho 'x = 1' > {PATH}\nln -s {tmp_path}/secret.py link.py\nmkdir .git\n"
        "echo 1 > .git/x.py\necho 1 > notes.txt\nhead -c 90000 /dev/zero > large.py\necho done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OPENAI_MODEL", "policy")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    play = coding_agents().pi
    assert json.loads(play(TASK)) == {**MADE.broken, PATH: "x = 1\n"}
    assert play({"instruction": "x", "files": TASK["files"]}) == "done"

"""Environments of verifiers, played by the real package in an interpreter of its own."""

import asyncio
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.environments.surroundings import ProcessOptions
from verl_hier.errors import RecipeError
from verl_hier.host.options import build_options
from verl_hier_plugins.environments.verifiers import SPEC
from verl_hier_plugins.environments.verifiers.options import VerifiersOptions

ROOT = Path(__file__).parents[3]
TASKSETS = ROOT / "tests" / "fixtures" / "verifiers_tasksets"
PACKAGES = ("verifiers==0.4.0", "pluggy", "psutil")
NUMBERS = {"taskset": {"id": "number_game"}}
KIT = """
from verl_hier.testing.async_environment import check_async_environment
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.verifiers import SPEC
from verl_hier_plugins.environments.verifiers.options import VerifiersOptions

numbers = VerifiersOptions({"taskset": {"id": "number_game"}}, pool=3, validation=1)
check_environment(SPEC, numbers, tasks=1, steps=3, actions=("9", "8", "7"), any_text=True)
check_async_environment(SPEC, numbers, ("9", "8"))
sides = VerifiersOptions({"taskset": {"id": "two_sides"}}, pool=1, validation=1)
check_environment(SPEC, sides, tasks=1, steps=3, isolated=False, actions=("well", "so"), any_text=True)
"""


@pytest.fixture(scope="module")
def python():
    """An interpreter with verifiers: VERL_HIER_VERIFIERS names one, `runs/verifiers` is made where there is none."""
    named = os.environ.get("VERL_HIER_VERIFIERS")
    if named:
        return named
    folder = ROOT / "runs" / "verifiers"
    found = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        if subprocess.run([found, "-m", "pip", "install", "-q", *PACKAGES]).returncode:
            pytest.skip("verifiers cannot be installed here; VERL_HIER_VERIFIERS may name an interpreter that has it")
        (folder / "complete").touch()
    return str(found)


def played(python, monkeypatch, scenario, env=NUMBERS, time_limit_s=30.0, **options):
    """Runs a scenario on a pool in the other interpreter."""
    monkeypatch.setenv("PYTHONPATH", str(TASKSETS))
    given = VerifiersOptions(env, **{"pool": 3, "validation": 1, **options})
    process = ProcessOptions(python=python, variables=("PYTHONPATH",))

    async def main():
        pool = EnvironmentPool(
            SPEC.factory, given, time_limit_s=time_limit_s, process=process, asynchronous=AsyncOptions(), fork=SPEC.fork
        )
        try:
            return await scenario(pool, SPEC.tasks(given, "train"))
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.mark.long
def test_conforms(python):
    path = os.pathsep.join(map(str, (ROOT, ROOT / "plugins", TASKSETS)))
    subprocess.run([python, "-c", KIT], env={**os.environ, "PYTHONPATH": path}, check=True, cwd=TASKSETS)


@pytest.mark.long
def test_an_answer_is_scored_as_verifiers_does(python, monkeypatch):
    async def scenario(pool, tasks):
        handle, first = await pool.open(tasks[1], 0)
        assert first.text == "You spell.\n\nspell river backwards"
        last = await handle.step("<think>r, e, v</think> revir")
        assert (last.reward, last.done, last.info["won"]) == (2.0, True, True)
        assert last.info["scores"] == {"agent.right": 1.0, "agent.letters": 5.0}
        again = await handle.step("more")
        assert not again.valid and again.reward == 0.0
        wrong, _ = await pool.open(tasks[1], 0)
        assert not (await wrong.step("river")).info["won"]

    played(python, monkeypatch, scenario, {"taskset": {"id": "word_quiz"}})


@pytest.mark.long
def test_an_environment_of_several_turns_its_stops_and_its_limits(python, monkeypatch):
    async def scenario(pool, tasks):
        handle, first = await pool.open(tasks[2], 0)
        assert first.text == "guess a number from 0 to 9" and first.info["agent"] == "player"
        assert [(await handle.step(said)).text for said in ("9", "x")] == ["too high", "no number"]
        copy = await handle.fork()
        last = await copy.step("2")
        assert (last.reward, last.done, last.info["scores"]["player.guesses"]) == (1.0, True, 3.0)
        cut = await handle.step("8")
        assert (cut.done, cut.truncated, cut.reward) == (False, True, 0.0)
        swearer, _ = await pool.open(tasks[2], 0)
        assert (await swearer.step("damn")).done
        assert pool.counts["replays"] == 1

    played(python, monkeypatch, scenario, max_steps=3)


@pytest.mark.long
def test_what_breaks_or_hangs_costs_its_own_episode(python, monkeypatch):
    async def scenario(pool, tasks):
        handles = [(await pool.open(tasks[0], 0))[0] for _ in range(3)]
        for handle, said, kind in zip(handles, ("crash", "hang"), ("raised", "timeout"), strict=False):
            with pytest.raises(EnvironmentFailure) as failure:
                await handle.step(said)
            assert failure.value.kind == kind
        assert (await handles[2].step("0")).info["won"] and pool.counts["replays"] == 0

    played(python, monkeypatch, scenario, time_limit_s=2.0)


@pytest.mark.long
def test_every_agent_has_its_turns_and_its_reward(python, monkeypatch):
    async def scenario(pool, tasks):
        handle, first = await pool.open(tasks[0], 0)
        seen = [first, *[await handle.step(said) for said in ("why", "because", "and", "so", "then")]]
        assert [step.info["player"] for step in seen[:5]] == [0, 1, 0, 1, 0]
        assert [step.text for step in seen[:4]] == ["ask something", "why", "because", "and"]
        assert seen[-1].done and seen[-1].info["rewards"] == [1.0, -1.0] and seen[-1].info["players"] == 2

    played(python, monkeypatch, scenario, {"taskset": {"id": "two_sides"}}, pool=1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "pool", "sentence"),
    [
        ({"taskset": {"id": "no_such_taskset"}}, 1, "lacks what the environment needs .*'no_such_taskset' not found"),
        (
            {"taskset": {"id": "two_sides"}, "silent": 1},
            1,
            "environment.env: verifiers does not make this .* silent Extra inputs are not permitted",
        ),
        ({"taskset": {"id": "two_sides"}, "trained": False}, 1, "the agent 'answers' is not trainable"),
        ({"taskset": {"id": "needy_tasks"}}, 1, "NeedyTask has the reward 'built', which needs a runtime"),
        ({"taskset": {"id": "word_quiz"}}, 9, "pool: the taskset has 10 tasks, of which 6 are in the split 'train'"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_sentence(python, monkeypatch, env, pool, sentence):
    async def scenario(pool, tasks):
        handle, _ = await pool.open(tasks[-1], 0)
        await handle.step("hello")

    with pytest.raises(RecipeError, match=sentence):
        played(python, monkeypatch, scenario, env, pool=pool)


def test_an_interpreter_without_the_package(tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", symlinks=True)
    with pytest.raises(RecipeError, match=r"process.python: .* lacks what the environment needs .*verifiers"):
        played(str(tmp_path / "bare" / "bin" / "python"), monkeypatch, lambda pool, tasks: pool.open(tasks[0], 0))


def test_splits_share_no_task_whatever_their_sizes():
    small, large = (VerifiersOptions(NUMBERS, pool=n, validation=n) for n in (4, 50))
    found = {split: {task["place"] for task in SPEC.tasks(large, split)} for split in ("train", "val", "test")}
    assert not found["train"] & found["val"] and not found["val"] & found["test"]
    assert [task["place"] for task in SPEC.tasks(small, "train")] == [0, 1, 2, 5]
    with pytest.raises(RecipeError, match="no split 'dev'"):
        SPEC.tasks(small, "dev")


@pytest.mark.parametrize("env", [{}, {"taskset": "x"}, {"taskset": {"difficulty": 3}}])
def test_options_name_a_taskset(env):
    with pytest.raises(RecipeError, match="env has to name a taskset"):
        build_options(SPEC, {"env": env})


def test_the_interpreter_of_the_tests_needs_no_verifiers():
    code = "import verl_hier_plugins.environments.verifiers.tasks, sys; assert 'verifiers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

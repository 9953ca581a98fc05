"""What the process of an environment is given, and that a secret does not leave it; in real processes."""

import asyncio
import dataclasses
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

from tests.fixtures.leaky_environment import CANARY, Leaky, Options, forms, service
from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.blocking import build
from verl_hier.environments.mask import Mask
from verl_hier.environments.pool import EnvironmentFailure, EnvironmentPool
from verl_hier.environments.surroundings import ProcessOptions, _place, secrets_of
from verl_hier.errors import RecipeError
from verl_hier.graph.storage import write_graphs
from verl_hier.host.specs import EnvironmentSpec, NoOptions
from verl_hier.rollout import Limits, Request, Rollout
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.react import React, ReactOptions

FORMS = forms(CANARY)
SYNC = EnvironmentSpec("leaky", Leaky, Options, secrets=("key_env",))
ASYNC = EnvironmentSpec("leaky", service, Options, asynchronous=True, secrets=("key_env",))


def a_pool(spec, options=Options("CANARY"), **process):
    given = ProcessOptions(**process).having(spec, options)
    asynchronous = AsyncOptions() if spec.asynchronous else None
    return EnvironmentPool(spec.factory, options, process=given, asynchronous=asynchronous)


def in_pool(pool, scenario):
    async def main():
        try:
            return await scenario(*await pool.open({"instruction": "say it"}, 0))
        finally:
            await pool.close()

    return asyncio.run(main())


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["synchronous", "asynchronous"])
def test_a_secret_is_in_no_file_of_a_rollout(spec, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CANARY", CANARY)

    def answer(prompt, sampling):
        return "raise" if sampling.seed % 3 == 0 else "more"

    policy = ScriptedPolicy(CharacterTokenizer(), answer)
    pool = a_pool(spec)
    request = Request(task={"instruction": "say it"}, identity={"uid": "u", "index": 0}, n=6)
    setup = RolloutSetup({"default": policy}, PlainRenderer(policy.tokenizer), pool, Limits(max_turns=3), seed=1)

    async def rolled():
        try:
            return await roll_out(Rollout(request, setup, lambda: React(ReactOptions())), Independent(NoOptions()))
        finally:
            await pool.close()

    graph = asyncio.run(rolled())
    assert any(episode.status == "failed" for episode in graph.episodes) and list(graph.complete())
    write_graphs(tmp_path / "graph.jsonl", [graph])
    written = (tmp_path / "graph.jsonl").read_text() + "".join(policy.tokenizer.decode(p) for p in policy.prompts)
    output = capfd.readouterr()
    for said in (written, output.err, output.out):
        assert "[secret]" in said
        assert not [form for form in FORMS if form in said]


def test_a_secret_at_the_end_of_a_text_that_is_cut(monkeypatch):
    monkeypatch.setenv("LONG_CANARY", CANARY)

    async def scenario(handle, first):
        assert CANARY[:4] not in first.text
        with pytest.raises(EnvironmentFailure) as failure:
            await handle.step("raise")
        assert CANARY[:4] not in str(failure.value)

    in_pool(a_pool(SYNC, Options("LONG_CANARY")), scenario)


def test_in_this_process_answers_are_masked_too(monkeypatch):
    monkeypatch.setenv("CANARY", CANARY)
    world = build(ASYNC, Options("CANARY"))
    first = world.reset({}, 0)
    world.close()
    assert first.anchor == "[secret]" and not [form for form in FORMS if form in first.text]


def test_a_process_gets_what_is_named_and_nothing_else(monkeypatch):
    for name in ("OTHER_KEY", "NAMED"):
        monkeypatch.setenv(name, f"{name} of the user")

    async def scenario(handle, first):
        assert "NAMED of the user" in first.text and "OTHER_KEY" not in first.text
        assert os.environ["PATH"] in first.text

    in_pool(a_pool(SYNC, Options(), variables=("NAMED",)), scenario)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [("", "the environment variable CANARY, which the recipe names, is not set"), ("short", "fewer than 8 characters")],
)
def test_a_secret_that_is_not_there_or_too_short(value, sentence, monkeypatch):
    monkeypatch.setenv("CANARY", value)
    with pytest.raises(RecipeError, match=sentence):
        in_pool(a_pool(SYNC), None)


def test_options_name_secrets_in_several_ways():
    @dataclasses.dataclass(frozen=True)
    class Several:
        one: str = "A"
        none: str = ""
        many: tuple[str, ...] = ("B", "C")
        by_header: dict = dataclasses.field(default_factory=lambda: {"X-Key": "D"})

    spec = EnvironmentSpec("several", Leaky, Several, secrets=("one", "none", "many", "by_header"))
    assert secrets_of(spec, Several()) == ("A", "B", "C", "D")


def test_a_mask_without_secrets_changes_nothing():
    said = {"text": ["a", ("b", 1, None, 2.5)]}
    assert Mask(())(said) is said and Mask(["abcdefgh"])(said) == said
    assert Mask(["abcdefgh"])(("xabcdefghx",)) == ("x[secret]x",)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The interpreter of a virtual environment without any package."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    seen = subprocess.run([python, "-c", "import pluggy"], capture_output=True, env={"PATH": os.environ["PATH"]})
    assert seen.returncode == 1
    return python


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["synchronous", "asynchronous"])
def test_an_environment_runs_in_another_interpreter(spec, bare):
    async def scenario(handle, first):
        assert first.info["python"] == bare
        ours = {path for path in sys.path if "site-packages" in path}
        assert ours and not ours & set(first.info["path"])
        assert (await handle.step("more")).info["python"] == bare

    in_pool(a_pool(spec, Options(), python=bare), scenario)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (
            "tests.fixtures.leaky_environment:lacking",
            "no_such_package.*install it there",
        ),
        ("verl_hier_plugins.environments.retrieval.environment:service", "aiohttp"),
    ],
)
def test_an_interpreter_that_lacks_a_package(bare, factory, sentence):
    spec = EnvironmentSpec("lacking", factory, Options, asynchronous=True)
    with pytest.raises(RecipeError, match=rf"rollout.process.python: .* lacks what the environment needs .*{sentence}"):
        in_pool(a_pool(spec, Options(), python=bare), None)


def test_what_is_no_interpreter(tmp_path):
    with pytest.raises(RecipeError, match=r"hier.rollout.process.python: '.*nothing' cannot be started"):
        in_pool(a_pool(SYNC, Options(), python=str(tmp_path / "nothing")), None)


def test_the_secret_variables_of_the_built_in_environments_are_options():
    from verl_hier.host.manager import PluginHost

    for spec in PluginHost.load({"builtin": True}).specs("environment").values():
        names = {field.name for field in dataclasses.fields(spec.options)}
        assert set(spec.secrets) <= names, Path(spec.name)
        assert {name for name in names if name.endswith("_env")} <= set(spec.secrets)


def test_a_package_has_the_place_that_it_is_imported_from(tmp_path, monkeypatch):
    (tmp_path / "spread" / "part").mkdir(parents=True)
    (tmp_path / "single.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert _place("spread") == _place("single") == str(tmp_path)
    assert _place("yaml") == str(Path(yaml.__file__).parents[1])
    assert [_place(name) for name in ("no_such_package", "sys")] == [None, None]

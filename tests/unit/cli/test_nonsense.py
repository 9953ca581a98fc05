"""Every command, given nonsense, answers with one sentence and exit code 2, and starts nothing.

The options come from the commands themselves, so a new one is tested as soon as it exists; only what makes a command
valid otherwise is written down here.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
import pyarrow.parquet
import pytest
import typer

from tests.fixtures.distributions import Install, estimator_source
from tests.fixtures.rollout_graphs import GOLDEN
from tests.fixtures.tiers import spread
from tests.fixtures.written_runs import training, write_run
from verl_hier.cli.main import COMMANDS, main

Refused = Callable[..., str]
FUNCTIONS = {name: function for _, commands in COMMANDS for name, function in commands.items()}
VALID: dict[str, dict[str, str]] = {
    "quickstart": {},
    "check": {"recipe": "himac_alfworld"},
    "train": {"recipe": "himac_alfworld"},
    "eval": {"policy": "expert", "recipe": "himac_alfworld"},
    "env": {"environment": "alfworld"},
    "lab": {"question": "run", "methods": "grpo", "worlds": "maze"},
    "recipes": {},
    "coldstart": {"recipe": "himac_alfworld"},
    "tiny": {"recipe": "himac_alfworld"},
    "demos": {"recipe": "himac_alfworld", "model": "model"},
    "distill": {"recipe": "chain_of_agents_alfworld", "model": "model"},
    "sft": {"data": "rows.parquet", "model": "model"},
    "from-gguf": {"source": "graphs.jsonl", "out": "model"},
    "doctor": {},
    "plugins": {},
    "conformance": {},
    "credit": {"source": "graphs.jsonl", "compare": "grpo,gigpo"},
    "replay": {"recipe": "himac_alfworld", "source": "graphs.jsonl"},
    "export": {"source": "graphs.jsonl", "to": "chat", "out": "new.jsonl"},
    "failures": {"recipe": "grpo_sokoban"},
    "import": {"source": "chat.jsonl", "from_": "chat", "model": "model", "out": "new.jsonl"},
    "convert": {"source": "graphs.jsonl", "out": "store"},
    "view": {"source": "graphs.jsonl", "html": "new.html"},
    "compare": {"runs": "run", "html": "new.html"},
    "bench": {"panel": "learning", "tasks": "bugs", "methods": "grpo"},
    "environments": {},
    "workers": {},
    "samplers": {},
    "estimators": {},
    "schedules": {},
    "new": {"kind": "estimator", "name": "mine"},
}
"""What makes each command valid: a value for every argument and option that it needs."""
NAMES: dict[str, tuple[str, ...]] = {
    "recipe": ("nonsense", "nonsense.yaml", "folder", "binary.yaml", "list.yaml", "broken.yaml"),
    "enable": ("nonsense",),
    "model": ("missing", "folder", "no/such/model"),
    "overrides": ("nonsense", "hier.nonsense=1", "trainer.nonsense=1", "hier/size=nonsense"),
    "estimator": ("nonsense",),
    "compare": ("nonsense", "grpo", "grpo,nonsense", ","),
    "settings": ("nonsense", "=1", "grpo.nonsense=1", "nonsense.eps=1", "grpo.eps=word"),
    "system": ("nonsense", "nonsense.yaml"),
    "teacher": ("nonsense", "http://host:port/v1", "ftp://host"),
    "policy": ("missing", "folder", "no/such/model", "http://host:port/v1"),
    "runs": ("missing", "folder", "text.txt"),
    "metric": ("nonsense",),
    "methods": ("nonsense", ",", "spa_rl", "grpo@nonsense"),
    "worlds": ("nonsense", ","),
    "budget": ("nonsense", "turns=0", "turns=1.5", "hours=1"),
    "split": ("nonsense",),
    "word": ("nonsense",),
    "device": ("nonsense",),
}
"""Nonsense for texts, by the name of their parameter; of the kinds of parts and of `new`, the name below."""
FREE = {"teacher_model", "served_model"}
"""Texts that only a server can judge; a run may have any name."""


def parameters(command: str) -> Iterator[tuple[str, Any, Any, bool]]:
    """Name, plain type and typer's description of each parameter, and whether it is an option."""
    function = FUNCTIONS[command]
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name in inspect.signature(function).parameters:
            plain, described = typing.get_args(hint)
            yield name, bare(plain), described, type(described).__name__ == "OptionInfo"


def bare(hint: Any) -> Any:
    """A type without `| None` and `list[...]`."""
    while typing.get_origin(hint) in (types.UnionType, typing.Union, list):
        hint = typing.get_args(hint)[0]
    return hint


def nonsense(command: str, name: str, kind: Any, described: Any) -> tuple[str, ...]:
    """Values that a parameter has to refuse."""
    if kind is int:
        assert described.min is not None, f"{command}: {name} has no lower bound"
        return ("nan", "1.5", "word", str(described.min - 1))
    if kind is float:
        return ("nan", "inf", "word", "-1")
    if kind is bool:
        return ()
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return ("nonsense", "")
    if name in FREE or (command, name) == ("train", "name"):
        return ()
    if kind is Path and name not in NAMES:
        return paths(name, described)
    return (
        NAMES[name]
        if name in NAMES
        else ("nonsense",)
        if command != "new"
        else ("1a", "class", "Mine", "grpo")
        if name == "name"
        else ("nonsense",)
    )


def paths(name: str, described: Any) -> tuple[str, ...]:
    """Paths that an argument or option cannot take: missing or unreadable to read, impossible to write."""
    if described.exists:
        wrong = ("folder",) if not described.dir_okay else ("text.txt",) if not described.file_okay else ()
        return ("missing", *wrong)
    if described.writable:
        return ("folder" if not described.dir_okay else "text.txt", "text.txt/below", "text.txt/below.jsonl")
    return ("missing", "folder", "text.txt", "damaged.parquet")


CASES = [
    pytest.param(command, name, value, id=f"{command}-{name}-{value}")
    for command in FUNCTIONS
    for name, kind, described, _ in parameters(command)
    for value in nonsense(command, name, kind, described)
]


def words(command: str, **changed: str) -> list[str]:
    """A command line: the valid one with some values changed."""
    arguments: list[list[str]] = []
    options: list[list[str]] = []
    values = VALID[command] | changed
    for name, _, described, is_option in parameters(command):
        if name in values:
            flag = next(iter(described.param_decls or ()), f"--{name.rstrip('_').replace('_', '-')}")
            (options if is_option else arguments).append([flag, values[name]] if is_option else [values[name]])
    return [command, *itertools.chain(*options), "--", *itertools.chain(*arguments)]


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], byte_model: Path, tmp_path: Path
) -> Refused:
    """Run `verl-hier …` in a folder with sound and damaged files, which must end with a sentence; returns it."""
    (tmp_path / "model").symlink_to(byte_model)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("text\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "broken.yaml").write_text("defaults: [himac_alfworld\n")
    (tmp_path / "graphs.jsonl").symlink_to(GOLDEN)
    (tmp_path / "chat.jsonl").symlink_to(GOLDEN.with_name("chat.jsonl"))
    write_run(tmp_path / "run", training([0.5]))
    (tmp_path / "damaged.jsonl").write_text('{"version": 3, "nodes": [}\n')
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 nonsense PAR1")
    pyarrow.parquet.write_table(pyarrow.table({"colour": [1, 2]}), tmp_path / "other.parquet")
    rows = {"input_ids": [[1, 2, 3]], "weights": [[0.0, 1.0, 1.0]], "role": ["agent"], "task": [0]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)

    def started(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a process was started")

    def run(*arguments: object) -> str:
        before = set(tmp_path.rglob("*"))
        monkeypatch.setattr(sys, "argv", ["verl-hier", *map(str, arguments)])
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
            patch.setattr(subprocess.Popen, "__init__", started)
            main()
        said = capfd.readouterr()
        assert end.value.code == 2, said.out + said.err
        assert "Traceback" not in said.err
        lines = said.err.strip().splitlines()
        sentences = [line for line in lines if line.startswith(("verl-hier: ", "Error: "))]
        assert sentences == lines[-1:], "not one sentence, or not the last thing that is said"
        assert set(tmp_path.rglob("*")) == before, "files were left behind"
        return sentences[0]

    return run


def test_every_command_is_here() -> None:
    assert set(VALID) == set(FUNCTIONS)


@pytest.mark.parametrize(("command", "name", "value"), spread(len(CASES) // 4, CASES, pytest.mark.slow))
def test_nonsense(refused: Refused, command: str, name: str, value: str) -> None:
    refused(*words(command, **{name: value}))


WRITTEN = [
    pytest.param(command, name, described, id=f"{command}-{name}")
    for command in FUNCTIONS
    for name, kind, described, _ in parameters(command)
    if kind is Path and described.writable and not described.exists
]
SUFFIXES = ("", ".jsonl", ".parquet", ".json", ".html", ".png")


@pytest.mark.parametrize(("command", "name", "described"), WRITTEN)
def test_results_are_not_written_to_a_url(refused: Refused, command: str, name: str, described: Any) -> None:
    def takes(suffix: str) -> bool:
        with contextlib.suppress(typer.BadParameter):
            described.callback(Path(f"new{suffix}"))
            return True
        return False

    suffix = next(filter(takes, SUFFIXES))
    sentence = refused(*words(command, **{name: f"s3://bucket/new{suffix}"}))
    assert f"s3://bucket/new{suffix} is no local path: write to one" in sentence


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("replay himac_alfworld damaged.jsonl actor_rollout_ref.model.path=model", "record 1 is not JSON"),
        ("replay flat graphs.jsonl actor_rollout_ref.model.path=model", "cannot be replayed"),
        ("credit damaged.jsonl --compare grpo,gigpo", "damaged.jsonl, record 1 is not JSON"),
        ("credit damaged.parquet --compare grpo,gigpo", "damaged.parquet cannot be read as Parquet"),
        ("credit other.parquet --compare grpo,gigpo", "other.parquet holds no rollout graphs: it has no column"),
        ("credit folder --compare grpo,gigpo", "holds no rollout graphs"),
        ("credit graphs.jsonl --estimator grpo", "say where with --out"),
        ("credit graphs.jsonl --estimator grpo --out credit.csv", "use .jsonl or .parquet"),
        ("credit graphs.jsonl --compare grpo,gigpo --estimator grpo", "give either --estimator"),
        ("credit graphs.jsonl --compare grpo,hiper", "a critic's values are not stored with rollouts"),
        ("credit graphs.jsonl --compare grpo,archer", "a critic's values are not stored with rollouts"),
        ("export damaged.jsonl --to chat --out new.jsonl", "record 1 is not JSON"),
        ("import damaged.jsonl --from chat --model model --out new.jsonl", "line 1 is not JSON"),
        ("import other.parquet --from chat --model model --out new.jsonl", "line 1 lacks `messages`"),
        ("sft damaged.parquet --model model", "damaged.parquet is not a Parquet file of demonstrations"),
        ("sft text.txt --model model", "text.txt is not a Parquet file of demonstrations"),
        ("sft other.parquet --model model", "it has no column 'input_ids'"),
        ("sft rows.parquet --model folder", "there is no model at folder"),
        ("sft rows.parquet --model model --device tpu", "'tpu' is not one of 'cpu', 'cuda'"),
        ("tiny himac_alfworld hier.coldstart.hidden=97", "hidden must be a multiple of 8"),
        ("tiny himac_alfworld hier.coldstart.layers=0", "hier.coldstart.layers: must be at least 1"),
        ("tiny flat", "a cold start makes the small model of `size=cpu model=tiny`"),
        ("coldstart flat", "a cold start makes the small model of `size=cpu model=tiny`"),
        ("demos flat --model model --out new.parquet", "has no tasks that could be demonstrated"),
        ("demos himac_alfworld --model model hier.coldstart.random_action=-1", "random_action: must be from 0 to 1"),
        ("distill himac_alfworld --model model", "cannot transcribe episodes of other workers"),
        (
            "distill chain_of_agents_alfworld --model model --teacher http://127.0.0.1:9/v1",
            "--teacher-model is missing",
        ),
        ("train himac_alfworld actor_rollout_ref.model.path=model hier.store.path=???", "hier.store.path"),
        ("conformance folder", "has no fixture files"),
    ],
)
def test_what_cannot_be_done_with_these_files(refused: Refused, line: str, sentence: str) -> None:
    assert sentence in refused(*line.split())


def test_a_damaged_file_of_demonstrations_is_written_anew(tmp_path: Path) -> None:
    from verl_hier.coldstart.rows import key_of

    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 nonsense PAR1")
    assert key_of(damaged) is None


def test_the_advice_for_a_plugin_that_is_off_enables_it(refused: Refused, install: Install) -> None:
    install("good-dist", {"good": "good_plugin"}, {"good_plugin.py": estimator_source("good")})
    line = ("credit", "graphs.jsonl", "--estimator", "good", "--out", "new.jsonl")
    assert "with `--enable good`" in refused(*line)


def test_a_file_that_the_system_refuses_is_named(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(28, "No space left on device", "new.jsonl")

    monkeypatch.setattr("verl_hier.ops.exchange.export_chat", full)
    sentence = refused("export", "graphs.jsonl", "--to", "chat", "--out", "new.jsonl")
    assert sentence.startswith("verl-hier: new.jsonl cannot be written: No space left on device; make room there")

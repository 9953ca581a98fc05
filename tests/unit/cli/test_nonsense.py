"""Every command, given nonsense, answers with one sentence and exit code 2, and starts nothing.

The options come from the commands themselves, so a new one is tested as soon as it exists; only what makes a command
valid otherwise is written down here.
"""

from __future__ import annotations

import inspect
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

from tests.fixtures.distributions import Install, estimator_source, model_folder
from tests.fixtures.rollout_graphs import GOLDEN
from verl_hier.cli.main import COMMANDS, main

Refused = Callable[..., str]
FUNCTIONS = {name: function for _, commands in COMMANDS for name, function in commands.items()}
VALID: dict[str, dict[str, str]] = {
    "quickstart": {},
    "check": {"recipe": "himac_alfworld"},
    "train": {"recipe": "himac_alfworld"},
    "eval": {"policy": "expert", "recipe": "himac_alfworld"},
    "recipes": {},
    "tiny": {"recipe": "himac_alfworld"},
    "demos": {"recipe": "himac_alfworld", "model": "model"},
    "distill": {"recipe": "chain_of_agents_alfworld", "model": "model"},
    "sft": {"demonstrations": "rows.parquet", "model": "model"},
    "doctor": {},
    "plugins": {},
    "conformance": {},
    "credit": {"source": "graphs.jsonl", "compare": "grpo,gigpo"},
    "replay": {"recipe": "himac_alfworld", "source": "graphs.jsonl"},
    "export": {"source": "graphs.jsonl", "to": "chat", "out": "new.jsonl"},
    "import": {"source": "chat.jsonl", "from_": "chat", "model": "model", "out": "new.jsonl"},
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
    "split": ("nonsense",),
    "word": ("nonsense",),
    "device": ("nonsense",),
}
"""Nonsense for texts, by the name of their parameter; of the kinds of parts and of `new`, the name below."""
FREE = {"teacher_model", "served_model"}
"""Texts that only a server can judge."""


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
    if name in FREE:
        return ()
    if kind is Path and name not in NAMES:
        return paths(name, described)
    return NAMES[name] if name in NAMES else ("nonsense",) if command != "new" else ("1a", "class", "Mine", "grpo")


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
    arguments, options = [], []
    values = VALID[command] | changed
    for name, _, described, is_option in parameters(command):
        if name in values:
            flag = next(iter(described.param_decls or ()), f"--{name.replace('_', '-')}")
            (options if is_option else arguments).append([flag, values[name]] if is_option else [values[name]])
    return [command, *sum(options, []), "--", *sum(arguments, [])]


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
    (tmp_path / "damaged.jsonl").write_text('{"version": 3, "nodes": [}\n')
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 nonsense PAR1")
    pyarrow.parquet.write_table(pyarrow.table({"colour": [1, 2]}), tmp_path / "other.parquet")
    rows = {"input_ids": [[1, 2, 3]], "weights": [[0.0, 1.0, 1.0]], "role": ["agent"], "task": [0]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)

    def started(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a process was started")

    def run(*arguments: object) -> str:
        before = {path for path in tmp_path.rglob("*")}
        monkeypatch.setattr(sys, "argv", ["verl-hier", *map(str, arguments)])
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
            patch.setattr(subprocess, "Popen", started)
            main()
        said = capfd.readouterr()
        assert end.value.code == 2, said.out + said.err
        assert "Traceback" not in said.err
        lines = said.err.strip().splitlines()
        sentences = [line for line in lines if line.startswith(("verl-hier: ", "Error: "))]
        assert sentences == lines[-1:], "not one sentence, or not the last thing that is said"
        assert {path for path in tmp_path.rglob("*")} == before, "files were left behind"
        return sentences[0]

    return run


def test_every_command_is_here() -> None:
    assert set(VALID) == set(FUNCTIONS)


@pytest.mark.parametrize(("command", "name", "value"), CASES)
def test_nonsense(refused: Refused, command: str, name: str, value: str) -> None:
    refused(*words(command, **{name: value}))

"""Files of a stranger through the commands that read other files than graphs: one sentence, no traceback, no hang."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures import hostile_files
from tests.fixtures.distributions import model_folder

CHANGED = 25
CHAT = {
    "messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "left"}],
    **{"uid": "u", "index": 0, "step": 1, "role": "agent", "level": 0, "return": 1.0, "success": 1.0, "rewards": [1.0]},
}
DUMP = {"input": "go", "output": "left", "gts": None, "score": 1.0, "step": 1, "uid": "u_0_0", "acc": 0.5}
RECIPE = {
    "defaults": ["hier/base", {"hier/method": "grpo"}, {"hier/environment": "alfworld"}, "_self_"],
    "hier": {
        "worker": {"name": "react", "history": 2},
        "sampler": {"name": "independent"},
        "plugins": {"builtin": True},
    },
    "trainer": {"total_training_steps": 2, "logger": ["console"]},
    "data": {"train_batch_size": 2},
}


def check(files, arguments):
    problems = [f"{file.name}: {found}" for file in files if (found := hostile_files.problem(arguments(file)))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("format", "line"), [("chat", CHAT), ("verl", DUMP)])
def test_lines_to_import(tmp_path, byte_model, format, line):
    new = tmp_path / "new.jsonl"
    files = hostile_files.line_files(tmp_path, random.Random(format), CHANGED, line)
    check(files, lambda file: ["import", file, "--from", format, "--model", byte_model, "--out", new])


def test_recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(
        hostile_files.recipe_files(tmp_path, random.Random(3), CHANGED, RECIPE),
        lambda file: ["check", file],
    )
    assert not (tmp_path / "pwned").exists()


def test_runs(tmp_path):
    """The folder of a run, whose recipe, metrics and checkpoints a stranger has written."""

    def folders():
        for recipe in hostile_files.recipe_files(tmp_path, random.Random(4), 5, RECIPE):
            folder = tmp_path / f"run_{recipe.name}"
            folder.mkdir()
            recipe.rename(folder / "recipe.yaml")
            (folder / "command.txt").write_text("verl-hier 'train")
            (folder / "metrics.jsonl").write_text("{}\n")
            (folder / "checkpoints").mkdir()
            (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("../../..\n")
            yield folder

    check(folders(), lambda folder: ["eval", folder])


def test_demonstrations(tmp_path):
    model = model_folder(tmp_path / "model")

    def files():
        yield from hostile_files.texts(tmp_path, ".parquet")
        yield from hostile_files.special(tmp_path, "rows.parquet")
        for name, columns in {
            "texts": {"input_ids": pa.array(["x"]), "weights": pa.array(["x"])},
            "numbers": {"input_ids": pa.array([1]), "weights": pa.array([1.0])},
            "lists of texts": {"input_ids": pa.array([["x"]]), "weights": pa.array([["x"]])},
        }.items():
            pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
            yield tmp_path / f"{name}.parquet"

    check(files(), lambda file: ["sft", file, "--model", model])


def test_recorded_cases(tmp_path):
    def folders():
        for number, file in enumerate(hostile_files.texts(tmp_path, ".json")):
            folder = tmp_path / str(number)
            folder.mkdir()
            file.rename(folder / "case.json")
            yield folder

    check(folders(), lambda folder: ["conformance", folder])

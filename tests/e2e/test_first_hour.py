"""The first hour: the pages are followed word for word in a fresh environment, outside of the checkout."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.newcomer import ROOT, Newcomer
from tests.fixtures.trainer import trainer_slot

PAGES = ("write_an_estimator", "write_a_worker", "write_a_sampler", "your_own_task")


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    with trainer_slot():
        yield Newcomer(tmp_path)


@pytest.mark.long
def test_the_first_hour(newcomer: Newcomer) -> None:
    where = newcomer.run("python -c 'import verl_hier; print(verl_hier.__file__)'")
    assert str(ROOT) not in where and "site-packages" in where
    for page in PAGES:
        newcomer.follow(ROOT / "docs" / f"{page}.md")
    for recipe in ("lights", "lights_mine"):
        run = newcomer.folder / "runs" / recipe / "first"
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps == [4], "the run went on from its third step"
        assert list((run / "model").glob("*.safetensors"))
        code = f"from transformers import AutoModelForCausalLM as M; M.from_pretrained({str(run / 'model')!r})"
        newcomer.run(f"python -c {shlex.quote(code)}")
    listed = newcomer.run("verl-hier plugins")
    assert all(name in listed for name in ("my_gap", "careful", "lights"))

"""The check for a machine with a GPU, rehearsed on the CPU: its stages stand alone, and say what they lack."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "gpu_check.py"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("gpu_check")


@pytest.mark.slow
def test_a_rehearsal_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--minutes", "60", "--stages", "kernels", "engine"]
    ended = subprocess.run([*command, "--out", str(tmp_path / "gpu.json")], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["recipes"] == [] and {stage["ok"] for stage in found["stages"].values()} == {True}
    assert len(found["stages"]["engine"]["losses"]) >= 7
    assert found["stages"]["engine"]["log_probs_apart"] < 1e-4


@pytest.mark.long
def test_the_trainer_is_rehearsed_on_the_cpu(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "RECIPES", ("grpo_math",))
    found = check.trainer("cpu", tmp_path)
    assert found["ok"] and set(found["runs"]) == {"grpo_math, stock", "grpo_math, tree"}


def test_a_stage_says_what_it_lacks(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(check.NEEDS, "engine", ("torch", "no_such_package"))
    assert check.run_stage("engine", "cpu", 100.0) == {"ok": None, "lacked": ["no_such_package"]}
    assert check.run_stage("kernels", "cpu", 0.0)["why"] == "no time was left"


def test_a_broken_stage_stops_no_other(check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import sys\nprint('{\"runs\": {\"one\": 1}}')\nsys.exit('it broke')\n")
    monkeypatch.setattr(check, "__file__", str(broken))
    found = check.run_stage("kernels", "cpu", 100.0)
    assert found["ok"] is False and found["why"] == "it broke" and found["runs"] == {"one": 1}
    broken.write_text("import time\ntime.sleep(60)\n")
    assert "ended after 1 s" in check.run_stage("kernels", "cpu", 1.0)["why"]


def test_without_a_gpu_it_says_so(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert check.main() == 2 and "--device cpu" in capsys.readouterr().out

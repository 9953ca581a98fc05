"""What credit may import, and that the benchmark's loops are what the estimators compute."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "ray", "verl", "tensordict", "transformers", "omegaconf", "hydra"}


def test_estimators_run_on_numpy_alone():
    """A table can be credited in a process that has loaded neither Ray, nor verl, nor torch."""
    code = (
        "import sys; from verl_hier.testing import builtin_estimators, credit_of, make_table;"
        "credit_of('gigpo', make_table({'reward': [1.0, 0.0], 'anchor': [0, 0]})); builtin_estimators();"
        f"print(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_kernels_do_not_know_plugins_or_the_trainer():
    allowed = ("verl_hier.credit", "verl_hier.errors", "verl_hier.graph", "verl_hier.host.specs")
    for file in (ROOT / "verl_hier" / "credit").glob("*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] in ("from", "import") and words[1].startswith(("verl", "torch", "ray")):
                assert words[1].startswith(allowed), f"{file.name}: {line}"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_credit", ROOT / "scripts" / "bench" / "credit.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_credit"] = module
    spec.loader.exec_module(module)
    return module


def test_benchmark_compares_equal_things(bench):
    report = bench.Report()
    bench.loop_table(report, 512)
    assert not [failure for failure in report.failures if "differs" in failure]
    assert any(line.startswith("| hgpo |") for line in report.lines)


def test_benchmark_times_the_keys(bench):
    with bench.HashClock() as clock:
        bench.groups.group_ids([1, 2, 1], [0, 0, 0])
    assert clock.seconds >= 0 and bench.groups._codes([5])[1] == 1
    table = bench.make(300)
    assert len(table) == 300 and table.step_turn.max() == 299

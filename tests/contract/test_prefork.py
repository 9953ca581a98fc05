"""Ray's workers as forks of one process, and as processes of their own where that cannot be."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from verl_hier.recipe.compose import compose
from verl_hier.runtime_cpu.prefork import driver
from verl_hier.runtime_cpu.prefork.driver import Template, python, start_in_driver, with_template
from verl_hier.runtime_cpu.prefork.template import same_at_import

TELL = """
import json, os, sys, time
import numpy
facts = {
    "parent": os.getppid(), "pid": os.getpid(), "arguments": sys.argv[1:], "path": sys.path[0], "folder": os.getcwd(),
    "imported": "wave" in sys.modules, "word": os.environ.get("WORD"), "niceness": os.nice(0),
    "drawn": float(numpy.random.random()), "name": __name__,
}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(facts) + "\\n")
print("said")
if sys.argv[2:] == ["stay"]:
    time.sleep(600)
"""


class Worker:
    """Runs `TELL` as Ray runs its workers."""

    def __init__(self, folder: Path, python: str) -> None:
        self.file, self.script, self.python = folder / "facts.jsonl", folder / "tell.py", python
        self.script.write_text(TELL)

    def __call__(self, *arguments: str, niceness: int = 0, **variables: str) -> dict[str, object]:
        """What the script tells of itself."""
        before = len(self.told())
        # A fork has these streams for as long as it lives, so a pipe would not end.
        with self.file.with_suffix(".err").open("w") as errors:
            ended = subprocess.run(
                f"exec nice -n {niceness} {self.python} {self.script} {shlex.join([str(self.file), *arguments])}",
                shell=True,
                cwd=self.file.parent,
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                timeout=600,
            )
        assert ended.returncode == 0, self.file.with_suffix(".err").read_text()
        while len(self.told()) == before:
            time.sleep(0.02)
        return self.told()[-1]

    def told(self) -> list[dict[str, object]]:
        """All that was told by now."""
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    """One that has imported `wave`, which nothing else here imports, and NumPy."""
    started = Template(["numpy", "wave", "a_module_that_is_missing"])
    yield started
    started.end()


@pytest.fixture
def worker(template: Template, tmp_path: Path) -> Worker:
    """Asks that template."""
    return Worker(tmp_path, python(template.address))


def test_a_worker_is_a_fork_that_finds_what_a_process_of_its_own_would_find(
    worker: Worker, template: Template, tmp_path: Path
) -> None:
    facts = worker("one", "two words", niceness=7, WORD="spoken")
    assert facts["imported"] and facts["parent"] == template.pid
    assert facts["arguments"] == [str(worker.file), "one", "two words"] and facts["name"] == "__main__"
    assert facts["path"] == facts["folder"] == str(tmp_path)
    assert facts["word"] == "spoken" and facts["niceness"] == os.nice(0) + 7


def test_forks_differ_in_their_random_numbers_and_leave_no_zombies(worker: Worker, template: Template) -> None:
    drawn = [worker() for _ in range(3)]
    assert len({facts["drawn"] for facts in drawn}) == len({facts["pid"] for facts in drawn}) == 3
    children = psutil.Process(template.pid).children()
    assert all(child.status() != psutil.STATUS_ZOMBIE for child in children)


@pytest.mark.parametrize(
    "variables", [{"PYTHONPATH": "/elsewhere"}, {"TORCH_LOGS": "+dynamo"}, {"OMP_NUM_THREADS": "9"}], ids=str
)
def test_another_environment_at_import_is_a_process_of_its_own(worker: Worker, variables: dict[str, str]) -> None:
    facts = worker("one", **variables)
    assert not facts["imported"] and facts["arguments"] == [str(worker.file), "one"]


def test_without_a_template_the_interpreter_runs_the_script(worker: Worker, template: Template) -> None:
    worker.python = worker.python.replace(template.address, f"{template.address}-of-another-machine")
    assert not worker()["imported"]


def test_the_template_ends_with_its_driver_and_its_forks_stay(tmp_path: Path) -> None:
    text = (
        "import sys; from verl_hier.runtime_cpu.prefork.driver import Template, python; template = Template(['wave']); "
        "print(template.pid, python(template.address), flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, _, words = process.stdout.readline().strip().partition(" ")
    template, facts = psutil.Process(int(pid)), Worker(tmp_path, words)("stay")
    child = psutil.Process(int(str(facts["pid"])))
    try:
        process.kill()
        process.wait()
        template.wait(600)
        assert child.is_running() and not Path(shlex.split(words)[4]).parent.exists()
    finally:
        child.kill()


DRIVER = """
import subprocess, sys
from verl_hier.runtime_cpu.prefork.driver import fork_template, with_template
fork_template(["wave", "a_module_that_is_missing"])
print(with_template({})["py_executable"], "wave" in sys.modules, flush=True)
sys.stdin.read()
"""


def test_the_driver_itself_imports_and_leaves_a_fork_as_the_template(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    words, _, imported = process.stdout.readline().strip().rpartition(" ")
    assert imported == "True"
    (template,) = psutil.Process(process.pid).children()
    facts = Worker(tmp_path, words)("stay")
    child = psutil.Process(int(str(facts["pid"])))
    try:
        assert facts["imported"] and facts["parent"] == template.pid
        process.stdin.close()
        assert process.wait(600) == 0
        template.wait(600)
        assert child.is_running() and not Path(shlex.split(words)[4]).parent.exists()
    finally:
        child.kill()


def test_environments_are_compared_in_what_modules_read_when_they_are_imported() -> None:
    assert same_at_import({"HF_HOME": "/a"}, {"HF_HOME": "/a", "RANK": "1"})
    assert same_at_import({}, {"VERL_PLATFORM": "cpu"}), "verl is imported by each worker"
    assert same_at_import({}, {"TORCH_SHOW_CPP_STACKTRACES": "0"})
    assert not same_at_import({}, {"TORCH_SHOW_CPP_STACKTRACES": "1"})
    assert not same_at_import({"PYTHONPATH": "/a"}, {})


def test_only_the_driver_starts_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    start_in_driver()
    assert driver._address is None and with_template({"env_vars": {}}) == {"env_vars": {}}
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "verl.trainer.main_ppo", "--config-name", "x"])
    monkeypatch.setenv(driver.SWITCH, "0")
    start_in_driver()
    assert driver._address is None


def test_rays_hook_names_the_template_once_and_never_over_the_users_interpreter(
    template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_address", template.address)
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "set")
    assert with_template({"env_vars": {}}) == {"env_vars": {}, "py_executable": python(template.address)}
    assert "RAY_RUNTIME_ENV_HOOK" not in os.environ
    assert with_template({"py_executable": "mine"}) == {"py_executable": "mine"}


def test_the_environment_of_workers_on_a_cpu_is_one_that_a_fork_serves() -> None:
    """What verl and the recipe set for every worker; when one of them is read at import, no worker is forked."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    recipe = compose("gigpo_alfworld", ["size=cpu"])
    set_for_workers = {**get_ppo_ray_runtime_env()["env_vars"], **recipe.ray_kwargs.ray_init.runtime_env.env_vars}
    assert "VERL_PLATFORM" in set_for_workers
    assert same_at_import({}, set_for_workers)

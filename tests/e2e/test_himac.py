"""HiMAC through stock verl: both phases, which tokens learn, what follows an end of any kind, two ranks."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.fixtures.trainer import Run, Trainer, processes_of_runs, trainer_slot
from verl_hier.graph import graph_rows, read_graphs
from verl_hier.ops import runs as ops
from verl_hier.training.schedule import Phase, phase_of

STEPS = 8
PHASES = ["A", "A", "B", "B", "A", "A", "B", "B"]
GONE_S = 5
"""After so many seconds nothing of a run that was killed may live."""
WHOLE = [
    "hier.schedule.period=2",
    "trainer.save_freq=1",
    f"trainer.total_training_steps={STEPS}",
    "actor_rollout_ref.actor.policy_loss.loss_mode=write_gradients",
    "+hier.rewards.brief={function: 'verl_hier.rewards.formats:short', options: {characters: 5}, per: turn}",
    # One file a mini-batch, in the order of the steps.
    "++hier.update.mini_batch={rows: 3}",
]


def stored_in(folder: Path) -> str:
    return f"hier.store.path={folder}/graphs"


@pytest.fixture(scope="module")
def whole(byte_model: Path, probes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """All steps in one go, and their folder."""
    folder = tmp_path_factory.mktemp("himac")
    return Trainer(folder, byte_model, probes)("himac_bytes", [*WHOLE, stored_in(folder / "run")]), folder / "run"


def learned_roles(folder: Path, graphs) -> dict[str, int]:
    """Tokens with a gradient by role, for one step. Rows are recognised by their log-probs."""
    rows = [(graph, row) for graph in graphs for row in graph_rows(graph, Phase.from_dict(graph.phase).trains)]
    learned: dict[str, int] = defaultdict(int)
    seen = 0
    for file in sorted(folder.glob("*.pt")):
        record = torch.load(file)
        for old, mask, gradient in zip(record["old"], record["mask"], record["gradient"], strict=True):
            if not mask.any():
                assert not gradient.any()
                continue
            graph, row = next(
                (g, r)
                for g, r in rows
                if sum(r.mask) == int(mask.sum())
                and torch.allclose(old[mask.bool()], torch.tensor(r.logprobs)[torch.tensor(r.mask).bool()], atol=1e-4)
            )
            seen += 1
            for i, turn in enumerate(row.turn_index):
                role = "observation" if turn < 0 else graph.nodes[turn].role
                learned[role] += int(gradient[i] != 0)
            assert not gradient[len(row.turn_index) :].any()
    assert seen == len(rows)
    return {role: count for role, count in learned.items() if count}


def test_both_phases_train_their_own_tokens(whole, tmp_path):
    """Gradients are those of the real loss, taken at the log-probs."""
    run, folder = whole
    assert run.code == 0, run.log[-3000:]
    assert [phase_of(step) for step in run.steps] == PHASES
    assert run.metric("hier/rows/trained")[0] == 2 * 4
    assert run.metric("hier/server/generated_tokens") == run.metric("hier/tokens/generated")
    rated = [read_graphs(folder / "graphs" / f"step_{step:06d}") for step in range(1, STEPS + 1)]
    notes = [[e.reward_info["brief"] for graph in graphs for e in graph.complete()] for graphs in rated]
    assert run.metric("hier/reward/brief/mean") == pytest.approx([sum(note) / len(note) for note in notes])
    assert 0 < sum(map(sum, notes)) < sum(map(len, notes)), "the reward function tells turns apart"
    files = sorted((folder / "probe").glob("*.pt"))
    assert len(files) >= STEPS
    first = list(read_graphs(folder / "graphs" / "step_000001"))
    turns = [graph.turns(episode.id) for graph in first for episode in graph.complete()]
    assert run.metric("num_turns/mean")[0] == pytest.approx(statistics.mean(turns)) and max(turns) > 1
    assert run.metric("training/num_turns/max")[0] == max(turns)
    per_step = [[] for _ in range(STEPS)]
    steps = [list(read_graphs(folder / "graphs" / f"step_{step:06d}")) for step in range(1, STEPS + 1)]
    for file in files:
        record = torch.load(file)
        for number, graphs in enumerate(steps):
            known = [
                torch.tensor(r.logprobs)[torch.tensor(r.mask).bool()]
                for g in graphs
                for r in graph_rows(g, Phase.from_dict(g.phase).trains)
            ]
            row = record["old"][0][record["mask"][0].bool()]
            if any(len(k) == len(row) and torch.allclose(k, row, atol=1e-4) for k in known):
                per_step[number].append(file)
    rows, updates = run.metric("hier/rows/trained"), run.metric("hier/update/steps")
    assert [len(files) for files in per_step] == updates == [-(-count // 3) for count in rows]
    assert all(padding < count for padding, count in zip(run.metric("hier/rows/padding"), updates, strict=True))
    for number, graphs in enumerate(steps):
        one_step = tmp_path / f"step_{number}"
        one_step.mkdir()
        for file in per_step[number]:
            (one_step / file.name).symlink_to(file)
        learned = learned_roles(one_step, graphs)
        expected = "planner" if PHASES[number] == "A" else "executor"
        assert set(learned) == {expected}, (number, learned)


class CommandLine:
    """`verl-hier train` in a folder, started again and again."""

    def __init__(self, folder: Path, model: Path, probes: Path) -> None:
        self.run = ops.Run(folder / "runs" / "himac_bytes" / "parts")
        self._folder = folder
        self._recipe = [probes / "himac_bytes.yaml", f"actor_rollout_ref.model.path={model}"]
        self._variables = {"PYTHONPATH": str(probes), "PROBE_FOLDER": str(folder / "probe"), "OMP_NUM_THREADS": "1"}
        (folder / "probe").mkdir()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "verl_hier.cli.main", "train", *map(str, self._recipe), *arguments]
        # A shell that starts the tests in the background has them ignore Ctrl-C, and their processes with them.
        heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        variables, pipe = {**os.environ, **self._variables}, subprocess.PIPE
        return subprocess.Popen(
            words, cwd=self._folder, env=variables, text=True, preexec_fn=heard, stdout=pipe, stderr=pipe
        )

    def wait_for_steps(self, process: subprocess.Popen[str], steps: int) -> None:
        """Wait until so many steps are logged, or the command has ended."""
        while process.poll() is None and len(self.run.metrics()) < steps:
            time.sleep(0.1)

    def kill_server(self, process: subprocess.Popen[str], steps: int) -> int:
        """Kill the rollout server as soon as there is one and so many steps are logged; returns how many there were."""
        servers: list[psutil.Process] = []
        while process.poll() is None and not (servers and len(self.run.metrics()) >= steps):
            servers = [p for p, words in processes_of_runs() if any("TransformersServer" in word for word in words)]
            time.sleep(0.2)
        for server in servers:
            assert "verl_hier.runtime_cpu.prefork" in server.parent().cmdline()
            server.kill()
        return len(servers)


@pytest.mark.slow
def test_ended_in_three_ways_the_command_line_goes_on_as_if_in_one_go(whole, byte_model, probes, tmp_path):
    """A A B B A A B B, ended by Ctrl-C, by the death of the rollout server, and by SIGKILL of `verl-hier train`.

    No process is left each time, `--resume` goes on from the last step that was saved, and phases, rollouts, credit and
    weights are those of a run in one go.
    """
    line = CommandLine(tmp_path, byte_model, probes)
    run = line.run
    with trainer_slot():
        started = line.start(*WHOLE, stored_in(run.folder), "--name", "parts")
        line.wait_for_steps(started, 2)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate()
        assert started.returncode == 130 and not processes_of_runs(), out + err
        first = run.step
        assert 2 <= first < STEPS - 3 and err.startswith("verl-hier: interrupted; ") and err.count("\n") == 1
        assert f"--name parts --resume` goes on from step {first}." in err
        assert "a new run in runs/himac_bytes/parts" in out

        started = line.start("--resume")
        killed = line.kill_server(started, first + 1)
        out, err = started.communicate()
        assert killed and started.returncode == 1 and not processes_of_runs(), out + err
        assert f"goes on from step {first}" in out
        gone = r"(rollout server|Server \(pid \d+, ip .+\)) is gone.*trainer\.resume_mode"
        assert re.search(gone, run.log.read_text()), err
        second = run.step
        assert first <= second < STEPS and f"goes on from step {second}." in err

        started = line.start("--resume")
        time.sleep(random.Random(0).uniform(5, 25))
        started.kill()
        started.communicate()
        time.sleep(GONE_S)
        assert not processes_of_runs()
        saved = run.step
        assert second <= saved < STEPS

        resumed = line.start("--resume")
        out, err = resumed.communicate()
    assert resumed.returncode == 0, err + run.log.read_text()[-3000:]
    assert f"goes on from step {saved}" in out and f"step {STEPS}/{STEPS}  B: executor" in out
    assert out.splitlines()[-1] == "next: verl-hier eval runs/himac_bytes/parts"
    assert [step["step"] for step in run.metrics()] == list(range(1, STEPS + 1))
    check_the_same(whole, run.metrics()[first:], run.folder, first)
    policy = AutoModelForCausalLM.from_pretrained(run.model)
    assert AutoTokenizer.from_pretrained(run.model)("go")["input_ids"] and policy.dtype == torch.float32
    trained = dict(weights((whole[1], run.folder), STEPS))
    assert all(torch.equal(value, trained[name][0]) for name, value in policy.state_dict().items() if name in trained)
    assert len(trained) >= len(dict(policy.named_parameters()))


@pytest.mark.long
@pytest.mark.parametrize("killed_at", [1, 2, 3, 4])
def test_killed_at_any_step_it_goes_on_as_an_uninterrupted_run(train, whole, tmp_path, killed_at):
    """All steps in one go, and killed somewhere: the same phases, rollouts, credit and weights."""
    one_go, folder = whole
    parts = tmp_path / "parts"
    overrides = [*WHOLE, stored_in(parts)]
    killed = train("himac_bytes", overrides, "parts", watch=train.kill_after(killed_at, "parts"))
    assert one_go.code == 0 and killed.code == 137, (one_go.log + killed.log)[-3000:]
    saved = int((parts / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
    assert killed_at <= saved < STEPS
    states = [
        json.loads((of / "checkpoints" / f"global_step_{saved}" / "hier.json").read_text()) for of in (parts, folder)
    ]
    assert states[0]["schedule"]["name"] == "alternating" and states[0] == states[1]

    resumed = train("himac_bytes", overrides, "parts")
    assert resumed.code == 0, resumed.log[-3000:]
    assert [step["step"] for step in resumed.steps] == list(range(saved + 1, STEPS + 1))
    check_the_same(whole, resumed.steps, parts, saved)


def check_the_same(whole, resumed, parts, saved, steps=STEPS):
    """Metrics, rollouts, credit and weights after the step `saved` are those of the run in one go."""
    one_go, folder = whole
    expected = one_go.steps[saved:]
    assert [phase_of(step) for step in expected] == [phase_of(step) for step in resumed]
    for name in ("hier/episodes/return_mean", "hier/tokens/generated", "actor/grad_norm"):
        assert [step[name] for step in expected] == [step[name] for step in resumed], (saved, name)
    for step in range(saved + 1, steps + 1):
        one, two = (credited(of / "graphs" / f"step_{step:06d}") for of in (folder, parts))
        assert one == two and any(any(credit) for _, credit in one.values()), (saved, step)
    for name, (one, two) in weights((folder, parts), steps):
        assert torch.equal(one, two), (saved, name)


def credited(file):
    """By task, as they came back in any order: the actions of all turns and their credit."""
    return {graph.task["index"]: ([node.action for node in graph.nodes], graph.credit) for graph in read_graphs(file)}


def weights(folders, step):
    """(parameter, its values in each of the runs) after a step."""
    states = [
        torch.load(folder / f"checkpoints/global_step_{step}/actor/model_world_size_1_rank_0.pt", weights_only=False)
        for folder in folders
    ]
    for parameter in states[0]:
        values = (state[parameter] for state in states)
        yield parameter, [value.to_local() if hasattr(value, "to_local") else value for value in values]


@pytest.mark.long
def test_two_ranks(train):
    """Two FSDP ranks with a rollout replica each; optimiser steps stay those of the recipe."""
    update = "++hier.update={mini_batch: {steps: 2}, keep_tasks_together: true}"
    run = train("himac_bytes", ["trainer.n_gpus_per_node=2", "trainer.total_training_steps=2", update])
    assert run.code == 0, run.log[-3000:]
    assert len(run.steps) == 2
    assert run.metric("hier/update/steps") == [2, 2]
    assert all(norm > 0 for norm in run.metric("actor/grad_norm"))
    assert all(difference < 1e-4 for difference in run.metric("training/rollout_probs_diff_max"))

"""The real trainer on two nodes: an FSDP rank, a rollout worker with its environment, and shards of the store on each.

The cluster is Ray's own for tests: two raylets with processes of their own on this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from tests.e2e.test_async import MODES
from tests.fixtures.trainer import Run, Trainer
from verl_hier.compat.launch import read_metrics
from verl_hier.graph import read_graphs
from verl_hier.graph.columnar.reading import shards
from verl_hier.graph.steps import MARK, step_folder
from verl_hier.recipe.compose import overridden

LOOK_S = 1.0
LOST_S = 20
"""Seconds that a run has to notice that a process is gone."""
WORKER = "HierAgentLoopWorker"
BRANCHING = [{"name": "tree_grpo", "trees": 2, "leaves": 2}, {"name": "nested", "plans": 2}]


@pytest.fixture
def address(probes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a cluster of two nodes is found, each with room for one rank and, where they are apart, a server."""
    # Processes of a cluster have the environment of their raylet.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(probes), os.environ.get("PYTHONPATH")))))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VERL_HIER_LOST_S", str(LOST_S))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 16, "num_gpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=16, num_gpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


class Nodes:
    """Watches a run: on which nodes its actors and its environments are, by the name of the actor's class."""

    def __init__(self, then: Callable[[dict[str, int]], None] = lambda workers: None) -> None:
        """
        Args:
            then: called at each look with the process of the rollout worker of each node.
        """
        self.of: dict[str, set[str]] = defaultdict(set)
        self._then, self._next = then, 0.0

    def __call__(self, process: subprocess.Popen[bytes]) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + LOOK_S
        workers = {}
        for actor in ray._private.state.actors().values():
            if actor["State"] == "ALIVE":
                # The class of verl's ranks is made inside of a function.
                node, kind = actor["Address"]["NodeID"], actor["ActorClassName"].rpartition(".")[2]
                self.of[kind].add(node)
                if kind == WORKER:
                    workers[node] = actor["Pid"]
                    self.of["environment"] |= {node} if has_environment(actor["Pid"]) else set()
        self._then(workers)
        return False


def has_environment(worker: int) -> bool:
    try:
        lines = [child.cmdline() for child in psutil.Process(worker).children()]
    except psutil.Error:
        return False
    return any("verl_hier.environments.child" in line for line in lines)


def on_two_nodes(train: Trainer, address: str, watch: Nodes, *overrides: str, nodes: int = 2) -> Run:
    """Train on the cluster; runs of one test share their folder, and so their checkpoints and their store."""
    folder = train.folder / "run"
    variables = {
        "VERL_FILE_LOGGER_PATH": folder / f"metrics_{len(list(folder.glob('output_*')))}.jsonl",
        "PROBE_FOLDER": folder / "probe",
    }
    given = [
        f"++ray_kwargs.ray_init.address='{address}'",
        "ray_kwargs.ray_init.num_cpus=null",
        "ray_kwargs.ray_init.num_gpus=null",
        *(f"++ray_kwargs.ray_init.runtime_env.env_vars.{name}={value}" for name, value in variables.items()),
        f"trainer.nnodes={nodes}",
        "trainer.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.agent.num_workers=2",
        f"hier.store.path={folder}/graphs",
    ]
    return train("grpo_bytes", overridden([*given, *overrides]), watch=watch)


def killed_in_the_middle(train: Trainer, address: str, *overrides: str, nodes: int = 2) -> Nodes:
    """Train three steps, of which the second loses a rollout worker, and go on from the checkpoint."""
    metrics = train.folder / "run" / "metrics_0.jsonl"
    lost: list[int] = []

    def kill(workers: dict[str, int]) -> None:
        if read_metrics(metrics) and len(workers) == 2 and not lost:
            lost.append(workers[max(workers)])
            os.kill(lost[0], signal.SIGKILL)

    settings = (*overrides, "trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.resume_mode=auto")
    first = on_two_nodes(train, address, Nodes(kill), *settings, nodes=nodes)
    assert lost and first.code != 0 and len(first.steps) < 3, first.log[-3000:]
    watch = Nodes()
    second = on_two_nodes(train, address, watch, *settings, nodes=nodes)
    assert second.code == 0, second.log[-4000:]
    assert second.steps[0]["step"] > 1, "the second run goes on from a checkpoint"
    assert {step["step"] for step in (*first.steps, *second.steps)} == {1, 2, 3}
    # An asynchronous trainer has rows ahead of its step, whose rollouts may have been in the worker that was lost.
    short = {step["step"]: step.get("hier/store/missing", 0) > 0 for step in (*first.steps, *second.steps)}
    check_store(train, 3, [step for step, missing in short.items() if missing])
    return watch


def check_store(train: Trainer, steps: int, without: Collection[int] = ()) -> None:
    """Every step is whole but those without some of their rollouts, and both rollout workers have written."""
    store = train.folder / "run" / "graphs"
    writers: set[str] = set()
    for step in range(1, steps + 1):
        folder = step_folder(str(store), step)
        assert (folder / MARK).exists() == (step not in without), step
        if step not in without:
            writers |= {shard.name.partition("-")[0] for shard in shards(folder)}
            graphs = list(read_graphs(folder))
            assert graphs and all(graph.nodes for graph in graphs), step
    assert writers == {"worker0", "worker1"}


@pytest.mark.slow
def test_ranks_rollouts_environments_and_shards_are_on_both_nodes(train: Trainer, address: str) -> None:
    watch = Nodes()
    run = on_two_nodes(train, address, watch, "trainer.total_training_steps=1")
    assert run.code == 0, run.log[-4000:]
    assert run.metric("actor/grad_norm")[0] > 0
    for kind in ("WorkerDict", WORKER, "environment"):
        assert len(watch.of[kind]) == 2, (kind, dict(watch.of))
    check_store(train, 1)


@pytest.mark.long
def test_a_run_goes_on_after_a_node_has_lost_its_rollout_worker(train: Trainer, address: str) -> None:
    assert len(killed_in_the_middle(train, address).of["environment"]) == 2


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_asynchronous_trainers_with_trees_go_on_after_a_kill(train: Trainer, address: str, mode: str) -> None:
    """Branching and nested samplers in turn. Trainer and servers that are apart share the two nodes."""
    blocks = json.dumps(BRANCHING).replace('"', "")
    killed_in_the_middle(
        train,
        address,
        f"trainer.v1.trainer_mode={mode}",
        f"hier.sampler={{name: rotation, samplers: {blocks}}}",
        "data.gen_batch_size=1",
        *MODES[mode],
        nodes=1 if mode == "hier_separate_async" else 2,
    )

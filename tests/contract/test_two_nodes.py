"""The store of a step whose rollout workers live on two nodes of a Ray cluster, one of which is lost in the middle.

The cluster is Ray's own for tests: two raylets with processes of their own on this machine.
"""

import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tests.fixtures import rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import read_graphs
from verl_hier.graph.columnar.held import HeldRollouts
from verl_hier.graph.columnar.reading import shards
from verl_hier.graph.steps import MARK, step_folder
from verl_hier.training.store import StepInStore

TASKS = 6


class Holder:
    """The part of a rollout worker that writes the store, in an actor as verl places them."""

    def __init__(self):
        self._held = HeldRollouts()

    def keep(self, graph):
        self._held.keep(graph)

    def where(self):
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def store_rollouts(self, store, step, tasks, writer):
        return self._held.write(store, step, tasks, writer)


@pytest.fixture
def holders():
    """A cluster of two nodes, and an actor on each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    lost = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        assert len(nodes) == 2
        actor = ray.remote(Holder)
        nodes.sort(key=lambda node: node == lost.node_id)
        placed = [
            actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True)).remote()
            for node in nodes
        ]
        where = ray.get([each.where.remote() for each in placed])
        assert [node for node, _ in where] == nodes

        def lose_a_node():
            """What the loss of a machine does: none of its processes answers any more."""
            os.kill(where[1][1], signal.SIGKILL)
            cluster.remove_node(lost, allow_graceful=False)

        yield placed, lose_a_node
    finally:
        ray.shutdown()
        cluster.shutdown()


def rolled_out(holders):
    """Tasks that are dealt out to the workers."""
    graphs = [rollout_graphs.forked() for _ in range(TASKS)]
    for number, graph in enumerate(graphs):
        graph.task["uid"] = f"task {number}"
        graph.credit = [0.5] * len(graph.nodes)
    ray.get([holders[number % 2].keep.remote(graph) for number, graph in enumerate(graphs)])
    return graphs


def begun(store, step, graphs, holders):
    tasks = {graph.task["uid"]: True for graph in graphs}

    def writer(holder):
        return lambda *arguments: holder.store_rollouts.remote(*arguments).future()

    return StepInStore.begin(store, step, tasks, [writer(holder) for holder in holders])


@pytest.mark.long
def test_shards_come_from_both_nodes_and_a_lost_node_costs_its_step(holders, tmp_path, caplog):
    placed, lose_a_node = holders
    store = str(tmp_path / "graphs")
    graphs = rolled_out(placed)
    credit = {graph.task["uid"]: {"credit": graph.credit} for graph in graphs}
    assert begun(store, 1, graphs, placed).finish(credit) == {"hier/store/failed": 0, "hier/store/missing": 0}
    assert {shard.name for shard in shards(step_folder(store, 1))} == {"worker0-0", "worker1-0"}
    whole = sorted(read_graphs(store), key=lambda graph: graph.task["uid"])
    assert whole == graphs

    rolled_out(placed)
    lose_a_node()
    started = time.monotonic()
    assert begun(store, 2, graphs, placed).finish(credit) == {"hier/store/failed": 1, "hier/store/missing": TASKS / 2}
    assert time.monotonic() - started < 60, "nobody waits for a node that is gone"
    assert "a rollout worker is gone with the rollouts that it held" in caplog.text

    folder = step_folder(store, 2)
    assert not (folder / MARK).exists()
    with pytest.raises(GraphError, match="was not written to its end"):
        list(read_graphs(folder))
    there = pq.read_table(folder / "tasks-worker0-0.parquet")["uid"].to_pylist()
    assert there == [f"task {number}" for number in range(0, TASKS, 2)], "what was written is good for queries"
    assert len(list(read_graphs(store))) == TASKS, "the first step is read as before"


@pytest.mark.slow
def test_a_run_on_a_cpu_beside_a_cluster_has_a_ray_of_its_own(holders):
    """Without an address Ray joins the newest cluster of the machine, and then refuses the recipe's numbers."""
    program = """
import ray
from verl_hier.recipe.compose import compose
settings = dict(compose("himac_alfworld", ["size=cpu"]).ray_kwargs.ray_init)
del settings["runtime_env"]
print(ray.init(**settings, log_to_driver=False).address_info["gcs_address"])
"""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    own = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=120)
    assert own.returncode == 0, own.stderr
    assert own.stdout.split()[-1] != ray.get_runtime_context().gcs_address

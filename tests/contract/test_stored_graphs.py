"""Validation rollouts and tasks without a trained row reach the graph store, beside the rows of the others."""

import asyncio
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from tests.fixtures import rollout_graphs
from verl_hier.graph import read_graphs
from verl_hier.recipe.schema import StoreOptions
from verl_hier.training.schedule import Phase

agent_loop = pytest.importorskip("verl_hier.compat.agent_loop")
trainer = pytest.importorskip("verl_hier.compat.trainer")


class Queue:
    """TransferQueue in this process, as far as graphs need it."""

    def __init__(self):
        self.tags, self.fields = {}, {}

    async def async_kv_put(self, key, partition_id, fields=None, tag=None):
        self.tags.setdefault(partition_id, {})[key] = tag
        self.fields[key] = fields

    def kv_list(self, partition_id):
        return {partition_id: dict(self.tags.get(partition_id, {}))}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {name: [self.fields[key][name] for key in keys] for name in select_fields}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.tags[partition_id][key], self.fields[key]


@pytest.fixture()
def queue(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(agent_loop, "tq", queue)
    monkeypatch.setattr(trainer, "tq", queue)
    return queue


def publish(store, graph, uid, validate, phase):
    worker = object.__new__(agent_loop.HierAgentLoopWorker)
    worker._runner = SimpleNamespace(recipe=SimpleNamespace(rewards={}))
    worker._hier = SimpleNamespace(store=store, guards=SimpleNamespace(shared_prefix="once"))

    async def nothing(*args, **kwargs):
        """Rows are not looked at here."""

    worker._agent_loop_postprocess = nothing
    graph.task["uid"] = uid
    asyncio.run(worker._publish(graph, phase, {"uid": uid}, validate))


def publish_all(store):
    """A validation, a task of which nothing is trained, and one whose graph travels with a row."""
    publish(store, rollout_graphs.flat(), "validation", True, Phase("joint"))
    publish(store, rollout_graphs.flat(), "nothing_trained", False, Phase("A", levels=frozenset({7})))
    publish(store, rollout_graphs.flat(), "trained", False, Phase("joint"))


def make_trainer(store):
    made = object.__new__(trainer.HierSync)
    made.hier = SimpleNamespace(store=store)
    made.config = OmegaConf.create({})
    made.global_steps = 10
    made._dropped = []
    made._counters = SimpleNamespace(skip=lambda: None)
    return made


def stored(folder):
    return [graph.task["uid"] for graph in read_graphs(folder)]


def test_they_are_stored_apart(queue, tmp_path):
    store = StoreOptions(path=str(tmp_path))
    publish_all(store)
    made = make_trainer(store)
    made.on_validate_end()
    assert stored(tmp_path / "validation" / "step_000010") == ["validation"]

    count, made._without_rows = made._take_graphs(validate=False)
    made._step = SimpleNamespace(ledger=SimpleNamespace(graphs={"trained": rollout_graphs.flat()}))
    made._step.ledger.graphs["trained"].task["uid"] = "trained"
    assert count == 1 and made._store() is False
    assert stored(tmp_path) == stored(tmp_path / "step_000010") == ["trained", "nothing_trained"]
    assert not queue.fields


@pytest.mark.parametrize("store", [StoreOptions(), StoreOptions(path="graphs", validation=False)])
def test_what_is_not_stored_does_not_travel(queue, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    publish_all(store)
    made = make_trainer(store)
    made.on_validate_end()
    count, graphs = made._take_graphs(validate=False)
    assert count == 1 and len(graphs) == (store.path is not None) and not list(tmp_path.iterdir())

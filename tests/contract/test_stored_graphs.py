"""Rollouts reach the trainer as light parts, and the store from the worker that holds them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from tests.fixtures import rollout_graphs
from tests.fixtures.agent_loop_worker import idle_worker
from verl_hier.graph import read_graphs
from verl_hier.graph.columnar.held import HeldRollouts
from verl_hier.hookspecs import hookimpl
from verl_hier.host.discovery import Candidate
from verl_hier.host.manager import PluginHost
from verl_hier.recipe.schema import StoreOptions
from verl_hier.training.schedule import Phase

agent_loop = pytest.importorskip("verl_hier.compat.agent_loop")
partitions = pytest.importorskip("verl_hier.compat.queue")
trainer = pytest.importorskip("verl_hier.compat.trainer")
examples = pytest.importorskip("verl_hier.compat.examples")
JOINT = Phase("joint")


class Queue:
    """TransferQueue in this process, as far as graphs need it."""

    def __init__(self):
        self.tags, self.fields = {}, {}

    async def async_kv_put(self, key, partition_id, fields=None, tag=None):
        self.tags.setdefault(partition_id, {})[key] = tag
        self.fields[partition_id, key] = fields

    def kv_list(self, partition_id):
        return {partition_id: dict(self.tags.get(partition_id, {}))}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {name: [self.fields[partition_id, key][name] for key in keys] for name in select_fields}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.tags[partition_id][key], self.fields[partition_id, key]


@pytest.fixture()
def queue(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(agent_loop, "tq", queue)
    monkeypatch.setattr(trainer, "tq", queue)
    monkeypatch.setattr(partitions, "tq", queue)
    monkeypatch.setattr(examples, "tq", queue)
    return queue


def make_worker(store, redactions=()):
    worker = idle_worker()
    worker._hier = SimpleNamespace(store=store, guards=SimpleNamespace(shared_prefix="once"))
    worker._host, worker._tokens, worker._shows_examples = PluginHost(redactions), (), False
    worker._held, worker._store_thread = HeldRollouts(), ThreadPoolExecutor(1)

    async def nothing(*args, **kwargs):
        """Rows are not looked at here."""

    worker._agent_loop_postprocess = nothing
    return worker


def publish(worker, uid, validate=False, phase=JOINT, index=0):
    graph = rollout_graphs.flat()
    graph.task |= {"uid": uid, "index": index}
    asyncio.run(worker._publish(graph, phase, {"uid": uid}, validate))
    return graph


def publish_all(worker):
    """A validation, a task of which nothing is trained, one that is, and one that is still under way."""
    publish(worker, "validation", True)
    publish(worker, "nothing", phase=Phase("A", levels=frozenset({7})))
    publish(worker, "trained")
    publish(worker, "later")


def make_trainer(worker):
    made = object.__new__(trainer.HierSync)
    made.hier = SimpleNamespace(store=worker._hier.store)
    made.config = OmegaConf.create({})
    made.global_steps = 10
    made._updates = []
    made._counters = SimpleNamespace(skip=lambda: None)
    made._writers = [partial(worker._store_thread.submit, worker._held.write)]
    return made


def stored(folder):
    return [graph.task["uid"] for graph in read_graphs(folder)]


def under_way(queue, *uids):
    queue.tags["train"] = {uid: {"status": "running"} for uid in uids}


def test_they_are_stored_apart(queue, tmp_path):
    worker = make_worker(StoreOptions(path=str(tmp_path)))
    publish_all(worker)
    under_way(queue, "later")
    made = make_trainer(worker)
    made.on_validate_end()
    assert stored(tmp_path / "validation" / "step_000010") == ["validation"]

    light = made._take_light({"trained"})
    assert light.uids == ["trained"] and len(light.rows) == 2
    assert {uid: tag["rows"] for uid, tag in made._done.items()} == {"nothing": 0, "trained": 2}
    made._begin_store(made._done, again=False)
    assert made._in_store.finish({"trained": {"credit": [0.5] * 9}}) == {
        "hier/store/failed": 0,
        "hier/store/missing": 0,
    }
    assert stored(tmp_path) == stored(tmp_path / "step_000010") == ["nothing", "trained"]
    assert [key for _, key in queue.fields] == ["later"] == list(worker._held._tasks)


def test_tasks_come_in_the_order_of_the_data_set(queue):
    """Their uids are random, and what schedules keep across steps has to be the same in a run that is resumed."""
    worker = make_worker(StoreOptions())
    for uid, index in (("b", 2), ("c", 0), ("a", 1)):
        publish(worker, uid, index=index)
    assert make_trainer(worker)._take_light({"a", "b", "c"}).uids == ["c", "a", "b"]


def test_a_step_between_stored_ones_is_forgotten(queue, tmp_path):
    worker = make_worker(StoreOptions(path=str(tmp_path), every=3))
    publish_all(worker)
    made = make_trainer(worker)
    made._take_light({"trained"})
    made._begin_store(made._done, again=False)
    worker._store_thread.shutdown()
    assert made._in_store is None and list(worker._held._tasks) == ["validation"] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", [StoreOptions(), StoreOptions(path="graphs", validation=False)])
def test_what_is_not_stored_is_not_held(queue, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    worker = make_worker(store)
    publish_all(worker)
    made = make_trainer(worker)
    made.on_validate_end()
    assert "validation" not in worker._held._tasks and (store.path is not None) == bool(worker._held._tasks)
    assert "validation" not in {key for _, key in queue.fields} and not list(tmp_path.iterdir())


def test_a_task_whose_put_has_begun_is_left_for_the_next_step(queue, tmp_path):
    """TransferQueue lists a key without a tag until its data are there."""
    worker = make_worker(StoreOptions(path=str(tmp_path)))
    publish(worker, "trained")
    queue.tags[trainer.LIGHT]["arriving"] = queue.tags.setdefault(partitions.FAULTS, {})["failing"] = {}
    made = make_trainer(worker)
    partitions.raise_faults()
    made.on_validate_end()
    assert made._take_light({"trained"}).uids == ["trained"] and list(made._done) == ["trained"]
    assert queue.tags == {trainer.LIGHT: {"arriving": {}}, partitions.FAULTS: {"failing": {}}}


class Redaction:
    """A plugin."""

    @hookimpl
    def hier_before_store(self, graph, validate):
        for node in graph.nodes:
            node.text = "hidden from validation" if validate else "hidden"


REDACTION = Redaction()


def test_plugins_redact_what_is_stored_and_nothing_else(queue, tmp_path):
    worker = make_worker(StoreOptions(path=str(tmp_path)), [Candidate("hide", f"{__name__}:REDACTION", "tests", "1")])
    graph = publish(worker, "trained")
    publish(worker, "validation", True)
    made = make_trainer(worker)
    made.on_validate_end()
    made._take_light({"trained"})
    made._begin_store(made._done, again=False)
    made._in_store.finish({})
    texts = {node.text for found in read_graphs(tmp_path) for node in found.nodes}
    assert texts == {"hidden"} and "hidden" not in {node.text for node in graph.nodes}
    (validation,) = read_graphs(tmp_path / "validation")
    assert {node.text for node in validation.nodes} == {"hidden from validation"}

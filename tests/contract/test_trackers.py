"""Trees reach verl's trackers, and a task with its episodes is one trace of verl's."""

from __future__ import annotations

import asyncio
import json

import pytest
from omegaconf import OmegaConf
from verl.utils import rollout_trace
from verl.utils.rollout_trace import RolloutTraceConfig
from verl.utils.tracking import ValidationGenerationsLogger
from verl.workers.rollout.replica import TokenOutput

from tests.contract.test_policy import Handle
from tests.contract.test_stored_graphs import REDACTION, make_trainer, make_worker, queue
from tests.fixtures import rollout_graphs
from tests.fixtures.corridor import Corridor
from verl_hier.compat.queue import EXAMPLES
from verl_hier.compat.servers.client import SingleServerClient
from verl_hier.compat.tracing import Tracing
from verl_hier.graph.outline import outline
from verl_hier.host.discovery import Candidate
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.servers import rollout_server
from verl_hier.recipe.schema import StoreOptions
from verl_hier.rollout import Sampling
from verl_hier.served.rollout_server import ServerPolicy
from verl_hier.testing import roll_out_scripted
from verl_hier.testing.rollout import ScriptedPolicy
from verl_hier.training.schedule import Phase
from verl_hier_plugins.workers.react import React, ReactOptions

__all__ = ["queue"]


def validated(worker):
    """The rollouts of a validation of four tasks: one with attempts of different returns, and three that are alike."""
    graphs = []
    for number, returns in enumerate(((0.0, 1.0), (1.0, 1.0), (0.5, 0.5), (0.0, 0.0))):
        graph = rollout_graphs.forked() if number == 0 else rollout_graphs.flat()
        graph.task |= {"uid": f"u{number}", "index": number, "data_source": "corridor", "instruction": f"walk {number}"}
        for place, episode in enumerate(graph.complete()):
            episode.ret = returns[place % 2]
        asyncio.run(worker._publish(graph, Phase("validation"), {"uid": f"u{number}"}, True))
        graphs.append(graph)
    return graphs


def log(worker, tracker, many=3):
    """Let a trainer log the examples of a validation to a tracker, through verl's own logger."""
    made = make_trainer(worker)
    made.config = OmegaConf.create({"trainer": {"log_val_generations": many, "logger": ["console", tracker]}})
    made.validation_generations_logger = ValidationGenerationsLogger("project", "run")
    made._maybe_log_val_generations(inputs=["row"], outputs=["row"], scores=[0.0])
    return made


def make_showing_worker(redactions=()):
    worker = make_worker(StoreOptions(), redactions)
    worker._shows_examples = True
    return worker


def texts_of_tensorboard(folder):
    """What an event folder says, tag to texts."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(each.step, each.tensor_proto.string_val[0].decode()) for each in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def test_tensorboard_gets_the_trees_of_a_validation(queue, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    worker = make_showing_worker()
    graphs = validated(worker)
    made = log(worker, "tensorboard")
    ((step, text),) = texts_of_tensorboard(tmp_path)["val/generations/text_summary"]
    assert step == made.global_steps
    assert [number for number in range(4) if f"corridor {number}: walk {number}" in text] == [0, 1, 3]
    assert text.index("returns differ most: corridor 0") < text.index("The best group: corridor 1")
    assert all(f"\n    {line}\n" in text for line in outline(graphs[0])) and "├ agent" in text
    assert "**Score:** 1.0" in text and EXAMPLES in queue.tags and not queue.tags[EXAMPLES]


def test_no_more_trees_are_logged_than_the_recipe_says_and_none_twice(queue, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    worker = make_showing_worker()
    validated(worker)
    made = log(worker, "tensorboard", many=1)
    made._maybe_log_val_generations(inputs=[], outputs=[], scores=[])
    ((_, text),) = texts_of_tensorboard(tmp_path)["val/generations/text_summary"]
    assert text.count("### Sample") == 1


def test_nothing_is_told_where_no_example_is_wanted(queue, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    worker = make_worker(StoreOptions())
    validated(worker)
    log(worker, "tensorboard")
    assert EXAMPLES not in queue.tags and not list(tmp_path.iterdir())


def test_what_a_plugin_redacts_reaches_no_tracker(queue, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    worker = make_showing_worker([Candidate("hide", f"{__name__}:REDACTION", "tests", "1")])
    graphs = validated(worker)
    log(worker, "tensorboard")
    ((_, text),) = texts_of_tensorboard(tmp_path)["val/generations/text_summary"]
    said = {node.text for graph in graphs for node in graph.nodes}
    assert REDACTION and "hidden from validation" in text and not any(f": {words}" in text for words in said)


def test_wandb_gets_the_trees_as_a_table(queue, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    worker = make_showing_worker()
    graphs = validated(worker)
    with wandb.init(mode="offline", dir=str(tmp_path), project="project"):
        log(worker, "wandb", many=2)
    (file,) = tmp_path.rglob("*.table.json")
    table = json.loads(file.read_text())
    row = dict(zip(table["columns"], table["data"][0], strict=True))
    assert row["step"] == 10 and set(row) == {"step", *(f"{what}_{i}" for i in (1, 2) for what in COLUMNS)}
    assert row["output_1"].split("\n")[2:] == [f"    {line}" for line in outline(graphs[0])]


COLUMNS = ("input", "output", "score")


def test_mlflow_gets_the_trees_as_an_artefact(queue, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    experiment = mlflow.create_experiment("project", artifact_location=(tmp_path / "files").as_uri())
    worker = make_showing_worker()
    graphs = validated(worker)
    with mlflow.start_run(experiment_id=experiment):
        log(worker, "mlflow", many=2)
    (file,) = (tmp_path / "files").rglob("val_step10.json")
    found = json.loads(file.read_text())
    assert [set(each) for each in found] == [set(COLUMNS)] * 2
    assert found[0]["output"].split("\n")[2:] == [f"    {line}" for line in outline(graphs[0])]


# ---- traces ----------------------------------------------------------------------------------------------------------


class Server:
    """Answers verl's client as a rollout server does, in the words of a scripted policy."""

    def __init__(self, policy):
        self._policy = policy

    async def generate(self, request_id, prompt_ids, sampling_params, **kwargs):
        sampling = Sampling(seed=sampling_params["seed"], max_tokens=sampling_params["max_tokens"])
        found = await ScriptedPolicy.generate(self._policy, prompt_ids, sampling, request_id)
        return TokenOutput(token_ids=found.token_ids, log_probs=found.logprobs, stop_reason="completed")


class Served(ScriptedPolicy):
    """A scripted policy behind verl's client."""

    def __init__(self, *args):
        super().__init__(*args)
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "transformers", "response_length": 24}}})
        client = SingleServerClient(server=Handle(Server(self)), config=config)
        self.generate = ServerPolicy(client, rollout_server(PluginHost.load(DEFAULT_ENABLED), "transformers")).generate


def make_traced_worker():
    """A rollout worker whose tasks are rolled out by a scripted policy behind verl's client."""
    worker = make_showing_worker()
    worker._slots, worker._tracing = asyncio.Semaphore(4), Tracing()
    worker._hier.refill = None
    worker.graphs = {}

    async def roll_out(prompt, params, phase, step, validate):
        graph, _ = await roll_out_scripted(
            environment=Corridor,
            worker=lambda: React(ReactOptions()),
            answer=lambda text, sampling: "right" if sampling.seed % 3 else "left",
            sampler=rollout_graphs.Forks(),
            policy=Served,
        )
        graph.task |= {"uid": prompt["uid"], "index": prompt["index"], "instruction": f"walk {prompt['index']}"}
        worker.graphs[prompt["uid"]] = graph
        return graph

    worker._roll_out = roll_out
    return worker


def run_tasks(worker, *numbers, step=7):
    async def main():
        await asyncio.gather(
            *(
                worker._run_prompt(
                    {"uid": f"u{number}", "index": number},
                    {},
                    {"step": step, "sample_index": number, "rollout_n": 0, "validate": False},
                )
                for number in numbers
            )
        )

    asyncio.run(main())


@pytest.fixture
def tracing():
    """Sets verl's tracing up as its rollout workers do, and takes it back."""
    RolloutTraceConfig.reset()
    yield lambda backend, most=None: RolloutTraceConfig.init("project", "run", backend, False, most)
    RolloutTraceConfig.reset()


def test_a_task_is_one_trace_of_its_requests_and_its_tree(queue, tmp_path, monkeypatch, tracing):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    tracing("mlflow", 2)
    worker = make_traced_worker()
    run_tasks(worker, 3, 4, 5)
    mlflow.flush_trace_async_logging()
    experiment = mlflow.get_experiment_by_name("project").experiment_id
    traces = mlflow.search_traces(locations=[experiment], return_type="list")
    assert sorted(trace.info.tags["sample_index"] for trace in traces) == ["3", "4"], "two are traced, and one is not"
    for trace in traces:
        tags, spans = trace.info.tags, trace.data.spans
        assert (tags["step"], tags["validate"], tags["experiment_name"]) == ("7", "False", "run")
        (root,) = (span for span in spans if span.parent_id is None)
        graph = worker.graphs[f"u{tags['sample_index']}"]
        below = [span for span in spans if span.parent_id == root.span_id]
        requests = [span for span in below if span.name == "LLMServerClient.generate"]
        assert root.name == "agent_loop" and len(requests) == len(graph.nodes) == len(below) - 1
        assert sorted(span.outputs["token_ids"] for span in requests) == sorted(node.action for node in graph.nodes)
        (tree,) = (span for span in below if span.name == "Tracing.tree")
        assert tree.outputs["answer"].split("\n") == list(outline(graph))
        assert tree.inputs["messages"][0]["content"].endswith(f"walk {tags['sample_index']}")


def test_each_worker_traces_so_many_tasks_of_a_step(tracing):
    tracing("a backend of which verl knows nothing", 1)
    ours, enabled = Tracing(), []
    for step, validate in ((1, False), (1, False), (1, True), (2, False)):
        with ours.of({"step": step, "sample_index": 0, "validate": validate}):
            enabled.append(rollout_trace._trace_enabled.get())
    assert enabled == [True, False, True, True] and rollout_trace._trace_enabled.get()


def test_without_a_backend_nothing_is_traced(queue, tracing):
    tracing(None)
    worker = make_traced_worker()
    run_tasks(worker, 3)
    assert queue.tags["train"]["u3"]["status"] == "finished" and worker.graphs["u3"].nodes

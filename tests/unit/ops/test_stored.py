"""Stored rollouts by the run, the store or the step that a user names, and old files as a store."""

import json
import shutil

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from tests.fixtures import rollout_graphs
from tests.unit.ops.test_offline import graph
from verl_hier.cli.main import app
from verl_hier.errors import HierError
from verl_hier.graph import read_graphs, write_graphs, write_step
from verl_hier.ops import offline
from verl_hier.ops.exchange import convert
from verl_hier.ops.python import roll_out
from verl_hier.ops.run_record import run_record
from verl_hier.ops.runs import Run
from verl_hier.ops.stored import Stored
from verl_hier.recipe.compose import compose


def steps():
    """The rollouts of two steps."""
    return {
        1: [graph("t0", [1.0, 0.0], step=1), graph("t1", [0.0, 0.5], step=1)],
        2: [graph("t0", [1.0, 0.5], step=2), graph("t2", [0.0, 0.0], step=1)],
    }


@pytest.fixture
def run(tmp_path):
    """The folder of a run that has stored two steps."""
    folder = tmp_path / "quickstart" / "training"
    for number, graphs in steps().items():
        write_step(folder / "graphs", number, graphs)
    config = compose("quickstart", ["actor_rollout_ref.model.path=model"])
    record = run_record("quickstart", ["hier.seed=0"], config, folder / "metrics.jsonl")
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_a_run_its_store_and_its_steps_are_found(run, tmp_path):
    store = run / "graphs"
    for named, graphs in ((run, store), (run.parent, store), (store, store), (store / "step_000001",) * 2):
        stored = Stored.at(named)
        assert (stored.graphs, stored.run) == (graphs, run)
        assert stored.plugins() == {"builtin": True}
    alone = tmp_path / "graphs.jsonl"
    assert Stored.at(alone) == Stored(alone) and Stored(alone).plugins() is None


def test_a_store_that_the_recipe_put_elsewhere_is_found(run, tmp_path):
    record = json.loads((run / "run.json").read_text())
    record["recipe"]["hier"]["store"]["path"] = str(tmp_path / "elsewhere")
    (run / "run.json").write_text(json.dumps(record))
    (run / "graphs").rename(tmp_path / "elsewhere")
    assert Stored.at(run).graphs == tmp_path / "elsewhere"
    shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(HierError, match="holds no rollouts"):
        Stored.at(run)


@pytest.mark.parametrize(
    "content, words",
    [
        ("[]", "no mapping `recipe`"),
        ("{", "is not JSON"),
        ('{"recipe": {"hier": 3}}', "`hier` of its recipe is not a mapping"),
        ('{"recipe": {"hier": {"plugins": []}}}', "`hier.plugins` of its recipe is not a mapping"),
    ],
)
def test_a_damaged_record_is_refused(run, content, words):
    (run / "run.json").write_text(content)
    with pytest.raises(HierError, match=words):
        Stored.at(run).plugins()


def test_the_record_of_a_run_says_what_ran(run):
    record = Stored.at(run).record()
    assert record["name"] == "quickstart" and record["overrides"] == ["hier.seed=0"]
    assert record["parts"]["estimator"] == "himac" and record["seeds"]["hier.seed"] == 0
    assert record["recipe"]["actor_rollout_ref"]["model"]["path"] == "model"
    assert record["versions"]["numpy"] and record["metrics"].endswith("metrics.jsonl")
    assert record["revision"] is None or len(record["revision"]) == 40


def test_credit_from_columns_is_that_from_graphs(run, tmp_path):
    """A step is what was trained together, whichever step started the rollouts."""
    for number, graphs in steps().items():
        write_graphs(tmp_path / "one.jsonl", graphs)
        for each in graphs:
            each.step = number
        write_graphs(tmp_path / "all.jsonl", graphs)
        outs = [tmp_path / "columns.jsonl", tmp_path / "graphs.jsonl"]
        for source, out in zip((run / "graphs" / f"step_{number:06d}", tmp_path / "all.jsonl"), outs, strict=True):
            assert offline.credit("gigpo", source, out) == 8
        assert outs[0].read_text() == outs[1].read_text()
    assert [batch.step for batch in offline.batches(run / "graphs")] == [1, 2]


def test_estimators_of_tokens_are_compared_on_columns(run, tmp_path):
    """They read heavy columns, which travel only then."""
    everything = [each for graphs in steps().values() for each in graphs]
    write_step(tmp_path / "store", 1, everything[:2])
    write_graphs(tmp_path / "graphs.jsonl", everything[:2])
    found, expected = (
        offline.compare(["arpo", "grpo"], source) for source in (tmp_path / "store", tmp_path / "graphs.jsonl")
    )
    assert found.rows() == expected.rows() and found.turns == 8


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_commands_take_the_folder_of_a_run(run, tmp_path):
    compared = invoke("credit", run.parent, "--compare", "himac,grpo")
    assert compared.exit_code == 0 and compared.stdout.startswith("16 trained turns")
    with pytest.raises(HierError, match="is not the folder of a run"):
        invoke("replay", tmp_path)


def test_a_run_is_replayed_without_further_arguments(byte_model, tmp_path):
    overrides = [
        *("size=cpu", f"actor_rollout_ref.model.path={byte_model}", "hier.environment.validation=2"),
        *("hier.rollout.max_turns=2", "hier.rollout.max_tokens_per_turn=8", "trainer.total_training_steps=1"),
    ]
    config = compose("grpo_alfworld", overrides)
    run = Run(tmp_path / "run")
    write_step(run.graphs, 1, roll_out(str(byte_model), "grpo_alfworld", *overrides, tasks=1))
    run.recipe_file.write_text(OmegaConf.to_yaml(config, resolve=True))
    record = run_record("grpo_alfworld", overrides, config, run.metrics_file)
    (run.folder / "run.json").write_text(json.dumps(record))
    replayed = invoke("replay", run.folder)
    assert replayed.exit_code == 0 and "1 rollouts, all the same" in replayed.stdout


def test_old_files_become_a_store(tmp_path):
    old = tmp_path / "old"
    first, second = ([rollout_graphs.flat(step=number), rollout_graphs.forked()] for number in (1, 2))
    for number, graphs in enumerate((first, second), start=1):
        for place, each in enumerate(graphs):
            each.task["uid"] = f"task {place}"
        write_graphs(old / f"step_{number:06d}.parquet", graphs)
    write_graphs(old / "validation" / "step_000002.jsonl", first)
    done = invoke("convert", old, "--out", tmp_path / "store")
    assert done.stdout == f"6 tasks of 3 steps: {tmp_path / 'store'}\n"
    assert list(read_graphs(tmp_path / "store")) == [*first, *second]
    assert list(read_graphs(tmp_path / "store" / "validation" / "step_000002")) == first


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_schema_version_is_converted(tmp_path, version):
    source = rollout_graphs.OLDER.get(version, rollout_graphs.GOLDEN)
    expected = sorted(read_graphs(source), key=lambda each: each.step)
    for place, each in enumerate(expected):
        each.task["uid"] = f"task {place}"
    text = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    for place, data in enumerate(sorted(text, key=lambda each: each["step"])):
        data["task"]["uid"] = f"task {place}"
    (tmp_path / "graphs.jsonl").write_text("".join(f"{json.dumps(data)}\n" for data in text))
    convert(tmp_path / "graphs.jsonl", tmp_path / "store")
    assert list(read_graphs(tmp_path / "store")) == expected


def test_what_cannot_be_converted_is_refused(tmp_path):
    old, store = tmp_path / "old", tmp_path / "store"
    write_graphs(old / "step_000001.parquet", [rollout_graphs.flat(step=1)])
    with pytest.raises(HierError, match="give another folder"):
        convert(old, old)
    write_graphs(old / "step_1.jsonl", [rollout_graphs.flat(step=1)])
    with pytest.raises(HierError, match="is a second file of step 1"):
        convert(old, store)
    (old / "step_1.jsonl").rename(old / "more.jsonl")
    with pytest.raises(HierError, match="has a file of step 1 and other graphs of it"):
        convert(old, store)

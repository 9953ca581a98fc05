"""The published schema says what `to_dict` writes, and nothing else."""

import copy
import dataclasses
import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings

from tests.fixtures import rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import SCHEMA_VERSION, EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.graph.schema import require_fit
from verl_hier.graph.storage import json_schema

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GOOD = rollout_graphs.hierarchical().to_dict()


def test_it_is_a_schema_of_this_version():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json_schema()["properties"]["version"]["const"] == SCHEMA_VERSION


def test_the_page_says_what_each_version_has_changed():
    page = (Path(__file__).parents[3] / "docs/rollout_graph.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|", page.split("## Versions")[1], re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("name", rollout_graphs.ROLLED_OUT)
def test_rolled_out_graphs_fit(name):
    VALIDATOR.validate(rollout_graphs.ROLLED_OUT[name]().to_dict())


def test_golden_graphs_fit():
    for graph in rollout_graphs.golden():
        VALIDATOR.validate(graph.to_dict())


def test_the_golden_files_of_older_versions_fit_their_schema_and_no_other():
    for version, path in rollout_graphs.OLDER.items():
        older = jsonschema.Draft202012Validator(json_schema(version))
        jsonschema.Draft202012Validator.check_schema(json_schema(version))
        for line in path.read_text(encoding="utf-8").splitlines():
            older.validate(json.loads(line))
            assert not VALIDATOR.is_valid(json.loads(line))
        assert not older.is_valid(GOOD)
    for unknown in (0, SCHEMA_VERSION + 1):
        with pytest.raises(GraphError, match=f"no schema version {unknown}"):
            json_schema(unknown)


@settings(max_examples=20, deadline=None)
@given(rollout_graphs.trees())
def test_random_graphs_fit(graph):
    VALIDATOR.validate(graph.to_dict())


@pytest.mark.parametrize(
    "cls, at",
    [
        (RolloutGraph, ()),
        (Node, ("$defs", "node")),
        (Message, ("$defs", "message")),
        (EpisodeRecord, ("$defs", "episode")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_is_described_and_required(cls, at):
    schema = json_schema()
    for key in at:
        schema = schema[key]
    names = [field.name for field in dataclasses.fields(cls)]
    assert sorted(schema["properties"]) == sorted(names) == sorted(schema["required"])
    assert schema["additionalProperties"] is False
    assert all(entry["description"].endswith(".") for entry in schema["properties"].values())


def change(path, value):
    def apply(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return apply


@pytest.mark.parametrize(
    "breaks",
    [
        change(["version"], 1),
        change(["version"], 2),
        lambda data: data.pop("seconds"),
        change(["seconds"], {"rollout": "long"}),
        lambda data: data["episodes"][0].pop("reward_info"),
        change(["episodes", 0, "reward_info"], {"acc": "good"}),
        change(["nodes", 0, "policy"], None),
        lambda data: data["nodes"][0].pop("messages"),
        change(["nodes", 0, "messages", 0, "sources"], [-1]),
        change(["nodes", 0, "messages", 0, "sources"], 0),
        change(["nodes", 0, "messages", 0, "content"], None),
        change(["nodes", 0, "messages", 0, "name"], "planner"),
        change(["colour"], "red"),
        lambda data: data.pop("nodes"),
        lambda data: data["task"].pop("uid"),
        change(["seed"], "0"),
        change(["phase"], {"name": "A", "level": [0]}),
        change(["counts"], {"forks": 0.5}),
        change(["credit"], ["much"]),
        lambda data: data["nodes"][0].pop("context"),
        change(["nodes", 0, "colour"], "red"),
        change(["nodes", 0, "parent"], -2),
        change(["nodes", 0, "action"], []),
        change(["nodes", 0, "action"], [-1]),
        change(["nodes", 0, "observation"], ["at", "0"]),
        change(["nodes", 0, "level"], 0.5),
        change(["nodes", 0, "trained"], 1),
        change(["nodes", 0, "masks"], {"switch": [[0, 1, 2]]}),
        change(["nodes", 0, "policy_version"], [1]),
        change(["nodes", 0, "extra"], {"judge": [1.0]}),
        change(["episodes", 0, "status"], "lost"),
        change(["episodes", 0, "success"], 1.0),
        lambda data: data["episodes"][0].pop("leaf"),
    ],
)
def test_broken_graphs_are_refused(breaks):
    data = copy.deepcopy(GOOD)
    VALIDATOR.validate(data)
    require_fit(data)
    breaks(data)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(data)
    with pytest.raises(GraphError):
        require_fit(data)

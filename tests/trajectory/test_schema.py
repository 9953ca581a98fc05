"""The published schema says what `to_dict` writes, and nothing else."""

import copy
import dataclasses

import jsonschema
import pytest
from hypothesis import given, settings

from tests.trajectory import cases
from verl_hier.trajectory import SCHEMA_VERSION, EpisodeRecord, Node, RolloutGraph
from verl_hier.trajectory.storage import json_schema

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GOOD = cases.hierarchical().to_dict()


def test_it_is_a_schema_of_this_version():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json_schema()["properties"]["version"]["const"] == SCHEMA_VERSION


@pytest.mark.parametrize("name", cases.ROLLED_OUT)
def test_rolled_out_graphs_fit(name):
    VALIDATOR.validate(cases.ROLLED_OUT[name]().to_dict())


def test_golden_graphs_fit():
    for graph in cases.golden():
        VALIDATOR.validate(graph.to_dict())


@settings(max_examples=20, deadline=None)
@given(cases.trees())
def test_random_graphs_fit(graph):
    VALIDATOR.validate(graph.to_dict())


@pytest.mark.parametrize(
    "cls, at",
    [(RolloutGraph, ()), (Node, ("$defs", "node")), (EpisodeRecord, ("$defs", "episode"))],
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
        change(["version"], 2),
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
    breaks(data)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(data)

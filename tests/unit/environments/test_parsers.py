"""No text of a policy raises out of a reader or a scorer, and none takes more than linear time."""

from __future__ import annotations

import logging
import random

import pytest

from tests.fixtures import hostile_parsers
from verl_hier.host.manager import PluginHost

FUNCTIONS = hostile_parsers.functions()
COMPILED = "math_verify"
"""Reads in a process of its own, whose limits its own test looks at."""


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


def test_the_readers_and_scorers_are_found():
    names = {name.partition(":")[2] for name in FUNCTIONS}
    assert {"parse", "parse_action", "parse_verb", "bracketed", "score", "well_formed", "verdict", "number"} <= names


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if COMPILED not in name])
def test_a_function_reads_any_text_in_linear_time(name):
    chance = random.Random(name)
    for text in (hostile_parsers.hostile(chance) for _ in range(200)):
        assert not hostile_parsers.problem(FUNCTIONS[name], text), text
    assert not hostile_parsers.slow(FUNCTIONS[name], hostile_parsers.long_texts(chance, 20))


@pytest.mark.slow
def test_every_environment_is_played_with_any_text():
    played = hostile_parsers.played()
    shipped = set(PluginHost.load({"builtin": True}).specs("environment"))
    assert {"search", "sokoban", "python_tool"} <= {name.partition(" ")[2] for name in played} <= shipped
    for name, call in {**hostile_parsers.services(), **played}.items():
        chance = random.Random(name)
        for text in (hostile_parsers.hostile(chance) for _ in range(100)):
            assert not hostile_parsers.problem(call, text), (name, text)

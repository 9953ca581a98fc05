"""Recordings of a plain loop over a batch, played to the real samplers and the real episode machine."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.runner import compare, find_adapter
from tests.fixtures.batch_recorder import Recorder
from verl_hier.errors import HierError


def check(method: str, recording: dict) -> None:
    computed = find_adapter(f"{method}_rollout")(recording["input"])
    for name, expected in recording["output"].items():
        assert compare(computed[name], expected, 1e-9, 1e-9) is None, name
    assert set(computed) == set(recording["output"])


@pytest.mark.parametrize("method", ["arpo", "aepo"])
@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_any_recording_is_played_back(method, seed, one_by_one):
    check(method, Recorder(method, seed, one_by_one).make())


@pytest.mark.parametrize("method", ["arpo", "aepo"])
@pytest.mark.parametrize(
    "changes",
    [
        {"tool_call_limit": 0},  # every call overflows
        {"max_response_len": 1},  # every response is cut
        {"n": 2, "initial_rollouts": 5},
        {"beam_size": 1},  # nothing branches, chains are fresh
        {"batch": 6, "n": 12, "initial_rollouts": 1, "branch_probability": 0.5},
        {"n": 30, "initial_rollouts": 1, "batch": 2, "tool_call_limit": 40, "max_response_len": 2000},  # long streaks
    ],
)
def test_corners(method, changes):
    for seed in range(5):
        check(method, Recorder(method, seed, **changes).make())


def recording() -> dict:
    """One with several draws, and several calls."""
    changes = {"batch": 2, "n": 6, "initial_rollouts": 2, "beam_size": 2, "branch_probability": 0.5}
    return Recorder("arpo", 0, **changes, tool_call_limit=3, max_response_len=64).make()


def test_a_recording_of_something_else_is_a_sentence():
    replay = find_adapter("arpo_rollout")
    case = recording()["input"]
    assert len(case["uniform_draws"]) > 2 and len(case["engine_calls"]) > 2
    for change, sentence in (
        ({"uniform_draws": case["uniform_draws"][:-1]}, "takes one more"),
        ({"engine_calls": case["engine_calls"][:-1]}, "asks for another one"),
        ({"initial_rollouts": 1}, "the sampler asks for 2"),
    ):
        with pytest.raises(HierError, match=sentence):
            replay({**case, **change})
    wrong = copy.deepcopy(case)
    wrong["engine_calls"][1]["outputs"][0]["prompt_len"] += 1
    with pytest.raises(HierError, match="answers a prompt of"):
        replay(wrong)

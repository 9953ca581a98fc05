"""A number that is none is an alarm or a refusal wherever a limit is compared with it."""

from __future__ import annotations

import dataclasses
import math
import typing
from types import UnionType
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import rollout_graphs
from tests.unit.training.test_step import run
from verl_hier.credit.groups import equal_scores, group_advantage
from verl_hier.environments.base import StepResult
from verl_hier.environments.reward_values import LARGEST_REWARD, reward_of, truth_of
from verl_hier.environments.wire import from_step, to_step
from verl_hier.errors import CreditError, RecipeError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.options import build_dataclass
from verl_hier.recipe import schema
from verl_hier.recipe.checks.numbers import NUMBERS
from verl_hier.testing.builtin import estimator
from verl_hier.training.guards import _LIMITS, RewardHistory, alarm
from verl_hier.training.limits import exceeds
from verl_hier.training.options import GuardOptions, RefillOptions
from verl_hier.training.refill import Group, scores_of

NO_NUMBERS = (math.nan, math.inf)
GUARDED = [limit.metric for limit in _LIMITS] + ["hier/logprob_difference/agent"]


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("metric", GUARDED)
def test_a_metric_that_is_no_number_is_an_alarm(metric: str, value: float) -> None:
    assert alarm({metric: value}, GuardOptions(), needs_groups=True) == 1
    with pytest.raises(CreditError, match=str(value)):
        alarm({metric: value}, GuardOptions(on_alarm="raise"), needs_groups=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["rollout_log_probs", "old_log_probs"])
def test_a_log_prob_that_is_no_number_is_an_alarm(column: str, value: float) -> None:
    def spoilt(row: Any) -> np.ndarray:
        values = np.array(row.logprobs, float)
        values[np.flatnonzero(row.mask)[0]] = value
        return values

    *_, metrics = run(rollout_graphs.flat(), estimator("grpo"), **{column: spoilt})
    assert metrics["hier/guards/alarms"] >= 1
    with pytest.raises(CreditError, match="max_logprob_difference"):
        run(rollout_graphs.flat(), estimator("grpo"), guards=GuardOptions(on_alarm="raise"), **{column: spoilt})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_both_log_probs_that_are_no_numbers_are_an_alarm(value: float) -> None:
    def spoilt(row: Any) -> np.ndarray:
        return np.full(len(row.logprobs), value)

    *_, metrics = run(rollout_graphs.flat(), estimator("grpo"), rollout_log_probs=spoilt, old_log_probs=spoilt)
    assert metrics["hier/guards/alarms"] >= 1


@given(st.floats(), st.floats(allow_nan=False))
def test_a_limit_is_exceeded_by_all_that_is_not_within_it(value: float, limit: float) -> None:
    assert exceeds(value, limit) == (math.isnan(value) or value > limit)


def float_options() -> list[Any]:
    """(class, path to a float in it) of every block of options: of parts, of the `hier` block, of the probes."""
    host = PluginHost.load(DEFAULT_ENABLED)
    kinds: tuple[Any, ...] = ("environment", "worker", "sampler", "estimator", "schedule")
    classes = {spec.options for kind in kinds for spec in host.specs(kind).values()}
    classes |= {each for each in vars(schema).values() if dataclasses.is_dataclass(each) and isinstance(each, type)}
    found = []
    for cls in sorted(classes, key=lambda each: f"{each.__module__}.{each.__qualname__}"):
        hints = typing.get_type_hints(cls, include_extras=True)
        found += [
            pytest.param(cls, field.name, make, id=f"{cls.__qualname__}.{field.name}")
            for field in dataclasses.fields(cls)
            for make in floats_of(hints[field.name])
        ]
    return found


def floats_of(hint: Any) -> list[Any]:
    """How a number is written where an annotation has floats: itself, in a list, or in a mapping."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return [lambda number: number]
    if origin is Annotated:
        return floats_of(args[0])
    if origin in (typing.Union, UnionType):
        return [make for each in args for make in floats_of(each)]
    if origin in (tuple, list):
        return [lambda number, make=make: [make(number)] * max(len(args), 1) for make in floats_of(args[0])][:1]
    if isinstance(origin, type) and len(args) == 2:
        return [lambda number, make=make: {"x": make(number)} for make in floats_of(args[1])][:1]
    return []


@pytest.mark.parametrize(("cls", "name", "make"), float_options())
def test_an_option_is_no_limit_when_it_is_no_number(cls: type, name: str, make: Any) -> None:
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(RecipeError, match=name):
            build_dataclass(cls, {name: make(value)}, "hier.block", "the block")


def test_no_line_of_verl_takes_what_is_no_number() -> None:
    for number in NUMBERS.values():
        assert not any(number.holds(value) for value in (math.nan, math.inf, -math.inf))


# ---- where rewards enter ---------------------------------------------------------------------------------------------

WRONG = st.one_of(
    st.floats(min_value=LARGEST_REWARD, exclude_min=True),
    st.floats(max_value=-LARGEST_REWARD, exclude_max=True),
    st.just(math.nan),
    st.integers(min_value=10**7),
    st.sampled_from(["5", "nan", "", "1e308", b"5", [1.0], {}, None]),
)


@given(WRONG)
def test_what_is_no_reward_does_not_enter(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^x "):
        reward_of("x", value)
    with pytest.raises((TypeError, ValueError)):
        to_step({"text": "", "reward": value})
    with pytest.raises((TypeError, ValueError)):
        to_step({"text": "", "rewards": {"a": value}})
    with pytest.raises((TypeError, ValueError)):
        from_step(StepResult("", reward=value))


@given(st.floats(-LARGEST_REWARD, LARGEST_REWARD))
def test_every_other_number_enters_unchanged(value: float) -> None:
    for given_ in (value, np.float64(value), np.array(value)):
        assert reward_of("x", given_) == value
    assert to_step(from_step(StepResult("", reward=value))).reward == value


@pytest.mark.parametrize("value", ["false", "true", "", 2, 0.5, [], {}])
def test_a_text_is_no_truth_value(value: Any) -> None:
    with pytest.raises(TypeError, match="done"):
        truth_of("done", value)


@pytest.mark.parametrize("value", [True, False, 0, 1, np.True_, np.False_, None])
def test_truth_values_are_read(value: Any) -> None:
    assert truth_of("done", value) is bool(value)


# ---- zero variance ---------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda x: 0.0 if abs(x) < 1e-150 else x), min_size=2, max_size=6),
    st.sampled_from([1e-10, 1.0, 1e8]),
    st.booleans(),
)
def test_guard_refill_and_estimator_agree_on_what_has_no_spread(scores: list[float], size: float, equal: bool) -> None:
    values = np.array(scores[:1] * len(scores) if equal else scores) * size
    keys = np.zeros(len(values), np.int64)
    flat = bool(equal_scores(values, keys)[0])
    credit = group_advantage(values, keys)
    assert flat == (not credit.any()) or np.abs(values - values.mean()).max() == 0
    assert flat == (Group(values.tolist(), 1, 1).std == 0.0)


@pytest.mark.parametrize(
    ("returns", "flat"), [([1e-10, 2e-10], False), ([33333333.333, 33333333.333000004], True), ([0.0, 0.0], True)]
)
def test_one_rule_for_small_and_large_returns(returns: list[float], flat: bool) -> None:
    keys = np.zeros(2, np.int64)
    assert equal_scores(returns, keys).tolist() == [flat]
    assert group_advantage(returns, keys).any() == (not flat)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6, 1e8])
def test_a_jump_does_not_depend_on_where_returns_lie(offset: float) -> None:
    history, returns = RewardHistory(), np.array([0.0, 1.0, 0.0, 1.0])
    for _ in range(5):
        history.add(returns + offset)
    assert history.add(returns + offset + 1)["hier/rewards/jump"] == pytest.approx(1 / math.sqrt(0.25 + 5 / 36))


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_a_score_that_is_no_number_chooses_no_task(value: float) -> None:
    graph = rollout_graphs.flat()
    for number, episode in enumerate(graph.complete()):
        episode.reward_info["f1"] = value if number == 0 else 0.5
    assert scores_of(graph, "f1") == [0.5] * (len(list(graph.complete())) - 1)
    assert Group(scores_of(graph, "f1") * 2, 1, 1).dropped_by(RefillOptions(limit=2.0, std_above=0.0)) == "std_above"

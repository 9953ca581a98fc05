"""One success: `eval`, the line of a step and a validation say the same of a policy that ends in nonsense."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.light import sent
from verl_hier.compat.validation_success import JUDGED, SOLVED, SUCCESS, ValidationMixin, accuracy
from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import RolloutGraph
from verl_hier.host.manager import PluginHost
from verl_hier.ops.evaluation import measure
from verl_hier.rollout import Limits, Rollout, Sampling
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import Request
from verl_hier.testing.rollout import InlinePool, ScriptedPolicy, SideBySide, WordTokenizer, _setup
from verl_hier.training.metrics import rollout_metrics

trainer_base = pytest.importorskip("verl.trainer.ppo.v1.trainer_base")


@dataclass(frozen=True)
class Habits:
    """How a world speaks of the outcome.

    Attributes:
        says: whether it ever says `won`.
        of_nonsense: whether it also says it where it refuses the action.
        at_reset: whether it also says it at the reset.
        declares: whether its spec declares what it does.
    """

    says: bool
    of_nonsense: bool
    at_reset: bool
    declares: bool


def world_of(habits: Habits, heard: list[list[Any]]) -> type[Environment]:
    """A world that notes down what it says of each episode."""

    class World(Environment):
        def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
            self._chance, self._words = random.Random(seed), []
            heard.append(self._words)
            return self._answer(True, habits.at_reset)

        def step(self, action: str) -> StepResult:
            valid = action != "nonsense"
            return self._answer(valid, valid or habits.of_nonsense)

        def _answer(self, valid: bool, speaks: bool) -> StepResult:
            word = self._chance.random() < 0.5
            done = valid and bool(self._words) and self._chance.random() < 0.3
            self._words.append(word if speaks and habits.says else None)
            return StepResult("x", done=done, valid=valid, info={"won": word} if speaks and habits.says else {})

    return World


def rolled_out(habits: Habits, tasks: int, n: int, nonsense: float, seed: int) -> tuple[list[RolloutGraph], list[Any]]:
    """The graphs of some tasks, and the last word of the world in each episode."""
    heard: list[list[Any]] = []
    world = world_of(habits, heard)

    def answer(prompt: str, sampling: Sampling) -> str:
        return "nonsense" if random.Random(sampling.seed).random() < nonsense else "go"

    worker = PluginHost.load({"builtin": True}).spec("worker", "react")
    graphs = []
    for number in range(tasks):
        policy = ScriptedPolicy(WordTokenizer(), answer)
        setup = _setup(policy, policy.tokenizer, world, seed, Limits(max_turns=4), None, None, InlinePool(world))
        setup = replace(setup, says_won=habits.says if habits.declares else None)
        request = Request(task={"instruction": "go"}, identity={"uid": f"u{number}", "index": number}, n=n)
        rollout = Rollout(request, setup, lambda: worker.factory(worker.options()), None)
        graphs.append(asyncio.run(roll_out(rollout, SideBySide())))
    # A world that was only reset has played no episode.
    played = [words for words in heard if len(words) > 1]
    last = [next((word for word in reversed(words) if word is not None), None) for words in played]
    return graphs, last


class Validation(ValidationMixin, trainer_base.PPOTrainer):  # type: ignore[misc, name-defined]
    """verl's trainer where it makes figures of a validation, with our seam."""

    on_sample_end = on_step_end = None

    def __init__(self) -> None:
        spec = type("Spec", (), {"tasks": staticmethod(lambda options: [])})
        self.parts = type("Parts", (), {"environment": type("Part", (), {"spec": spec})})


def validated(graphs: Sequence[RolloutGraph]) -> dict[str, float]:
    """What verl's trainer logs of a validation that played these episodes."""
    told: dict[str, list[Any]] = {"reward": []}
    uids = []
    for graph in graphs:
        for record in graph.complete():
            uids.append(graph.task["uid"])
            said = {"reward": record.ret, **accuracy(graph, record, validate=True)}
            for name in {*told, *said}:
                told.setdefault(name, [None] * (len(uids) - 1)).append(said.get(name))
    found: dict[str, float] = Validation()._val_metrics_update(["world"] * len(uids), uids, told, [])
    return found


HABITS = st.builds(Habits, *[st.booleans()] * 4)


@settings(max_examples=60, deadline=None)
@given(HABITS, st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.0, 0.3, 0.8, 1.0]), st.integers(0, 10**6))
def test_evaluation_step_line_and_validation_agree_to_the_last_digit(
    habits: Habits, tasks: int, n: int, nonsense: float, seed: int
) -> None:
    graphs, last = rolled_out(habits, tasks, n, nonsense, seed)
    # A world that does not declare it is known to say it from what was heard alone.
    ever = habits.says if habits.declares else any(word is not None for word in last)
    wanted = [bool(word) for word in last] if ever else []
    solved, judged = sum(wanted), len(wanted)
    evaluated = measure(graphs, lambda node: float(len(node.action)))
    step = rollout_metrics(sent(graphs)[0])
    validation = validated(graphs)
    assert (evaluated["solved"], evaluated["judged"]) == (solved, judged)
    if not judged:
        assert evaluated["success"] is None and SUCCESS not in validation and "hier/episodes/success" not in step
        return
    assert evaluated["success"].mean == step["hier/episodes/success"] == validation[SUCCESS] == solved / judged
    assert (validation[SOLVED], validation[JUDGED]) == (solved, judged)
    assert validation[f"val-core/world/acc/mean@{n}"] == pytest.approx(solved / judged, abs=1e-12)

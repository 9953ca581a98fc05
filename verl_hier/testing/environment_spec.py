"""Whether an environment's tasks and first answers are what its spec says; a part of `check_environment`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_hier.environments.base import StepResult
from verl_hier.environments.blocking import build
from verl_hier.environments.splits import SPLITS
from verl_hier.host.specs import EnvironmentSpec


def tasks_to_play(spec: EnvironmentSpec, options: Any, split: str, count: int) -> list[Mapping[str, Any]]:
    """The first tasks of a split, the same at every call, JSON-able and with an instruction."""
    assert spec.tasks is not None, f"the spec {spec.name!r} has no `tasks` function"
    found = spec.tasks(options, split)
    assert found, f"{spec.name}: `tasks` gives no task for the split {split!r}"
    assert found == spec.tasks(options, split), f"{spec.name}: `tasks` gives other tasks when it is called again"
    for task in found[:count]:
        assert task == json.loads(json.dumps(task)), f"{spec.name}: the task {task} is not JSON-able"
        assert "instruction" in task, f"{spec.name}: a task needs an `instruction`, which tells the policy what to do"
    return list(found[:count])


def check_splits(spec: EnvironmentSpec, options: Any) -> None:
    """No task is in two of the splits `train`, `val` and, where there is one, `test`; an `id` makes no difference."""
    assert spec.tasks is not None
    found: dict[str, str] = {}
    for split in SPLITS:
        try:
            tasks = spec.tasks(options, split)
        except Exception as error:
            text = f"{spec.name}: `tasks` raises {type(error).__name__} for the split {split!r}: {error}"
            assert split == "test", text
            continue
        for task in tasks:
            content = json.dumps({key: value for key, value in task.items() if key != "id"}, sort_keys=True)
            other = found.setdefault(content, split)
            assert other == split, (
                f"{spec.name}: the task {task} is in the split {other!r} and in {split!r}, so that training sees what "
                "is measured; `verl_hier.environments.splits.split_of` divides tasks by their content"
            )


def check_declared(spec: EnvironmentSpec, options: Any, split: str, seed: int) -> None:
    """What the spec declares of its splits, its pool and its resets is true; the check of a recipe relies on it."""
    assert spec.tasks is not None
    tasks = spec.tasks(options, split)
    if spec.splits is not None:
        assert split in spec.splits, f"{spec.name}: its spec does not list the split {split!r}, which has tasks"
    if spec.pool is not None:
        most = spec.pool(options, split)
        assert len(tasks) <= most, (
            f"{spec.name}: {len(tasks)} tasks in {split!r}, and the `pool` of its spec says {most}"
        )
    if spec.info is None and spec.names_states is None:
        return
    world = build(spec, options)
    try:
        answer = world.reset(tasks[0], seed)
    finally:
        world.close()
    if spec.info is not None:
        lost = sorted(set(spec.info) - set(answer.info))
        assert not lost, (
            f"{spec.name}: its spec lists {lost[0]!r} in `info`, and the answer to a reset has no such name"
        )
    if spec.names_states is not None:
        named = answer.anchor is not None
        assert named == spec.names_states, (
            f"{spec.name}: its spec says names_states={spec.names_states}, and the answer to a reset has "
            f"{'an' if named else 'no'} anchor"
        )


@dataclass
class WonInAnswers:
    """Which answers of a world say `won`, the success of an episode; a part of `check_environment`.

    Attributes:
        spec: of the world.
        said, silent: an answer with and one without `won`, as the kit names it; empty without one.
    """

    spec: EnvironmentSpec
    said: str = field(default="", init=False)
    silent: str = field(default="", init=False)

    def hear(self, what: str, step: StepResult) -> None:
        """Note an answer; `what` it answers: `the reset`, `the action 'up'`."""
        won = step.info.get("won")
        answer = f"the answer to {what}{'' if step.valid else ', which has valid=False,'}"
        assert won is None or isinstance(won, bool), (
            f"{self.spec.name}: {answer} has {won!r:.60} as `won` in its `info`; it is true or false"
        )
        if won is None:
            self.silent = self.silent or answer
        else:
            self.said = self.said or answer

    def check(self) -> None:
        """What the spec declares with `says_won` is true, and a world that declares nothing always says it or never."""
        name, declared = self.spec.name, self.spec.says_won
        assert declared is not False or not self.said, (
            f"{name}: its spec says says_won=False, and {self.said} has `won` in its `info`, which is the success of "
            "an episode; declare says_won=True"
        )
        assert declared is not True or self.said, (
            f"{name}: its spec says says_won=True, and no answer has `won` in its `info`, so that every episode would "
            "count as not solved; say it in every answer, the reset included, or declare says_won=False"
        )
        assert declared is not None or not self.said or not self.silent, (
            f"{name}: {self.said} has `won` in its `info`, and {self.silent} has none. The last `won` of an episode is "
            "its success: say it in every answer, those with valid=False included, and declare says_won=True in the "
            "spec"
        )

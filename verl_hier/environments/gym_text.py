"""Worlds with gymnasium's `reset` and `step` as text environments: a view says what is read and what an answer does.

    class InWords(TextView):
        def text(self, world, observation, info):
            return f"you are at door {observation}"

        def actions(self, world):
            return {"left": 0, "right": 1}

    environment = GymText(lambda task: Corridor(), InWords(), GymOptions())

gymnasium itself is not needed: a world is any object with these two methods, and with `close` where there is something
to close.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.base import Environment, StepResult, with_admissible
from verl_hier.environments.reward_values import reward_of, truth_of
from verl_hier.environments.splits import draw_tasks, hash_number
from verl_hier.environments.thoughts import without_thoughts
from verl_hier.errors import RecipeError
from verl_hier.host.constraints import Count, NonNegative

NOT_POSSIBLE = "not possible"
OVER = "it is over"


@dataclass(frozen=True)
class GymOptions:
    """What every world of this kind has; the options of a plugin inherit it."""

    pool: Count = 200
    """Tasks in the training split."""
    validation: Count = 50
    """Tasks in each held-out split."""
    seed: int = 0
    """Seed of the task pools. Splits are disjoint for every seed."""
    max_steps: Count = 50
    """Actions after which an episode is truncated."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of an answer that is no possible action."""
    show_admissible: bool = False
    """Append the possible actions to each observation."""


class TextView:
    """How a world is told. It has no state: what an episode has to remember is in the world, which a fork copies."""

    refusal = NOT_POSSIBLE
    """What an answer is told that is no possible action."""

    def text(self, world: Any, observation: Any, info: Mapping[str, Any]) -> str:
        """What the policy reads of an observation."""
        return str(observation)

    def actions(self, world: Any) -> Mapping[str, Any]:
        """The actions that are possible now, by what is said for them; empty where they cannot be listed."""
        return {}

    def action(self, world: Any, said: str) -> Any | None:
        """The action that is meant, None when there is none or it is not possible now.

        Args:
            world: in the state before the action.
            said: what the policy said, with single spaces.
        """
        known = self.actions(world)
        if said in known:
            return known[said]
        alike = [name for name in known if name.casefold() == said.casefold()]
        return known[alike[0]] if len(alike) == 1 else None

    def understood(self, world: Any, observation: Any) -> bool:
        """Whether the world understood an action that it was given; its answer otherwise says that it did not."""
        return True

    def anchor(self, world: Any) -> str | None:
        """What the next answers depend on, as a text; None where the state cannot be told."""
        return None

    def instruction(self, world: Any) -> str:
        """What a task asks for, after its reset."""
        return "reach the goal"

    def won(self, world: Any, reward: float, ended: bool) -> bool:
        """Whether the task is solved, after a step with this reward; `ended` by the world's own rules."""
        return ended and reward > 0

    def reward(self, world: Any, reward: float, won: bool) -> float:
        """The reward of a step; `reward` is the world's."""
        return reward

    def score(self, world: Any, won: bool) -> float:
        """How much is reached, from 0 to 1."""
        return float(won)

    def facts(self, world: Any) -> Mapping[str, Any]:
        """What prompts may use besides instruction and observation, JSON-able, after a reset."""
        return {}


class GymText(Environment):
    """One episode of a world of gymnasium's form.

    The task's `seed` begins a world and determines its chance, so that all episodes of a task meet the same events.

    Attributes:
        world: made by the reset.
        path: what was done since the reset, as it was said.
    """

    world: Any = None

    def __init__(
        self, make: Callable[[Mapping[str, Any]], Any], view: TextView, options: GymOptions, copies: bool = True
    ) -> None:
        """
        Args:
            make: makes the world of a task.
            view: how it is told.
            options: the limits of an episode.
            copies: whether `copy.deepcopy` of a world is an independent one in the same state. A fork is a replay
                otherwise.
        """
        self.path: tuple[str, ...] = ()
        self.view = view
        self._make, self._options, self._copies = make, options, copies

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`; `seed` changes nothing, because the task has one."""
        self.close()
        self.world = self._make(task)
        observation, info = _parts(self.world.reset(seed=task["seed"]), 2, "reset")
        self.path, self._steps, self._over, self._won = (), 0, False, False
        return self._answer(self.view.text(self.world, observation, info), facts=self.view.facts(self.world))

    def step(self, action: str) -> StepResult:
        """See `Environment.step`; what is refused does not reach the world."""
        said = " ".join(without_thoughts(action).split())
        self._steps += 1
        if self._over:
            return self._answer(OVER, -self._options.invalid_penalty, valid=False)
        chosen = self.view.action(self.world, said)
        if chosen is None:
            return self._answer(self.view.refusal, -self._options.invalid_penalty, valid=False)
        observation, reward, ended, cut, info = _parts(self.world.step(chosen), 5, "step")
        if not self.view.understood(self.world, observation):
            text = self.view.text(self.world, observation, info)
            return self._answer(text, -self._options.invalid_penalty, valid=False)
        self.path = (*self.path, said)
        reward = reward_of("the reward of the world's step", reward)
        self._over, cut = truth_of("`terminated` of the world's step", ended), truth_of("`truncated` of it", cut)
        self._won = self._is_won(reward, self._over, info)
        earned = self.view.reward(self.world, reward, self._won)
        return self._answer(self.view.text(self.world, observation, info), earned, cut)

    def fork(self) -> Environment | None:
        """A copy with a world of its own; None where only a replay makes one."""
        if not self._copies:
            return None
        twin = copy.copy(self)
        twin.world = copy.deepcopy(self.world)
        return twin

    def close(self) -> None:
        """Close the world, where it has something to close."""
        if self.world is not None and hasattr(self.world, "close"):
            self.world.close()
        self.world = None

    def _is_won(self, reward: float, ended: bool, info: Mapping[str, Any]) -> bool:
        """The word of a view that knows the world, else the world's own `is_success`, else the rule of all views."""
        if "is_success" in info and type(self.view).won is TextView.won:
            return bool(info["is_success"])
        return self.view.won(self.world, reward, ended)

    @property
    def admissible(self) -> tuple[str, ...]:
        """The actions that are possible now."""
        return () if self._over else tuple(self.view.actions(self.world))

    def _answer(
        self,
        text: str,
        reward: float = 0.0,
        cut: bool = False,
        valid: bool = True,
        facts: Mapping[str, Any] | None = None,
    ) -> StepResult:
        commands, state = self.admissible, self.view.anchor(self.world)
        return StepResult(
            text=with_admissible(text, commands) if self._options.show_admissible and commands else text,
            reward=reward,
            done=self._over,
            truncated=not self._over and (cut or self._steps >= self._options.max_steps),
            valid=valid,
            admissible=commands,
            anchor=None if state is None else hashlib.blake2b(state.encode(), digest_size=12).hexdigest(),
            info={**(facts or {}), "won": self._won, "score": self.view.score(self.world, self._won)},
        )


def _parts(answer: Any, count: int, method: str) -> Sequence[Any]:
    """What a world's method returned, which has as many parts as gymnasium's.

    Raises:
        RecipeError: when it is the older interface of gym, or anything else.
    """
    if isinstance(answer, tuple) and len(answer) == count:
        return answer
    raise RecipeError(
        f"hier.environment.world: `{method}` of this world does not return the {count} values of gymnasium's "
        "interface; a world of gym's older one has to be wrapped, for instance by gymnasium.wrappers or shimmy."
    )


def seeded_tasks(
    environment: GymText, options: GymOptions, split: str, name: str, choices: Sequence[Mapping[str, Any]] = ({},)
) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, data_source, seed, id}` and a choice, each begun once to see its state.

    No two tasks begin in the same state where the view tells states; otherwise no two have the same seed.

    Args:
        environment: is reset for each task, and closed at the end.
        options: how many tasks, and the seed that they are drawn with.
        split: one of `environments.splits.SPLITS`.
        name: the environment's name, which is the tasks' `data_source`.
        choices: what else the tasks have, such as a level; each has an equal share.

    Raises:
        RecipeError: for an unknown split, or when there are too few different tasks.
    """

    def make(draw: int, number: int) -> tuple[str, dict[str, Any]]:
        choice = choices[number % len(choices)]
        task = {"data_source": name, **choice, "seed": hash_number(f"{name}-{options.seed}-{draw}", 4)}
        state = environment.reset(task, 0).anchor
        instruction = environment.view.instruction(environment.world)
        return str(state or task["seed"]), {"instruction": instruction, **task}

    wanted = options.pool if split == "train" else options.validation
    try:
        return draw_tasks(make, split, wanted, name)
    finally:
        environment.close()

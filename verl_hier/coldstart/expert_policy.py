"""A policy that acts as the environment's scripted expert, with the mistakes that demonstrations should contain."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hier.coldstart.episodes import LocalEnvironment
from verl_hier.environments.base import Environment
from verl_hier.environments.expert import Expert, OffersExpert
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.host.part import Part
from verl_hier.rollout import Generation, Sampling, Scored

SUB_DONE = "<sub_done>"


@dataclass(frozen=True)
class Noise:
    """How far demonstrations are from the expert, so that reinforcement learning has something to improve.

    Attributes:
        random_action: chance that an action is a random one: one that is admissible now, one that was at some
            earlier point of the episode, or a beginner's mistake (`Expert.mistake`), a third each.
        random_weight: loss weight of such an action; with 0 the policy learns to go on after it, not to do it.
        skip_stage: chance that a goal is done without a stage that it needs.
        observation_weight: loss weight of tokens that the policy does not generate; it helps a model that is trained
            from scratch to learn the language.
    """

    random_action: float = 0.12
    random_weight: float = 0.0
    skip_stage: float = 0.35
    observation_weight: float = 0.1


def expert_of(environment: Environment, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
    """The expert for the episode that an environment is in; see `OffersExpert.expert`.

    Raises:
        RecipeError: when the environment offers none.
    """
    if not isinstance(environment, OffersExpert):
        raise RecipeError(
            f"hier.environment.name: {type(environment).__name__} offers no expert, so there can be no demonstrations; "
            "give it a method `expert(rng, skip_stage, remember)` as `verl_hier.environments.expert` describes."
        )
    return environment.expert(rng, skip_stage, remember)


def can_play(worker: Part) -> bool:
    """Whether the expert can play a worker: one with a single role, with a planner above an executor, or whose options
    say that the expert speaks for every role."""
    roles, levels = _roles(worker)
    return _speaks_for_all(worker) or (levels in ([0], [0, 1]) and len(roles) == len(levels))


def is_hierarchical(worker: Part) -> bool:
    """Whether the expert has to play a planner above an executor.

    Raises:
        RecipeError: for a worker whose roles the expert cannot play.
    """
    roles, levels = _roles(worker)
    if not can_play(worker):
        raise RecipeError(
            f"hier.worker.name: the environment's expert cannot play {worker.spec.name!r} with {', '.join(roles)}: it "
            "plays one role, or a planner (level 0) above an executor (level 1). Workers with other roles learn from "
            "distilled episodes; give the spec of this one a function `transcribe`."
        )
    return len(levels) > 1 and not _speaks_for_all(worker)


def _speaks_for_all(worker: Part) -> bool:
    """Whether the environment itself knows who is asked, so that its expert answers as that one."""
    return bool(getattr(worker.options, "expert_speaks_for_all", False))


def _roles(worker: Part) -> tuple[dict[str, int], list[int]]:
    """The roles that take turns with their levels, and the levels in order."""
    roles: dict[str, int] = worker.spec.levels(worker.options)
    return roles, sorted(set(roles.values()))


class ExpertPolicy:
    """Answers like the expert: a planner's whole plan first, if there is one, then command by command.

    A planner that is asked again has failed: it makes a new plan from the environment's present state, without skipped
    stages.
    """

    def __init__(
        self,
        environment: LocalEnvironment,
        encode: Callable[[str], list[int]],
        noise: Noise,
        rng: random.Random,
        hierarchical: bool,
        options: Any = None,
        remember: bool | None = None,
    ) -> None:
        """
        Args:
            environment: what the expert looks at.
            encode: tokens of a turn with its end token.
            noise: how far the policy is from the expert.
            rng: source of the noise.
            hierarchical: whether the first turn is a planner's.
            options: options of the worker. Where they have them, `separator` joins the subgoals of a plan, `action_tag`
                encloses an action, `write_plan(subgoals)` writes the whole plan, `hands_out_subgoals` is False where
                one context of the executor is for the whole task, `verdicts` are what the second level says of a right
                and of a wrong answer of the first one, and `expert_speaks_for_all` is True where the environment knows
                who is asked.
            remember: see `OffersExpert`; omitted: True unless contexts start anew at each subgoal.
        """
        self._environment = environment
        self._encode = encode
        self._noise = noise
        self._rng = rng
        self._hierarchical = hierarchical
        self._verdicts: tuple[str, str] | None = getattr(options, "verdicts", None)
        self._one_by_one = hierarchical and bool(getattr(options, "hands_out_subgoals", True))
        self._remember = not self._one_by_one if remember is None else remember
        joint = str(getattr(options, "separator", ";")).strip()
        separator = f" {joint} " if joint else "\n"
        self._write_plan: Callable[[Sequence[str]], str] = getattr(options, "write_plan", separator.join)
        self._action_tag: str | None = getattr(options, "action_tag", None)
        self._expert: Expert | None = None
        self._subgoal = -1 if hierarchical else 0
        self._context: list[int] = []
        self._planning: list[int] = []
        self._known: list[str] = []
        self.skipped = self._wrong = False
        self.random: list[bool] = []
        """For each turn, whether its action was random."""

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`. No tokens mean that the expert has nothing left to do."""
        self.random.append(False)
        plans = self._hierarchical and prompt[: len(self._planning)] == self._planning
        if self._verdicts is not None:
            text = self._answer() if plans else self._verdicts[self._wrong]
        else:
            text = self._plan() if plans else self._follow(prompt)
        if text is None:
            return Generation([], [], "completed")
        tokens = self._encode(text)
        self._context = prompt + tokens
        if plans:
            self._planning = self._context
        return Generation(tokens, [0.0] * len(tokens), "completed")

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`."""
        raise RolloutError("hier.sampler.name: an expert has no log-probs; use `independent`.")

    def _plan(self) -> str:
        """A plan for the present state of the environment."""
        expert, self._subgoal = self._start(), -1
        return self._write_plan(expert.subgoals)

    def _answer(self) -> str | None:
        """The answer of a first level whose work is looked at by a second one; a further one is right."""
        skipped = self.skipped
        self._subgoal, expert = 0, self._start()
        text = self._act(expert)
        self._wrong = self.random[-1] or self.skipped != skipped
        return text

    def _follow(self, prompt: list[int]) -> str | None:
        """The next action; a context that does not extend the last one belongs to the next subgoal."""
        expert = self._expert or self._start()
        if self._hierarchical and prompt[: len(self._context)] != self._context:
            self._subgoal += 1
        return self._act(expert)

    def _start(self) -> Expert:
        """The expert for the rest of the episode; only the first one of an episode skips stages."""
        environment, first = self._environment.environment, self._expert is None
        full = expert_of(environment, random.Random(0), 0.0, self._remember)
        self._expert = expert_of(environment, self._rng, self._noise.skip_stage, self._remember) if first else full
        self.skipped = self.skipped or self._expert.subgoals != full.subgoals
        return self._expert

    def _act(self, expert: Expert) -> str | None:
        while self._subgoal < len(expert.subgoals):
            action = expert.advise(max(self._subgoal, 0))
            if action is not None:
                action = self._maybe_random(expert, action)
                return f"<{self._action_tag}>{action}</{self._action_tag}>" if self._action_tag else action
            if self._one_by_one:
                return SUB_DONE
            self._subgoal += 1
        return None

    def _maybe_random(self, expert: Expert, action: str) -> str:
        possible = self._environment.last.admissible if self._environment.last is not None else ()
        self._known = list(dict.fromkeys((*self._known, *possible)))
        if self._rng.random() >= self._noise.random_action:
            return action
        kind = self._rng.randrange(3)
        if kind == 0:
            wrong = expert.mistake(max(self._subgoal, 0), self._rng)
        else:
            choices = possible if kind == 1 else self._known
            wrong = self._rng.choice(choices) if choices else None
        self.random[-1] = wrong is not None and wrong != action
        return wrong or action

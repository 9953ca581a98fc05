"""The `hier:` block of a recipe: which plugins, which five parts, and the few settings that belong to none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from omegaconf import OmegaConf

from verl_hier.credit import WeightBy
from verl_hier.errors import RecipeError
from verl_hier.graph.rows import SharedPrefix
from verl_hier.host.specs import KINDS, Kind, build_dataclass
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions


@dataclass(frozen=True)
class RolloutOptions:
    """How episodes are driven.

    Attributes:
        template: `chat` renders contexts with the model's chat template, `plain` joins token pieces as they are
            (for small models trained from scratch).
        max_turns: turns an episode may take before it is truncated.
        max_tokens_per_turn: generated tokens a turn may take.
        context_tokens: longest context of one agent; an episode that outgrows it is truncated. None: what verl's
            `data.max_prompt_length + data.max_response_length` allow.
        environment_processes: processes that host environments, for each rollout worker.
        time_limit_s: wall seconds one environment call may take before its process is killed.
        max_failed_share: the run stops when more than this share of a step's episodes is lost to faults.
        concurrent_tasks: tasks in flight at once in one rollout worker.
        carried_episodes: unfinished episodes that one rollout worker keeps for the next time of their task, where a
            sampler leaves any; of more, the oldest are dropped.
        budget: what one task may cost in a training step; evaluation has no limits.
        entropy: where samplers that branch by entropy take it from.
    """

    template: Literal["chat", "plain"] = "chat"
    max_turns: int = 30
    max_tokens_per_turn: int = 512
    context_tokens: int | None = None
    environment_processes: int = 2
    time_limit_s: float = 30.0
    max_failed_share: float = 0.5
    concurrent_tasks: int = 64
    carried_episodes: int = 1024
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    entropy: EntropyOptions = field(default_factory=EntropyOptions)

    def __post_init__(self) -> None:
        whole = ("max_turns", "max_tokens_per_turn", "environment_processes", "concurrent_tasks", "carried_episodes")
        for name in whole:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.time_limit_s <= 0 or not 0 <= self.max_failed_share <= 1:
            raise ValueError("time_limit_s must be positive and max_failed_share within [0, 1]")


@dataclass(frozen=True)
class GuardOptions:
    """Correctness guards; see docs/guards.md.

    Attributes:
        weight_by: whose say is equal in the policy loss; `token` leaves verl's `loss_agg_mode` as it is.
        shared_prefix: how a turn that several episodes share is trained: `once` in one row; `first_owner` in one row
            with the number of its episodes as weight; `repeat` in each episode's row with that episode's credit;
            `average` in each row with the mean credit.
        max_singleton_share: alarm when more groups than this have one member although the estimator needs groups.
        max_zero_variance_share: alarm when more groups than this have equal scores throughout.
        on_alarm: `warn` logs a sentence, `raise` stops the run with it.
        max_logprob_difference: alarm when the mean |log p(rollout) - log p(training)| of a role exceeds it.
    """

    weight_by: WeightBy = "episode"
    shared_prefix: SharedPrefix = "once"
    max_singleton_share: float = 0.5
    max_zero_variance_share: float = 1.0
    on_alarm: Literal["warn", "raise"] = "warn"
    max_logprob_difference: float = 0.5


@dataclass(frozen=True)
class CurriculumOptions:
    """Longer tasks later; see docs/schedules.md.

    Attributes:
        horizons: longest task of each stage, as the environment counts it (the `horizon` of its tasks); empty trains
            on all tasks from the start.
        steps: steps of each stage but the last, which has no end.
    """

    horizons: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        stages = max(len(self.horizons), 1)
        if len(self.steps) != stages - 1 or min(self.steps, default=1) < 1:
            raise ValueError(f"{stages} stages need {stages - 1} numbers of steps, each at least 1; got {self.steps}")


@dataclass(frozen=True)
class StoreOptions:
    """Where rollout graphs go.

    Attributes:
        path: directory for one Parquet file a step; null stores nothing.
        every: store each so many steps.
    """

    path: str | None = None
    every: int = 1


@dataclass(frozen=True)
class HierConfig:
    """The whole block.

    Attributes:
        plugins: plugin or distribution name to enabled; only what is listed and true is loaded.
        environment, worker, sampler, estimator, schedule: `{name: …, option: value}` of the five parts.
        seed: root of every named generator; null leaves request seeds to the rollout server.
        poll_interval_s: how often the trainer looks for finished tasks (verl's own default is 2 s).
    """

    environment: Mapping[str, Any]
    worker: Mapping[str, Any]
    sampler: Mapping[str, Any]
    estimator: Mapping[str, Any]
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"name": "joint"})
    plugins: Mapping[str, bool] = field(default_factory=lambda: {"builtin": True})
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    guards: GuardOptions = field(default_factory=GuardOptions)
    curriculum: CurriculumOptions = field(default_factory=CurriculumOptions)
    store: StoreOptions = field(default_factory=StoreOptions)
    seed: int | None = 0
    poll_interval_s: float = 0.05

    def block(self, kind: Kind) -> Mapping[str, Any]:
        """The recipe block of one part."""
        return getattr(self, kind)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> HierConfig:
        """Read `config["hier"]` of a composed verl config, an OmegaConf `DictConfig` or plain containers.

        Raises:
            RecipeError: when the block is missing, has an unknown key, or a part has no name.
        """
        block = config.get("hier")
        if OmegaConf.is_config(block):
            block = OmegaConf.to_container(block, resolve=True)
        if not isinstance(block, Mapping):
            raise RecipeError(
                "the recipe has no `hier:` block; put `hier/base` into its defaults list or use verl's own trainers."
            )
        parsed = build_dataclass(cls, block, "hier", "the hier block")
        for kind in KINDS:
            if not parsed.block(kind).get("name"):
                raise RecipeError(f"hier.{kind}.name is missing; name a {kind} (see `verl-hier plugins`).")
        return parsed

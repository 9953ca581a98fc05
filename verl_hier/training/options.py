"""Options of what the trainer does between rollout and update; `recipe.schema` makes them blocks of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from verl_hier.credit import WeightBy
from verl_hier.graph.rows import SharedPrefix
from verl_hier.host.constraints import AboveZeroToOne, AtLeastOne, Count, CountOrZero, NonNegative, Positive, ZeroToOne


@dataclass(frozen=True)
class GuardOptions:
    """Correctness guards; see docs/guards.md."""

    weight_by: WeightBy = "episode"
    """What has equal weight in the policy loss; `token` leaves verl's `loss_agg_mode` as it is."""
    shared_prefix: SharedPrefix = "once"
    """How a turn that several episodes share is trained: `once` in one row; `first_owner` in one row with the number of
    its episodes as weight; `repeat` in each episode's row with that episode's credit; `average` in each row with the
    mean credit."""
    max_singleton_share: ZeroToOne = 0.5
    """Alarm when more groups than this have one member although the estimator needs groups."""
    max_zero_variance_share: ZeroToOne = 1.0
    """Alarm when more groups than this have equal scores throughout."""
    max_same_answer_share: ZeroToOne = 0.5
    """Alarm when more of the rewarded tasks than this were rewarded for one and the same sequence of answers."""
    max_without_tool_share: ZeroToOne = 0.9
    """Alarm when more of the solved episodes than this were solved without a use of the environment's tool."""
    max_reward_jump: NonNegative = 1.5
    """Alarm when the mean return of a step exceeds that of the up to 8 steps before by more standard deviations."""
    on_alarm: Literal["warn", "raise"] = "warn"
    """`warn` logs a sentence, `raise` stops the run with it."""
    max_logprob_difference: NonNegative = 0.5
    """Alarm when the mean |log p(rollout) - log p(training)| of a role exceeds it."""


@dataclass(frozen=True)
class MiniBatchOptions:
    """What one optimiser step trains on: at most one of the three."""

    prompts: int | None = None
    """Tasks of one optimiser step, with all their rows."""
    rows: int | None = None
    """Rows of one optimiser step at most; the number of steps follows from how many rows the episodes made."""
    steps: int | None = None
    """Optimiser steps of a batch, whatever its number of rows."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"give one of prompts, rows and steps; got {' and '.join(given)}")
        for name, value in given.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def given(self) -> bool:
        """Whether one of the three is set."""
        return any(value is not None for value in vars(self).values())


@dataclass(frozen=True)
class UpdateOptions:
    """How a batch is divided among optimiser steps; see docs/guards.md."""

    mini_batch: MiniBatchOptions = field(default_factory=MiniBatchOptions)
    """Size of a mini-batch, for actor and critic; `{}` takes verl's `ppo_mini_batch_size` of either, in prompts."""
    epochs: Count | None = None
    """Times that each batch is trained; null takes verl's `ppo_epochs` of actor and critic."""
    max_kl: Positive | None = None
    """The actor's optimiser step is left out on a mini-batch that is further from the sampled policy than this on
    average (r - 1 - log r, with the policy ratio r); null leaves none out."""
    kl_per: Literal["token", "action"] = "token"
    """What has a ratio in `max_kl`: each token, or each action, a run of trained tokens whose ratios are multiplied."""
    keep_tasks_together: bool = False
    """Whether the rows of a task stay in one mini-batch; rows that are not trained fill the shorter ones."""
    remainder: Literal["train", "drop"] = "train"
    """The rows of a step by which their number is above a multiple of the data-parallel ranks: they are trained beside
    padding, or some rows are drawn that are left out, as EAPO does."""


@dataclass(frozen=True)
class RefillOptions:
    """Which finished tasks of a step are exchanged for further ones; see docs/refill.md."""

    limit: AtLeastOne
    """Tasks that a step may sample in all, as a multiple of `data.train_batch_size`; 1 drops tasks and samples no other
    ones."""
    score: str = "return"
    """What the trained episodes of a task are compared by: `return`, `success`, or the name of a number in their
    `reward_info`, such as a reward of `hier.rewards`."""
    std_above: NonNegative | None = 0.0
    """A task stays if the standard deviation of its scores is above this; 0 drops the tasks whose scores are all equal,
    null does not ask. A task with one score stays."""
    mean_within: tuple[float, float] | None = None
    """A task stays if the mean of its scores is from the first to the second number; null does not ask."""
    best_share: AboveZeroToOne = 1.0
    """Share of the tasks that pass that is trained, the best by `rank_by`: with 0.5 a step samples until twice as many
    pass as it trains."""
    rank_by: Literal["mean", "std"] = "mean"
    """What the best tasks have most of: the mean or the standard deviation of their scores."""
    at_limit: Literal["train", "raise"] = "train"
    """What happens when the limit leaves fewer tasks than a step trains: `train` takes those, `raise` stops the run."""

    def __post_init__(self) -> None:
        low_high = self.mean_within
        if low_high is not None and (len(low_high) != 2 or low_high[0] > low_high[1]):
            raise ValueError(
                f"mean_within must be two numbers, the second no smaller than the first, got {list(low_high)}"
            )
        if self.limit * self.best_share < 1 - 1e-9:
            raise ValueError(
                f"with best_share {self.best_share:g} limit must be {1 / self.best_share:g} or more, got {self.limit:g}"
            )


@dataclass(frozen=True)
class LaunchOrderOptions:
    """An asynchronous trainer takes tasks in the order in which they were launched; see docs/launch_order.md."""

    late_steps: CountOrZero = 0
    """Steps by which a task may come after its turn: no more than so many times `data.train_batch_size` tasks that were
    launched later are trained before it. With 0 a step trains exactly the tasks whose turn it is, and waits for
    them."""


@dataclass(frozen=True)
class ProcessRewardOptions:
    """A second model in the place of the critic (`critic.model`, `critic.optim`); see docs/process_reward.md."""

    beta: Positive = 0.05
    """Reward of a turn: this times the sum over its tokens of log p(second model) - log p(policy)."""


@dataclass(frozen=True)
class ReplayOptions:
    """A critic of whole turns that learns from earlier batches too (`critic.model`, `critic.optim`); see
    docs/replay.md."""

    transitions: Count = 100_000
    """Turns that are kept at most, in the memory of the trainer and in the folder `replay` beside the checkpoints; the
    oldest batches leave."""
    max_gib: Positive = 8.0
    """Size in GiB that they may have there."""
    updates: Count = 50
    """Optimiser steps of the critic a batch."""
    batch: Count = 256
    """Kept turns that each of them trains Q on, and turns of the newest batch that it trains V on."""
    gamma: ZeroToOne = 0.95
    """Discount from one turn to the next."""
    polyak: AboveZeroToOne = 0.1
    """How far the copy from which targets come moves towards the critic after each optimiser step."""
    baseline: bool = False
    """Whether a fifth head predicts the advantage in front of every token (`tokens.baseline`)."""


@dataclass(frozen=True)
class SelfImitationOptions:
    """Good episodes of earlier steps, on which the policy trains again; see docs/self_imitation.md."""

    rows: Count = 2048
    """Kept rows that the policy trains on at a time, at most; they are drawn at random."""
    fill: NonNegative = 1.5
    """How many good rows there must be before they train: more than this times `rows`. Then all leave."""
    limit: Count = 8192
    """Rows that are kept at most, in the memory of the trainer and in each checkpoint; the oldest leave."""
    max_age: Count = 5
    """Steps after which a row leaves; an older one never trains."""
    baselines: Count = 10_240
    """Groups whose mean returns have the median from which advantages are reckoned anew; whole steps leave."""
    credit: Literal["recalibrated", "kept"] = "recalibrated"
    """`recalibrated`: the return of the row's episode minus that median, for each of its tokens, where it is above 0;
    `kept`: the credit that its tokens had in their own step."""
    scale: Literal["none", "std"] = "none"
    """What a recalibrated advantage is divided by: nothing, or the median standard deviation of the returns of the
    groups."""
    weight: Positive = 1.0
    """What the loss of kept rows counts beside that of a step's own."""
    warmup: CountOrZero = 200
    """Steps over which `weight` rises from 0 as half a cosine."""

    def __post_init__(self) -> None:
        if self.limit <= self.fill * self.rows:
            raise ValueError(
                f"limit must be above fill * rows = {self.fill * self.rows:g}, or kept rows never train; "
                f"got {self.limit}"
            )
        if self.credit == "kept" and self.scale != "none":
            raise ValueError(
                f"scale is for recalibrated advantages; with credit: kept it must be none, got {self.scale!r}"
            )


@dataclass(frozen=True)
class CurriculumOptions:
    """Longer tasks later; see docs/schedules.md."""

    horizons: tuple[Count, ...] = ()
    """Longest task of each stage, as the environment counts it (the `horizon` of its tasks); empty trains on all tasks
    from the start."""
    steps: tuple[Count, ...] = ()
    """Steps of each stage but the last, which has no end."""

    def __post_init__(self) -> None:
        stages = max(len(self.horizons), 1)
        if len(self.steps) != stages - 1 or min(self.steps, default=1) < 1:
            raise ValueError(f"{stages} stages need {stages - 1} numbers of steps, each at least 1; got {self.steps}")


@dataclass(frozen=True)
class TeacherOptions:
    """A model that never learns, and whose probabilities draw the turns of some roles."""

    model: str
    """Folder or Hugging Face name of the teacher, whose tokens are those of `actor_rollout_ref.model.path`."""
    roles: tuple[str, ...] = ()
    """Roles of the worker that it teaches; empty for all of them. A role has one teacher."""
    weight: Positive = 1.0
    """What the difference of the log-probs of a sampled token counts in the token's advantage."""
    credit: NonNegative = 1.0
    """What the estimator's credit of such a token counts beside it; 0 imitates the teacher alone."""
    most: Positive = 10.0
    """Largest difference of log-probs that counts; a token that the teacher would never say has no end to it."""

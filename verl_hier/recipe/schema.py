"""The `hier:` block of a recipe: which plugins, which five parts, and the few settings that belong to none of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from omegaconf import OmegaConf

from verl_hier.environments.asynchronous import AsyncOptions
from verl_hier.environments.surroundings import ProcessOptions
from verl_hier.errors import RecipeError
from verl_hier.host.constraints import Count, Positive, ZeroToOne
from verl_hier.host.options import build_dataclass
from verl_hier.host.specs import KINDS, Kind
from verl_hier.recipe.policies import PolicyOptions
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.rollout.rewards import RewardOptions
from verl_hier.sandbox.provider import Promise
from verl_hier.sandbox.scripts import LOCAL
from verl_hier.training.options import (
    CurriculumOptions,
    GuardOptions,
    LaunchOrderOptions,
    ProcessRewardOptions,
    RefillOptions,
    ReplayOptions,
    SelfImitationOptions,
    TeacherOptions,
    UpdateOptions,
)

_REWARD_NAME = re.compile(r"(?!(?:acc|reward)$)[\w-]+")
"""Two names are taken: verl calls the return `reward`, and whether a task was solved `acc`."""


@dataclass(frozen=True)
class RolloutOptions:
    """How episodes are driven."""

    template: Literal["chat", "plain"] = "chat"
    """`chat` renders contexts with the model's chat template, `plain` joins token pieces as they are (for small models
    trained from scratch)."""
    max_turns: Count = 30
    """Turns an episode may take before it is truncated."""
    max_tokens_per_turn: Count = 512
    """Generated tokens a turn may take."""
    context_tokens: Count | None = None
    """Longest context of one agent; an episode that outgrows it is truncated. None: what verl's `data.max_prompt_length
    + data.max_response_length` allow."""
    quote_characters: Count = 32_000
    """Characters of what one agent wrote, such as a plan, that a worker puts into later prompts; it is cut there."""
    environment_processes: Count = 2
    """Processes that host environments, for each rollout worker."""
    time_limit_s: Positive = 30.0
    """Wall seconds one environment call may take; after them its process is killed, or, where the environment is
    asynchronous, the call cancelled."""
    asynchronous: AsyncOptions = field(default_factory=AsyncOptions)
    """How asynchronous environments are called."""
    process: ProcessOptions = field(default_factory=ProcessOptions)
    """What the processes of environments are given."""
    max_failed_share: ZeroToOne = 0.5
    """The run stops when more than this share of a step's episodes is lost to faults."""
    concurrent_tasks: Count = 64
    """Tasks in flight at once in one rollout worker."""
    carried_episodes: Count = 1024
    """Unfinished episodes that one rollout worker keeps for the next time of their task, where a sampler leaves any; of
    more, the oldest are dropped."""
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    """What one task may cost in a training step; evaluation has no limits."""
    entropy: EntropyOptions = field(default_factory=EntropyOptions)
    """Where samplers that branch by entropy take it from."""


@dataclass(frozen=True)
class SandboxOptions:
    """Where scripts run that a model wrote; see docs/environments.md."""

    provider: str = LOCAL
    """`local` or another entry point of the group `verl_hier.sandboxes`, or `package.module:function`, which returns a
    `verl_hier.sandbox.provider.SandboxProvider`."""
    require: tuple[Promise, ...] = ()
    """What the sandbox must protect on every machine of the run, of network, files, processes and memory; a run does
    not start where it protects less."""


@dataclass(frozen=True)
class Difference:
    """A setting of the authors that the recipe does not take over."""

    theirs: Any
    """What the authors have."""
    why: str
    """Why the recipe has something else."""
    where: str = ""
    """Where in the source the authors' value is."""
    ours: Any = None
    """What the recipe has instead, for a setting that is no recipe line; a line's value is read from the recipe."""


@dataclass(frozen=True)
class PaperOptions:
    """What a group of `hier/paper` notes about itself; see docs/papers.md. Nothing here changes a run."""

    name: str | None = None
    """The group; null when none is chosen."""
    source: str = ""
    """Where the authors' settings were read: a repository with the script, or the section of a paper."""
    differs: Mapping[str, Difference] = field(default_factory=dict)
    """Recipe lines, and settings that are no recipe line, in which the recipe differs from the authors."""


@dataclass(frozen=True)
class StoreOptions:
    """Where rollout graphs are stored."""

    path: str | None = None
    """Directory for a folder of Parquet files a step, or a URL such as `s3://bucket/folder`; null stores nothing."""
    every: Count = 1
    """Steps from one stored training step to the next."""
    validation: bool = True
    """Also store the rollouts of every validation, in the folder `validation` below `path`."""
    share: ZeroToOne = 1.0
    """Share of the tasks of a training step that are stored, each with all of its attempts; drawn by step and task, so
    that runs of one recipe keep the same ones."""
    max_gib: Positive | None = None
    """Size of the stored training steps in GiB above which the oldest are removed; null keeps all."""


@dataclass(frozen=True)
class ColdStartOptions:
    """How `verl-hier coldstart` makes the small model of a recipe; see docs/cold_starts.md."""

    name: str = "custom"
    """Folder of the model below `runs/coldstart`; recipes with the same name share the model."""
    episodes: Count = 480
    """Episodes of the environment's expert that are demonstrated."""
    variants: tuple[Mapping[str, Any], ...] = ()
    """Options of the environment for variants of its tasks, among which the episodes are divided, such as `[{goals: 1},
    {goals: 2}]`; empty: the recipe's own tasks."""
    workers: tuple[Mapping[str, Any], ...] = ()
    """Further options of the worker, among which and the recipe's own the episodes are divided too: what its agents are
    asked for in some phases of training only, such as `[{alone_when: always}]`."""
    random_action: ZeroToOne = 0.12
    """Share of the expert's actions that are random. A random action is not trained where the expert plays the worker
    itself; in a distilled episode it is trained unless the environment refused it."""
    skip_stage: ZeroToOne = 0.35
    """Share of goals that are shown without a stage that they need, so that reinforcement learning has something to
    improve; distilled episodes leave none out."""
    system: str = "planner_executor"
    """Worker that the expert plays where the recipe's own worker has `transcribe`: its episodes are distilled."""
    remember: bool = True
    """Whether the expert may use in distilled episodes what it saw under earlier subgoals; false suits workers whose
    contexts start anew."""
    steps: Count = 400
    """Optimiser steps of the supervised training."""
    batch_size: Count = 16
    """Demonstrated contexts in a step."""
    learning_rate: Positive = 3e-3
    """Highest learning rate, of a cosine with warm-up."""
    hidden: int = 96
    """Width of the model."""
    layers: Count = 2
    """Layers of the model."""
    head_dim: int | None = None
    """Width of an attention head; null: a fourth of `hidden`. vLLM on a CPU needs 32, 64, …"""

    def __post_init__(self) -> None:
        if self.hidden < 8 or self.hidden % 8:
            raise ValueError(f"hidden must be a multiple of 8, got {self.hidden}")
        if self.head_dim is not None and (self.head_dim < 2 or self.head_dim % 2):
            raise ValueError(f"head_dim must be even, got {self.head_dim}")
        if not self.name or "/" in self.name:
            raise ValueError(f"name must be the name of a folder, got {self.name!r}")


@dataclass(frozen=True)
class RecipeOptions:
    """What the recipe is called, what was chosen for it, and what it offers."""

    name: str = "custom"
    """Name of the recipe; the run's name (`trainer.experiment_name`) starts with it."""
    size: str = "custom"
    """The choice of `hier/size`, noted by the group `hier/variant`."""
    model: str = "custom"
    """The choice of `hier/model`, noted by that group."""
    server: str = "custom"
    """The choice of `hier/server`, noted by that group."""
    policies: str = "shared"
    """The choice of `hier/policies`, noted by that group."""
    only_sizes: tuple[str, ...] | None = None
    """Sizes that the recipe offers; null offers every size for which its environment and prompts have settings."""
    only_servers: tuple[str, ...] | None = None
    """Rollout servers that the recipe offers; null offers every one that its size can have."""


@dataclass(frozen=True)
class HierConfig:
    """The whole block."""

    environment: Mapping[str, Any]
    """The environment's name and options: `{name: …, option: value}`."""
    worker: Mapping[str, Any]
    """The worker's name and options."""
    sampler: Mapping[str, Any]
    """The sampler's name and options."""
    estimator: Mapping[str, Any]
    """The estimator's name and options."""
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"name": "joint"})
    """The schedule's name and options."""
    recipe: RecipeOptions = field(default_factory=RecipeOptions)
    """What the recipe is called and what was chosen for it."""
    plugins: Mapping[str, bool] = field(default_factory=lambda: {"builtin": True})
    """Plugin or distribution name to enabled; only what is listed and true is loaded."""
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    guards: GuardOptions = field(default_factory=GuardOptions)
    update: UpdateOptions = field(default_factory=UpdateOptions)
    refill: RefillOptions | None = None
    """Exchange of tasks without a signal; null trains every task that was sampled."""
    launch_order: LaunchOrderOptions | None = None
    """Whether an asynchronous trainer takes tasks in the order of their launch; null takes what is finished first."""
    curriculum: CurriculumOptions = field(default_factory=CurriculumOptions)
    store: StoreOptions = field(default_factory=StoreOptions)
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)
    value_heads: Mapping[str, Positive] = field(default_factory=dict)
    """Heads of the critic, and the weight of each in its loss; empty leaves verl's critic as it is, with one value in
    front of every token. See docs/critics.md."""
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the policy is asked about the rollouts of each step: the name of a probe with its options, `{}` for none.
    See docs/probes.md."""
    process_reward: ProcessRewardOptions | None = None
    """A second model that learns beside the policy and rewards its turns; null: none. See docs/process_reward.md."""
    replay: ReplayOptions | None = None
    """A critic of whole turns that also learns from earlier batches; null: none. See docs/replay.md."""
    self_imitation: SelfImitationOptions | None = None
    """Good episodes of earlier steps, on which the policy trains again; null: none. See docs/self_imitation.md."""
    teachers: Mapping[str, TeacherOptions] = field(default_factory=dict)
    """Models by name to whose probabilities the turns of roles are drawn, beside their credit. See docs/teachers.md."""
    policies: Mapping[str, PolicyOptions] = field(default_factory=dict)
    """Policies beside that of `actor_rollout_ref`, by name: each has roles of the worker to itself. Empty: all roles
    share one model. See docs/policies.md."""
    exchange_policies: Count | None = None
    """Steps after which the policies that learn exchange their roles in a circle, as in CORY; null: never."""
    rewards: Mapping[str, RewardOptions] = field(default_factory=dict)
    """Reward functions by name, which are added to the environment's own rewards; see docs/rewards.md."""
    coldstart: ColdStartOptions = field(default_factory=ColdStartOptions)
    paper: PaperOptions = field(default_factory=PaperOptions)
    """The authors' settings that the recipe takes over, where a group of `hier/paper` is chosen."""
    seed: int | None = 0
    """Root of every named generator; null leaves request seeds to the rollout server."""
    poll_interval_s: Positive = 0.05
    """How often the trainer looks for finished tasks (verl's own default is 2 s)."""

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
            if not isinstance(name := parsed.block(kind)["name"], str):
                raise RecipeError(f"hier.{kind}.name: expected a name of `verl-hier {kind}s`, got {name!r:.60}.")
        for name in parsed.rewards:
            if not _REWARD_NAME.fullmatch(name):
                raise RecipeError(f"hier.rewards: {name!r} is no name for a reward; use letters, digits, _ and -.")
        return parsed

"""What a plugin registers: one named spec a part, with the options dataclass that *is* the recipe's schema.

A recipe's `hier.<kind>` block is `{name: <spec name>, <option>: <value>, …}`, which `host.options` turns into the
options dataclass. Specs are plain data: registering one imports nothing heavy, and the `factory` is called only where
the part runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from verl_hier.host.lazy import LazyFunction, make_lazy
from verl_hier.host.lazy import lazy as lazy  # plugins import it from here, and so the specs of what trains and serves
from verl_hier.host.training_specs import EngineSpec as EngineSpec
from verl_hier.host.training_specs import LossAggregation as LossAggregation
from verl_hier.host.training_specs import LossWeights as LossWeights
from verl_hier.host.training_specs import PolicyLossSpec as PolicyLossSpec
from verl_hier.host.training_specs import RolloutServerSpec as RolloutServerSpec
from verl_hier.host.training_specs import TrainerExtensionSpec as TrainerExtensionSpec
from verl_hier.host.training_specs import ValueHeadSpec as ValueHeadSpec

Kind = Literal["environment", "worker", "sampler", "estimator", "schedule"]
"""The five parts of a method, each with a block of its own in a recipe."""
AnyKind = Literal[Kind, "policy_loss", "value_head", "probe", "rollout_server", "engine", "trainer_extension"]
"""Whatever a plugin registers."""
Granularity = Literal["turn", "step", "token"]
Fork = Literal["native", "recorded", "replay", "never"]
Confidence = Literal["A", "B", "C", "unrated"]


@dataclass(frozen=True)
class NoOptions:
    """The options of a part that has none."""


@dataclass(frozen=True)
class Spec:
    """What every kind of part says about itself.

    Attributes:
        name: how a recipe names the part; unique within its kind over all plugins.
        factory: builds the part from its options; runs where the part runs (see the kind). A text
            `package.module:function` stands for `lazy` of it.
        options: a frozen dataclass; its fields, types and defaults are the recipe's schema.
        summary: one line for `verl-hier plugins`.
        source: paper section and upstream function, or where else the definition comes from.
        doc: path of the documentation page below `docs/`; by default the one that the docstring of the module names.
        extra: the pip extra that brings what the factory imports, or empty.
        notes: `notes(options)`, sentences on what deserves a thought with these options; the check of a recipe prints
            them.
    """

    kind: ClassVar[Kind]
    name: str
    factory: Callable[..., Any]
    options: type = NoOptions
    summary: str = ""
    source: str = ""
    doc: str = ""
    extra: str = ""
    notes: Callable[[Any], Iterable[str]] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        make_lazy(self, "factory")
        for field_name in ("factory", "tasks", "baselines"):
            function = getattr(self, field_name, None)
            if isinstance(function, LazyFunction):
                # From here on a missing package is reported with the part and the extra that brings it. What lists
                # tasks runs on the driver, which may lack packages that only the environment's own process has.
                part = f"hier.{self.kind}.name: {self.name}"
                modules: tuple[str, ...] = getattr(self, "modules", ()) if field_name == "factory" else ()
                object.__setattr__(self, field_name, LazyFunction(function.reference, modules, part, self.extra))

    def fills(self, options: Any = None) -> tuple[str, ...]:
        """The turn-table columns of `provides` with these options, or with the defaults of a part that has some."""
        declared = getattr(self, "provides", ())
        if not callable(declared):
            return tuple(declared)
        try:
            return tuple(declared(self.options() if options is None else options))
        except TypeError:
            if options is not None:
                raise
            return ()  # an option has no default


@dataclass(frozen=True)
class EnvironmentSpec(Spec):
    """An environment. `factory(options)` returns an `environments.Environment`; it runs in an isolated process.

    Attributes:
        asynchronous: whether `factory` is an `environments.asynchronous.Service`, whose environments have coroutines
            for methods.
        tasks: `tasks(options, split) -> list[dict]`, JSON-able tasks of a split ("train" or "val"); runs on the
            driver. None: tasks come from verl's own data set and are scored by verl's reward function.
        fork: how an episode is copied and rebuilt. `native`: by `fork`, and where that returns None by a replay.
            `replay`: a fresh instance repeats the actions, and its answers are compared. `recorded`: the recorded
            answers are all that a copy needs, and nothing is asked again (asynchronous environments). `never`: not
            at all, so that samplers may not branch.
        normalise: takes out of a text (or an anchor) what differs between two sessions, such as numbers and times,
            before a replay compares it. None: compares it as it is.
        provides: turn-table columns that this environment fills besides the standard ones, or
            `provides(options)` where they depend on the options.
        modules: importable names that must be there; `extra` says which pip extra brings them.
        names_states: whether its answers have an `anchor`. None: the check of a recipe resets it once to see.
        info: names in the `info` of its resets, which prompts may use. None: the check resets it once to see.
        says_won: whether its answers ever have `won` in their `info`, which is the success of an episode. Declare True
            where a whole episode may pass without it, False where it never comes. None: seen from the episodes.
        splits: names of its splits. None: any name is passed to `tasks`.
        pool: `pool(options, split) -> int`, the most tasks that a split has, without making them. None: not known.
        neighbours: how many episodes may share a process, which runs one call at a time: few where an answer takes
            long, 1 where equal actions may have other answers, so that an episode cannot be rebuilt after a hang of
            another one. None: any number.
        scoring: options that change rewards or anchors alone, and neither the tasks nor what is seen of them: recipes
            that differ in nothing else share the small model of a cold start.
        baselines: `baselines() -> verl_hier.environments.baselines.Baselines`: what `verl-hier env NAME --baselines`
            measures one by one. None: it measures the tasks of a recipe.
        secrets: options that name environment variables with secrets: a name, names, or a mapping to names. Its process
            gets these variables and masks their values.
        outside: options that name something outside of the recipe, such as a program, a function, or the file of its
            tasks. Where one of them is given, the check of a recipe makes the tasks, which refuses what is not there.
        read_info: names in the `info` of its answers without which its observations say nothing; refuses workers that
            do not read them (`WorkerSpec.needs_info`).
        in_worker: it runs in the rollout worker, because it needs the tools that verl loads there: `factory(options,
            tools)` makes an `AsyncEnvironment`, with `environments.tools.Tools`. Its calls must not block.
    """

    kind: ClassVar[Kind] = "environment"
    tasks: Callable[[Any, str], list[dict[str, Any]]] | None = None
    fork: Fork = "never"
    normalise: Callable[[str], str] | None = None
    provides: tuple[str, ...] | Callable[[Any], Iterable[str]] = ()
    modules: tuple[str, ...] = ()
    names_states: bool | None = None
    info: tuple[str, ...] | None = None
    says_won: bool | None = None
    splits: tuple[str, ...] | None = None
    pool: Callable[[Any, str], float] | None = None
    neighbours: int | None = None
    scoring: tuple[str, ...] = ()
    baselines: Callable[[], Any] | None = None
    asynchronous: bool = False
    secrets: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    read_info: tuple[str, ...] = ()
    in_worker: bool = False


@dataclass(frozen=True)
class WorkerSpec(Spec):
    """Which role takes the next turn, and with what context. Runs in the rollout worker.

    `factory(options)` returns a `rollout.Worker`.

    Attributes:
        roles: role name to level (0 is the highest). A turn of any other role is refused while an episode runs.
        provides: turn-table columns and token masks that this worker fills besides the standard ones, or
            `provides(options)` where they depend on the options.
        active_roles: `active_roles(options)`, the roles that take turns with these options: names of `roles`, or a
            mapping of role to level where the options name further roles; None: all of `roles`. See `levels`.
        transcribe: `transcribe(options, transcript) -> list[str]`, what a policy would have to generate in this
            worker to do what another worker's episode (`rollout.transcript.Transcript`) did; a ValueError of one word
            when it cannot.
            `verl-hier distill` makes data for workers that have it.
        transcribed: `transcribed(options)`, whether `transcribe` is for a worker with these options; omitted: always.
            A cold start lets the expert play the others itself.
        fits: `fits(options, answer)`, which raises a `RecipeError` when the environment is none for this worker, by its
            answer to a reset (a `StepResult`); the check of a recipe asks it before a run.
        judges: `judges(options)`, the roles whose turns decide what others earn and which may not be trained on what
            they decide: only by an estimator with `own_rewards`.
        needs_stop_strings: its turns end at strings; refuses rollout servers that do not know the text of their tokens.
        stand_ins: whether its episodes heed `EpisodeView.stand_ins`, so that a sampler can leave roles out of them.
        needs_info: names in the `info` of a reset that it reads; refuses environments that do not show them.
        saved_roles: `saved_roles(options)`, the roles whose turns may be those of saved models
            (`rollout.policy.saved`); refuses rollout servers that cannot load one beside the policy.
        needs_scores: `needs_scores(options)`, whether it asks how likely texts are (`EpisodeView.likelihoods`); refuses
            rollout servers that return no log-probs of prompts.
    """

    kind: ClassVar[Kind] = "worker"
    roles: Mapping[str, int] = field(default_factory=dict)
    provides: tuple[str, ...] | Callable[[Any], Iterable[str]] = ()
    stand_ins: bool = False
    active_roles: Callable[[Any], Iterable[str] | Mapping[str, int]] | None = None
    transcribe: Callable[[Any, Any], list[str]] | None = None
    transcribed: Callable[[Any], bool] = lambda options: True
    fits: Callable[[Any, Any], None] | None = None
    judges: Callable[[Any], Iterable[str]] | None = None
    needs_stop_strings: bool = False
    needs_info: tuple[str, ...] = ()
    needs_scores: Callable[[Any], bool] | None = None
    saved_roles: Callable[[Any], Iterable[str]] | None = None

    def is_transcribed(self, options: Any) -> bool:
        """Whether episodes of other workers can be rewritten for this one."""
        return self.transcribe is not None and self.transcribed(options)

    def levels(self, options: Any) -> dict[str, int]:
        """The roles that take turns with these options, each with its level. No other role may take one."""
        active = self.roles if self.active_roles is None else self.active_roles(options)
        return dict(active) if isinstance(active, Mapping) else {role: self.roles[role] for role in active}


@dataclass(frozen=True)
class SamplerSpec(Spec):
    """Which episodes exist. `factory(options)` returns a `rollout.Sampler`; runs in the rollout worker.

    Attributes:
        episodes: `episodes(options, n) -> int`, leaves to train for one task when the recipe says `rollout.n = n`.
            Raises `RecipeError` when `n` does not fit the options.
        roots: `roots(options, n) -> int`, how many of these leaves begin at the task, where the others part from one of
            them anywhere on its way; omitted: all of them, or the others part soon after the prompt. `verl-hier check`
            estimates by it what the rows of a task share.
        needs_fork: refuses environments that cannot fork.
        needs_top_logprobs: refuses rollout servers that return only the chosen token's log-prob.
        needs_scores: refuses rollout servers that return no log-probs of prompts (`Rollout.score`, `Episode.force`);
            `needs_scores(options) -> bool` where it depends on the options.
        leaves_out: `leaves_out(options) -> Iterable[str]`, roles that the options name and that it leaves out of some
            episodes; refuses workers that do not have them, or do not heed `EpisodeView.stand_ins`. None: it leaves out
            no role.
        needs_logprobs: goes by the log-probs of sampled tokens, or by the entropies that follow from them; refuses
            endpoints that return none. A function of the options as `needs_scores`.
        needs_tokens: begins turns with given tokens, cuts them, or samples them in pieces; refuses endpoints that take
            and give messages alone. A function of the options as `needs_scores`.
        sees_outcomes: goes by the rewards or the success of episodes, which are not known where nobody grades them:
            what a search with it reaches is an upper bound. A function of the options as `needs_scores`.
        sized: `sized(options, n)`, the options with which it makes n leaves, for samplers whose options say how many
            they make; `verl-hier eval` asks it for an n that `episodes` refuses.
        provides: turn-table columns that this sampler fills besides the standard ones, or
            `provides(options)` where they depend on the options.
    """

    kind: ClassVar[Kind] = "sampler"
    episodes: Callable[[Any, int], int] | None = None
    roots: Callable[[Any, int], int] | None = None
    needs_fork: bool = False
    needs_top_logprobs: bool = False
    needs_scores: bool | Callable[[Any], bool] = False
    needs_logprobs: bool | Callable[[Any], bool] = False
    needs_tokens: bool | Callable[[Any], bool] = False
    sees_outcomes: bool | Callable[[Any], bool] = False
    sized: Callable[[Any, int], Any] | None = None
    leaves_out: Callable[[Any], Iterable[str]] | None = None
    provides: tuple[str, ...] | Callable[[Any], Iterable[str]] = ()

    def needs(self, name: str, options: Any) -> bool:
        """Whether it declares a need, such as `needs_scores`, with these options."""
        declared = getattr(self, name)
        return bool(declared(options) if callable(declared) else declared)


@dataclass(frozen=True)
class EstimatorSpec(Spec):
    """Who gets the credit: a pure function. `factory(table, options)` returns a `credit.Credit` or one array a turn.

    Attributes:
        requires: columns of the turn table (or `tokens.<name>`, `episodes.<name>`) that it reads.
        reads: columns that it reads where a table has them: those of value heads, and token columns. Of those that
            rollouts bring, `tokens.logprob` and `tokens.entropy`, a table has in training only what the estimator or
            the schedule names.
        levels: levels it credits; empty means all.
        granularity: whether it returns one number a turn, a step (turn on a path) or a token.
        needs_groups: warns and alarms when a task has fewer than two episodes.
        needs_critic: reads `values`; the recipe must configure verl's critic.
        needs_tree: only meaningful when turns have several children.
        confidence: A when the formula was read in released code, B in the paper, C when it is inferred.
        named_roles: `named_roles(options)`, the roles that its options name; the worker must have them.
        own_rewards: it credits a role by what that role's own turns have earned, and by nothing that others have.
        weighs: `weighs(options)`, the option by which it returns `Credit.weight`, such as `singleton: drop`, empty
            where it returns none; refuses policy losses that cannot honour it. None: it never returns one.
        native: verl's trainer computes it itself from `algorithm.adv_estimator`, before the turn
            table is made; `factory` is never called.
    """

    kind: ClassVar[Kind] = "estimator"
    requires: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    granularity: Granularity = "turn"
    needs_groups: bool = True
    needs_critic: bool = False
    needs_tree: bool = False
    confidence: Confidence = "unrated"
    named_roles: Callable[[Any], Iterable[str]] | None = None
    own_rewards: bool = False
    weighs: Callable[[Any], str] | None = None
    native: bool = False


@dataclass(frozen=True)
class ScheduleSpec(Spec):
    """Who learns now. `factory(options)` returns a `training.Schedule`; runs in the trainer.

    Attributes:
        provides: turn-table columns that this schedule fills from statistics of earlier steps, or `provides(options)`
            where they depend on the options.
        reads: token columns that it reads where a table has them, as `EstimatorSpec.reads`.
        named_roles: as `EstimatorSpec.named_roles`; the option `roles` needs no naming.
        weighs: as `EstimatorSpec.weighs`, for `Phase.weights`.
    """

    kind: ClassVar[Kind] = "schedule"
    provides: tuple[str, ...] | Callable[[Any], Iterable[str]] = ()
    reads: tuple[str, ...] = ()
    named_roles: Callable[[Any], Iterable[str]] | None = None
    weighs: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class ProbeSpec:
    """A question to the policy about each step's rollouts: how likely it finds given texts in given contexts.

    Attributes:
        name: what `hier.probes` calls it.
        factory: `factory(options)` returns a `training.probes.Probe`; runs in the trainer. A text
            `package.module:function` stands for `lazy` of it.
        provides: turn-table columns that it fills.
        options: as in `Spec`.
        lacks: `lacks(task) -> str`, what a task must have that this one has not, in a phrase; empty when it asks about
            the task. None: it asks about all.
        summary, source: as in `Spec`.
    """

    kind: ClassVar[AnyKind] = "probe"
    name: str
    factory: Callable[..., Any]
    provides: tuple[str, ...]
    options: type = NoOptions
    lacks: Callable[[Mapping[str, Any]], str] | None = None
    summary: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        make_lazy(self, "factory")


Registered = Spec | PolicyLossSpec | ValueHeadSpec | ProbeSpec | RolloutServerSpec | EngineSpec | TrainerExtensionSpec
KINDS: dict[Kind, type[Spec]] = {
    "environment": EnvironmentSpec,
    "worker": WorkerSpec,
    "sampler": SamplerSpec,
    "estimator": EstimatorSpec,
    "schedule": ScheduleSpec,
}
REGISTERED: dict[AnyKind, type[Registered]] = {
    **{kind: KINDS[kind] for kind in KINDS},
    "policy_loss": PolicyLossSpec,
    "value_head": ValueHeadSpec,
    "probe": ProbeSpec,
    "rollout_server": RolloutServerSpec,
    "engine": EngineSpec,
    "trainer_extension": TrainerExtensionSpec,
}
"""The whole registry: the class of each kind, which a plugin returns from the hook of that kind."""


def hook_of(kind: AnyKind) -> str:
    """Name of the hook in which plugins register their parts of a kind."""
    return f"hier_{kind}{'es' if kind.endswith('s') else 's'}"

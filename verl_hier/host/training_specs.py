"""Specs of what trains and serves: policy losses, value heads, rollout servers, engines, trainer extensions.

`host.specs` has the parts of a method, and collects all kinds; plugins import every spec from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from verl_hier.host.lazy import make_lazy

LossWeights = Literal["token", "row", "none", "ratio"]
"""What a policy loss does with `rollout_is_weights`: it multiplies the loss of each `token` by its weight; it
multiplies each `row` by one number, so that the weights must not differ inside a row; it does not read them (`none`);
or it takes them for an importance `ratio`."""
LossAggregation = Literal["loss_agg_mode", "seq-mean-token-mean", "micro-batch-mean"]
"""How a policy loss adds up tokens: as `loss_agg_mode` says, by `agg_loss`; always as the mode `seq-mean-token-mean`;
or as the mean over the rows of each micro-batch."""


@dataclass(frozen=True)
class PolicyLossSpec:
    """A policy loss with verl's own signature, registered under `name` in every worker that imports verl.

    Attributes:
        name: what `actor_rollout_ref.actor.policy_loss.loss_mode` calls it.
        function: the loss, or the text `package.module:function`, which is imported when the loss is first computed.
        summary, source: as in `Spec`.
        weights: what it does with `rollout_is_weights`, see `LossWeights`. A loss that does not say so is refused in
            recipes whose tokens have loss weights.
        aggregation: how it adds up tokens, see `LossAggregation`.
    """

    kind: ClassVar[Literal["policy_loss"]] = "policy_loss"
    name: str
    function: Callable[..., Any]
    summary: str = ""
    source: str = ""
    weights: LossWeights | None = None
    aggregation: LossAggregation = "loss_agg_mode"

    def __post_init__(self) -> None:
        make_lazy(self, "function")


@dataclass(frozen=True)
class ValueHeadSpec:
    """A head of the critic: one number for each place that it reads, which estimators find in a column of its own.

    Attributes:
        name: what `hier.value_heads` calls it: letters, digits and `_`.
        places: `places(table) -> (T,) int`, for each turn the action token in front of which the head reads the
            context, counted through the token columns of the table; -1 for a turn without such a token. None: the head
            reads in front of every action token.
        summary, source: as in `Spec`.
    """

    kind: ClassVar[Literal["value_head"]] = "value_head"
    name: str
    places: Callable[[Any], Any] | None = None
    summary: str = ""
    source: str = ""

    @property
    def column(self) -> str:
        """The column of the turn table: `value_<name>` a turn, or `tokens.value_<name>` where every token is read."""
        return f"{'tokens.' if self.places is None else ''}value_{self.name}"


@dataclass(frozen=True)
class RolloutServerSpec:
    """The abilities of a rollout server that verl has registered, as far as recipes and requests depend on them.

    A server that nobody describes is taken for one of verl's that returns the sampled tokens' log-probs and nothing
    else.

    Attributes:
        name: value of `actor_rollout_ref.rollout.name`.
        module: Python package that it needs, and the extra of verl-hier that installs it; None where it needs none.
        on_cpu: runs on a machine without an accelerator.
        logprobs: returns the log-probs of the generated tokens.
        tokens: takes and gives tokens; a server of messages alone neither begins nor cuts a turn.
        top_logprobs: returns the log-probs of the likeliest tokens at each generated token; verl's own servers do not.
        prompt_scores: returns the log-probs of the tokens of a prompt; verl's TensorRT-LLM server does not.
        scores_from: takes `prompt_logprobs_start`: it computes only the scores from there on, the rest comes from its
            cache.
        scores_at_temperature: takes `prompt_logprobs_temperature`: its scores are at any temperature; those of other
            servers are at 1.
        seed: name of the sampling parameter for the seed of a request.
        adapters: keeps adapters beside the weights, and answers each request with that of its policy.
        several: several groups of it can serve one run, each with the weights of a policy of its own.
        stop_strings_need_tokenizer: fails at the first stop string with `skip_tokenizer_init`
            (sgl-project/sglang#27882).
        opens: `opens(spec, config, model)` is a `rollout.Policy` that generates with a saved model in the process that
            asks; None where the server cannot. A text `package.module:function` stands for `lazy` of it.
        refuses: `refuses(config, model_class)` is a sentence on why the server cannot have the architecture, None where
            it can; as `opens`.
    """

    kind: ClassVar[Literal["rollout_server"]] = "rollout_server"
    name: str
    module: str | None = None
    on_cpu: bool = False
    logprobs: bool = True
    tokens: bool = True
    top_logprobs: bool = False
    prompt_scores: bool = False
    scores_from: bool = False
    scores_at_temperature: bool = False
    seed: str = "seed"
    adapters: bool = False
    several: bool = False
    stop_strings_need_tokenizer: bool = False
    opens: Callable[..., Any] | None = None
    refuses: Callable[[Any, Any], str | None] | None = None

    def __post_init__(self) -> None:
        make_lazy(self, "opens", "refuses")


@dataclass(frozen=True)
class EngineSpec:
    """A training engine that verl chooses by the environment variable `VERL_ENGINE_VENDOR`.

    Attributes:
        name: how the group `hier/engine` calls it.
        refuses: `refuses(config)` raises `RecipeError` where the engine is not exact on the layers of the
            architecture. A text `package.module:function` stands for `lazy` of it.
    """

    kind: ClassVar[Literal["engine"]] = "engine"
    name: str
    refuses: Callable[[Any], None]

    def __post_init__(self) -> None:
        make_lazy(self, "refuses")


@dataclass(frozen=True)
class TrainerExtensionSpec:
    """What learns or is asked beside verl's actor, in the trainer's process.

    Attributes:
        name: what messages call it.
        line: the line or block of a recipe that asks for it, when it is neither empty nor zero: `hier.replay`.
        factory: `factory(trainer)` returns a `compat.extension.TrainerExtension`. A text `package.module:function`
            stands for `lazy` of it.
    """

    kind: ClassVar[Literal["trainer_extension"]] = "trainer_extension"
    name: str
    line: str
    factory: Callable[[Any], Any]

    def __post_init__(self) -> None:
        make_lazy(self, "factory")

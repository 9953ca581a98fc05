"""A recipe as Hydra composed it, with our block of it read and its parts built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean
from verl_hier.graph.columnar.layout import TOKEN_LISTS
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_dataclass, build_options
from verl_hier.host.part import Part
from verl_hier.host.servers import rollout_server
from verl_hier.host.specs import RolloutServerSpec, TrainerExtensionSpec, ValueHeadSpec
from verl_hier.recipe.compose import compose
from verl_hier.recipe.parts import Parts, resolve
from verl_hier.recipe.rewards import rewards_of
from verl_hier.recipe.schema import HierConfig
from verl_hier.rollout import Limits
from verl_hier.rollout.rewards import Reward

EXTENDING = (
    *("hier.value_heads", "hier.replay", "hier.process_reward", "hier.probes", "hier.teachers"),
    *("hier.self_imitation", "hier.update.max_kl", "actor_rollout_ref.model.lora_rank"),
)
"""Lines and blocks that have no effect without a trainer extension."""


@dataclass(frozen=True)
class ComposedRecipe:
    """What a rollout, a trainer or a cold start has to know of a recipe.

    Attributes:
        config: the whole verl config, an OmegaConf `DictConfig` or plain containers.
        hier: its `hier` block.
        host: the plugins that the block lists.
        parts: its five parts.
        rewards: its reward functions by name.
    """

    config: Any
    hier: HierConfig
    host: PluginHost
    parts: Parts
    rewards: Mapping[str, Reward] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Any) -> ComposedRecipe:
        """The recipe of a composed config.

        Raises:
            PluginError: when a listed plugin cannot be loaded.
            RecipeError: when the `hier` block is wrong, or names a reward function that cannot be imported.
        """
        hier = HierConfig.of(config)
        host = PluginHost.load(hier.plugins)
        return cls(config, hier, host, resolve(hier, host), rewards_of(hier))

    @classmethod
    def named(cls, reference: str, overrides: Sequence[str] = ()) -> ComposedRecipe:
        """A shipped recipe by name or a user's own by path, with overrides. Raises what `compose` and `of` raise."""
        return cls.of(compose(reference, overrides))

    @property
    def server(self) -> RolloutServerSpec:
        """The rollout server of the policy."""
        return rollout_server(self.host, str(self.config["actor_rollout_ref"]["rollout"]["name"]))

    @property
    def extensions(self) -> list[TrainerExtensionSpec]:
        """What the recipe wants beside verl's actor, in order.

        Raises:
            RecipeError: for a line that no enabled plugin obeys.
        """
        known = self.host.specs("trainer_extension").values()
        obeyed = {spec.line for spec in known}
        missing = [line for line in EXTENDING if line not in obeyed and self._asks(line)]
        if missing:
            raise RecipeError(
                f"{missing[0]}: no enabled plugin has a trainer extension for it; the built-in one is `beside`."
            )
        return [spec for spec in known if self._asks(spec.line)]

    def _asks(self, line: str) -> bool:
        """Whether the recipe says something at a line that is neither empty nor zero."""
        if line == "hier.value_heads" and self.hier.replay is not None:
            return False  # The replay critic has heads of its own.
        block, _, rest = line.partition(".")
        place: Any = self.hier if block == "hier" else self.config.get(block)
        for name in rest.split("."):
            place = place.get(name) if hasattr(place, "get") else getattr(place, name, None)
        return bool(place)

    @property
    def value_heads(self) -> dict[str, ValueHeadSpec]:
        """The heads of the critic by name.

        Raises:
            RecipeError: for a head that no enabled plugin provides.
        """
        known = self.host.specs("value_head")
        for name in self.hier.value_heads:
            if name not in known:
                raise RecipeError(
                    f"hier.value_heads: no enabled plugin provides a head called {name!r}{did_you_mean(name, known)}; "
                    f"known: {', '.join(sorted(known))}."
                )
        return {name: known[name] for name in self.hier.value_heads}

    @property
    def probes(self) -> dict[str, Part]:
        """The probes by name.

        Raises:
            RecipeError: for a probe that no enabled plugin provides, and for options that do not fit it.
        """
        known = self.host.specs("probe")
        for name in self.hier.probes:
            if name not in known:
                raise RecipeError(
                    f"hier.probes: no enabled plugin provides a probe called {name!r}{did_you_mean(name, known)}; "
                    f"known: {', '.join(sorted(known))}."
                )
        return {
            name: Part(known[name], build_dataclass(known[name].options, block, f"hier.probes.{name}", repr(name)))
            for name, block in self.hier.probes.items()
        }

    @property
    def system(self) -> Part:
        """The worker that the expert plays, with its defaults, where episodes for the recipe's own are distilled."""
        spec = self.host.spec("worker", self.hier.coldstart.system)
        return Part(spec, build_options(spec, {}))

    @property
    def token_lists(self) -> list[str]:
        """The heavy columns of rollouts of which the estimator and the schedule read token columns."""
        estimator, schedule = self.parts.estimator.spec, self.parts.schedule.spec
        read = {*estimator.requires, *estimator.reads, *schedule.reads}
        return [name for name, column in TOKEN_LISTS.items() if f"tokens.{column}" in read]

    @property
    def limits(self) -> Limits:
        """Limits of an episode; where the recipe leaves contexts to verl, they have the lengths of verl's rows."""
        ours, rollout = self.hier.rollout, self.config["actor_rollout_ref"]["rollout"]
        room = ours.context_tokens or rollout["prompt_length"] + rollout["response_length"]
        return Limits(ours.max_turns, ours.max_tokens_per_turn, room, ours.quote_characters)

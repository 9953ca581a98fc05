"""The whole extension surface of verl-hier, on one page.

A plugin is a module (or object) with functions decorated by `hookimpl`, found through the entry-point group
`verl_hier.plugins`, or a subpackage of a package found there. Nothing happens until a recipe enables it under
`hier.plugins`. Built-in methods use these hooks and nothing else.

Every docstring says: where the hook runs, what it may change, what the return value does, in which order plugins are
called, and what it costs. Event hooks are called one plugin after the other, last registered first (pluggy's order);
an exception in one stops the run with the plugin's name.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from verl_hier.credit import Credit
    from verl_hier.graph import RolloutGraph, TurnTable
    from verl_hier.host.specs import (
        EngineSpec,
        EnvironmentSpec,
        EstimatorSpec,
        PolicyLossSpec,
        ProbeSpec,
        RolloutServerSpec,
        SamplerSpec,
        ScheduleSpec,
        TrainerExtensionSpec,
        ValueHeadSpec,
        WorkerSpec,
    )

PROJECT = "verl_hier"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class RegistrationSpecs:
    """Called once in every process that needs the parts: driver, trainer, rollout workers. Must be cheap."""

    @hookspec
    def hier_environments(self) -> EnvironmentSpec | Iterable[EnvironmentSpec]:
        """Environments that this plugin brings. Two plugins with one name stop the run and name both."""

    @hookspec
    def hier_workers(self) -> WorkerSpec | Iterable[WorkerSpec]:
        """Workers (rollout step machines over roles) that this plugin brings."""

    @hookspec
    def hier_samplers(self) -> SamplerSpec | Iterable[SamplerSpec]:
        """Samplers (independent, nested, branching) that this plugin brings."""

    @hookspec
    def hier_estimators(self) -> EstimatorSpec | Iterable[EstimatorSpec]:
        """Advantage estimators on the turn table that this plugin brings."""

    @hookspec
    def hier_schedules(self) -> ScheduleSpec | Iterable[ScheduleSpec]:
        """Schedules (which levels, roles or turns learn in a step) that this plugin brings."""

    @hookspec
    def hier_policy_losses(self) -> PolicyLossSpec | Iterable[PolicyLossSpec]:
        """Policy losses with verl's signature; `actor_rollout_ref.actor.policy_loss.loss_mode` names one."""

    @hookspec
    def hier_value_heads(self) -> ValueHeadSpec | Iterable[ValueHeadSpec]:
        """Heads of the critic, each with the places that it reads; `hier.value_heads` names those of a recipe."""

    @hookspec
    def hier_probes(self) -> ProbeSpec | Iterable[ProbeSpec]:
        """Texts whose log-probs the policy computes in contexts of the step; `hier.probes` names those of a recipe."""

    @hookspec
    def hier_rollout_servers(self) -> RolloutServerSpec | Iterable[RolloutServerSpec]:
        """What rollout servers that verl has registered can do; `actor_rollout_ref.rollout.name` names one."""

    @hookspec
    def hier_engines(self) -> EngineSpec | Iterable[EngineSpec]:
        """Training engines beside verl's own; the group `hier/engine` names one."""

    @hookspec
    def hier_trainer_extensions(self) -> TrainerExtensionSpec | Iterable[TrainerExtensionSpec]:
        """What learns or is asked beside verl's actor; a trainer calls them in the order in which they come."""


class RolloutEvents:
    """Called in the rollout worker process, on its event loop: never block, budget about 0.1 ms a call."""

    @hookspec
    def hier_graph_finished(self, graph: RolloutGraph, validate: bool) -> None:
        """One task is rolled out, before its rows are made. May edit turn rewards and `extra` of the graph's nodes
        (reward shaping); must not touch tokens or links. The return value is ignored."""

    @hookspec
    def hier_episode_failed(self, task: dict[str, Any], episode: int, error: str) -> None:
        """An episode was lost to its environment. Read-only; for alarms and logs. The return value is ignored."""


class StoreEvents:
    """Called in the rollout worker process, in the thread that writes its store."""

    @hookspec
    def hier_before_store(self, graph: RolloutGraph, validate: bool) -> None:
        """One task, before anything of it is stored (`hier.store.path`): to redact what must not reach a disk. May edit
        texts, messages, decisions and token ids of `graph`, which is a copy that nothing else reads; it must not
        change links or how many tokens there are. Where the `fork` of the environment is `recorded`, its answers are
        texts too: `request["reset"]` of the graph and `decision["answers"]` of its nodes. The return value is
        ignored."""


class CreditEvents:
    """Called in the trainer process once a step, between rollout and update."""

    @hookspec
    def hier_table_ready(self, table: TurnTable, step: int) -> None:
        """The turn table of the step, before the estimator. May add columns or rewrite `reward`, for instance
        to shape role rewards. The return value is ignored. Cost: proportional to the number of turns."""

    @hookspec
    def hier_credit_ready(self, table: TurnTable, credit: Credit, step: int) -> None:
        """The estimator's credit, before it is spread to tokens. May edit `credit` in place."""


class ReportingHooks:
    """Called in the trainer process at the end of a step."""

    @hookspec
    def hier_metrics(self, table: TurnTable, credit: Credit, step: int) -> dict[str, float]:
        """Extra metrics of the step. Keys must start with `hier/`; the dictionaries of all plugins are merged and
        a key that two plugins return stops the run with both names."""

    @hookspec
    def hier_step_end(self, step: int, metrics: dict[str, Any]) -> None:
        """The step is done and logged. Read-only; for exports. The return value is ignored."""


class ViewHooks:
    """Called in the process of `verl-hier view`, for the turns of a path that somebody opens."""

    @hookspec(firstresult=True)
    def hier_render(self, task: dict[str, Any], path: list[dict[str, Any]]) -> str | None:
        """How the environment's state looks after the last turn of `path`: plain text, or a picture as SVG (a text
        that begins with `<svg`), which is shown as an image, so that nothing in it runs. `task` is the stored task;
        `path` has the turns from the root on, each with `role`, `level`, `text`, `messages` (`role` and `content`),
        `anchor`, `reward`, `valid` and `extra`. The first plugin that does not return None is heard."""


SPEC_CLASSES = (RegistrationSpecs, RolloutEvents, StoreEvents, CreditEvents, ReportingHooks, ViewHooks)

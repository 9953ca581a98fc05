"""Every hook is called as the page says, has a test here, and is documented with its exact signature."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.distributions import Install
from verl_hier import hookspecs
from verl_hier.errors import PluginError
from verl_hier.graph.turn_table import TurnTable
from verl_hier.host.manager import PluginHost
from verl_hier.host.servers import rollout_server, servers_with
from verl_hier.recipe.composed import ComposedRecipe

HOOKS = {
    name: function
    for page in hookspecs.SPEC_CLASSES
    for name, function in vars(page).items()
    if name.startswith("hier_")
}
REGISTRATION = {
    "environments": "EnvironmentSpec",
    "workers": "WorkerSpec",
    "samplers": "SamplerSpec",
    "estimators": "EstimatorSpec",
    "schedules": "ScheduleSpec",
}


def table() -> TurnTable:
    empty = np.zeros(0, dtype=np.int64)
    return TurnTable(turns={"reward": np.zeros(0)}, episodes={}, step_episode=empty, step_turn=empty)


def recorder(hook: str, arguments: str) -> str:
    return f"""
        from verl_hier.hookspecs import hookimpl
        SEEN = []

        @hookimpl
        def {hook}({arguments}):
            SEEN.append(({arguments},))
        """


def registered(install: Install, kind: str) -> set[str]:
    source = f"""
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import {REGISTRATION[kind]}

        @hookimpl
        def hier_{kind}():
            return [{REGISTRATION[kind]}(name="mine", factory=dict)]
        """
    install("kind-dist", {"kind": "kind_plugin"}, {"kind_plugin.py": source})
    return set(PluginHost.load({"kind": True}).specs(kind.removesuffix("s")))


def test_hook_hier_environments(install: Install) -> None:
    assert registered(install, "environments") == {"mine"}


def test_hook_hier_workers(install: Install) -> None:
    assert registered(install, "workers") == {"mine"}


def test_hook_hier_samplers(install: Install) -> None:
    assert registered(install, "samplers") == {"mine"}


def test_hook_hier_estimators(install: Install) -> None:
    assert registered(install, "estimators") == {"mine"}


def test_hook_hier_schedules(install: Install) -> None:
    assert registered(install, "schedules") == {"mine"}


def test_hook_hier_policy_losses(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import PolicyLossSpec

        @hookimpl
        def hier_policy_losses():
            return [PolicyLossSpec(name="mine", function=print)]
        """
    install("loss-dist", {"loss": "loss_plugin"}, {"loss_plugin.py": source})
    host = PluginHost.load({"loss": True})
    assert set(host.specs("policy_loss")) == {"mine"}
    assert host.provenance("policy_loss", "mine").distribution == "loss-dist"


def test_hook_hier_value_heads(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import ValueHeadSpec

        @hookimpl
        def hier_value_heads():
            return ValueHeadSpec(name="mine")
        """
    install("head-dist", {"head": "head_plugin"}, {"head_plugin.py": source})
    host = PluginHost.load({"head": True})
    assert host.specs("value_head")["mine"].column == "tokens.value_mine"
    assert host.provenance("value_head", "mine").distribution == "head-dist"


def test_hook_hier_rollout_servers(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import RolloutServerSpec

        @hookimpl
        def hier_rollout_servers():
            return RolloutServerSpec("mine", on_cpu=True, opens="builtins:print")
        """
    install("server-dist", {"server": "server_plugin"}, {"server_plugin.py": source})
    host = PluginHost.load({"server": True})
    assert rollout_server(host, "mine").on_cpu and not rollout_server(host, "other").on_cpu
    assert servers_with(host, "on_cpu") == "`mine`"
    assert host.specs("rollout_server")["mine"].opens is not None
    assert host.provenance("rollout_server", "mine").distribution == "server-dist"


def test_hook_hier_engines(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import EngineSpec

        @hookimpl
        def hier_engines():
            return EngineSpec("mine", "builtins:len")
        """
    install("engine-dist", {"engine": "engine_plugin"}, {"engine_plugin.py": source})
    host = PluginHost.load({"engine": True})
    assert host.specs("engine")["mine"].refuses([1, 2]) == 2
    assert host.provenance("engine", "mine").distribution == "engine-dist"


def test_hook_hier_trainer_extensions(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import TrainerExtensionSpec

        @hookimpl
        def hier_trainer_extensions():
            return [TrainerExtensionSpec(name, "hier.probes", "builtins:str") for name in ("second", "first")]
        """
    install("beside-dist", {"mine": "beside_plugin"}, {"beside_plugin.py": source})
    recipe = ComposedRecipe.named(
        "igpo_search", ["hier.plugins={builtin: true, beside: false, mine: true}", "size=node", "server=vllm"]
    )
    assert [spec.factory(3) for spec in recipe.extensions] == ["3", "3"]
    assert [spec.name for spec in recipe.extensions] == ["second", "first"]
    recipe = ComposedRecipe.named("grpo_math", ["hier.plugins={builtin: true, mine: true}"])
    assert not recipe.extensions


def test_hook_hier_probes(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import ProbeSpec

        @hookimpl
        def hier_probes():
            return ProbeSpec(name="mine", factory=list, provides=("doubt",), options=OPTIONS)
        """
    good = source.replace(", options=OPTIONS", "")
    install("probe-dist", {"asks": "asking_plugin"}, {"asking_plugin.py": good})
    host = PluginHost.load({"asks": True})
    assert host.specs("probe")["mine"].provides == ("doubt",)
    assert host.provenance("probe", "mine").distribution == "probe-dist"
    assert host.provided_by("asks") == {"probe": ("mine",)}
    install("bad-dist", {"bad": "bad_plugin"}, {"bad_plugin.py": source.replace("OPTIONS", "dict")})
    with pytest.raises(PluginError, match="options of probe 'mine' are not a dataclass"):
        PluginHost.load({"bad": True})


EVENTS = {
    "hier_graph_finished": {"graph": object(), "validate": True},
    "hier_episode_failed": {"task": {"id": 1}, "episode": 3, "error": "hung"},
    "hier_before_store": {"graph": object(), "validate": False},
    "hier_table_ready": {"table": table(), "step": 4},
    "hier_credit_ready": {"table": table(), "credit": object(), "step": 4},
    "hier_step_end": {"step": 5, "metrics": {"a": 1.0}},
}


def check_event(install: Install, hook: str) -> None:
    arguments = EVENTS[hook]
    install("event-dist", {"event": "event_plugin"}, {"event_plugin.py": recorder(hook, ", ".join(arguments))})
    host = PluginHost.load({"event": True})
    getattr(host.hook, hook)(**arguments)
    import event_plugin

    assert event_plugin.SEEN == [tuple(arguments.values())]
    assert host.event_hooks("event") == (hook,)


def test_hook_hier_graph_finished(install: Install) -> None:
    check_event(install, "hier_graph_finished")


def test_hook_hier_episode_failed(install: Install) -> None:
    check_event(install, "hier_episode_failed")


def test_hook_hier_before_store(install: Install) -> None:
    check_event(install, "hier_before_store")


def test_hook_hier_table_ready(install: Install) -> None:
    check_event(install, "hier_table_ready")


def test_hook_hier_credit_ready(install: Install) -> None:
    check_event(install, "hier_credit_ready")


def test_hook_hier_step_end(install: Install) -> None:
    check_event(install, "hier_step_end")


def test_hook_hier_render(install: Install) -> None:
    for name, answer in {"silent": "None", "draws": "str(task['id']) + path[-1]['text']"}.items():
        source = f"""
            from verl_hier.hookspecs import hookimpl

            @hookimpl
            def hier_render(task, path):
                return {answer}
            """
        install(name, {name: f"{name}_plugin"}, {f"{name}_plugin.py": source})
    host = PluginHost.load({"silent": True, "draws": True})
    assert host.hook.hier_render(task={"id": 7}, path=[{"text": "left"}]) == "7left"


def metrics_source(body: str) -> str:
    return f"""
        from verl_hier.hookspecs import hookimpl

        @hookimpl
        def hier_metrics(table, step):
            {body}
        """


def test_hook_hier_metrics(install: Install) -> None:
    install("m1", {"m1": "m1_plugin"}, {"m1_plugin.py": metrics_source("return {'hier/a': 1.0 + step}")})
    install("m2", {"m2": "m2_plugin"}, {"m2_plugin.py": metrics_source("return {'hier/b': 2.0}")})
    install("m3", {"m3": "m3_plugin"}, {"m3_plugin.py": metrics_source("return None")})
    host = PluginHost.load({"m1": True, "m2": True, "m3": True})
    assert host.metrics(table=table(), credit=None, step=1) == {"hier/a": 2.0, "hier/b": 2.0}


def test_metrics_of_one_name_name_both_plugins(install: Install) -> None:
    for name in ("m1", "m2"):
        install(name, {name: f"{name}_plugin"}, {f"{name}_plugin.py": metrics_source("return {'hier/a': 1.0}")})
    with pytest.raises(PluginError, match=r"'m[12]' and 'm[12]'.*'hier/a'"):
        PluginHost.load({"m1": True, "m2": True}).metrics(table=table(), credit=None, step=1)


def test_metrics_have_a_prefix(install: Install) -> None:
    install("m1", {"m1": "m1_plugin"}, {"m1_plugin.py": metrics_source("return {'loss': 1.0}")})
    with pytest.raises(PluginError, match=r"'m1'.*'loss'.*hier/"):
        PluginHost.load({"m1": True}).metrics(table=table(), credit=None, step=1)


def test_a_failing_event_hook_names_its_plugin(install: Install) -> None:
    good = recorder("hier_step_end", "step")
    bad = """
        from verl_hier.hookspecs import hookimpl

        @hookimpl
        def hier_step_end(step):
            raise OSError("disk full")
        """
    install("good-dist", {"good": "good_plugin"}, {"good_plugin.py": good})
    install("bad-dist", {"bad": "bad_plugin"}, {"bad_plugin.py": bad})
    host = PluginHost.load({"good": True, "bad": True})
    with pytest.raises(
        PluginError,
        match=r"'bad' failed in hier_step_end: OSError: disk full \(.*bad_plugin\.py:6\); .*hier\.plugins\.bad",
    ):
        host.hook.hier_step_end(step=1, metrics={})


def test_the_surface_is_at_most_twenty_hooks() -> None:
    assert len(HOOKS) <= 20


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test(hook: str) -> None:
    assert f"test_hook_{hook}" in globals()


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_signature(hook: str) -> None:
    parameters = [name for name in inspect.signature(HOOKS[hook]).parameters if name != "self"]
    page = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text()
    assert f"### `{hook}({', '.join(parameters)})`" in page

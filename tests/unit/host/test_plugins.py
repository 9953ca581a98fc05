"""The plugin host against real entry points: what is loaded, what is refused, and in which words."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures.distributions import Install, estimator_source
from verl_hier.errors import PluginError, RecipeError
from verl_hier.host.manager import PluginHost, discover
from verl_hier.recipe.parts import resolve
from verl_hier.recipe.schema import HierConfig


def refusal(**enabled: bool) -> str:
    with pytest.raises(PluginError) as caught:
        PluginHost.load(enabled)
    assert "\n" not in str(caught.value), "one sentence"
    return str(caught.value)


def test_a_listed_plugin_is_loaded_with_its_provenance(install: Install) -> None:
    install("spam-credit", {"spam": "spam_credit"}, {"spam_credit.py": estimator_source("spam")}, version="2.3")
    host = PluginHost.load({"spam": True})
    assert set(host.specs("estimator")) == {"spam"}
    origin = host.provenance("estimator", "spam")
    assert (origin.plugin, origin.distribution, origin.version) == ("spam", "spam-credit", "2.3")
    assert origin.module == "spam_credit"


def test_equal_blocks_share_one_host(install: Install) -> None:
    install("spam-credit", {"spam": "spam_credit"}, {"spam_credit.py": estimator_source("spam")})
    assert PluginHost.load({"spam": True}) is PluginHost.load({"spam": True})


def test_an_unlisted_plugin_is_not_imported(install: Install) -> None:
    install("idle", {"idle": "idle_plugin"}, {"idle_plugin.py": "raise RuntimeError('imported')"})
    PluginHost.load({"idle": False})
    assert {s.name: s.enabled for s in discover({"idle": False})}["idle"] is False
    discover({})
    assert "idle_plugin" not in sys.modules


def test_a_package_of_plugins_is_one_plugin_a_folder(install: Install) -> None:
    files = {
        "bundle/__init__.py": "",
        "bundle/one/__init__.py": estimator_source("first"),
        "bundle/two/__init__.py": estimator_source("second"),
        "bundle/_shared/__init__.py": "raise RuntimeError('not a plugin')",
    }
    install("bundle-dist", {"bundle": "bundle"}, files)
    assert set(PluginHost.load({"bundle": True}).specs("estimator")) == {"first", "second"}
    assert PluginHost.load({"bundle": True}).plugins == ("one", "two")


def test_one_folder_can_be_switched_off_and_is_then_not_imported(install: Install) -> None:
    files = {
        "bundle/__init__.py": "",
        "bundle/one/__init__.py": estimator_source("first"),
        "bundle/two/__init__.py": "raise RuntimeError('imported')",
    }
    install("bundle-dist", {"bundle": "bundle"}, files)
    assert PluginHost.load({"bundle": True, "two": False}).plugins == ("one",)
    assert PluginHost.load({"bundle": False, "one": True}).plugins == ("one",)


def test_a_package_inside_a_package_is_found_without_importing_its_parent(install: Install) -> None:
    files = {
        "deep/__init__.py": "",
        "deep/plugs/__init__.py": "",
        "deep/plugs/only/__init__.py": estimator_source("only"),
    }
    install("deep-dist", {"deep": "deep.plugs"}, files)
    assert PluginHost.load({"deep": False}).plugins == ()
    assert "deep" not in sys.modules
    assert PluginHost.load({"deep": True}).plugins == ("only",)


SAMPLER = """
    from verl_hier.hookspecs import hookimpl
    from verl_hier.host.specs import SamplerSpec

    @hookimpl
    def hier_samplers():
        return [SamplerSpec(name="mine", factory="no_such_module:Mine")]
    """
EVENT = """
    from verl_hier.hookspecs import hookimpl

    @hookimpl
    def hier_step_end(step, metrics):
        pass
    """


def rooms(install: Install, sampler: str = SAMPLER, estimator: str = estimator_source("mine")) -> None:
    """An installed package of plugins in rooms by kind: `mine` has two modules, `other` one."""
    files = {
        "lab/__init__.py": "",
        "lab/samplers/__init__.py": "",
        "lab/samplers/mine.py": sampler,
        "lab/estimators/__init__.py": "",
        "lab/estimators/mine.py": estimator,
        "lab/estimators/other.py": estimator_source("other"),
        "lab/estimators/_shared.py": "raise RuntimeError('not a plugin')",
    }
    install("lab-dist", {"lab": "lab"}, files)


def test_modules_in_rooms_by_kind_are_plugins_and_those_of_one_name_are_one(install: Install) -> None:
    rooms(install)
    host = PluginHost.load({"lab": True})
    assert host.plugins == ("mine", "other")
    assert set(host.specs("sampler")) == {"mine"} and set(host.specs("estimator")) == {"mine", "other"}
    assert host.provenance("sampler", "mine").plugin == host.provenance("estimator", "mine").plugin == "mine"
    assert "no_such_module" not in sys.modules, "a factory that is given by its name is not imported"


def test_switching_a_name_off_switches_off_all_its_modules(install: Install) -> None:
    rooms(install)
    host = PluginHost.load({"lab": True, "mine": False})
    assert not host.specs("sampler") and set(host.specs("estimator")) == {"other"}
    assert not {"lab.samplers.mine", "lab.estimators.mine"} & set(sys.modules)


def test_two_modules_of_a_plugin_that_implement_one_hook(install: Install) -> None:
    rooms(install, SAMPLER + EVENT, estimator_source("mine", EVENT))
    sentence = refusal(lab=True)
    assert "plugin 'mine'" in sentence and "both implement hier_step_end" in sentence
    assert "lab.samplers.mine" in sentence and "lab.estimators.mine" in sentence


def test_a_broken_module_of_several_is_named(install: Install) -> None:
    rooms(install, "raise RuntimeError('boom')")
    sentence = refusal(lab=True)
    assert "plugin 'mine'" in sentence and "its module lab.samplers.mine raises RuntimeError: boom" in sentence


def test_a_policy_loss_can_be_given_by_its_name(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import PolicyLossSpec

        @hookimpl
        def hier_policy_losses():
            return [PolicyLossSpec("half", "half_heavy:loss")]
        """
    install("half-dist", {"half": "half"}, {"half.py": source, "half_heavy.py": "loss = lambda x: x / 2"})
    function = PluginHost.load({"half": True}).specs("policy_loss")["half"].function
    assert "half_heavy" not in sys.modules and function(4) == 2


def test_an_object_can_be_the_plugin(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import ScheduleSpec

        class Plugin:
            @hookimpl
            def hier_schedules(self):
                return [ScheduleSpec(name="mine", factory=dict)]
        """
    install("object-dist", {"thing": "object_plugin:Plugin"}, {"object_plugin.py": source})
    assert set(PluginHost.load({"thing": True}).specs("schedule")) == {"mine"}


def test_unknown_plugin(install: Install) -> None:
    install("spam-credit", {"spam": "spam_credit"}, {"spam_credit.py": estimator_source("spam")})
    sentence = refusal(spma=True)
    assert "hier.plugins.spma" in sentence and "did you mean 'spam'?" in sentence


def test_a_plugin_that_raises_at_import_is_named(install: Install) -> None:
    install("boom-dist", {"boom": "boom_plugin"}, {"boom_plugin.py": "1 / 0"}, version="0.4")
    sentence = refusal(boom=True)
    for part in ("'boom'", "boom-dist 0.4", "boom_plugin", "ZeroDivisionError", "hier.plugins.boom: false"):
        assert part in sentence
    with pytest.raises(PluginError) as caught:
        PluginHost.load({"boom": True})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    (status,) = [s for s in discover({"boom": True}) if s.name == "boom"]
    assert "ZeroDivisionError" in status.blocked


def test_a_plugin_that_exits_at_import_does_not_end_us_in_silence(install: Install) -> None:
    install("exit-dist", {"leave": "leave_plugin"}, {"leave_plugin.py": "import sys; sys.exit(0)"})
    assert "SystemExit" in refusal(leave=True)


def test_a_broken_package_of_plugins_is_a_status_and_an_error(install: Install) -> None:
    files = {"bundle/__init__.py": "import does_not_exist", "bundle/one/__init__.py": estimator_source("one")}
    install("bundle-dist", {"bundle": "bundle"}, files)
    assert "ModuleNotFoundError" in refusal(bundle=True)
    (status,) = [s for s in discover({"bundle": True}) if s.name == "bundle"]
    assert "does_not_exist" in status.blocked


def test_two_plugins_with_one_spec_name(install: Install) -> None:
    install("first-dist", {"first": "first_plugin"}, {"first_plugin.py": estimator_source("same")}, version="1.1")
    install("second-dist", {"second": "second_plugin"}, {"second_plugin.py": estimator_source("same")}, version="2.2")
    sentence = refusal(first=True, second=True)
    for part in ("estimator 'same'", "'first'", "first-dist 1.1", "'second'", "second-dist 2.2", "hier.plugins."):
        assert part in sentence


def test_two_distributions_with_one_entry_point(install: Install) -> None:
    install("first-dist", {"twin": "first_plugin"}, {"first_plugin.py": estimator_source("a")})
    install("second-dist", {"twin": "second_plugin"}, {"second_plugin.py": estimator_source("b")})
    sentence = refusal(twin=True)
    assert "first-dist" in sentence and "second-dist" in sentence and "'twin'" in sentence


def test_an_entry_point_called_like_an_enabled_folder(install: Install) -> None:
    install(
        "bundle-dist", {"bundle": "bundle"}, {"bundle/__init__.py": "", "bundle/one/__init__.py": estimator_source("a")}
    )
    install("one-dist", {"one": "one_plugin"}, {"one_plugin.py": estimator_source("b")})
    sentence = refusal(bundle=True, one=True)
    assert "bundle.one" in sentence and "one_plugin" in sentence


def test_a_hook_that_does_not_exist(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl

        @hookimpl
        def hier_estimator():
            return []
        """
    install("typo-dist", {"typo": "typo_plugin"}, {"typo_plugin.py": source})
    sentence = refusal(typo=True)
    assert "'hier_estimator'" in sentence and "did you mean 'hier_estimators'?" in sentence
    assert "'typo'" in sentence and "typo-dist 1.0" in sentence


def test_a_hook_with_an_argument_that_does_not_exist(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl

        @hookimpl
        def hier_step_end(step, losses):
            pass
        """
    install("args-dist", {"args": "args_plugin"}, {"args_plugin.py": source})
    sentence = refusal(args=True)
    assert "'args'" in sentence and "hier_step_end" in sentence


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("[42]", "42 instead of EstimatorSpec"),
        ("None", "TypeError"),
        ("[EstimatorSpec(name='', factory=dict)]", "without a name"),
        ("[EstimatorSpec(name='x', factory=dict, options=dict)]", "not a dataclass"),
        ("[EstimatorSpec(nome='x', factory=dict)]", "nome"),
    ],
)
def test_a_registration_that_returns_nonsense(install: Install, answer: str, complaint: str) -> None:
    source = f"""
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import EstimatorSpec

        @hookimpl
        def hier_estimators():
            return {answer}
        """
    install("odd-dist", {"odd": "odd_plugin"}, {"odd_plugin.py": source})
    sentence = refusal(odd=True)
    assert complaint in sentence and "'odd'" in sentence and "odd-dist 1.0" in sentence


def test_wrappers_are_not_part_of_the_surface(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl

        @hookimpl(wrapper=True)
        def hier_metrics(step):
            return (yield)
        """
    install("wrap-dist", {"wrap": "wrap_plugin"}, {"wrap_plugin.py": source})
    assert "it wraps hier_metrics" in refusal(wrap=True)


def test_a_module_that_registers_nothing(install: Install) -> None:
    install("void-dist", {"void": "void_plugin"}, {"void_plugin.py": "def hier_estimators(): return []"})
    assert "registers nothing" in refusal(void=True)


def test_a_plugin_for_another_version_is_blocked(install: Install) -> None:
    files = {"late_plugin.py": estimator_source("late")}
    install("late-dist", {"late": "late_plugin"}, files, requires=("verl-hier>=99", "numpy"))
    assert "needs verl-hier >=99" in refusal(late=True)
    (status,) = [s for s in discover({"late": True}) if s.name == "late"]
    assert status.blocked and not status.provides and "late_plugin" not in sys.modules


def test_unknown_part_names_the_nearest_and_what_is_off(install: Install) -> None:
    install("spam-credit", {"spam": "spam_credit"}, {"spam_credit.py": estimator_source("spam")})
    install("eggs-credit", {"eggs": "eggs_credit"}, {"eggs_credit.py": estimator_source("eggs")})
    host = PluginHost.load({"spam": True})
    with pytest.raises(RecipeError, match=r"hier\.estimator\.name: .*'spma' \(did you mean 'spam'\?\)"):
        host.spec("estimator", "spma")
    with pytest.raises(
        RecipeError,
        match=r"installed but off: a recipe enables it with `hier\.plugins\.eggs: true`, .* `--enable eggs`",
    ):
        host.spec("estimator", "eggs")


def test_resolve_builds_the_options_of_the_five_parts(install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import EnvironmentSpec, SamplerSpec, ScheduleSpec, WorkerSpec

        @hookimpl
        def hier_environments():
            return [EnvironmentSpec(name="world", factory=dict)]

        @hookimpl
        def hier_workers():
            return [WorkerSpec(name="flat", factory=dict)]

        @hookimpl
        def hier_samplers():
            return [SamplerSpec(name="alone", factory=dict)]

        @hookimpl
        def hier_schedules():
            return [ScheduleSpec(name="all", factory=dict)]
        """
    install("full-dist", {"full": "full_plugin"}, {"full_plugin.py": estimator_source("spam", source)})
    config = HierConfig(
        environment={"name": "world"},
        worker={"name": "flat"},
        sampler={"name": "alone"},
        estimator={"name": "spam", "weight": 2},
        schedule={"name": "all"},
        plugins={"full": True},
    )
    parts = resolve(config)
    assert parts.estimator.options.weight == 2.0
    assert [kind for kind, _ in parts.items()] == ["environment", "worker", "sampler", "estimator", "schedule"]
    (status,) = [s for s in discover({"full": True}) if s.name == "full"]
    assert status.provides["worker"] == ("flat",)


def test_policy_losses_reach_verl_once_and_never_overwrite_it(install: Install) -> None:
    pytest.importorskip("verl")
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn

    from verl_hier.compat.losses import register_policy_losses

    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import PolicyLossSpec

        def loss(*args, **kwargs):
            return None

        @hookimpl
        def hier_policy_losses():
            return [PolicyLossSpec(name="NAME", function=loss)]
        """
    install("loss-dist", {"loss": "loss_plugin"}, {"loss_plugin.py": source.replace("NAME", "only_in_this_test")})
    install("clash-dist", {"clash": "clash_plugin"}, {"clash_plugin.py": source.replace("NAME", "vanilla")})
    host = PluginHost.load({"loss": True})
    try:
        register_policy_losses(host)
        register_policy_losses(host)
        assert get_policy_loss_fn("only_in_this_test") is host.specs("policy_loss")["only_in_this_test"].function
    finally:
        POLICY_LOSS_REGISTRY.pop("only_in_this_test", None)
    with pytest.raises(PluginError, match=r"'clash'.*'vanilla'.*verl"):
        register_policy_losses(PluginHost.load({"clash": True}))

"""Of the built-in plugins only what may bring parts of one kind is imported, and nothing of that kind is missing."""

import pytest

from verl_hier.hookspecs import SPEC_CLASSES
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.specs import KINDS

WHOLE = PluginHost.load(DEFAULT_ENABLED)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_kind_are_those_of_the_whole_host(kind):
    host = PluginHost.load(DEFAULT_ENABLED, kind)
    assert host.specs(kind).keys() == WHOLE.specs(kind).keys() != set()
    assert host.plugins == WHOLE.plugins, "a hint at what is installed but off must not name what is on"
    assert sum(len(host.specs(other)) for other in KINDS) < sum(len(WHOLE.specs(other)) for other in KINDS)


def test_estimators_bring_all_that_shapes_their_table():
    """`verl-hier credit` loads their room alone, and calls this hook."""

    def shaping(host):
        return {each.plugin_name for each in host._manager.hook.hier_table_ready.get_hookimpls()}

    assert any(hasattr(each, "hier_table_ready") for each in SPEC_CLASSES)
    assert shaping(PluginHost.load(DEFAULT_ENABLED, "estimator")) == shaping(WHOLE) != set()

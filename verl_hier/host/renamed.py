"""Names that development versions had, and what each is now, for the sentence of a plugin that does not load."""

from __future__ import annotations

import re

RENAMED: dict[str, str] = {
    "verl_hier.plugins": "`verl_hier.host.manager`",
    "verl_hier.specs": "`verl_hier.host.specs`",
    "verl_hier.trajectory": "`verl_hier.graph`",
    "verl_hier.conformance": "`verl_hier.testing`, for `make_table` and `credit_of`",
    "verl_hier.rollout.stage": "`verl_hier.rollout`, where `Stage` is `EpisodeView`",
    "verl_hier.host.PluginHost": "`verl_hier.host.manager.PluginHost`",
    "verl_hier.host.specs.build_options": "`verl_hier.host.options.build_options`",
    "verl_hier.environments.base.Step": "`verl_hier.environments.base.StepResult`",
    "verl_hier.rollout.Stage": "`verl_hier.rollout.EpisodeView`",
    "verl_hier.graph.TableBuilder": "`verl_hier.graph.number_turns`",
    "verl_hier.sandbox.local": "`verl_hier.local_sandbox.local`",
    "verl_hier.runtime_cpu.end_ids": "`verl_hier.chat.end_ids`",
    "verl_hier.compat.servers.policy": "`verl_hier.served.rollout_server`",
    "verl_hier.verl_facts.servers": "`verl_hier.host.servers`",
    "verl_hier.compat.servers.in_process": "`verl_hier.runtime_cpu.in_process`",
    "EpisodeView.say": "`generate`",
    "WorkerSpec.tell": "`transcribe`",
    "EnvironmentSpec.can_fork": "`fork`: native, replay or recorded",
}
"""Former to present name; methods and fields by their class."""
_FORMS = (
    r"No module named '(?P<module>[\w.]+)'",
    r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'",
    r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'",
    r"(?P<module>\w+)(?:\.__init__\(\) got an unexpected keyword argument |' object has no attribute )'(?P<name>\w+)'",
)


def now(error: BaseException) -> str:
    """`; verl_hier.specs is now …`, when an error says that a name is missing which was renamed; else nothing."""
    for form in _FORMS:
        for found in re.finditer(form, str(error)):
            former = ".".join(filter(None, (found["module"], found.groupdict().get("name"))))
            if former in RENAMED:
                return f"; {former} is now {RENAMED[former]} (docs/upgrading.md)"
    return ""

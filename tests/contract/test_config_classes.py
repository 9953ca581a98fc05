"""verl's configuration classes and names, read without importing verl, are those of the imported verl."""

from __future__ import annotations

import subprocess
import sys

import pytest

from verl_hier.verl_facts import names

FIELDS = """
import dataclasses, sys
from verl_hier.verl_facts.config_classes import config_classes

def fields():
    import verl.trainer.config as trainer
    import verl.utils.profiler as profiler
    import verl.workers.config as workers
    found = {}
    for module in (trainer, workers, profiler):
        for name in dir(module):
            kind = getattr(module, name)
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                found[kind.__module__, name] = [(field.name, repr(field.default)) for field in dataclasses.fields(kind)]
    return found

for _ in range(2):
    with config_classes():
        light = fields()
    left = [name for name in sys.modules if name.partition(".")[0] in ("verl", "torch", "transformers")]
    assert not left, left
import verl
heavy = fields()
with config_classes():
    assert fields() == heavy
assert len(light) > 40
missing = {name: given for name, given in light.items() if heavy.get(name) != given}
assert not missing, missing
"""


def test_the_classes_are_those_of_the_imported_verl_and_leave_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-c", FIELDS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["POLICY_LOSSES", "ADVANTAGE_ESTIMATORS", "ROLLOUT_SERVERS", "LOGGERS"])
def test_names_in_the_source_are_those_of_the_registry(name: str) -> None:
    registry: names.Registry = getattr(names, name)
    ours = {"transformers", "vllm_topk"}
    written, imported = registry.written(), registry.imported() - ours
    assert len(written) > 2 and written <= imported
    # Plugins that other tests have enabled in this process may have registered more.
    assert name == "POLICY_LOSSES" or written == imported


def test_optimisers_are_those_of_torch() -> None:
    import torch

    found = {name for name in names.optimisers() if hasattr(torch.optim, name)}
    assert found == names.optimisers() and {"AdamW", "SGD"} <= found

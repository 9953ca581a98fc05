"""A copy of a model that follows it slowly (Polyak averaging)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fixtures.engines_alone import process_group
from verl_hier.engines.copies import SlowCopy


def copied(module: torch.nn.Module, copy: SlowCopy) -> list[float]:
    copy.exchange()
    found = [float(parameter.detach().mean()) for parameter in module.parameters()]
    copy.exchange()
    return found


def test_a_copy_moves_by_its_share_of_the_way_and_is_exchanged_in_place() -> None:
    module = torch.nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(1.0), module.bias.fill_(2.0)
    weight, copy = module.weight, SlowCopy(module)
    with torch.no_grad():
        module.weight.fill_(11.0)
    assert copied(module, copy) == [1.0, 2.0] and float(module.weight.detach()) == 11.0 and module.weight is weight
    for steps in (1, 2, 3):
        copy.follow(0.1)
        assert copied(module, copy) == pytest.approx([1.0 + 10.0 * (1 - 0.9**steps), 2.0])


def test_a_checkpoint_has_the_copy_beside_the_model(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 1)
    copy = SlowCopy(module)
    with torch.no_grad():
        module.weight.add_(3.0)
    copy.follow(0.5)
    expected = copied(module, copy)
    with process_group(tmp_path / "store"):
        copy.save(tmp_path / "critic")
        again = SlowCopy(module)
        assert copied(module, again) != expected
        again.load(tmp_path / "critic")
    assert copied(module, again) == expected

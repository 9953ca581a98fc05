"""Nothing that trains makes a tensor on the wrong device or waits for the device unseen; no accelerator is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from verl.workers.config.actor import PolicyLossConfig

from tests.fixtures.device_purity import Kind, Purity, pretended_device
from tests.fixtures.engines_alone import (
    batch_of,
    build_engine,
    critic_batch_of,
    critic_loss_of,
    loss_of,
)
from tests.fixtures.trees_of_rows import branching
from verl_hier.compat.losses import register_policy_losses
from verl_hier.engines.kl_limit import train_within
from verl_hier.engines.process_reward import process_loss
from verl_hier.engines.value_heads import value_heads_loss
from verl_hier.host.manager import PluginHost
from verl_hier.training.process_reward import WEIGHTS as PROCESS_WEIGHTS
from verl_hier.training.value_heads import mask_of, returns_of, values_of

pytestmark = pytest.mark.usefixtures("group")
ROOT = Path(__file__).parents[3]
PRODUCT = ("verl_hier", "plugins")


def _factory(x: torch.Tensor) -> Any:
    return x + torch.ones(len(x))


def _item(x: torch.Tensor) -> Any:
    return x * x.max().item()


def _mask(x: torch.Tensor) -> Any:
    return x[x > 0].sum()


def _nonzero(x: torch.Tensor) -> Any:
    return (x > 0).nonzero().sum()


def _tolist(x: torch.Tensor) -> Any:
    return x * sum(x.tolist())


def _cpu(x: torch.Tensor) -> Any:
    return x.cpu().sum()


def _numpy(x: torch.Tensor) -> Any:
    return torch.from_numpy(x.detach().cpu().numpy() * 2)


def _tensor_of_a_list(x: torch.Tensor) -> Any:
    return x * torch.tensor([0.5] * len(x))


def _condition(x: torch.Tensor) -> Any:
    return x if x.sum() > 0 else -x


def _printed(x: torch.Tensor) -> Any:
    return f"{x.sum()}" + str(x)


PLANTED: dict[Callable[[torch.Tensor], Any], set[Kind]] = {
    _factory: {"two devices"},
    _item: {"value read"},
    _mask: {"size by values"},
    _nonzero: {"size by values"},
    _tolist: {"value read"},
    _cpu: {"copied to the host"},
    _numpy: {"copied to the host"},
    _tensor_of_a_list: {"two devices"},
    _condition: {"value read"},
    _printed: {"value read"},
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught_with_its_place(fault: Callable[[torch.Tensor], Any]) -> None:
    given = torch.randn(5)
    with pretended_device() as purity:
        fault(given)
        assert not purity.faults, "nothing is on the device yet"
        given = torch.randn(5, requires_grad=True)
        purity.put(given, "device")
        fault(given)
    assert {found.kind for found in purity.faults} == PLANTED[fault], purity.faults
    assert {(found.file, found.function) for found in purity.faults} == {(__file__, fault.__name__)}


def _clean(x: torch.Tensor) -> torch.Tensor:
    place = torch.arange(len(x), device=x.device)
    kept = torch.where(x > 0, x, 0.0) + x.new_zeros(len(x)) + x.new_tensor([1.0] * len(x))
    kept = torch.cat([kept, torch.zeros_like(x)]).index_select(0, place).masked_fill(place > 3, 0.0)
    kept[place == 1] = 0.0
    return (kept * torch.as_tensor([2.0] * len(x), device=x.device) * torch.tensor(0.5)).sum() / len(x)


def test_what_is_right_is_no_fault() -> None:
    with pretended_device() as purity:
        given = torch.randn(5, requires_grad=True)
        purity.put(given, "device")
        result = _clean(given)
        result.backward()
        assert purity.side(result) == "device" and purity.side(given.grad) == "device"
    assert not purity.faults


def test_a_fault_of_the_backward_pass_is_caught() -> None:
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * torch.full((len(gradient),), 2.0)

    with pretended_device() as purity:
        given = torch.randn(5, requires_grad=True)
        purity.put(given, "device")
        Careless.apply(given).sum().backward()
    assert [(found.kind, found.function) for found in purity.faults] == [("two devices", "backward")]


ROWS = [row for row in branching(3, leaves=8) if len(row) > 1]
PROMPTS = [max(1, len(row) // 3) for row in ROWS]
WEIGHTS = {"token": 1.0, "turn": 0.5}
_METRICS = "metrics of a loss are numbers, as those of verl's losses are"
_PACKED = "rows are packed on the host, so their tokens and lengths come there once a micro-batch"
_LIMIT = "a limit on the divergence has to know it before the step; without hier.update.max_kl nothing of it runs"
_COUNTS = "the tokens of a mini-batch over all ranks, as verl's own engines read them once"
ALLOWED: dict[tuple[str, str, Kind], str] = {
    ("plugins/verl_hier_plugins/losses/at2po.py", "turn_shares", "value read"): _METRICS,
    ("verl_hier/training/policy_loss.py", "token_mean", "value read"): _METRICS,
    ("verl_hier/engines/fsdp.py", "rows_of", "copied to the host"): _PACKED,
    ("verl_hier/engines/fsdp.py", "prompts_of", "value read"): _PACKED,
    ("verl_hier/engines/fsdp.py", "_plan", "value read"): "every rank needs the same number of micro-batches",
    ("verl_hier/engines/fsdp.py", "forward_backward_batch", "value read"): _COUNTS,
    ("verl_hier/engines/value_heads.py", "forward_backward_batch", "value read"): _COUNTS,
    ("verl_hier/engines/refusals.py", "refuse_batch", "value read"): "positions that are not those of rows are refused",
    ("verl_hier/engines/kl_limit.py", "__call__", "size by values"): _LIMIT,
    ("verl_hier/engines/kl_limit.py", "action_sums", "size by values"): _LIMIT,
    ("verl_hier/engines/kl_limit.py", "action_sums", "value read"): _LIMIT,
    ("verl_hier/engines/kl_limit.py", "train_within", "value read"): _LIMIT,
}
"""File, function and kind of what waits for the device on purpose, with the reason."""


def watched(engine: Any, purity: Purity) -> None:
    """Let an engine's parameters be on the device, and each micro-batch from where verl moves it there."""
    purity.put(engine.module, "device")
    prepare = engine.prepare_model_inputs

    def prepare_model_inputs(micro_batch: Any) -> Any:
        purity.put(micro_batch, "device")
        return prepare(micro_batch=micro_batch)

    engine.prepare_model_inputs = prepare_model_inputs


def ours(purity: Purity) -> set[tuple[str, str, Kind]]:
    """The faults that are ours, without their lines."""
    places = [(Path(found.file), found) for found in purity.faults if Path(found.file).is_relative_to(ROOT)]
    inside = [(path.relative_to(ROOT), found) for path, found in places]
    return {(path.as_posix(), found.function, found.kind) for path, found in inside if path.parts[0] in PRODUCT}


def train(engine: Any, batch: Any, loss: Any, limit: float | None = None) -> Purity:
    """A forward and a backward pass; the step of the optimiser is verl's alone."""
    with pretended_device() as purity, engine.train_mode():
        watched(engine, purity)
        if limit is None:
            engine.optimizer_zero_grad()
            engine.forward_backward_batch(batch, loss)
        else:
            train_within(engine, limit, batch, loss, per_action=True)
    return purity


def critic_batch() -> Any:
    batch = batch_of(ROWS, PROMPTS)
    for number, head in enumerate(WEIGHTS):
        batch[values_of(head)] = batch["old_log_probs"] * 0.3 + number
        batch[returns_of(head)] = batch["advantages"]
        batch[mask_of(head)] = batch["response_mask"]
    return batch


def test_the_process_of_the_trainer_knows_no_device() -> None:
    # What it reads comes from verl's queue, on the host, and goes to numpy.
    for file in (*ROOT.glob("verl_hier/training/*.py"), ROOT / "verl_hier/compat/trainer.py"):
        assert "device" not in file.read_text() and ".cuda(" not in file.read_text(), file


def test_nothing_that_trains_waits_unseen(model: Path) -> None:
    host = PluginHost.load({"builtin": True})
    register_policy_losses(host)
    runs: dict[str, Purity] = {}
    tree = build_engine(model, tree=True)
    for name in host.specs("policy_loss"):
        loss = loss_of(policy_loss=PolicyLossConfig(loss_mode=name), entropy_coeff=0.01)
        runs[name] = train(tree, batch_of(ROWS, PROMPTS), loss)
    runs["limit"] = train(build_engine(model), batch_of(ROWS, PROMPTS), loss_of(), limit=1e-9)
    runs["critic"] = train(
        build_engine(model, tree=True, critic=True), critic_batch_of(ROWS, PROMPTS), critic_loss_of()
    )
    critic = partial(value_heads_loss, critic_loss_of().args[0], WEIGHTS)
    runs["heads"] = train(build_engine(model, heads=tuple(WEIGHTS)), critic_batch(), critic)
    weighted = batch_of(ROWS, PROMPTS)
    weighted[PROCESS_WEIGHTS] = weighted["advantages"]
    runs["process reward"] = train(build_engine(model), weighted, process_loss)
    found = {fault for purity in runs.values() for fault in ours(purity)}
    assert found == set(ALLOWED), sorted(found ^ set(ALLOWED))

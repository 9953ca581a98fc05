"""verl's own worker of the actor with adapters of two policies in it, in this process and without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, process_group
from tests.fixtures.small_models import plain_log_probs
from tests.fixtures.trees_of_rows import branching
from verl_hier.beside.adapters import worker_with_adapters
from verl_hier.compat.policies import ADAPTER
from verl_hier.recipe.compose import compose
from verl_hier.runtime_cpu.generation.adapters import Adapters
from verl_hier.runtime_cpu.generation.model import load_model

ROWS = [row for row in branching(3, leaves=5) if len(row) > 1][:4]
PROMPTS = [max(1, len(row) // 3) for row in ROWS]
TOKENS = [row.tolist() for row in ROWS]
LINES = {"second": {"actor": {"optim": {"lr": 5e-3}, "entropy_coeff": 0.1, "ppo_epochs": 1}}}


class Heard:
    """The handle of a rollout server: what it was sent, by name."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.adapters: dict[str, tuple[float, dict[str, torch.Tensor]]] = {}
        self.step: int | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return type("Method", (), {"remote": staticmethod(lambda *a, **k: self._call(name, *a, **k))})

    async def _call(self, name: str, *arguments: Any, **named: Any) -> None:
        if name == "receive_weights":
            self.weights |= {name: tensor.unpack() for name, tensor in arguments[0].items()}
        elif name == "receive_adapter":
            adapter, scale, message, last = arguments
            assert last
            self.adapters[adapter] = scale, {tensor: packed.unpack() for tensor, packed in message.items()}
        elif name == "set_global_steps":
            (self.step,) = arguments


@pytest.fixture(params=[False])
def worker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its servers keep the adapters apart where the parameter says so."""
    apart = request.param
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    model = write_byte_model(tmp_path / "model")
    lines = {"path": str(model), "lora_rank": "4", "lora_alpha": "8", "lora.merge": str(not apart).lower()}
    overrides = [f"actor_rollout_ref.model.{line}={value}" for line, value in lines.items()]
    config = compose("grpo_sokoban", [*overrides, "actor_rollout_ref.actor.optim.lr=1e-3"]).actor_rollout_ref
    config.actor.optim.total_training_steps = 10
    with process_group(tmp_path / "store"):
        made = worker_with_adapters(ActorRolloutRefWorker, LINES, 0, apart)(config, "actor_rollout")
        made.init_model()
        yield made


def request(adapter: str | None, **more: Any) -> Any:
    made = batch_of(ROWS, PROMPTS, **more)
    if adapter is not None:
        tu.assign_non_tensor(made, **{ADAPTER: adapter})
    return made


def learn(worker: Any, adapter: str | None) -> dict[str, Any]:
    asked = request(adapter, mini_batch_size=len(ROWS), epochs=1)
    return tu.get(worker.update_actor(asked), "metrics")


def log_probs(worker: Any, adapter: str | None, **more: Any) -> torch.Tensor:
    return worker.compute_log_prob(request(adapter, compute_loss=False, **more))["log_probs"].values()


def test_a_request_reaches_its_adapter_and_each_server_its_policy(worker: Any, tmp_path: Path) -> None:
    first = log_probs(worker, "second")
    assert torch.equal(first, log_probs(worker, None)), "they begin alike"
    metrics = {name: learn(worker, name) for name in ("second", "default", "second")}
    assert metrics["second"]["lr"] == [5e-3] and metrics["default"]["lr"] == [1e-3]
    assert torch.equal(log_probs(worker, "second", no_lora_adapter=True), first), "the reference is the base model"
    moved = {name: (log_probs(worker, name) - first).abs().mean() for name in ("default", "second")}
    assert moved["second"] > moved["default"] > 0
    # Each policy's servers get its own merged weights, and the checkpoint is a model of the very same weights.
    heard = {}
    for name, rollout in worker._rollouts.items():
        rollout._server = heard[name] = Heard()
    assert [rollout.replica_rank for rollout in worker._rollouts.values()] == [0, 1]
    asyncio.run(worker.update_weights(global_steps=7, mode="naive"))
    for name in ("default", "second"):
        worker.use_policy(name)
        worker.save_checkpoint(str(tmp_path / name), None, 7)
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / name / "huggingface").state_dict()
        assert heard[name].step == 7 and heard[name].weights.keys() <= saved.keys() and len(heard[name].weights) > 20
        assert all(torch.equal(value, saved[tensor]) for tensor, value in heard[name].weights.items())
    one, two = (heard[name].weights for name in ("default", "second"))
    assert any(not torch.equal(one[tensor], two[tensor]) for tensor in one)
    # What was saved is read back, while the other policy stays as it is.
    before = {name: log_probs(worker, name) for name in ("default", "second")}
    learn(worker, "second")
    worker.use_policy("second")
    worker.load_checkpoint(str(tmp_path / "second"))
    for name, known in before.items():
        assert torch.equal(log_probs(worker, name), known)


@pytest.mark.parametrize("worker", [True], indirect=True)
def test_a_server_that_keeps_adapters_says_what_the_trainer_says(worker: Any, tmp_path: Path) -> None:
    for name in ("second", "default", "second"):
        learn(worker, name)
    (heard,) = {id(rollout._server): rollout._server for rollout in _connected(worker)}.values()
    asyncio.run(worker.update_weights(global_steps=7, mode="naive"))
    assert not heard.weights and heard.step == 7 and heard.adapters.keys() == {"default", "second"}
    served = load_model(str(tmp_path / "model"), AutoConfig.from_pretrained(tmp_path / "model"), torch.float32)
    adapters = Adapters(served)
    for name, (scale, tensors) in heard.adapters.items():
        assert scale == 2.0
        adapters.load(name, tensors, scale)
    said = {}
    for name in ("default", "second"):
        with adapters.used([name]):
            said[name] = torch.cat([plain_log_probs(served, row) for row in TOKENS])
    assert not torch.allclose(said["default"], said["second"], atol=1e-4)
    for name, found in said.items():
        tokens = torch.tensor([token for row in TOKENS for token in row[1:]])
        own = found.gather(1, tokens.unsqueeze(1)).squeeze(1)
        rows = log_probs(worker, name).split([len(row) for row in TOKENS])
        assert torch.allclose(own, torch.cat([row[:-1] for row in rows]), atol=1e-5)


def _connected(worker: Any) -> list[Any]:
    """The rollouts of a worker, each asking Ray for its server by name: one name is one server."""
    servers: dict[int, Heard] = {}
    for rollout in worker._rollouts.values():
        rollout._server = servers.setdefault(rollout.replica_rank, Heard())
    return [*worker._rollouts.values()]

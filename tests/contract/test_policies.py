"""How verl's trainer, its replicas and its checkpoints are used for policies beside its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from tests.fixtures import absent_servers
from tests.fixtures.absent_servers import VERSION
from tests.fixtures.distributions import write_distribution
from verl_hier.compat.policies import Each, SeveralPolicies, Trained, config_of, folder_of
from verl_hier.compat.servers.named import OF_CLIENT, learned_beside
from verl_hier.compat.servers.numbered import numbered_replica
from verl_hier.errors import HierError, RecipeError
from verl_hier.ops.runs import Run
from verl_hier.recipe.policies import PolicyOptions
from verl_hier.runtime_cpu.replica import TransformersReplica
from verl_hier.verl_facts.replicas import first_replica

ROOT = Path(__file__).parents[2]


def several(*names: str) -> SeveralPolicies:
    """The extension of a trainer with these policies beside verl's own."""
    trainer = SimpleNamespace(
        hier=SimpleNamespace(policies={name: PolicyOptions((name,)) for name in names}),
        config="default",
        actor_rollout_wg="default",
        ref_policy_wg="default",
        global_steps=3,
    )
    made = SeveralPolicies(trainer)
    made._trained = {name: Trained(name, name, None, None) for name in names}
    return made


def rows(*keys: str) -> KVBatchMeta:
    return KVBatchMeta(keys=[*keys], tags=[{"of": key} for key in keys], partition_id="train", extra_info={"a": 1})


def test_each_policy_works_on_its_rows_and_those_without_rows_are_left_alone() -> None:
    policies = several("second", "idle")
    policies.divide(["a", "b", "c"], ["default", "second", "default"])
    seen: list[Any] = []

    def pad(trainer: Any, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        seen.append((trainer.config, trainer.actor_rollout_wg, trainer.ref_policy_wg, batch.keys))
        trainer._division = f"division of {trainer.config}"
        metrics |= {"hier/rows/trained": float(len(batch)), "actor/grad_norm": 0.5}
        batch.extra_info["b"] = 2
        return KVBatchMeta([*batch.keys, f"pad_{trainer.config}"], [*batch.tags, {}], "train")

    metrics: dict[str, Any] = {}
    padded = policies.each(pad, rows("a", "b", "c"), metrics)
    assert seen == [("default",) * 3 + (["a", "c"],), ("second",) * 3 + (["b"],)]
    assert padded.keys == ["a", "c", "pad_default", "b", "pad_second"] and padded.extra_info == {"a": 1}
    assert metrics == {
        "hier/rows/trained": 3.0,
        "actor/grad_norm": 0.5,
        "policy/second/hier/rows/trained": 1.0,
        "policy/second/actor/grad_norm": 0.5,
    }

    def divided(trainer: Any, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        seen.append((trainer._division, batch.keys))
        return batch

    seen.clear()
    policies.each(divided, padded, {})
    assert seen == [
        ("division of default", ["a", "c", "pad_default"]),
        ("division of second", ["b", "pad_second"]),
    ]
    assert not hasattr(policies.trainer, "_division") and policies.trainer.config == "default"


def test_a_call_goes_to_the_servers_of_every_policy() -> None:
    calls: list[Any] = []
    members = [SimpleNamespace(name=i, update_weights=lambda step, i=i: calls.append((i, step)) or i) for i in (0, 1)]
    each = Each(members)
    assert each.update_weights(7) == 0 and calls == [(0, 7), (1, 7)] and each.name == 0


def test_an_adapter_that_shared_servers_keep_is_asked_for_by_its_name() -> None:
    policies = several("second", "third")
    policies._trained["third"] = Trained("third", "third", "servers", None)
    asked: list[Any] = []

    async def generate(request_id: str, **request: Any) -> str:
        asked.append((request_id, request))
        return "said"

    client = SimpleNamespace(generate=generate)
    policies.add_clients(client, lambda servers: f"client of {servers}")
    second = getattr(client, OF_CLIENT)["second"]
    assert asyncio.run(second.generate("one", prompt_ids=[1, 2])) == "said"
    assert asked == [("one", {"adapter": "second", "prompt_ids": [1, 2]})]
    assert getattr(client, OF_CLIENT)["third"] == "client of servers" and policies.server_managers == ["servers"]


def test_a_policy_has_its_own_lines_and_the_run_keeps_its_own() -> None:
    run = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "model": {"path": "base"},
                "actor": {"optim": {"lr": 1e-6, "betas": [0.9, 0.99]}, "grad_clip": 1.0},
                "rollout": {"custom": None, "n": 4},
            },
            "trainer": {"device": "cpu"},
        }
    )
    OmegaConf.set_struct(run, True)
    before = OmegaConf.to_container(run)
    options = PolicyOptions(("a",), model="other", actor_rollout_ref={"actor": {"optim": {"lr": 5e-7}}})
    made = config_of(run, options, 2)
    assert made.actor_rollout_ref.model.path == "other" and made.actor_rollout_ref.actor.optim.lr == 5e-7
    assert made.actor_rollout_ref.actor.optim.betas == [0.9, 0.99] and made.trainer.device == "cpu"
    assert first_replica(made.actor_rollout_ref.rollout) == 2 and first_replica(run.actor_rollout_ref.rollout) == 0
    assert OmegaConf.to_container(run) == before


@pytest.mark.parametrize(("rank", "first", "workers"), [(0, 0, ["a"]), (2, 2, ["a"]), (3, 2, ["b"])])
def test_a_replica_takes_the_workers_of_its_own_policy(rank: int, first: int, workers: list[str]) -> None:
    replica = numbered_replica(TransformersReplica).__new__(numbered_replica(TransformersReplica))
    replica.replica_rank, replica.world_size = rank, 1
    replica.config = SimpleNamespace(custom={"first_replica": first} if first else None)

    async def launched() -> None:
        pass

    replica.launch_servers = launched
    asyncio.run(replica.init_hybrid(SimpleNamespace(workers=["a", "b"])))
    assert replica.workers == workers


def test_servers_of_verls_own_classes_stand_side_by_side(tmp_path: Path) -> None:
    """Two policies on four devices with two devices a server: what verl's replicas of vLLM and SGLang start, and what
    verl's adapters look for in the ranks of the trainer."""
    site = write_distribution(tmp_path, "vllm", {}, {}, version=VERSION)
    variables = {**os.environ, "VERL_PLATFORM": "cpu", "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    said = subprocess.run(
        [sys.executable, "-m", absent_servers.__name__], env=variables, stdout=subprocess.PIPE, check=True
    )
    found = json.loads(said.stdout.splitlines()[-1])
    for server, has_socket in (("vllm", True), ("vllm_topk", True), ("sglang", False)):
        names, sockets = set[str](), set[str]()
        for policy, first in (("default", 0), ("second", 2)):
            sides = found[f"{server} {policy}"]
            for place, replica in enumerate(sides["replicas"]):
                assert replica["number"] == first + place and replica["workers"] == [2 * place, 2 * place + 1]
                names.add(replica["name"])
            # The device of SGLang is that of its place, whatever the policy.
            assert [replica["base_gpu_id"] for replica in sides["replicas"]] == [
                None if has_socket else 0,
                None if has_socket else 2,
            ]
            # The first rank of each server speaks to the very actor that its replica has started.
            started = [replica["name"] for replica in sides["replicas"]]
            assert [asked for asked, _, _ in sides["adapters"]] == [started[0], None, started[1], None]
            assert [number for _, _, number in sides["adapters"]] == [first, first, first + 1, first + 1]
            sockets |= {socket for _, socket, _ in sides["adapters"]}
            if has_socket:
                assert all(f"replica-{number}-" in socket for _, socket, number in sides["adapters"])
        assert len(names) == 4 and (len(sockets) == 8 or not has_socket)


def test_a_checkpoint_without_a_policy_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"hier\.policies\.second: the checkpoint .* has no folder policies/second"):
        several("second").load(tmp_path)
    assert folder_of(tmp_path, "default") == tmp_path / "actor"
    assert folder_of(tmp_path, "second") == tmp_path / "policies/second/actor"


def test_the_models_of_a_checkpoint_are_those_of_the_policies_that_learned(tmp_path: Path) -> None:
    declared = {name: PolicyOptions((name,)) for name in ("a", "b")} | {"c": PolicyOptions(("c",), "none")}
    checkpoint, run = tmp_path / "global_step_3/actor/huggingface", tmp_path / "run/model"
    assert learned_beside(checkpoint, declared) == learned_beside(run, declared) == {}
    for name in "ab":
        (tmp_path / f"global_step_3/policies/{name}/actor/huggingface").mkdir(parents=True)
        (tmp_path / f"run/policies/{name}").mkdir(parents=True)
    assert learned_beside(run, declared) == {name: tmp_path / f"run/policies/{name}" for name in "ab"}
    found = learned_beside(checkpoint, declared)
    assert found == {name: tmp_path / f"global_step_3/policies/{name}/actor/huggingface" for name in "ab"}
    found["b"].rmdir()
    with pytest.raises(HierError, match=r"hier\.policies\.b: there is no model of it at"):
        learned_beside(checkpoint, declared)


def test_a_run_ends_with_the_models_of_all_that_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, run = tmp_path / "global_step_3", Run(tmp_path / "run")
    for place, weights in (("actor", "a"), ("policies/second/actor", "b")):
        folder = checkpoint / place / "huggingface"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"dtype": "bfloat16"}')
        (folder / "model.safetensors").write_text(weights)
    run.folder.mkdir()
    recipe = OmegaConf.create({"actor_rollout_ref": {"rollout": {"dtype": "float32"}, "model": {"lora_rank": 0}}})
    monkeypatch.setattr(Run, "recipe", lambda run: recipe)
    monkeypatch.setattr(Run, "checkpoint", lambda run: checkpoint)
    assert run.save_policy() == run.folder / "model"
    for place, weights in (("model", "a"), ("policies/second", "b")):
        assert (run.folder / place / "model.safetensors").read_text() == weights
        assert '"float32"' in (run.folder / place / "config.json").read_text()
    assert not list(run.folder.rglob("*.part"))

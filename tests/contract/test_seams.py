"""The contract with the installed verl, one test a seam; and that the list is complete and useful."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from verl_hier.compat.seams import inspection
from verl_hier.compat.seams.table import SEAMS, Seam, verify

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_seam_holds(seam: Seam) -> None:
    assert verify(seam) == ""


def test_names_are_unique_and_every_field_says_something() -> None:
    assert len({seam.name for seam in SEAMS}) == len(SEAMS)
    for seam in SEAMS:
        assert seam.why and seam.link and seam.removal and seam.since, seam.name


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        (inspection.exists("verl.nothing:here"), "cannot be imported"),
        (inspection.exists("verl:nothing"), "does not exist"),
        (inspection.takes("verl.utils.config:validate_config", "nonsense"), "takes no nonsense"),
        (inspection.reads("verl.trainer.main_ppo:run_ppo", "launch_the_rocket()"), "does not say"),
        (inspection.fields("verl.workers.rollout.replica:TokenOutput", "colour"), "no field colour"),
        (inspection.spells("verl.nothing:here"), "does not exist"),
        (inspection.spells("verl.workers.rollout.vllm_rollout.vllm_async_server:nothing"), "does not exist"),
        (inspection.spells("verl.workers.rollout.base:BaseRollout", "launch_the_rocket()"), "does not say"),
        (inspection.spells("verl.workers.rollout.base:BaseRollout.resume", names=("colour",)), "takes no colour"),
        (inspection.spells("verl.workers.rollout.base:BaseRollout", names=("tags",)), "is no function"),
        (inspection.abstract("verl.workers.rollout.base:BaseRollout", "resume"), "new abstract methods"),
    ],
)
def test_a_broken_seam_is_told_in_a_phrase(check: inspection.Check, complaint: str) -> None:
    seam = Seam("broken", "x", "why", "link", "removal", check)
    assert complaint in verify(seam)


def test_every_verl_name_that_we_import_is_a_seam() -> None:
    """A `from verl.x import y` anywhere in our code needs a line in the list that covers the module."""
    covered = {target for seam in SEAMS for target in (seam.target.partition(":")[0],)} | {"verl"}
    for module in sorted(imported_from_verl()):
        assert module in covered or module in ACCOUNTED, f"{module} is imported, but no seam covers it"


# Imported, and verified through a seam of another module (the reason is behind it).
ACCOUNTED = {
    "verl.utils.fsdp_utils": "load_fsdp_model_to_gpu, see checkpoints_of_adapters",
    "verl.utils.model": "get_hf_auto_model_class, see checkpoints_of_adapters",
    "verl.utils.transformers_compat": "drop_tied_target_keys, see checkpoints_of_adapters",
    "verl.workers.config.optimizer": "build_optimizer, see adapters_of_policies",
    "verl.protocol": "DataProto, an argument of rollout_correction",
    "verl.utils": "tensordict_utils, see non_tensor_data",
    "verl.plugin.platform": "get_platform, see platform",
    "verl.workers.engine.fsdp.transformer_impl": "see fsdp_offload",
    "verl.workers.engine.base": "see engine_registry",
    "verl.workers.engine.utils": "postprocess_batch_func, see engine_micro_batches",
    "verl.utils.device": "get_device_id and get_device_name, what the platform says of itself",
    "verl.utils.torch_dtypes": "PrecisionType.to_dtype, a lookup of three names",
    "verl.single_controller.base.decorator": "register, by which a method of a worker is called on every rank",
    "verl.utils.metric": "reduce_metrics and rename_dict, as _update_critic names its metrics",
    "verl.utils.py_functional": "as above",
    "verl.checkpoint_engine": "CheckpointEngineManager, see another_policy",
    "verl.single_controller.ray": "RayWorkerGroup and RayClassWithInitArgs, see another_policy",
    "verl.single_controller.ray.base": "create_colocated_worker_cls, see another_policy",
    "verl.utils.net_utils": "see weight_iterator",
}


def imported_from_verl() -> set[str]:
    found: set[str] = set()
    for path in [*(ROOT / "verl_hier").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "verl":
                found.add(node.module or "")
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names if name.name.split(".")[0] == "verl"}
    return found

"""Adapters of several policies on one base model, in verl's FSDP engine: each with an optimiser of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.fsdp_utils import load_fsdp_model_to_gpu
from verl.utils.model import get_hf_auto_model_class
from verl.utils.transformers_compat import drop_tied_target_keys
from verl.workers.config.optimizer import build_optimizer

BASE = "default"
"""What peft calls the adapter that verl makes, and we the policy of `actor_rollout_ref`."""
_OF_ADAPTERS = "lora_"
"""Part of the names of all tensors of adapters, as verl looks for it too."""


@dataclass(frozen=True)
class _Own:
    """What verl's engine has of one adapter while that is active; the fields are called as in the engine."""

    optimizer_config: Any
    optimizer: Any
    lr_scheduler: Any
    checkpoint_manager: Any


class Adapters:
    """The adapters of an engine that is not initialised yet, of which one is active at a time.

    All begin alike: with the weights of the first one, drawn from the seed or loaded.

    Args:
        engine: verl's FSDP engine of the actor, whose model has `lora_rank`.
        optimisers: configuration of the optimiser of each adapter beside that of the engine.
        seed: draws the first weights; None leaves them to torch's generator.
        apart: servers get the active adapter alone, without the weights that it stands on; else verl decides.
    """

    def __init__(
        self, engine: Any, optimisers: Mapping[str, Any], seed: int | None = None, apart: bool = False
    ) -> None:
        self._engine = engine
        self._optimisers = optimisers
        self._seed = seed
        self._own: dict[str, _Own] = {}
        self._active = BASE
        self._exported = False
        self._build_base = engine._build_lora_module
        # verl's registry chooses the class of the engine, so that its methods are replaced on the object.
        engine._build_lora_module = self._build
        if apart:
            engine.get_per_tensor_param = self._sent

    def _build(self, module: torch.nn.Module) -> torch.nn.Module:
        """The model with all adapters, before it is divided among ranks."""
        with torch.random.fork_rng(enabled=self._seed is not None):
            if self._seed is not None:
                torch.manual_seed(self._seed)
            built: PeftModel = self._build_base(module)
        tensors = {name: tensor for name, tensor in built.state_dict().items() if of_adapter(name, BASE)}
        for name in self._optimisers:
            config: LoraConfig = built.peft_config[BASE]
            built.add_adapter(name, config)
            for place, tensor in tensors.items():
                parameter = built.get_parameter(place.replace(f".{BASE}", f".{name}"))
                # Also of the type of the first one, since all parameters of a group have one.
                parameter.data = tensor.detach().clone()
        _train_all(built)
        return built

    def begin(self) -> None:
        """Give each adapter what it has for itself; the engine is initialised."""
        engine = self._engine
        manager = engine.checkpoint_manager
        # verl would write the names and the weights of a model with adapters, which transformers does not load.
        contents = manager.checkpoint_save_contents
        self._exported = "hf_model" in contents
        manager.checkpoint_save_contents = [name for name in contents if name != "hf_model"]
        if not self._optimisers:
            return
        found = {BASE: engine.optimizer_config, **self._optimisers}
        for name, config in found.items():
            engine.optimizer_config = config
            self._own[name] = self._made(name, config)
        self.activate(BASE)

    def _made(self, name: str, config: Any) -> _Own:
        """What an adapter has for itself; the engine has the configuration of its optimiser."""
        engine, like = self._engine, self._engine.checkpoint_manager
        parameters = [parameter for at, parameter in engine.module.named_parameters() if of_adapter(at, name)]
        optimizer = build_optimizer(parameters, config)
        lr_scheduler = engine._build_lr_scheduler(optimizer)
        manager = FSDPCheckpointManager(
            model=engine.module,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            processing_class=like.processing_class,
            checkpoint_config=engine.checkpoint_config,
            trust_remote_code=like.trust_remote_code,
        )
        manager.checkpoint_save_contents = like.checkpoint_save_contents
        return _Own(config, optimizer, lr_scheduler, manager)

    def activate(self, name: str) -> None:
        """Let the engine train, ask, serve and save this adapter from now on."""
        if not self._own:
            return
        if name != self._active:
            # The gradients of its last step would count in the norm of the other's.
            self._own[self._active].optimizer.zero_grad()
        self._active = name
        vars(self._engine).update(vars(self._own[name]))
        self._engine.module.set_adapter(name)
        _train_all(self._engine.module)

    def _sent(self, **how: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any]]:
        """What verl's worker sends to servers: the tensors of the active adapter, by the name of its layer, a dot, and
        `lora_A` or `lora_B`; and what they are multiplied by, as peft does (peft/tuners/lora/layer.py,
        `update_layer`)."""
        module, name = self._engine.module, self._active
        config: LoraConfig = module.peft_config[name]
        held = ((key, value) for key, value in module.state_dict().items() if of_adapter(key, name))
        tensors = (
            (
                key.removeprefix("base_model.model.").removesuffix(f".{name}.weight"),
                value.full_tensor() if hasattr(value, "full_tensor") else value,
            )
            for key, value in held
        )
        return tensors, {"scale": config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)}

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def finish(self, folder: Path) -> None:
        """After verl's engine has saved the active adapter: put the model that transformers loads beside it, with the
        adapter merged, where the recipe saves one."""
        if self._exported:
            self._export(folder / "huggingface")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it, the model's state is that of the active adapter alone, and of the base model for the first one:
        what verl saves and loads is what it would be without the other adapters."""
        module, name = self._engine.module, self._active
        if not self._own:
            yield
            return

        def is_left_out(key: str) -> bool:
            return not of_adapter(key, name) if _OF_ADAPTERS in key else name != BASE

        def leave_out(_: Any, state: dict[str, Any], *more: Any) -> None:
            for key in [key for key in state if is_left_out(key)]:
                del state[key]

        def fill_in(_: Any, state: dict[str, Any], *more: Any) -> None:
            state.update({key: value for key, value in others.items() if key not in state})

        others = {key: value for key, value in module.state_dict().items() if is_left_out(key)}
        hooks = [module.register_state_dict_post_hook(leave_out), module.register_load_state_dict_pre_hook(fill_in)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _export(self, folder: Path) -> None:
        """Write the active adapter merged into the base, with the very values that rollout servers get."""
        engine, tensors = self._engine, {}
        if not engine._uses_fsdp2_cpu_offload_policy:
            load_fsdp_model_to_gpu(engine.module)
        # Every rank takes part in gathering a tensor.
        for name, tensor in engine._merged_lora_per_tensor_param():
            if engine.rank == 0:
                tensors[name] = tensor.cpu()
        if engine.rank == 0:
            config = engine.model_config.hf_config
            with torch.device("meta"):
                made = get_hf_auto_model_class(hf_config=config).from_config(config, torch_dtype=torch.bfloat16)
            made.to_empty(device="cpu")
            if (folder / GENERATION_CONFIG_NAME).is_file():
                made.generation_config = GenerationConfig.from_pretrained(folder)
            drop_tied_target_keys(tensors, made, config)
            made.save_pretrained(folder, state_dict=tensors)
        torch.distributed.barrier()


def of_adapter(tensor: str, name: str) -> bool:
    """Whether a tensor of peft's model belongs to an adapter, by the tensor's name."""
    return re.search(rf"\.{_OF_ADAPTERS}\w+\.{re.escape(name)}(\.|$)", tensor) is not None


def _train_all(module: torch.nn.Module) -> None:
    """Let every adapter have gradients: peft freezes all but the active one, and all while none is asked, and FSDP
    keeps what it saw first. The inactive ones take no part in a pass and get none."""
    for name, parameter in module.named_parameters():
        if _OF_ADAPTERS in name:
            parameter.requires_grad_(True)

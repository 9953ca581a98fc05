"""What a tree does not do exactly is refused in one sentence that names the setting."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import verl
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3NextConfig
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import batch_of, build_engine, loss_of, process_group
from verl_hier.engines.attention import NAME, attend, register
from verl_hier.engines.fsdp import register_engines
from verl_hier.engines.refusals import refuse_batch, refuse_model, refuse_settings
from verl_hier.errors import RecipeError
from verl_hier.recipe.engine import ENGINE_VARIABLE, TREE

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def settings(**changes: Any) -> tuple[Any, Any]:
    model = {"use_fused_kernels": False, "mtp": SimpleNamespace(enable=False)}
    engine = {"ulysses_sequence_parallel_size": 1, "pad_to_length": False}
    both = [{name: changes.get(name, given) for name, given in block.items()} for block in (model, engine)]
    return SimpleNamespace(**both[0]), SimpleNamespace(**both[1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ulysses_sequence_parallel_size": 2}, "ulysses_sequence_parallel_size: engine: tree does not divide a tree"),
        ({"use_fused_kernels": True}, "model.use_fused_kernels: fused kernels compute every log-prob"),
        ({"pad_to_length": True}, "fsdp_config.pad_to_length: engine: tree packs trees without padding"),
        ({"mtp": SimpleNamespace(enable=True)}, "model.mtp.enable: engine: tree predicts one next token"),
    ],
)
def test_settings(changes: dict[str, Any], sentence: str) -> None:
    refuse_settings(*settings())
    with pytest.raises(RecipeError, match=sentence):
        refuse_settings(*settings(**changes))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (MistralConfig(**SMALL, sliding_window=4), "sliding_window: the model attends to a window"),
        (
            Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=1),
            "layer_types: the model has layers of sliding_attention",
        ),
        (Qwen3NextConfig(**SMALL, num_experts=2), "layer_types: the model has layers of linear_attention"),
        (Qwen2Config(**SMALL, attention_dropout=0.1), "attention_dropout: rows drop different values by chance"),
        (Qwen2Config(**SMALL, output_router_logits=True), "output_router_logits: the balance of experts"),
        (Qwen2Config(**SMALL, vision_config={}), "model.path: engine: tree knows no positions of images"),
    ],
)
def test_models(config: Any, sentence: str) -> None:
    register()
    model = AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation(NAME)
    with pytest.raises(RecipeError, match=sentence):
        refuse_model(model)


def test_a_model_with_an_attention_of_its_own() -> None:
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SMALL))
    with pytest.raises(RecipeError, match="Qwen2ForCausalLM has an attention of its own, which no tree reaches"):
        refuse_model(model)


def test_dropout_outside_of_the_attention() -> None:
    register()
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SMALL))
    model.set_attn_implementation(NAME)
    refuse_model(model)
    model.model.layers[1].mlp.drop = torch.nn.Dropout(0.1)
    with pytest.raises(RecipeError, match=r"model\.layers\.1\.mlp\.drop: rows drop different values by chance"):
        refuse_model(model)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"s_aux": torch.zeros(2)}, "s_aux"),
        ({"softcap": 30.0}, "softcap"),
        ({"sliding_window": 4}, "sliding_window"),
        ({"dropout": 0.1}, "dropout"),
        ({}, "does not receive the tree"),
    ],
)
def test_what_a_layer_asks_of_its_attention(changes: dict[str, Any], sentence: str) -> None:
    tensor = torch.zeros(1, 2, 3, 4)
    with pytest.raises(RecipeError, match=f"engine: tree: Identity .*{sentence}.*take engine: stock for this model"):
        attend(torch.nn.Identity(), tensor, tensor, tensor, None, **changes)


ROWS = [np.array([1, 2, 3, 4]), np.array([1, 2, 5])]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"temperature": torch.ones(2)}, "temperature: each row has its own"),
        ({"distillation_use_topk": True}, "distillation: engine: tree has no logits of the teacher"),
    ],
)
def test_requests(request_: dict[str, Any], sentence: str) -> None:
    batch = batch_of(ROWS, [2, 2])
    refuse_batch(batch)
    if isinstance(request_.get("temperature"), torch.Tensor):
        batch["temperature"] = request_["temperature"]
    else:
        tu.assign_non_tensor(batch, **request_)
    with pytest.raises(RecipeError, match=sentence):
        refuse_batch(batch)


def test_positions_that_are_not_places() -> None:
    batch = batch_of(ROWS, [2, 2])
    batch["position_ids"] = batch["position_ids"] + 1
    with pytest.raises(RecipeError, match="position_ids: rows do not count their tokens from 0"):
        refuse_batch(batch)
    batch = batch_of(ROWS, [2, 2])
    batch["multi_modal_inputs"] = [{"pixel_values": torch.zeros(1)}, {}]
    with pytest.raises(RecipeError, match=r"data\.image_key: engine: tree knows no positions of images"):
        refuse_batch(batch)


def test_positions_of_images() -> None:
    batch = batch_of(ROWS, [2, 2])
    batch["position_ids"] = torch.zeros(2, 3, 4, dtype=torch.long)
    with pytest.raises(RecipeError, match=r"data\.image_key: engine: tree knows no positions of images"):
        refuse_batch(batch)


def test_a_mask_for_the_attention() -> None:
    tensor = torch.zeros(1, 2, 3, 4)
    with pytest.raises(RecipeError, match="Identity is called with attention_mask, and only plain causal attention"):
        attend(torch.nn.Identity(), tensor, tensor, tensor, torch.ones(3, 3, dtype=torch.bool))


def test_the_dropout_of_a_stored_adapter(tmp_path: Path) -> None:
    folder = write_byte_model(tmp_path / "model")
    adapters = {}
    for dropout in (0.0, 0.1):
        adapted = get_peft_model(
            AutoModelForCausalLM.from_pretrained(folder), LoraConfig(task_type="CAUSAL_LM", r=2, lora_dropout=dropout)
        )
        adapters[dropout] = str(tmp_path / f"adapter{dropout}")
        adapted.save_pretrained(adapters[dropout])
    with process_group(tmp_path / "store"):
        build_engine(folder, tree=True, model={"lora_rank": 2, "lora_adapter_path": adapters[0.0]})
        with pytest.raises(RecipeError, match=r"lora_dropout\.default: rows drop different values by chance"):
            build_engine(folder, tree=True, model={"lora_rank": 2, "lora_adapter_path": adapters[0.1]})


def strategies_of_verl() -> set[str]:
    """What its sources register engines of language models for, whether or not they can be imported here."""
    found: set[str] = set()
    for file in Path(str(verl.__file__)).parent.glob("workers/engine/**/*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "EngineRegistry.register":
                given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
                if given["model_type"] == "language_model":
                    found |= {given["backend"]} if isinstance(given["backend"], str) else set(given["backend"])
    return found


@pytest.mark.parametrize("strategy", sorted(strategies_of_verl() - {"fsdp2"}))
def test_every_other_strategy_of_verl(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register_engines(TREE)
    monkeypatch.setenv(ENGINE_VARIABLE, TREE)
    engine = EngineRegistry.get_engine_cls("language_model", strategy)
    with pytest.raises(RecipeError, match=f"engine: tree: the strategy '{strategy}' has no tree engine; set "):
        engine(None, SimpleNamespace(strategy=strategy))


def test_a_critic_of_another_strategy_is_verls_own(monkeypatch: pytest.MonkeyPatch) -> None:
    register_engines(TREE)
    stock = {name: EngineRegistry.get_engine_cls("value_model", name) for name in ("fsdp", "fsdp2")}
    monkeypatch.setenv(ENGINE_VARIABLE, TREE)
    assert EngineRegistry.get_engine_cls("value_model", "fsdp") is stock["fsdp"]
    assert EngineRegistry.get_engine_cls("value_model", "fsdp2") is not stock["fsdp2"]


def test_a_model_that_is_not_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_byte_model(tmp_path / "model")
    monkeypatch.delattr(PreTrainedModel, "set_attn_implementation")
    with process_group(tmp_path / "store"), pytest.raises(RecipeError, match="Qwen2ForCausalLM is no model of transf"):
        build_engine(folder, tree=True)


def test_layers_that_the_tree_does_not_reach_and_strategies_without_one(tmp_path: Path) -> None:
    folder = write_byte_model(tmp_path / "model")
    with process_group(tmp_path / "store"):
        engine = build_engine(folder, tree=True)
        engine.model_config.hf_config.num_hidden_layers = 3
        with engine.train_mode(), pytest.raises(RecipeError, match="2 of the 3 layers of the model attend as the tree"):
            engine.forward_backward_batch(batch_of(ROWS, [2, 2]), loss_of())
        with pytest.raises(RecipeError, match=r"the strategy 'fsdp' has no tree engine; set .*strategy=fsdp2"):
            build_engine(folder, tree=True, strategy="fsdp")

"""Several adapters on one base model in verl's engine: what each learns, leaves alone, and is saved as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from verl.workers.config import FSDPOptimizerConfig

from tests.fixtures.engines_alone import batch_of, build_engine, loss_of
from tests.fixtures.trees_of_rows import branching
from verl_hier.engines.adapters import Adapters, of_adapter

pytestmark = pytest.mark.usefixtures("group")
ROWS = [row for row in branching(3, leaves=6) if len(row) > 1]
PROMPTS = [max(1, len(row) // 3) for row in ROWS]
REQUEST: dict[str, Any] = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 4096}


def with_adapters(model: Path, *others: str, lr: float = 1e-2, seed: int | None = 0) -> tuple[Any, Adapters]:
    """An engine with adapters beside its own, which learn at a rate of their own."""
    engine = build_engine(model, model={"lora_rank": 4, "lora_alpha": 8})
    contents = ["model", "optimizer", "extra"]
    engine.checkpoint_config = {"save_contents": [*contents, "hf_model"], "load_contents": contents}
    optimisers = {name: FSDPOptimizerConfig(lr=lr, total_training_steps=10) for name in others}
    adapters = Adapters(engine, optimisers, seed)
    engine.initialize()
    adapters.begin()
    return engine, adapters


def weights(engine: Any, name: str) -> dict[str, torch.Tensor]:
    """The tensors of an adapter, under names without its own."""
    held = {
        key.replace(f".{name}.", "."): value
        for key, value in engine.module.state_dict().items()
        if of_adapter(key, name)
    }
    return {key: value.full_tensor().clone() for key, value in held.items()}


def base_of(engine: Any) -> dict[str, torch.Tensor]:
    held = engine.module.state_dict().items()
    return {key: value.full_tensor().clone() for key, value in held if "lora_" not in key}


def learn(engine: Any, seed: int = 0) -> float:
    with engine.train_mode():
        return float(
            engine.train_batch(batch_of(ROWS, PROMPTS, seed=seed, **REQUEST), loss_of())["metrics"]["grad_norm"]
        )


def log_probs(engine: Any) -> torch.Tensor:
    with engine.eval_mode():
        found = engine.infer_batch(batch_of(ROWS, PROMPTS, **REQUEST))
    return found["model_output"]["log_probs"].values()


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def test_each_adapter_learns_for_itself_and_as_it_would_alone(model: Path) -> None:
    alone, _ = with_adapters(model)
    norms = [learn(alone, seed) for seed in (0, 1)]
    engine, adapters = with_adapters(model, "second")
    base, start = base_of(engine), weights(engine, "default")
    assert equal(start, weights(engine, "second")) and start
    assert equal(start, weights(with_adapters(model)[0], "default")), "the seed draws them"
    assert not equal(start, weights(with_adapters(model, seed=1)[0], "default"))
    found = []
    for seed in (0, 1):
        adapters.activate("default")
        found.append(learn(engine, seed))
        before = weights(engine, "default")
        adapters.activate("second")
        # The reference of adapters is the model without them, which peft lets nothing learn of.
        with engine.disable_adapter():
            log_probs(engine)
        adapters.activate("second")
        assert learn(engine, seed) > 0 and equal(before, weights(engine, "default"))
    assert found == norms and equal(weights(engine, "default"), weights(alone, "default"))
    assert not equal(weights(engine, "second"), weights(engine, "default")), "it learns ten times as fast"
    assert equal(base, base_of(engine))


def test_a_saved_policy_is_one_that_transformers_loads_and_goes_on_from(model: Path, tmp_path: Path) -> None:
    engine, adapters = with_adapters(model, "second")
    for name in ("default", "second"):
        adapters.activate(name)
        learn(engine)
        with adapters.alone():
            engine.save_checkpoint(str(tmp_path / name))
        adapters.finish(tmp_path / name)
    saved = {
        name: torch.load(tmp_path / name / "model_world_size_1_rank_0.pt", weights_only=False)
        for name in ("default", "second")
    }
    assert not any(of_adapter(key, "second") for key in saved["default"]) and len(saved["default"]) > 20
    assert all(of_adapter(key, "second") for key in saved["second"]) and saved["second"]
    for name in saved:
        adapters.activate(name)
        merged = dict(engine._merged_lora_per_tensor_param())
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / name / "huggingface").state_dict()
        assert merged.keys() <= loaded.keys()
        assert all(torch.equal(value, loaded[key]) for key, value in merged.items())
        adapters.activate(name)
        learn(engine, 1)
    resumed, again = with_adapters(model, "second")
    for name in saved:
        again.activate(name)
        with again.alone():
            resumed.load_checkpoint(str(tmp_path / name))
    for name in saved:
        again.activate(name)
        learn(resumed, 1)
        assert equal(weights(engine, name), weights(resumed, name))
        assert resumed.optimizer.state_dict()["state"].keys() == engine.optimizer.state_dict()["state"].keys()
    assert equal(base_of(engine), base_of(resumed))


def test_tensors_are_told_apart_by_the_name_of_their_adapter() -> None:
    inside = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.layers.weight"
    assert of_adapter(inside, "layers") and not of_adapter(inside, "model")
    assert not of_adapter("base_model.model.layers.0.mlp.weight", "layers")

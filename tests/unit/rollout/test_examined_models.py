"""What is found out about a model from its config and tokenizer, and that every finding says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GenerationConfig

from tests.fixtures.byte_model import write_byte_model
from verl_hier.chat.examined.finding import Finding
from verl_hier.chat.examined.model import examine, of_tokenizer, refuse_server, refuse_tokenizer
from verl_hier.errors import RecipeError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost

HOST = PluginHost.load(DEFAULT_ENABLED)

_SMALL = {
    "vocab_size": 259,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(write_byte_model(tmp_path))


def _by_subject(findings: Any) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


def _with_config(folder: Path, **config: Any) -> dict[str, Finding]:
    (folder / "config.json").write_text(json.dumps({**_SMALL, **config}))
    return _by_subject(examine(folder, HOST))


def _template(folder: Path, template: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    return tokenizer


def test_a_sound_model_has_no_failure(folder: Path) -> None:
    for weights in folder.glob("*.safetensors"):
        weights.unlink()  # none are read
    found = _by_subject(examine(folder, HOST))
    assert {"round trip", "end of a turn", "roles", "four turns", "server transformers", "adapters"} <= set(found)
    assert not [finding for finding in found.values() if finding.verdict == "fails"]
    assert found["four turns"].verdict == "ok"


@pytest.mark.parametrize(
    ("config", "server", "tree"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "ok", "ok"),
        (
            {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 8},
            "refused",
            "note",
        ),
        (
            {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 2},
            "refused",
            "note",
        ),
        ({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8}, "note", "note"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "refused", "note"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_what_servers_and_engines_can_do_with_an_architecture(
    folder: Path, config: dict[str, Any], server: str, tree: str
) -> None:
    found = _with_config(folder, **config)
    sentence = found["server transformers"].sentence
    assert ("server=vllm" in sentence) == (server == "refused"), sentence
    assert (found["server transformers"].verdict == "ok") == (server == "ok"), sentence
    if server == "refused":
        with pytest.raises(RecipeError, match=r"model\.path: .*'transformers'.*server=vllm"):
            refuse_server(folder, HOST.specs("rollout_server")["transformers"], "actor_rollout_ref.model.path")
    else:
        refuse_server(folder, HOST.specs("rollout_server")["transformers"], "actor_rollout_ref.model.path")
    assert found["engine tree"].verdict == tree, found["engine tree"]
    assert "bytes" in found["memory, size=cpu"].sentence


def test_experts_in_one_tensor_are_out_of_the_reach_of_adapters(folder: Path) -> None:
    found = _with_config(folder, model_type="gpt_oss", architectures=["GptOssForCausalLM"], num_local_experts=2)
    assert found["adapters"].verdict == "note" and "experts" in found["adapters"].sentence


def test_an_end_that_is_not_eos_is_told_with_the_line_to_change(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    tokenizer.eos_token = "<|im_start|>"
    found = _by_subject(of_tokenizer(tokenizer, None, GenerationConfig(eos_token_id=end)))
    assert '"eos_token": "<|im_end|>"' in found["end of a turn"].sentence
    assert "generation config stops there" in found["end of a turn"].sentence
    assert "opens turns" in found["EOS"].sentence


def test_a_missing_pad_token_is_told(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    assert "pad_token" in _by_subject(of_tokenizer(tokenizer, None, None))["padding"].sentence


def test_a_tokenizer_that_loses_spaces_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(AutoTokenizer.from_pretrained(folder))
    decode = kind.decode
    monkeypatch.setattr(kind, "decode", lambda self, *tokens, **more: decode(self, *tokens, **more).replace(" ", ""))
    with pytest.raises(RecipeError, match=r"model\.path: round trip.*PreTrainedTokenizerFast"):
        refuse_tokenizer(folder, folder, "actor_rollout_ref.model.path")


def test_a_template_that_renders_nothing_is_refused(folder: Path) -> None:
    for broken in ("{{ raise_exception('never') }}", "{% for m in messages %}{{ m.role }}{% endfor %}"):
        found = _by_subject(of_tokenizer(_template(folder, broken), None, None))
        assert found["roles"].verdict == "fails" and "chat_template" in found["roles"].sentence


def test_a_template_that_drops_thoughts_or_rewrites_history_is_told(folder: Path) -> None:
    body = "<|im_start|>{{ m.role }}\n{{ TEXT }}<|im_end|>\n{% endfor %}"
    opening = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    drops = "{% for m in messages %}" + body.replace("TEXT", "m.content.split('</think>')[-1]") + opening
    found = _by_subject(of_tokenizer(_template(folder, drops), None, None))
    assert found["thoughts"].verdict == "note" and found["four turns"].verdict == "ok"
    rewrites = "{% for m in messages %}" + body.replace("TEXT", "m.content ~ loop.revindex") + opening
    found = _by_subject(of_tokenizer(_template(folder, rewrites), None, None))
    assert found["four turns"].verdict == "note" and "the template writes" in found["four turns"].sentence


def test_strict_roles_are_told(folder: Path) -> None:
    strict = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}"
        "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    found = _by_subject(of_tokenizer(_template(folder, strict), None, None))
    assert "alternate" in found["roles"].sentence and "no system message" in found["roles"].sentence
    assert found["four turns"].verdict == "ok"


@pytest.mark.parametrize("change", ["template", "layers"])
def test_check_refuses_what_would_fail(folder: Path, change: str) -> None:
    from verl_hier.recipe.check import check_recipe
    from verl_hier.recipe.compose import compose

    recipe = compose(
        "grpo_sokoban", ["size=cpu", f"actor_rollout_ref.model.path={folder}", "hier.rollout.template=chat"]
    )
    check_recipe(recipe)
    if change == "template":
        (folder / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
        said = "never"
    else:
        config = {**_SMALL, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 8}
        (folder / "config.json").write_text(json.dumps(config))
        said = "sliding_attention"
    with pytest.raises(RecipeError, match=f"model.path.*{said}"):
        check_recipe(recipe)

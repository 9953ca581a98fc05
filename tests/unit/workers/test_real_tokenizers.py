"""Every worker through the chat templates of released models, and what `verl-hier doctor` finds about each of them."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.fixtures.hostile_outputs import hostile
from tests.fixtures.hostile_rollouts import play, workers
from tests.fixtures.real_tokenizers import FILES, LOCK, real_tokenizer, unpack
from tests.fixtures.tiers import spread
from verl_hier.chat.examined.model import examine, refuse_tokenizer
from verl_hier.chat.renderer import ChatRenderer
from verl_hier.errors import RecipeError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.rollout import Generation, Limits
from verl_hier.testing.rollout import ScriptedPolicy

_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "llama3_1": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "gemma3": {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
    "deepseek_v3": {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 2},
    "gptoss": {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 2},
}
_SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_WITH_TEMPLATE = sorted(set(LOCK) - {"gptoss"})
_FOUND = {
    "qwen3": {"four turns": "own rendering", "thoughts": "drops the thoughts", "tool calls": "hermes"},
    "llama3_1": {"four turns": "own rendering", "padding": "pad_token", "tool calls": "writes no calls"},
    "gemma3": {"four turns": "own rendering", "roles": "alternate", "server transformers": "sliding_attention"},
    "deepseek_v3": {"round trip": "as they were", "four turns": "own rendering", "padding": "ends a turn"},
    "gptoss": {"chat template": "chat_template.jinja", "adapters": "experts", "engine tree": "sliding_attention"},
}


@cache
def _tokenizer(family: str) -> Any:
    folder = real_tokenizer(family)
    # transformers loses the spaces of one of them otherwise, which `doctor` says.
    kind = PreTrainedTokenizerFast if family == "deepseek_v3" else AutoTokenizer
    return kind.from_pretrained(folder)


class _EndsTurns(ScriptedPolicy):
    """Ends its turns as the template does, unless they are too long."""

    seen: ClassVar[list[list[int]]] = []

    async def generate(self, prompt: list[int], sampling: Any, conversation: str) -> Generation:
        self.seen.append(list(prompt))
        text = self._answer("", sampling)
        end = self.tokenizer.turn_end  # type: ignore[attr-defined]
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), end][: sampling.max_tokens]
        return Generation(tokens, [-1.0] * len(tokens), "completed")


def _play(family: str, worker: str, answer: Any, n: int = 1, most: int = 60) -> tuple[Any, ChatRenderer]:
    tokenizer = _tokenizer(family)
    renderer = ChatRenderer(tokenizer, _CONFIGS[family]["model_type"], {})
    tokenizer.turn_end = renderer.template.end
    _EndsTurns.seen.clear()
    limits = Limits(max_turns=4, max_tokens_per_turn=most, context_tokens=20_000)
    return asyncio.run(play(worker, answer, n, tokenizer, limits, _EndsTurns, renderer=renderer)), renderer


@pytest.mark.parametrize(("family", "worker"), spread(24, product(_WITH_TEMPLATE, workers()), pytest.mark.slow))
def test_every_worker_plays_through_every_template(family: str, worker: str) -> None:
    graph, renderer = _play(family, worker, lambda prompt, sampling: "<think>Now.</think><action>left</action>")
    graph.check()
    assert graph.nodes and {episode.status for episode in graph.episodes} <= {"finished", "truncated"}
    said = _tokenizer(family).encode("<think>Now.</think><action>left</action>", add_special_tokens=False)
    written = [node for node in graph.nodes if node.action]
    assert written
    for node in written:
        assert node.action == [*said, renderer.template.end], "trained tokens are the sampled ones"
        assert renderer.ends(node.action)
        assert graph.prompt(node.id) in _EndsTurns.seen, "contexts grow by tokens, as the server was given them"
        assert node.observation, "something is heard before each turn"


@pytest.mark.slow
def test_hostile_outputs_through_a_real_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for worker in workers():
        chance = random.Random(worker)

        def answer(prompt: str, sampling: Any, chance: random.Random = chance) -> str:
            return hostile(chance).encode("utf-8", "backslashreplace").decode()

        graph, _ = _play("gemma3", worker, answer, n=4, most=2000)
        graph.check()
        assert {episode.status for episode in graph.episodes} <= {"finished", "truncated"}
    assert not list(tmp_path.iterdir()), "an output was executed"


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(LOCK))
def test_what_is_found_about_a_family(family: str, tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(real_tokenizer(family) / name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**_SMALL, **_CONFIGS[family]}))
    found = {finding.about: finding for finding in examine(tmp_path, PluginHost.load(DEFAULT_ENABLED))}
    for about, words in _FOUND[family].items():
        assert words in found[about].sentence, found[about]
    assert not [finding for finding in found.values() if finding.verdict == "fails"]
    refuse_tokenizer(tmp_path, tmp_path, "actor_rollout_ref.model.path")


@pytest.mark.slow
def test_a_tokenizer_that_loses_spaces_under_its_named_class_is_refused() -> None:
    # Without a config, or with that of another family, transformers takes the class that the tokenizer's config names.
    folder = real_tokenizer("deepseek_v3")
    with pytest.raises(RecipeError, match='"tokenizer_class": "PreTrainedTokenizerFast"'):
        refuse_tokenizer(folder, folder, "actor_rollout_ref.model.path")


def test_a_package_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "package.tgz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="hash sha512-"):
        unpack(tmp_path / "package.tgz", tmp_path, LOCK["qwen3"]["integrity"])

"""Tiny models, a byte-level tokenizer and a toy task, all made on the spot."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest
import torch
import verl  # noqa: F401  loads the plugin, so that the platform is settled before anything asks for it
from omegaconf import OmegaConf
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from verl.workers.config import RolloutConfig

from verl_hier.runtime_cpu.generation.engine import GenerationEngine
from verl_hier.runtime_cpu.generation.model import SlotModel
from verl_hier.runtime_cpu.generation.request import Request, SamplingParams, draws
from verl_hier.runtime_cpu.server import TransformersServer
from verl_hier.testing.models import write_byte_model

VOCABULARY = 61


def build_model(kind: str = "qwen2", vocabulary: int = VOCABULARY, seed: int = 0) -> torch.nn.Module:
    """A random model with peaked logits, so that greedy choices do not hang on rounding."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
    }
    if kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**shape, num_key_value_heads=2, tie_word_embeddings=True))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=4, tie_word_embeddings=False))
    elif kind == "qwen3":  # a head size of its own, normalised queries and keys
        model = Qwen3ForCausalLM(Qwen3Config(**shape, num_key_value_heads=2, head_dim=16))
    elif kind == "mixtral":  # experts
        model = MixtralForCausalLM(MixtralConfig(**shape, num_key_value_heads=2, num_local_experts=2))
    elif kind == "opt":  # learned positions with an offset
        model = OPTForCausalLM(OPTConfig(**shape, ffn_dim=48, word_embed_proj_dim=32))
    else:
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3)
        )
    # Otherwise transformers' own generation suppresses a token of this vocabulary.
    model.generation_config.eos_token_id = None
    return model.eval()


class Harness:
    """An engine and the requests it has finished, by id."""

    def __init__(self, model: torch.nn.Module, **options: object) -> None:
        self.model = model
        self.finished: dict[str, Request] = {}
        settings: dict = {
            "max_sequences": 64,
            "max_batched_tokens": 4096,
            "prefix_capacity": 4096,
            "vocab_limit": VOCABULARY,
        }
        settings.update(options)
        self.engine = GenerationEngine(SlotModel(model), on_finish=self._collect, **settings)

    def _collect(self, request: Request) -> None:
        self.finished[request.request_id] = request

    def add(self, name: str, prompt: list[int], seed: int = 0, stop_ids: tuple[int, ...] = (), **params) -> Request:
        params.setdefault("logprobs", 0)
        request = Request(name, len(prompt), list(prompt), SamplingParams(**params), frozenset(stop_ids), draws(seed))
        self.engine.add(request)
        return request

    def run(self) -> dict[str, Request]:
        while self.engine.has_work:
            self.engine.step()
        return self.finished


@pytest.fixture
def harness() -> Callable[..., Harness]:
    def make(kind: str = "qwen2", **options: object) -> Harness:
        return Harness(build_model(kind), **options)

    return make


def random_prompts(count: int, low: int = 3, high: int = 30, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def plain_log_probs(model: torch.nn.Module, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    """[len(tokens) - 1, vocabulary]: log-probabilities of each next token, from one plain forward pass."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits.float() / temperature, dim=-1)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its tokenizer, a data set for RL and one for SFT, and a reward function."""
    import pandas

    folder = write_byte_model(tmp_path_factory.mktemp("toy"))
    letters = [chr(ord("a") + i % 26) for i in range(64)]
    pandas.DataFrame(
        {
            "data_source": "toy",
            "prompt": [[{"role": "user", "content": f"say {letter}"}] for letter in letters],
            "reward_model": [{"style": "rule", "ground_truth": letter} for letter in letters],
            "extra_info": [{"index": i} for i in range(len(letters))],
        }
    ).to_parquet(folder / "train.parquet")
    pandas.DataFrame(
        {
            "messages": [
                [{"role": "user", "content": f"say {letter}"}, {"role": "assistant", "content": letter * 4}]
                for letter in letters
            ]
        }
    ).to_parquet(folder / "sft.parquet")
    (folder / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
        # Never the same for a whole group, so that group-relative advantages are not all zero.
        "    return sum(ord(c) % 7 for c in solution_str + ground_truth) / (7 + 7 * len(solution_str))\n"
    )
    return folder


def rollout_config(**changes: object) -> RolloutConfig:
    engine_kwargs = {"transformers": changes.pop("options", {})}
    settings = {
        "name": "transformers",
        "dtype": "float32",
        "tensor_model_parallel_size": 1,
        "prompt_length": 64,
        "response_length": 24,
        "max_num_seqs": 32,
        **changes,
    }
    return RolloutConfig(**settings, engine_kwargs=engine_kwargs)


@pytest.fixture
def serve(toy: Path) -> Callable[..., None]:
    """Runs a coroutine function with a server made from `rollout_config(**changes)`."""

    def run(body: Callable[[TransformersServer], Awaitable[None]], **changes: object) -> None:
        async def main() -> None:
            model_config = OmegaConf.create(
                {"path": str(toy), "override_config": {"attn_implementation": "sdpa"}, "use_remove_padding": False}
            )
            server = TransformersServer(rollout_config(**changes), model_config, replica_rank=0)
            await server.set_global_steps(3)
            await asyncio.wait_for(body(server), timeout=60)

        asyncio.run(main())

    return run

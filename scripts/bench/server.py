"""Tokens per second of the CPU generation engine against transformers' own `generate`.

Time is the CPU time of this process with one thread: it is the wall time of a machine that does nothing else. Greedy
answers of both are compared first, and how many are equal is printed: where two logits are equal to the last digits,
either may go on.

    python scripts/bench/server.py --hidden 96 --layers 2 --heads 4 --vocab 190    # a random Qwen2
    python scripts/bench/server.py --model smollm2 --sequences 64 --repeats 2      # a folder, see docs/real_model.md
"""

import argparse
import os
import time

os.environ.setdefault("VERL_PLATFORM", "cpu")

import torch
from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM

from verl_hier.runtime_cpu.generation.engine import GenerationEngine
from verl_hier.runtime_cpu.generation.model import SlotModel, load_model
from verl_hier.runtime_cpu.generation.request import Request, SamplingParams, draws


def build(args: argparse.Namespace) -> torch.nn.Module:
    if args.model:
        model = load_model(args.model, AutoConfig.from_pretrained(args.model), torch.float32)
        model.generation_config.eos_token_id = None
        return model
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads or args.heads,
        intermediate_size=2 * args.hidden,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def engine_of(model: SlotModel, prompts: list[list[int]], deterministic: bool = False) -> GenerationEngine:
    return GenerationEngine(
        model,
        max_sequences=len(prompts),
        max_batched_tokens=8192,
        prefix_capacity=100_000,
        vocab_limit=model.model.config.vocab_size,
        on_finish=lambda request: None,
        deterministic=deterministic,
    )


def equal_answers(model: torch.nn.Module, slots: SlotModel, prompts: list[list[int]], new: int) -> int:
    """How many greedy answers of the engine are those of `generate`."""
    engine, params = engine_of(slots, prompts), SamplingParams(max_tokens=new, temperature=0.0)
    requests = [Request(str(i), len(each), list(each), params, frozenset(), draws(i)) for i, each in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    engine.drop_caches()
    ids = torch.tensor(prompts)
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), **options).tolist()
    return sum(request.tokens == tokens for request, tokens in zip(requests, theirs, strict=True))


def engine_seconds(model: SlotModel, prompts: list[list[int]], new: int, deterministic: bool = False) -> float:
    engine, params = engine_of(model, prompts, deterministic), SamplingParams(max_tokens=new, logprobs=0)
    started = time.process_time()
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), len(prompt), list(prompt), params, frozenset(), draws(i)))
    while engine.has_work:
        engine.step()
    seconds = time.process_time() - started
    engine.drop_caches()
    return seconds


def transformers_seconds(model: torch.nn.Module, prompts: list[list[int]], new: int) -> float:
    input_ids = torch.tensor(prompts)
    started = time.process_time()
    model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=True,
        top_k=0,
        max_new_tokens=new,
        min_new_tokens=new,
        pad_token_id=0,
    )
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 96), ("layers", 2), ("heads", 4), ("kv-heads", 0), ("vocab", 190)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", help="a folder with a model, in place of a random one")
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=5, help="the best of so many runs is shown")
    parser.add_argument("--deterministic", action="store_true", help="measure that mode too, which is slow")
    args = parser.parse_args()

    torch.set_num_threads(1)
    model, slots = build(args), SlotModel(build(args))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f}M parameters, {args.prompt} + {args.new} tokens")
    print("sequences | engine tok/s | deterministic tok/s | transformers tok/s | engine ms/step | equal greedy answers")
    for n in args.sequences:
        vocabulary = model.config.vocab_size
        prompts = torch.randint(0, vocabulary, (n, args.prompt), generator=torch.Generator().manual_seed(n)).tolist()
        equal = equal_answers(model, slots, prompts, args.new)
        ours = min(engine_seconds(slots, prompts, args.new) for _ in range(args.repeats))
        first = min(engine_seconds(slots, prompts, 1) for _ in range(args.repeats))
        alone = engine_seconds(slots, prompts, args.new, deterministic=True) if args.deterministic else float("inf")
        theirs = min(transformers_seconds(model, prompts, args.new) for _ in range(args.repeats))
        step = (ours - first) / (args.new - 1) * 1e3
        rates = " | ".join(
            f"{n * args.new / took:,.0f}" if took < float("inf") else "–" for took in (ours, alone, theirs)
        )
        print(f"{n} | {rates} | {step:.2f} | {equal} of {n}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How well -log p of sampled tokens stands in for top-k entropies: per token, per turn, and for the branches of ARPO.

A small model learns the reference manual that comes with Python (`pydoc_data.topics`) for a minute, or `--model`
names one. The engine of the CPU server then plays chains of two turns: a passage of the manual that the model has not
seen, a turn, another passage as the answer of a tool, a turn. A turn of L tokens is the beginning of what was sampled.

    OMP_NUM_THREADS=1 python scripts/bench/entropy.py
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from pydoc_data.topics import topics

os.environ.setdefault("VERL_PLATFORM", "cpu")

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from verl_hier.rollout.entropy import top_entropy
from verl_hier.runtime_cpu.generation.engine import GenerationEngine
from verl_hier.runtime_cpu.generation.model import SlotModel
from verl_hier.runtime_cpu.generation.request import Request, SamplingParams, draws
from verl_hier_plugins.samplers.arpo import Rising, step_entropy

Floats = NDArray[np.float64]
SOURCES = ("sampled", "top_k", "exact")
PAIRS = (("sampled", "top_k"), ("sampled", "exact"), ("top_k", "exact"))
LENGTHS = (2, 5, 10, 20, 50, 100, 200)
PASSAGE = 32


def corpus() -> tuple[str, str]:
    """The manual's sections, in a fixed order of chance: nine tenths to learn from, one tenth to ask about."""
    names = sorted(topics)
    random.Random(0).shuffle(names)
    cut = len(names) * 9 // 10
    return "\n\n".join(topics[name] for name in names[:cut]), "\n\n".join(topics[name] for name in names[cut:])


def learned(args: argparse.Namespace) -> tuple[PreTrainedModel, list[int]]:
    """A model trained on the first part of the manual, and the token ids of the other part."""
    seen, unseen = corpus()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([seen], trainers.BpeTrainer(vocab_size=args.vocab, show_progress=False))
    tokens = torch.tensor(tokenizer.encode(seen).ids)
    torch.manual_seed(args.seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=args.hidden,
            num_hidden_layers=args.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=3 * args.hidden,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=args.steps)
    loss = torch.tensor(0.0)
    for _ in range(args.steps):
        starts = torch.randint(len(tokens) - 64, (16,)).tolist()
        batch = torch.stack([tokens[start : start + 64] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    count = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{count / 1e6:.2f}M parameters, {args.steps} steps on {len(tokens)} tokens, last loss {loss.item():.2f} nats",
        flush=True,
    )
    return model, tokenizer.encode(unseen).ids


def given(args: argparse.Namespace) -> tuple[PreTrainedModel, list[int]]:
    """A model of the user's, and the token ids of the part of the manual that is asked about."""
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa")
    return model, AutoTokenizer.from_pretrained(args.model).encode(corpus()[1])


def generate(slots: SlotModel, prompts: list[list[int]], params: SamplingParams, seed: int) -> list[Request]:
    """One turn after each prompt, in their order."""
    finished: dict[str, Request] = {}
    engine = GenerationEngine(
        slots,
        max_sequences=64,
        max_batched_tokens=8192,
        prefix_capacity=0,
        vocab_limit=slots.model.config.vocab_size,
        on_finish=lambda request: finished.update({request.request_id: request}),
    )
    for number, prompt in enumerate(prompts):
        stream = draws(seed * 1_000_003 + number)
        engine.add(Request(str(number), len(prompt), list(prompt), params, frozenset(), stream))
    while engine.has_work:
        engine.step()
    engine.drop_caches()
    return [finished[str(number)] for number in range(len(prompts))]


@torch.inference_mode()
def measure(model: PreTrainedModel, turns: list[Request]) -> dict[str, Floats]:
    """(turns, L) of each source: what a sampler would read, and the whole entropy of the model beside it."""
    found: dict[str, list[list[float]]] = {name: [] for name in SOURCES}
    for turn in turns:
        found["sampled"].append([-value for value in turn.log_probs])
        found["top_k"].append([top_entropy(position) for position in turn.top_logprobs])
        logits = model(input_ids=torch.tensor([turn.tokens])).logits[0, turn.prompt_length - 1 : -1]
        logs = torch.log_softmax(logits.float() / turn.params.temperature, dim=-1)
        found["exact"].append((-(logs.exp() * logs).sum(dim=-1)).tolist())
    return {name: np.asarray(rows) for name, rows in found.items()}


def play(
    model: PreTrainedModel, text: list[int], temperature: float, args: argparse.Namespace
) -> Iterator[dict[str, Floats]]:
    """First and second turns of all chains."""
    slots, rng = SlotModel(model), random.Random(args.seed)
    params = SamplingParams(max_tokens=args.tokens, temperature=temperature, logprobs=args.k)

    def passages() -> list[list[int]]:
        starts = [rng.randrange(len(text) - PASSAGE) for _ in range(args.chains)]
        return [text[start : start + PASSAGE] for start in starts]

    contexts = passages()
    for turn in range(2):
        said = generate(slots, contexts, params, 2 * args.seed + turn)
        yield measure(model, said)
        contexts = [request.tokens + passage for request, passage in zip(said, passages(), strict=True)]


def agreement(left: Floats, right: Floats) -> str:
    """Pearson and Spearman correlation."""
    ranks = [np.argsort(np.argsort(values)) for values in (left, right)]
    return f"{np.corrcoef(left, right)[0, 1]:.2f}, {np.corrcoef(*ranks)[0, 1]:.2f}"


def report(first: dict[str, Floats], second: dict[str, Floats], args: argparse.Namespace, vocabulary: int) -> None:
    """Three Markdown tables."""
    both = {name: np.concatenate([first[name], second[name]]) for name in SOURCES}
    turns, rows = len(both["exact"]), {1: lambda values: values.ravel()}
    rows |= {n: lambda values, n=n: values[:, :n].sum(axis=1) for n in LENGTHS if n <= args.tokens}
    print("\n| source | mean, nats a token | standard deviation over tokens |\n|---|---|---|")
    for name in SOURCES:
        print(f"| {name} | {both[name].mean():.2f} | {both[name].std():.2f} |")
    heads = " | ".join(" and ".join(pair) for pair in PAIRS)
    print(f"\n| sum over a turn, {turns} turns | {heads} |\n|---|---|---|---|")
    for length, reduce in rows.items():
        cells = " | ".join(agreement(reduce(both[one]), reduce(both[other])) for one, other in PAIRS)
        print(f"| {length} token{'s' if length > 1 else ', at any place'} | {cells} |")
    print("\n| ΔH of a second turn | sampled and top_k | mean distance of P | same decision | mean P |")
    print("|---|---|---|---|---|")
    uniform = np.random.default_rng(args.seed).random(args.chains)
    for length in (5, 10, 20):
        print(f"| {length} tokens | {decisions(first, second, length, uniform, vocabulary)} |")


def decisions(
    first: dict[str, Floats], second: dict[str, Floats], length: int, uniform: Floats, vocabulary: int
) -> str:
    """What ARPO with its defaults does by either source at the same draws: cells of a row."""
    rule, change = Rising(0.5, 0.2), {}
    for name in SOURCES:
        pairs = zip(first[name][:, :length].tolist(), second[name][:, :length].tolist(), strict=True)
        change[name] = np.array([step_entropy(b, vocabulary) - step_entropy(a, vocabulary) for a, b in pairs])
    chance = {name: np.array([rule.probability(x) for x in change[name]]) for name in SOURCES}
    taken = {name: [rule.branches(u, x) for u, x in zip(uniform, change[name], strict=True)] for name in SOURCES}
    same = np.mean(np.array(taken["sampled"]) == np.array(taken["top_k"]))
    apart = np.abs(chance["sampled"] - chance["top_k"]).mean()
    means = f"{chance['sampled'].mean():.2f}, {chance['top_k'].mean():.2f}"
    return f"{agreement(change['sampled'], change['top_k'])} | {apart:.2f} | {100 * same:.0f} % | {means}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a causal language model of your own, instead of the small one")
    parser.add_argument("--chains", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each of the two turns")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.5, 0.3])
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    started = time.process_time()
    torch.set_num_threads(1)
    model, text = given(args) if args.model else learned(args)
    model = model.eval().requires_grad_(False)
    vocabulary = int(model.config.vocab_size)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    print(f"vocabulary {vocabulary} (ln |V| = {math.log(vocabulary):.2f}), k = {args.k}, {args.chains} chains")
    for temperature in args.temperatures:
        print(f"\ntemperature {temperature}")
        report(*play(model, text, temperature, args), args, vocabulary)
    print(f"\n{packages}, Python {platform.python_version()}, {time.process_time() - started:.0f} s of CPU time")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What a turn costs a rollout worker with hundreds of episodes under way, beyond the server and the environment.

    python scripts/bench/control_plane.py [--episodes 512] [--turns 20] [--tokens 300] [--profile]

Episodes of one growing chat context are rolled out together. The policy answers each request after a fixed time with
tokens that were made before; the environment sleeps in a process of its own. So the processor time of this process is
that of rendering, gates, budgets, random generators, the call of the environment and the graph. Ray's part of a request
is not in it. `--profile` prints where the time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import time
from collections.abc import Mapping
from typing import Any

from verl_hier.chat.renderer import ChatRenderer
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.garbage import collect_rarely
from verl_hier.environments.pool import EnvironmentPool
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Generation, Limits, Request, Rollout, Sampling, Scored
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.roles import Roles
from verl_hier.rollout.sampler import roll_out
from verl_hier.rollout.task import RolloutSetup

N = 8
"""Episodes of a task."""
ANSWER_S, STEP_S = 0.5, 0.02
MOST_MS = 2.0
"""Milliseconds of the rollout worker's processor that a turn may cost."""
WORDS = ["the", "shelf", "has", "two", "mugs", "and", "a", "plate", "you", "open", "drawer", "3", "see", "key", "under"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Rooms(Environment):
    """Says a sixth as many words as a turn has tokens, and never ends an episode."""

    def __init__(self, options: Mapping[str, int]) -> None:
        self._words = options["tokens"] // 6

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment.reset`."""
        self._dice = random.Random(seed)
        return self._see()

    def step(self, action: str) -> StepResult:
        """See `Environment.step`."""
        return self._see()

    def _see(self) -> StepResult:
        return StepResult(" ".join(self._dice.choices(WORDS, k=self._words)))


class PreparedPolicy:
    """Answers with tokens that were made before, and counts the time that this takes.

    Attributes:
        spent: seconds of the processor in this class.
    """

    def __init__(self, tokenizer: Any, tokens: int) -> None:
        dice = random.Random(0)
        texts = [" ".join(dice.choices(WORDS, k=tokens)) for _ in range(64)]
        end = tokenizer.eos_token_id
        self._answers = [[*tokenizer.encode(text)[: tokens - tokens // 6 - 1], end] for text in texts]
        self._dice, self.spent = dice, 0.0

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`."""
        await asyncio.sleep(ANSWER_S * (0.5 + self._dice.random()))
        started = time.process_time()
        tokens = list(self._dice.choice(self._answers))
        made = Generation(tokens, [-0.1 * self._dice.random() for _ in tokens], "completed")
        self.spent += time.process_time() - started
        return made

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`."""
        return Scored([-0.1] * len(tokens))


def tokenizer_of(words: list[str]) -> Any:
    """A byte-level tokenizer with a token for each word, and a chat template, as large models have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([" ".join(words)] * 4, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = TEMPLATE
    return made


async def measure(episodes: int, turns: int, tokens: int, profile: cProfile.Profile | None) -> dict[str, float]:
    """Milliseconds of the processor a turn, and how long all of it took."""
    tokenizer = tokenizer_of(WORDS)
    policy = PreparedPolicy(tokenizer, tokens)
    host = PluginHost.load({"builtin": True})
    worker, sampler = host.spec("worker", "react"), host.spec("sampler", "independent")
    options = build_options(worker, {"prompt": "{instruction}\n{observation}"})
    pool = EnvironmentPool("control_plane:Rooms", {"tokens": tokens}, processes=2)
    setup = RolloutSetup(
        policies={DEFAULT_POLICY: policy},
        renderer=ChatRenderer(tokenizer, "qwen2", {}),
        environments=pool,
        limits=Limits(max_turns=turns, max_tokens_per_turn=tokens, context_tokens=2 * turns * tokens),
        seed=0,
        budget=BudgetOptions(),
        entropy=EntropyOptions(),
        vocabulary=len(tokenizer),
    )

    def task(number: int) -> Any:
        request = Request({"instruction": "put a mug in the drawer"}, {"uid": f"u{number}", "index": number}, n=N)
        rollout = Rollout(request, setup, lambda: worker.factory(options), Roles.of(worker, options))
        return roll_out(rollout, sampler.factory(sampler.options()))

    # What the first task of a process imports and compiles is paid once.
    await task(episodes)
    policy.spent = 0.0
    collect_rarely()
    before, started = time.process_time(), time.perf_counter()
    if profile is not None:
        profile.enable()
    graphs = await asyncio.gather(*(task(number) for number in range(episodes // N)))
    if profile is not None:
        profile.disable()
    used, wall = time.process_time() - before - policy.spent, time.perf_counter() - started
    await pool.close()
    count = sum(len(graph.nodes) for graph in graphs)
    assert count == episodes // N * N * turns, f"{count} turns"
    return {"episodes": episodes, "turns": count, "ms_a_turn": 1000 * used / count, "seconds": wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    profile = cProfile.Profile() if chosen.profile else None
    found = asyncio.run(measure(chosen.episodes, chosen.turns, chosen.tokens, profile))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    print(json.dumps(found))
    if not chosen.profile and found["ms_a_turn"] > MOST_MS:
        raise SystemExit(f"a turn costs {found['ms_a_turn']:.2f} ms of the rollout worker, more than {MOST_MS} ms")


if __name__ == "__main__":
    main()

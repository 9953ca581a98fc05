"""A policy that babbles, and a world whose rules are drawn: for tests of anything that grows trees."""

from __future__ import annotations

import asyncio
import math
import random

from verl_hier.environments.base import Environment, StepResult
from verl_hier.rollout.interfaces import Generation
from verl_hier.testing.rollout import ScriptedPolicy, WordTokenizer

WORDS = ("right", "left", "up", "down", "on", ";")


def tokenizer() -> WordTokenizer:
    """Knows the words from the start, so that ids do not depend on who speaks first."""
    words = WordTokenizer()
    words.encode(" ".join((*WORDS, "task : | plan goal at", *map(str, range(10)), "do it hall")))
    return words


class Babble(ScriptedPolicy):
    """Turns of a few words, a function of the seed; log-probs and runners-up are functions of the tokens so far."""

    delay = 0.0

    async def generate(self, prompt, sampling, conversation) -> Generation:
        await asyncio.sleep(random.random() * self.delay)
        self.prompts.append(list(prompt))
        said: list[int] = []
        logprobs: list[float] = []
        top = []
        while len(said) < sampling.max_tokens and (not said or said[-1] != 1):
            chance = random.Random(f"{sampling.seed if sampling.temperature else 'greedy'} {prompt} {said}")
            ids = [1, *(self.tokenizer.encode(word)[0] for word in WORDS)]
            word, other = chance.sample(ids, 2) if chance.random() < 0.6 else (1, ids[1])
            p = chance.uniform(0.3, 0.9)
            said.append(word)
            logprobs.append(math.log(p))
            top.append([(word, math.log(p)), (other, math.log(min(1 - p, p)))])
        return Generation(said, logprobs, "completed", top_logprobs=top if sampling.top_logprobs else [])


class Maze(Environment):
    """States 0..9 with transitions, rewards, ends and breakdowns drawn from a number."""

    def __init__(self, rules: int) -> None:
        chance = random.Random(rules)
        self._size = chance.randint(2, 9)
        self._end = chance.choice([0.05, 0.3])
        self._break = chance.choice([0.0, 0.0, 0.1])
        self._rules = rules
        self._state = 0

    def reset(self, task, seed):
        self._state = 0
        return StepResult("at 0", anchor="0", info={"overview": "hall"})

    def step(self, action):
        chance = random.Random(f"{self._rules} {self._state} {action}")
        if chance.random() < self._break:
            raise RuntimeError("the floor broke")
        self._state = chance.randrange(self._size)
        done = chance.random() < self._end
        reward = round(chance.uniform(-1, 1), 3) if done or chance.random() < 0.3 else 0.0
        cut = not done and chance.random() < 0.05
        return StepResult(
            f"at {self._state}",
            reward,
            done,
            truncated=cut,
            valid=chance.random() < 0.8,
            anchor=str(self._state),
            info={"won": done and reward > 0, "overview": "hall"},
        )

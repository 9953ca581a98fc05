"""The loop over a batch as plainly as it can be written, which makes recordings of itself: `{"input": …, "output": …}`.

It plays all prompts at once with lists of tokens and knows neither episodes nor worlds nor asyncio. What the engine and
the random generator would say is made up as it goes along.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

END = 2


@dataclass
class Line:
    """One chain, or a probe."""

    prompt: int
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    calls: int = 0
    first: float | None = None
    now: float = 0.0


class Recorder:
    """Makes one recording. `reset` and `method` are how the loop works, `one_by_one` how probes are asked for."""

    def __init__(self, method: str, seed: int, one_by_one: bool = False, **changes: Any) -> None:
        rng = self.rng = random.Random(seed)
        self.method = method
        self.one_by_one = one_by_one
        n = rng.randint(1, 7)
        self.given: dict[str, Any] = {
            "batch": rng.randint(1, 3),
            "n": n,
            "initial_rollouts": rng.randint(1, 7),
            "beam_size": rng.randint(1, 4),
            "branch_probability": rng.choice([0.0, 0.3, 0.5, 0.7, 1.0]),
            "entropy_weight": rng.choice([0.0, 0.2, 1.5]),
            "dynamic": method == "aepo" and rng.random() < 0.5,
            "vocab": rng.choice([50, 1000, 151936]),
            "tool_call_limit": rng.randint(0, 4),
            "max_response_len": rng.choice([4, 11, 20, 64]),
            "tool_result_tokens": rng.choice([[7, 8], [7], [], [7, 8, 9, 9]]),
            **changes,
        }
        self.bare = [rng.randint(1, 5) for _ in range(self.given["batch"])]
        self.finish = rng.choices(["eos", "tool", "length"], k=8, weights=[3, 6, 1])
        self.draws: list[float] = []
        self.calls: list[dict[str, Any]] = []
        self.streak = [0] * self.given["batch"]

    def make(self) -> dict[str, Any]:
        """The recording."""
        n, batch = self.given["n"], range(self.given["batch"])
        start = [min(self.given["initial_rollouts"], n) for _ in batch]
        if self.given["dynamic"]:
            start = self.probe()
        chains = [Line(prompt) for prompt in batch for _ in range(start[prompt])]
        active = list(range(len(chains)))
        while active:
            going = self.call([chains[i] for i in active], False)
            active = [i for i, goes_on in zip(active, going, strict=True) if goes_on]
            active = self.grow(chains, active)
        responses, masks = [], []
        for prompt in batch:
            mine = [line for line in chains if line.prompt == prompt][:n]
            mine += [mine[-1]] * (n - len(mine))
            responses += [line.tokens[: self.given["max_response_len"]] for line in mine]
            masks += [line.mask[: self.given["max_response_len"]] for line in mine]
        output = {
            "initial_rollouts_used": start,
            "responses": responses,
            "loss_mask": masks,
            "initial_entropy": {str(i): line.first for i, line in enumerate(chains)},
            "n_uniform_draws": len(self.draws),
            "n_engine_calls": len(self.calls),
        }
        given = {**self.given, "uniform_draws": self.draws, "engine_calls": self.calls}
        return {"input": given, "output": output}

    def call(self, lines: list[Line], probing: bool) -> list[bool]:
        """One call to the engine and to the tools; whether each line goes on."""
        self.calls.append({"dynamic_phase": probing, "outputs": [self.speak(line) for line in lines]})
        return [self.hear(line, out) for line, out in zip(lines, self.calls[-1]["outputs"], strict=True)]

    def speak(self, line: Line) -> dict[str, Any]:
        count = self.rng.choice([1, 2, 3, 4, 25])
        return {
            "prompt_len": self.bare[line.prompt] + len(line.tokens),
            "n_tokens": count,
            "finish": self.rng.choice(self.finish),
            "top_logprobs": [[-self.rng.expovariate(0.4) for _ in range(10)] for _ in range(count)],
            "tokens": [self.rng.randint(10, 49) for _ in range(count)],
        }

    def hear(self, line: Line, out: dict[str, Any]) -> bool:
        nats = -sum(math.exp(p) * p for position in out["top_logprobs"][:20] for p in position)
        line.now = nats / math.log(self.given["vocab"])
        line.first = line.now if line.first is None else line.first
        line.tokens, line.mask = line.tokens + out["tokens"], line.mask + [1] * len(out["tokens"])
        if out["finish"] != "tool":
            return False
        if line.calls == self.given["tool_call_limit"]:
            line.tokens, line.mask = [*line.tokens, END], [*line.mask, 1]
            return False
        line.calls += 1
        result = self.given["tool_result_tokens"]
        line.tokens, line.mask = line.tokens + result, line.mask + [0] * len(result)
        return len(line.tokens) < self.given["max_response_len"]

    def grow(self, chains: list[Line], active: list[int]) -> list[int]:
        """Branches of each prompt in the order of its first active chain, then fresh chains."""
        n, made, grown = self.given["n"], [], set()
        busy = list(dict.fromkeys(chains[i].prompt for i in active))
        for prompt in busy:
            for parent in [chains[i] for i in active if chains[i].prompt == prompt]:
                room = n - sum(line.prompt == prompt for line in chains)
                for _ in range(min(self.given["beam_size"] - 1, room)):
                    self.draws.append(self.rng.random())
                    if self.spawns(parent, self.draws[-1]):
                        chains.append(Line(prompt, list(parent.tokens), list(parent.mask), parent.calls))
                        made.append(len(chains) - 1)
                        grown.add(prompt)
        for prompt in range(self.given["batch"]):
            if prompt not in busy and sum(line.prompt == prompt for line in chains) < n:
                chains.append(Line(prompt))
                made.append(len(chains) - 1)
                grown.add(prompt)
        for prompt in range(self.given["batch"]) if grown else ():
            self.streak[prompt] = self.streak[prompt] + 1 if prompt in grown else 0
        return active + made

    def spawns(self, line: Line, draw: float) -> bool:
        base, weight = self.given["branch_probability"], self.given["entropy_weight"]
        rise = weight * (line.now - line.first)
        if self.method == "arpo":
            return min(1.0, max(0.0, draw - rise)) <= base
        return min(1.0, max(0.0, (draw + rise) * max(0.0, 1 - 0.05 * self.streak[line.prompt]))) >= base

    def probe(self) -> list[int]:
        """How many chains start, prompt by prompt, by the entropies of a root and a whole probe."""
        batch = list(range(self.given["batch"]))
        roots, tools = [0.0] * len(batch), [0.0] * len(batch)
        for prompts in [[prompt] for prompt in batch] if self.one_by_one else [batch]:
            lines = [Line(prompt) for prompt in prompts]
            self.call(lines, True)
            for line in lines:
                roots[line.prompt] = line.now
            heard: dict[int, list[float]] = {prompt: [] for prompt in prompts}
            lines = [Line(prompt) for prompt in prompts]
            while lines:
                going = self.call(lines, True)
                for line in lines:
                    heard[line.prompt].append(line.now)
                lines = [line for line, goes_on in zip(lines, going, strict=True) if goes_on]
            for prompt in prompts:
                tools[prompt] = sum(heard[prompt]) / len(heard[prompt])
        n = self.given["n"]
        share = [1 / (1 + math.exp(-0.5 * (roots[prompt] - tools[prompt]))) for prompt in batch]
        return [min(n, max(1, math.floor(n * share[prompt]) + 1)) for prompt in batch]

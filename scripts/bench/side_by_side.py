"""How long k sub-agents of one lead take, against one of them, on a server that has room for all.

    python scripts/bench/side_by_side.py

The policy answers each request after a fixed time, whatever else is under way, as a server does whose batch is not
full. So what is measured is whether the requests of the agents are under way together, and what the rollout itself
costs. Times are the best of a few runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.rollout import Generation, Limits, Sampling
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, roll_out_scripted

ANSWER_S = 0.5
"""Seconds that a request takes: about a hundred tokens of a model of some billion parameters."""
TURNS = 4
"""Turns of each sub-agent: the last one reports."""
RUNS = 2
OPTIONS = {
    "roles": {
        "lead": {"prompt": "lead {instruction}", "later_prompt": "reports {said}"},
        "helper": {
            "prompt": "help {task}",
            "observation_prompt": "after {observation}",
            "action": "{content}",
            "message_tag": "result",
            "turns": TURNS,
        },
    },
    "topology": {"kind": "lead"},
}


class Roomy(ScriptedPolicy):
    """Takes the same time for each request, however many there are."""

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`."""
        await asyncio.sleep(ANSWER_S)
        return await super().generate(prompt, sampling, conversation)


def measure(agents: int) -> float:
    """Seconds of an episode whose lead gives so many tasks at once."""
    spec = PluginHost.load({"builtin": True}).spec("worker", "team")

    def answer(prompt: str, sampling: Sampling) -> str:
        if prompt.startswith("help"):
            acted = prompt.count("after")
            return f"<result>found {sampling.seed}</result>" if acted == TURNS - 1 else f"left {acted}"
        return "<answer>left</answer>" if "reports" in prompt else "<helper>look</helper>" * agents

    best = float("inf")
    for _ in range(RUNS):
        started = time.perf_counter()
        graph, _ = asyncio.run(
            roll_out_scripted(
                worker=spec,
                options=build_options(spec, OPTIONS),
                answer=answer,
                n=1,
                tokenizer=CharacterTokenizer(),
                limits=Limits(max_turns=200, max_tokens_per_turn=400, context_tokens=4000),
                policy=Roomy,
            )
        )
        best = min(best, time.perf_counter() - started)
        turns = [node for node in graph.nodes if node.role == "helper"]
        assert len(turns) == agents * TURNS, f"{len(turns)} turns of {agents} agents"
    return best


def main() -> None:
    """Print the seconds for each number of agents, and the quotient to one agent, as JSON."""
    seconds = {agents: measure(agents) for agents in (1, 2, 5, 10)}
    rows = {agents: {"seconds": round(s, 3), "times_one": round(s / seconds[1], 2)} for agents, s in seconds.items()}
    sys.stdout.write(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

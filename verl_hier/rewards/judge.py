"""A judge: a model behind an OpenAI-compatible endpoint that says how good a turn or an episode is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from verl_hier.rollout.rewards import RatedEpisode, RatedTurn
from verl_hier.served.client import ChatClient

PROMPT = """You judge the work of an agent.

The task: {instruction}

What it read and wrote, with what it has to be judged by at the end:
{conversation}

How well does it do the task? Answer with one line: Score: N, where N is a number from {low} to {high}."""
_NUMBER = re.compile(r"score\W*(-?\d+(?:\.\d+)?)", re.IGNORECASE)
MOST_UNHEARD = 20
"""Verdicts one after the other for which a judge that has answered before may be out of reach; then the run ends."""
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, float], ChatClient]] = WeakKeyDictionary()


async def judge(
    rated: RatedEpisode | RatedTurn,
    *,
    url: str,
    model: str = "",
    prompt: str = PROMPT,
    scale: Sequence[float] = (0, 10),
    temperature: float = 0.0,
    max_tokens: int = 512,
    timeout_s: float = 120.0,
) -> float | None:
    """What a judge model says, on a scale from 0 to 1; None when it names no number or its endpoint refuses.

    The last "Score: N" of its answer counts. Numbers beyond the scale are cut. The agent's own words are in the prompt,
    so that a policy can learn to flatter or to instruct the judge; look at what it writes.

    Args:
        rated: the turn or episode.
        url: base of the endpoint, such as `http://host:8000/v1`; `$OPENAI_API_KEY` is sent as its key.
        model: the model's name there; empty for the only one that it serves.
        prompt: what it is asked. {instruction} is the task in words, {answers} the true answers that the task names,
            {conversation} what the agent read and wrote, {text} what it generated last, {low} and {high} are the ends
            of the scale.
        scale: lowest and highest number that the judge may name.
        temperature: of the judge.
        max_tokens: limit of its answer.
        timeout_s: seconds that one answer may take; a request is tried three times.

    Raises:
        RolloutError: when the endpoint cannot be reached, or says what is no chat completion, before its first answer;
            and when it is out of reach for `MOST_UNHEARD` verdicts.
    """
    low, high = scale
    asked = prompt.format(
        instruction=rated.task.get("instruction", ""),
        answers=_answers(rated.task),
        conversation=_told(rated.messages),
        text=rated.text,
        low=f"{low:g}",
        high=f"{high:g}",
    )
    client = _client(url, model, timeout_s)
    answer = await client.ask([{"role": "user", "content": asked}], temperature=temperature, max_tokens=max_tokens)
    numbers = _NUMBER.findall(answer.text) if answer is not None else []
    if not numbers:
        return None
    return (min(max(float(numbers[-1]), low), high) - low) / (high - low)


def _client(url: str, model: str, timeout_s: float) -> ChatClient:
    """The client of this event loop: connections cannot be shared between loops."""
    mine = _clients.setdefault(asyncio.get_running_loop(), {})
    key = (url, model, timeout_s)
    if key not in mine:
        mine[key] = ChatClient(url, model, timeout_s, "the judge of hier.rewards", MOST_UNHEARD)
    return mine[key]


def _answers(task: Mapping[str, Any]) -> str:
    """The true answers of a task, from its field `answers` or `answer`."""
    given = task.get("answers", task.get("answer", ""))
    return given if isinstance(given, str) else " or ".join(map(str, given))


def _told(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)

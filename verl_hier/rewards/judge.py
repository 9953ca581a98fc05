"""A judge: a model behind an OpenAI-compatible endpoint that says how good a turn or an episode is."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from verl_hier.errors import did_you_mean
from verl_hier.rewards.verdicts import verdict
from verl_hier.rollout.rewards import RatedEpisode, RatedTurn, checks_options
from verl_hier.served.client import ChatClient

PROMPT = """You judge the work of an agent.

The task: {instruction}

What it read and wrote, with what it has to be judged by at the end:
{conversation}

How well does it do the task? Answer with one line: Score: N, where N is a number from {low} to {high}."""
FIELDS = ("instruction", "answers", "conversation", "text", "low", "high")
"""What a prompt may hold in braces; other braces are characters, such as those of JSON."""
_BRACED = re.compile(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})")
_FIELD = re.compile(r"\{\{|\}\}|\{(" + "|".join(FIELDS) + r")\}")
MOST_UNHEARD = 20
"""Verdicts one after the other for which a judge that has answered before may be out of reach; then the run ends."""
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, float], ChatClient]] = WeakKeyDictionary()


def check(options: Mapping[str, Any]) -> None:
    """Refuse options of a judge with which no verdict could be read.

    Raises:
        ValueError: naming the option.
    """
    scale = options.get("scale", (0, 10))
    numbers = isinstance(scale, Sequence) and len(scale) == 2 and all(type(end) in (int, float) for end in scale)
    if not numbers or not all(map(math.isfinite, scale)) or scale[0] >= scale[1]:
        raise ValueError(f"scale: give the lowest and the highest number that the judge may name, got {scale!r}.")
    prompt = options.get("prompt", PROMPT)
    if not isinstance(prompt, str):
        raise ValueError(f"prompt: give a text, got {prompt!r:.60}.")
    unknown = next((name for name in _BRACED.findall(prompt) if name not in FIELDS), "")
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise ValueError(f"prompt: there is no {{{unknown}}}{did_you_mean(unknown, FIELDS)}; there are {known}.")


@checks_options(check)
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

    The last verdict of its answer counts; see `verdict`. Numbers beyond the scale are cut. The agent's own words are in
    the prompt, so that a policy can learn to flatter or to instruct the judge; look at what it writes.

    Args:
        rated: the turn or episode.
        url: base of the endpoint, such as `http://host:8000/v1`; `$OPENAI_API_KEY` is sent as its key.
        model: the model's name there; empty for the only one that it serves.
        prompt: what it is asked. {instruction} is the task in words, {answers} the true answers that the task names,
            {conversation} what the agent read and wrote, {text} what it generated last, {low} and {high} are the ends
            of the scale. Braces around anything but one word are characters, such as those of JSON.
        scale: lowest and highest number that the judge may name.
        temperature: of the judge.
        max_tokens: limit of its answer.
        timeout_s: seconds that one answer may take; a request is tried three times.

    Raises:
        RolloutError: when the endpoint cannot be reached, or says what is no chat completion, before its first answer;
            and when it is out of reach for `MOST_UNHEARD` verdicts.
    """
    client = _client(url, model, timeout_s)
    asked = [{"role": "user", "content": question(rated, prompt, scale)}]
    answer = await client.ask(asked, temperature=temperature, max_tokens=max_tokens)
    return None if answer is None else share_of(answer.text, scale)


def question(rated: RatedEpisode | RatedTurn, prompt: str = PROMPT, scale: Sequence[float] = (0, 10)) -> str:
    """What a judge is asked about a turn or an episode; see `judge` for the prompt and the scale."""
    low, high = scale
    fields = {
        "instruction": str(rated.task.get("instruction", "")),
        "answers": _answers(rated.task),
        "conversation": _told(rated.messages),
        "text": rated.text,
        "low": f"{low:g}",
        "high": f"{high:g}",
    }
    return _filled(prompt, fields)


def share_of(text: str, scale: Sequence[float] = (0, 10)) -> float | None:
    """The verdict in what a judge says, on a scale from 0 to 1; None where there is none."""
    low, high = scale
    said = verdict(text, low, high)
    return None if said is None else (min(max(said, low), high) - low) / (high - low)


def _filled(prompt: str, fields: Mapping[str, str]) -> str:
    """The prompt with its fields; one that has `{{` writes all other braces twice, as `str.format` does."""
    twice = "{{" in prompt
    return _FIELD.sub(lambda found: fields[found[1]] if found[1] else found[0][: 1 if twice else 2], prompt)


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
    """A conversation in words; a line that looks like the head of a message, within one, begins with a backslash."""
    roles = "|".join({"system", "developer", "user", "assistant", "tool", *(re.escape(m["role"]) for m in messages)})
    ends = r"\r\v\f\x1c-\x1e\x85\u2028\u2029"
    head = re.compile(rf"(^|[{ends}])([^\S\n{ends}]*)(?=\[\s*(?:{roles})\s*\])", re.MULTILINE | re.I)
    return "\n\n".join(f"[{m['role']}]\n" + head.sub(r"\1\2\\", m["content"]) for m in messages)

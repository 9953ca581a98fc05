"""A teacher behind an endpoint with OpenAI's chat completions.

A rollout deals with tokens, the endpoint with messages. `Messages` is a renderer whose tokens are whole messages, so
the teacher needs no tokenizer here and no text is lost.
"""

from __future__ import annotations

import os
import random
import re
from typing import Any

from verl_hier.coldstart.episodes import LocalEnvironment
from verl_hier.errors import HierError, RolloutError
from verl_hier.graph.nodes import CONTINUED
from verl_hier.recipe.parts import Part
from verl_hier.rollout import Generation, Sampling, Scored

_OPENING = re.compile(r"<(\w{1,64})>")


class Messages:
    """See `rollout.Renderer`: token i is the i-th distinct message."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, role: str, content: str) -> int:
        """The token of a message."""
        message = (role, content)
        if message not in self._numbers:
            self._numbers[message] = len(self._messages)
            self._messages.append(message)
        return self._numbers[message]

    def turn(self, content: str) -> list[int]:
        """The tokens of a turn; there is one."""
        return [self.number("assistant", content)]

    def render(self, tokens: list[int], history: list[dict[str, Any]], pending: list[dict[str, Any]]) -> list[int]:
        """See `Renderer.render`."""
        return tokens + [self.number(message["role"], message["content"]) for message in pending]

    def decode(self, tokens: list[int]) -> str:
        """See `Renderer.decode`."""
        return "".join(self._messages[token][1] for token in tokens).strip()

    def ends(self, tokens: list[int]) -> bool:
        """See `Renderer.ends`; every token is a whole turn."""
        return bool(tokens)

    def conversation(self, tokens: list[int]) -> list[dict[str, str]]:
        """The messages for an endpoint; a continuation of an assistant message is appended to it."""
        found: list[dict[str, str]] = []
        for role, content in (self._messages[token] for token in tokens):
            own = role in ("assistant", CONTINUED)
            if own and found and found[-1]["role"] == "assistant":
                found[-1]["content"] += content
            else:
                found.append({"role": "assistant" if own else role, "content": content})
        return found


class ServedTeacher:
    """See `rollout.Policy` and `distill.Teacher`.

    Attributes:
        refused: requests that the endpoint refused, for instance because a conversation is too long; their episodes end
            there.
    """

    def __init__(self, url: str, model: str, messages: Messages, timeout_s: float = 120.0) -> None:
        """
        Args:
            url: base of the endpoint, such as `http://host:8000/v1`.
            model: the model's name there.
            messages: the renderer of the rollout.
            timeout_s: seconds that one answer may take; a request is tried three times.

        Raises:
            HierError: when the package `openai` is not installed.
        """
        try:
            import openai
        except ImportError as error:
            raise HierError("a served teacher needs the package openai; pip install 'verl-hier[distill]'.") from error
        self._openai = openai
        self._url = url
        self._model = model
        self._messages = messages
        # Local servers need no key, but the client insists on one.
        key = os.environ.get("OPENAI_API_KEY") or "none"
        self._client = openai.AsyncOpenAI(base_url=url, api_key=key, timeout=timeout_s, max_retries=2)
        self.refused = 0

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`; one token, which is the whole answer, and no log-probs."""
        messages = self._messages.conversation(prompt)
        request: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.stop:
            request["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            request["seed"] = sampling.seed
        if messages[-1]["role"] == "assistant":
            # vLLM and SGLang continue the last message on request.
            request["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
        try:
            answer = await self._client.chat.completions.create(**request)
        except self._openai.APIConnectionError as error:
            raise RolloutError(f"the teacher at {self._url} does not answer ({error}); check --teacher.") from error
        except (self._openai.AuthenticationError, self._openai.NotFoundError) as error:
            raise RolloutError(f"the teacher at {self._url} refuses {self._model!r}: {error}") from error
        except self._openai.APIStatusError:
            self.refused += 1
            return Generation([], [])
        choice = answer.choices[0]
        text = choice.message.content or ""
        if choice.finish_reason == "stop":
            # vLLM reports the stop string.
            named = getattr(choice, "stop_reason", None)
            text = text + named if named in sampling.stop else with_stop(text, sampling.stop)
        return Generation(self._messages.turn(text), []) if text else Generation([], [])

    async def score(self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0) -> Scored:
        """See `rollout.Policy.score`."""
        raise RolloutError("hier.sampler.name: a served teacher cannot score tokens; use `independent`.")

    def policy(
        self, environment: LocalEnvironment, messages: Messages, system: Part, rng: random.Random
    ) -> ServedTeacher:
        """See `distill.Teacher.policy`; one client serves all episodes."""
        return self

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def with_stop(text: str, stop: tuple[str, ...]) -> str:
    """The text with the closing tag that an endpoint cuts off when it is a stop string."""
    opened = _OPENING.findall(text)
    if not opened:
        return text
    closing = f"</{opened[-1]}>"
    cut = closing in stop and closing not in text[text.rindex(f"<{opened[-1]}>") :]
    return text + closing if cut else text

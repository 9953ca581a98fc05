"""A client of an endpoint with OpenAI's chat completions, such as vLLM, SGLang or a hosted model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hier.errors import HierError, RolloutError, first_line


@dataclass(frozen=True)
class Answer:
    """One answer of a served model.

    Attributes:
        text: what it generated; a stop string is cut off, as the endpoint does.
        finish_reason: `stop`, `length` or another word of the endpoint.
        stopped_by: the stop string, where the endpoint names it (vLLM does).
        tokens: generated tokens, None when the endpoint does not count them.
    """

    text: str
    finish_reason: str | None
    stopped_by: Any = None
    tokens: int | None = None


class ChatClient:
    """Asks one served model for chat completions; one client serves any number of coroutines of one event loop."""

    def __init__(self, url: str, model: str = "", timeout_s: float = 120.0, option: str = "the served model") -> None:
        """
        Args:
            url: base of the endpoint, such as `http://host:8000/v1`.
            model: the model's name there; empty for the only model that it serves.
            timeout_s: seconds that one answer may take; a request is tried three times.
            option: what the user has to look at when the endpoint does not answer, for errors.

        Raises:
            HierError: when the package `openai` is not installed, or the address is none.
        """
        try:
            import openai
        except ImportError as error:
            raise HierError(f"{option} needs the package openai; pip install 'verl-hier[distill]'.") from error
        self._openai = openai
        self._option = option
        self.url = url
        self.model = model
        # Local servers need no key, but the client insists on one.
        key = os.environ.get("OPENAI_API_KEY") or "none"
        try:
            self._client = openai.AsyncOpenAI(base_url=url, api_key=key, timeout=timeout_s, max_retries=2)
        except Exception as error:  # httpx's InvalidURL has no common base with the errors of openai
            raise HierError(f"{option}: {url!r} is no address of an endpoint ({first_line(error)}).") from error

    async def ask(self, messages: Sequence[Mapping[str, str]], **parameters: Any) -> Answer | None:
        """One chat completion, or None when the endpoint refuses the request, for instance as too long.

        Args:
            messages: the conversation, `{"role", "content"}` each.
            parameters: of the request, in OpenAI's words.

        Raises:
            RolloutError: when the endpoint cannot be reached or does not serve the model.
        """
        try:
            if not self.model:
                self.model = await self._only_model()
            request: dict[str, Any] = {"model": self.model, "messages": list(messages), **parameters}
            answer = await self._client.chat.completions.create(**request)
        except self._openai.APIConnectionError as error:
            raise RolloutError(f"{self._option} at {self.url} does not answer ({error}); check the address.") from error
        except (self._openai.AuthenticationError, self._openai.NotFoundError) as error:
            raise RolloutError(f"{self._option} at {self.url} refuses {self.model!r}: {error}") from error
        except self._openai.APIStatusError:
            return None
        choice = answer.choices[0]
        usage = getattr(answer, "usage", None)
        return Answer(
            text=choice.message.content or "",
            finish_reason=choice.finish_reason,
            stopped_by=getattr(choice, "stop_reason", None),
            tokens=None if usage is None else usage.completion_tokens,
        )

    async def _only_model(self) -> str:
        names = [model.id for model in (await self._client.models.list()).data]
        if len(names) != 1:
            served = ", ".join(names) or "none"
            raise RolloutError(f"{self._option} at {self.url}: name one of its models ({served}).")
        return str(names[0])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

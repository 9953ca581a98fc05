"""A client of an endpoint with OpenAI's chat completions or embeddings, such as vLLM, SGLang or a hosted model."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from verl_hier.errors import HierError, RolloutError, first_line
from verl_hier.http_clients import TooLarge, httpx_options
from verl_hier.text import repaired, without_halves

logger = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE_S = 60.0
"""Longest pause before another try: the client waits as long as a server asks for, up to this."""


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
    """Asks one served model for chat completions or embeddings; one client serves any number of coroutines of one event
    loop.

    An address that is wrong shows before the first good answer. What an endpoint does later, such as a status or a body
    that is no answer, is its own failure and costs one answer.
    """

    retries = 2
    """How often a request is made again that may have met a passing fault."""

    def __init__(
        self,
        url: str,
        model: str = "",
        timeout_s: float = 120.0,
        option: str = "the served model",
        most_unheard: int = 1,
    ) -> None:
        """
        Args:
            url: base of the endpoint, such as `http://host:8000/v1`.
            model: the model's name there; empty for the only model that it serves.
            timeout_s: seconds that one answer may take; a request is tried three times.
            option: what the user has to look at when the endpoint does not answer, for errors.
            most_unheard: requests one after the other, of all coroutines, at which an endpoint that has answered before
                and does not any more is gone.

        Raises:
            HierError: when the package `openai` is not installed, or the address is none.
        """
        try:
            import openai
        except ImportError as error:
            raise HierError(f"{option} needs the package openai; pip install 'verl-hier[distill]'.") from error
        self._openai = openai
        self._option = option
        self._answered = False
        self._patience_s = (self.retries + 1) * (timeout_s + PAUSE_S)
        self._most_unheard, self._unheard = most_unheard, 0
        self._told: set[str] = set()
        self.url = url
        self.model = model
        # Local servers need no key, but the client insists on one.
        key = os.environ.get("OPENAI_API_KEY") or "none"
        try:
            self._client = openai.AsyncOpenAI(
                base_url=url,
                api_key=key,
                timeout=timeout_s,
                max_retries=self.retries,
                http_client=openai.DefaultAsyncHttpxClient(**httpx_options()),
            )
        except Exception as error:  # httpx's InvalidURL has no common base with the errors of openai
            raise HierError(f"{option}: {url!r} is no address of an endpoint ({first_line(error)}).") from error

    async def ask(self, messages: Sequence[Mapping[str, str]], **parameters: Any) -> Answer | None:
        """One chat completion, or None when the endpoint gives none: it refuses the request, for instance as too long,
        or, once it has answered another one, says something else or nothing.

        Args:
            messages: the conversation, `{"role", "content"}` each.
            parameters: of the request, in OpenAI's words.

        Raises:
            RolloutError: when the endpoint has not answered a request yet and cannot be reached, does not serve the
                model, or says what is no chat completion; and when it is gone.
        """
        return await self._heard(self._said(messages, parameters), _read, "chat completions", "choices")

    async def embed(self, text: str) -> list[float] | None:
        """The embedding of a text, or None when the endpoint gives none; otherwise as `ask`."""
        return await self._heard(self._embedded(text), _vector, "embeddings", "embeddings")

    async def _heard(self, asked: Awaitable[Any], read: Callable[[Any], T | None], what: str, parts: str) -> T | None:
        """What the endpoint says, read; see `ask`.

        Args:
            asked: the request.
            read: reads the answer; None for one without its `parts`.
            what: what the endpoint is to speak, for errors.
            parts: as they are called in an answer.
        """
        try:
            # The client's own limit is one of each part of an answer, whose parts need not end.
            said = await asyncio.wait_for(asked, self._patience_s)
        except (self._openai.APIConnectionError, asyncio.TimeoutError) as error:
            if isinstance(error.__cause__, TooLarge):  # of older releases of the client
                self._missed(f"does not speak {what}: {error.__cause__}", wrong=True)
                return None
            self._unheard += 1
            why = f"does not answer ({first_line(error)}); check the address"
            self._missed(why, fatal=self._unheard >= self._most_unheard, wrong=True)
            return None
        except (self._openai.AuthenticationError, self._openai.NotFoundError) as error:
            self._missed(f"refuses {self.model!r}: {first_line(error)}", wrong=True)
            return None
        except self._openai.APIStatusError as error:
            self._unheard = 0
            if error.status_code < 400:
                where = error.response.headers.get("location", "elsewhere")
                self._missed(f"sends requests on to {where!r:.200}; name the address that answers", wrong=True)
            return None
        except HierError:
            raise
        except (self._openai.OpenAIError, ValueError, AttributeError, TypeError, RecursionError) as error:
            # a body that is no JSON, or another one than the client reads
            self._missed(f"does not speak {what}: {first_line(error)}", wrong=True)
            return None
        self._unheard = 0
        try:
            answer = read(said)
        except (AttributeError, TypeError, ValueError) as error:
            self._missed(f"does not speak {what}: it says {said!r:.80} ({first_line(error)})", wrong=True)
            return None
        if answer is None:
            self._missed(f"gives an answer without {parts}")
            return None
        self._answered = True
        return answer

    async def _said(self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> Any:
        if not self.model:
            self.model = await self._only_model()
        request = {"model": self.model, "messages": repaired(list(messages)), **parameters}
        return await self._client.chat.completions.create(**request)

    async def _embedded(self, text: str) -> Any:
        if not self.model:
            self.model = await self._only_model()
        # The package would ask for bytes in base64 otherwise, which not all servers know.
        said = without_halves(text)
        return await self._client.embeddings.create(model=self.model, input=said, encoding_format="float")

    def _missed(self, why: str, *, fatal: bool = False, wrong: bool = False) -> None:
        """Say why there is no answer, once for each reason.

        Args:
            why: the end of a sentence.
            fatal: whether the endpoint is gone.
            wrong: whether it is another one than the recipe means, where it has not answered yet.

        Raises:
            RolloutError: when it is gone, or wrong.
        """
        sentence = f"{self._option} at {self.url} {why}."
        if fatal or (wrong and not self._answered):
            raise RolloutError(sentence)
        kind = why.partition(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("%s The answer counts as none.", sentence)

    async def _only_model(self) -> str:
        names = [model.id for model in (await self._client.models.list()).data or ()]
        if len(names) != 1:
            served = ", ".join(names) or "none"
            raise RolloutError(f"{self._option} at {self.url}: name one of its models ({served}).")
        return str(names[0])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _read(said: Any) -> Answer | None:
    """A chat completion; None for one without a choice, which proxies give where their limits are reached.

    Raises:
        AttributeError, TypeError: for what is no chat completion.
    """
    if not said.choices:
        return None
    choice = said.choices[0]
    usage = getattr(said, "usage", None)
    return Answer(
        text=_text(choice.message.content),
        finish_reason=choice.finish_reason,
        stopped_by=getattr(choice, "stop_reason", None),
        tokens=getattr(usage, "completion_tokens", None),
    )


def _vector(said: Any) -> list[float] | None:
    """The numbers of an embedding; None for an answer without one.

    Raises:
        AttributeError, TypeError, ValueError: for what is no embedding.
    """
    if not said.data:
        return None
    numbers = [float(number) for number in said.data[0].embedding]
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError("an embedding has finite numbers")
    return numbers


def _text(content: Any) -> str:
    """The text of a message, which some endpoints give in parts."""
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content)
    if content is not None and not isinstance(content, str):
        raise TypeError(f"the content of a message is a text, not {type(content).__name__}")
    return without_halves(content or "")

"""The dialects of the endpoint: each reads its requests into one form and writes answers of one form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from verl_hier_plugins.environments.gateway.answers import PolicyAnswer
from verl_hier_plugins.environments.gateway.dialects import chat, messages, responses
from verl_hier_plugins.environments.gateway.heard import Heard
from verl_hier_plugins.environments.gateway.messages import PolicyRequest, RefusedRequest


class Dialect(Protocol):
    """What a module of this package has."""

    def read(self, body: Any, agent: str, most_characters: int, heard: Heard | None = None) -> PolicyRequest:
        """A request of a client.

        Args:
            body: what it sent, from JSON.
            agent: who asks.
            most_characters: limit of all texts together.
            heard: what was sent in the episode before, to which this one is added.

        Raises:
            RefusedRequest: for what is no request, or asks for what is not done here.
        """

    def whole(self, request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> Mapping[str, Any]:
        """The body of an answer."""

    def opening(self, request: PolicyRequest) -> Iterator[bytes]:
        """The events that are sent before there is an answer."""

    def waiting(self, request: PolicyRequest, number: int) -> bytes:
        """What keeps a stream open while there is no answer, the `number`th time."""

    def events(self, request: PolicyRequest, answers: Sequence[PolicyAnswer]) -> Iterator[bytes]:
        """An answer as events, behind those of `opening`."""

    def said(self, refused: RefusedRequest) -> Mapping[str, Any]:
        """The body of a refusal."""

    def broken(self, request: PolicyRequest, refused: RefusedRequest) -> Iterator[bytes]:
        """The events that end a stream to which there is no answer."""


CHAT: Dialect = chat
MESSAGES: Dialect = messages
RESPONSES: Dialect = responses
BY_PATH: Mapping[str, Dialect] = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGES, "/v1/responses": RESPONSES}
"""The dialect of each path that answers with a turn of the policy."""

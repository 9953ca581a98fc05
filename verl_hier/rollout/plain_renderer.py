"""The `plain` renderer: messages one after the other, for models without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from verl_hier.errors import RecipeError
from verl_hier.graph.nodes import CONTINUED


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def pad_token_id(self) -> int | None: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str: ...
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...
    def get_vocab(self) -> dict[str, int]: ...


def completes(tokenizer: Tokenizer, tokens: list[int], stop: Sequence[str]) -> bool:
    """Whether the last token completes a stop string, as servers look for it: in the text without special tokens.

    The last token may have characters behind the stop string. Only the end of the tokens is decoded: a token has at
    least one byte, and a character at most four.
    """
    if not stop or not tokens:
        return False
    end = tokens[-(4 * max(map(len, stop)) + 8) :]
    text, before = (tokenizer.decode(part, skip_special_tokens=True) for part in (end, end[:-1]))
    return any(text.count(each) > before.count(each) for each in stop if each)


LONGEST_KEPT = 4096
"""Characters of a text whose tokens are kept for when it is said again."""


class PlainRenderer:
    """Each message is its content, tokenised on its own; `<act>`, if the vocabulary has it, follows the last one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        act = tokenizer.get_vocab().get("<act>")
        self._cue = [] if act is None else [act]
        self._ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
        self._dropped = {tokenizer.eos_token_id, tokenizer.pad_token_id, act}
        self._cache: dict[str, list[int]] = {}

    def render(
        self,
        tokens: list[int],
        history: list[dict[str, Any]],
        pending: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """See `Renderer.render`."""
        if tools:
            raise RecipeError(
                "hier.rollout.template: `plain` has no place for the tools of an agent; use `chat`, or a worker whose "
                "prompts contain {commands}."
            )
        prompt = list(tokens)
        for message in pending:
            prompt += self._encode(message["content"])
        continues = bool(pending) and pending[-1]["role"] == CONTINUED
        if not continues:
            prompt += self._cue
        return prompt

    def decode(self, tokens: list[int]) -> str:
        """See `Renderer.decode`; only end, padding and cue tokens are left out."""
        return self._tokenizer.decode([t for t in tokens if t not in self._dropped]).strip()

    def ends(self, tokens: list[int], stop: Sequence[str] = ()) -> bool:
        """See `Renderer.ends`."""
        return bool(tokens) and (tokens[-1] in self._ends or completes(self._tokenizer, tokens, stop))

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """See `Renderer.stop_tokens`; there is no template."""
        return ()

    def _encode(self, text: str) -> list[int]:
        if (known := self._cache.get(text)) is not None:
            return known
        tokens = list(self._tokenizer.encode(text, add_special_tokens=False))
        # Long texts are seldom said twice, and many of them would fill the memory.
        if len(text) <= LONGEST_KEPT:
            if len(self._cache) > 50_000:
                self._cache.clear()
            self._cache[text] = tokens
        return tokens

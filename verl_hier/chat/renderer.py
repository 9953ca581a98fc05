"""The `chat` renderer: the model's chat template, continued token by token by verl's own builder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from verl_hier.chat.end_ids import end_ids
from verl_hier.chat.template import ChatTemplate
from verl_hier.graph.nodes import CONTINUED
from verl_hier.rollout.plain_renderer import completes

_PREFIX = 3
"""Messages that verl's builder puts in front of a new one at most, so that the template sees a conversation."""


class ChatRenderer:
    """Continues a context as the model's template writes a conversation.

    The first prompt and the results of tools are those of verl's continuous-token builder
    (verl/utils/tokenizer/continuous_token.py). It renders other messages behind two synthetic ones of the system and
    the user, which a template may refuse, and which says neither what separates an answer from the next message
    nor how a cut answer ends; those are rendered behind an answer, and the part behind it is taken.
    """

    def __init__(
        self,
        tokenizer: Any,
        model_type: str | None,
        template_options: dict[str, Any],
        generation: Sequence[Any] = (),
    ) -> None:
        """
        Args:
            tokenizer: with a chat template.
            model_type: of the model's config, by which verl knows the family of the template.
            template_options: further arguments of the template.
            generation: the model's generation config and config, which may have further end tokens.
        """
        self._tokenizer = tokenizer
        stops = end_ids(*generation, tokenizer)
        self.template = ChatTemplate(tokenizer, template_options)
        ended = frozenset() if self.template.end is None else frozenset({self.template.end}) - stops
        self._ends, self._stop_tokens = stops | ended, tuple(sorted(ended))
        self._dropped = self._ends | {tokenizer.pad_token_id}
        self._builder = create_continuous_token_builder(
            tokenizer, hf_model_type=model_type, chat_template_kwargs=template_options
        )
        _render_prefixes_once(self._builder)

    def render(
        self,
        tokens: list[int],
        history: list[dict[str, Any]],
        pending: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """See `Renderer.render`."""
        schemas = list(tools) or None
        if not tokens:
            first = self.template.fitted(history + pending)
            return list(self._builder.build_initial_tokens(first, tools=schemas))
        if pending and pending[-1]["role"] == CONTINUED:
            text = "".join(message["content"] for message in pending)
            return tokens + list(self._tokenizer.encode(text, add_special_tokens=False))
        later = self.template.fitted(pending, later=True)
        if history and history[-1]["role"] == "assistant":
            if {message["role"] for message in later} <= {"user", "system"}:
                behind = self.template.behind_answer(later, tools)
                if behind is not None:
                    return tokens + self._without_end(tokens, behind)
            if self.template.end is not None and tokens[-1] not in self._ends:
                tokens = [*tokens, self.template.end]
        return list(self._builder.merge_context_tokens(history, history + later, tokens, tools=schemas).token_ids)

    def _without_end(self, tokens: list[int], behind: list[int]) -> list[int]:
        """What the template writes behind an answer, without its end where the policy has written one itself."""
        if tokens[-1] not in self._ends:
            return behind
        place = next((number for number, token in enumerate(behind) if token in self._ends), None)
        if place is None or self._tokenizer.decode(behind[:place]).strip():
            return behind
        return behind[place + 1 :]

    def decode(self, tokens: list[int]) -> str:
        """See `Renderer.decode`."""
        last = len(tokens)
        while last and tokens[last - 1] in self._dropped:
            last -= 1
        # Other special tokens may be tags that the worker reads.
        text: str = self._tokenizer.decode(tokens[:last], skip_special_tokens=False)
        return text.strip()

    def ends(self, tokens: list[int], stop: Sequence[str] = ()) -> bool:
        """See `Renderer.ends`."""
        return bool(tokens) and (tokens[-1] in self._ends or completes(self._tokenizer, tokens, stop))

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """See `Renderer.stop_tokens`."""
        return self._stop_tokens


def _render_prefixes_once(builder: Any) -> None:
    """Let a builder of verl's remember the tokens of what it puts in front of a new message.

    It renders this prefix for each message again in order to cut it off: a tenth to a quarter of what a message costs.
    """
    render = builder._render_tokens

    @lru_cache(maxsize=256)
    def remembered(messages: str, tools: str) -> tuple[int, ...]:
        return tuple(render(json.loads(messages), add_generation_prompt=False, tools=json.loads(tools)))

    def render_tokens(
        messages: list[dict[str, Any]], *, add_generation_prompt: bool, tools: list[dict[str, Any]] | None = None
    ) -> list[int]:
        if add_generation_prompt or len(messages) > _PREFIX:
            return list(render(messages, add_generation_prompt=add_generation_prompt, tools=tools))
        return list(remembered(json.dumps(messages), json.dumps(tools)))

    builder._render_tokens = render_tokens

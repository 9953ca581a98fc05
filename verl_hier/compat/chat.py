"""The `chat` renderer: the model's chat template, continued token by token by verl's own builder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from verl_hier.graph.nodes import CONTINUED

_PREFIX = 3
"""Messages that verl's builder puts in front of a new one at most, so that the template sees a conversation."""


class ChatRenderer:
    """Renders with verl's continuous-token builder (verl/utils/tokenizer/continuous_token.py), so that a context is
    tokenised exactly as verl's agent loops would."""

    def __init__(self, tokenizer: Any, model_type: str | None, template_options: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
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
            return list(self._builder.build_initial_tokens(history + pending, tools=schemas))
        if pending and pending[-1]["role"] == CONTINUED:
            text = "".join(message["content"] for message in pending)
            return tokens + list(self._tokenizer.encode(text, add_special_tokens=False))
        return list(self._builder.merge_context_tokens(history, history + pending, tokens, tools=schemas).token_ids)

    def decode(self, tokens: list[int]) -> str:
        """See `Renderer.decode`."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()

    def ends(self, tokens: list[int]) -> bool:
        """See `Renderer.ends`; the end of a turn is a special token in every chat template."""
        return bool(tokens) and tokens[-1] in self._tokenizer.all_special_ids


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

"""The `chat` renderer: the model's chat template, continued token by token by verl's own builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from verl_hier.graph.nodes import CONTINUED


class ChatRenderer:
    """Renders with verl's continuous-token builder (verl/utils/tokenizer/continuous_token.py), so that a context is
    tokenised exactly as verl's agent loops would."""

    def __init__(self, tokenizer: Any, model_type: str | None, template_options: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._builder = create_continuous_token_builder(
            tokenizer, hf_model_type=model_type, chat_template_kwargs=template_options
        )

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

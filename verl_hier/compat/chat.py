"""The `chat` renderer: the model's chat template, continued token by token by verl's own builder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from verl_hier.graph.nodes import CONTINUED
from verl_hier.rollout.plain_renderer import completes
from verl_hier.runtime_cpu.end_ids import end_ids

_PREFIX = 3
"""Messages that verl's builder puts in front of a new one at most, so that the template sees a conversation."""


class ChatRenderer:
    """Renders with verl's continuous-token builder (verl/utils/tokenizer/continuous_token.py), so that a context is
    tokenised exactly as verl's agent loops would."""

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
        ended = end_of_template(tokenizer, template_options) - stops
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
            return list(self._builder.build_initial_tokens(history + pending, tools=schemas))
        if pending and pending[-1]["role"] == CONTINUED:
            text = "".join(message["content"] for message in pending)
            return tokens + list(self._tokenizer.encode(text, add_special_tokens=False))
        return list(self._builder.merge_context_tokens(history, history + pending, tokens, tools=schemas).token_ids)

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


def end_of_template(tokenizer: Any, options: Mapping[str, Any]) -> frozenset[int]:
    """The token of its own that a chat template writes behind what an assistant said; empty when it writes a text.

    Args:
        tokenizer: with a chat template.
        options: further arguments of the template.
    """
    said = "what was said"
    conversation = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": said}]
    try:
        text = tokenizer.apply_chat_template(conversation, tokenize=False, **options)
    except Exception:  # a template may refuse any conversation, and verl's builder then says what it wants
        return frozenset()
    rest = text.rpartition(said)[2].lstrip()
    first = next(iter(tokenizer.encode(rest, add_special_tokens=False)), None) if rest else None
    added = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return frozenset() if first is None else frozenset({first} & added)


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

"""A context continued token by token is what the model's template writes itself, for templates of many forms."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.fixtures.byte_model import write_byte_model
from verl_hier.chat.renderer import ChatRenderer
from verl_hier.chat.template import ChatTemplate

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ALTERNATING = (
    "{% set first = '' %}{% set rest = messages %}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + ' ' %}{% set rest = messages[1:] %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}"
    "{{ m.content | trim }}<|im_end|>\n\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
_NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + _CHATML
_DROPS_SYSTEM = _CHATML.replace("for m in messages", "for m in messages if m.role != 'system'")
_WORDS = (
    "{% for m in messages %}{{ {'user': 'Q', 'assistant': 'A'}.get(m.role, 'S') }}: {{ m.content }}"
    "{% if m.role == 'assistant' %} <|im_end|> {% else %};\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
_TEMPLATES = {
    "chatml": _CHATML,
    "alternating": _ALTERNATING,
    "no system": _NO_SYSTEM,
    "drops system": _DROPS_SYSTEM,
    "words": _WORDS,
}
_FIRST = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "One?"}]


@pytest.fixture
def byte_tokenizer(tmp_path: Any) -> Any:
    return AutoTokenizer.from_pretrained(write_byte_model(tmp_path))


def _chat(tokenizer: Any, name: str, family: str | None) -> ChatRenderer:
    tokenizer.chat_template = _TEMPLATES[name]
    return ChatRenderer(tokenizer, family, {})


@pytest.mark.parametrize("family", [None, "qwen2", "llama"])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("name", _TEMPLATES)
def test_a_continued_context_is_what_the_template_writes(
    byte_tokenizer: Any, name: str, cut: bool, family: str | None
) -> None:
    renderer = _chat(byte_tokenizer, name, family)
    template = renderer.template
    history: list[dict[str, Any]] = []
    tokens: list[int] = []
    pending = _FIRST
    for number in range(4):
        tokens = renderer.render(tokens, history, pending)
        history += template.fitted(pending, later=bool(history))
        assert byte_tokenizer.decode(tokens) == template.text(history, prompt=True)
        said = f"answer {number}"
        tokens = tokens + byte_tokenizer.encode(said, add_special_tokens=False)
        if name == "words":  # the template writes a space before its end
            tokens += [] if cut else byte_tokenizer.encode(" ", add_special_tokens=False)
        tokens += [] if cut else [template.end]
        history.append({"role": "assistant", "content": said})
        pending = [{"role": "user", "content": f"next {number}"}]


@pytest.mark.parametrize("name", _TEMPLATES)
def test_no_message_is_lost_or_refused(byte_tokenizer: Any, name: str) -> None:
    renderer = _chat(byte_tokenizer, name, None)
    messages = [*_FIRST, {"role": "user", "content": "Two?"}]
    first = byte_tokenizer.decode(renderer.render([], [], messages))
    assert all(message["content"] in first for message in messages)
    later = [
        {"role": "tool", "content": "Told."},
        {"role": "system", "content": "Late."},
        {"role": "user", "content": "Three?"},
    ]
    history = [*messages, {"role": "assistant", "content": "said"}]
    tokens = byte_tokenizer.encode(first + "said", add_special_tokens=False)
    text = byte_tokenizer.decode(renderer.render(tokens, history, later))
    assert text.startswith(first + "said")
    assert all(message["content"] in text for message in later)


def test_roles_change_only_where_the_template_demands_it(byte_tokenizer: Any) -> None:
    byte_tokenizer.chat_template = _CHATML
    messages = [*_FIRST, {"role": "user", "content": "Two?"}]
    assert ChatTemplate(byte_tokenizer).fitted(messages) == messages
    byte_tokenizer.chat_template = _NO_SYSTEM
    assert ChatTemplate(byte_tokenizer).fitted(messages) == [
        {"role": "user", "content": "Rules.\n\nOne?"},
        {"role": "user", "content": "Two?"},
    ]
    byte_tokenizer.chat_template = _ALTERNATING
    assert ChatTemplate(byte_tokenizer).fitted(messages) == [
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": "One?\n\nTwo?"},
    ]

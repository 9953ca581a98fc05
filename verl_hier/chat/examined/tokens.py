"""Findings about a tokenizer and its chat template, all of them from encoding, decoding and rendering."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_hier.chat.end_ids import end_ids
from verl_hier.chat.examined.finding import Finding
from verl_hier.chat.renderer import ChatRenderer
from verl_hier.chat.template import ChatTemplate
from verl_hier.errors import first_line

_PLAIN = "Two words, and  two spaces."
_TEXTS = (_PLAIN, "def f(x):\n\treturn {'a': [x, 1.5]}\n", "Grüße, 你好 🙂", "<answer>42</answer>")
_THOUGHT = "Marker of a thought."
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "What to look up."}},
            "required": ["word"],
        },
    },
}


def round_trip(tokenizer: Any, folder: Path | None = None) -> Iterator[Finding]:
    """Whether a text comes back from its tokens. What loses plain words fails, the rest is a note.

    Args:
        tokenizer: of the model.
        folder: where its files are, in order to try them with the general class.
    """
    lost = [text for text in _TEXTS if not _comes_back(tokenizer, text)]
    if not lost:
        yield Finding("round trip", "ok", f"{len(_TEXTS)} texts come back from their tokens as they were.")
        return
    back = tokenizer.decode(tokenizer.encode(lost[0], add_special_tokens=False))
    unknown = tokenizer.unk_token_id is not None and tokenizer.unk_token_id in tokenizer.encode(lost[0])
    found = f"{lost[0]!r} comes back as {back!r}"
    cure = "take the tokenizer's files as its authors publish them, or another tokenizer."
    if folder is not None and (folder / "tokenizer.json").is_file() and _general_class_is_right(folder):
        cure = (
            f"transformers loads it as {type(tokenizer).__name__}; set "
            f'"tokenizer_class": "PreTrainedTokenizerFast" in {folder / "tokenizer_config.json"}, with which each '
            "text comes back."
        )
    fatal = lost[0] == _PLAIN and not unknown
    yield Finding("round trip", "fails" if fatal else "note", f"{found}; {cure}")


def _comes_back(tokenizer: Any, text: str) -> bool:
    # Some tokenizers put a space in front of a text.
    decoded: str = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
    return decoded.strip() == text.strip()


def _general_class_is_right(folder: Path) -> bool:
    from transformers import PreTrainedTokenizerFast

    try:
        general = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    except Exception:  # the library tokenizers raises bare ones
        return False
    return all(_comes_back(general, text) for text in _TEXTS)


def ends(tokenizer: Any, template: ChatTemplate, generation: Any, config: Any) -> Iterator[Finding]:
    """The token that ends a turn in the template, against EOS, generation config and padding."""
    stops, end, eos = end_ids(generation, config, tokenizer), template.end, tokenizer.eos_token_id
    name = tokenizer.convert_ids_to_tokens
    if end is None:
        yield Finding(
            "end of a turn",
            "note",
            "the template writes no token of its own behind an answer; let a worker stop at a text, or add an end "
            "token.",
        )
    elif end == eos:
        yield Finding("end of a turn", "ok", f"the template ends a turn with {name(end)} ({end}), which is EOS.")
    else:
        known = name(eos) if eos is not None else None
        told = "the generation config stops there" if end in stops else "neither config stops there"
        yield Finding(
            "end of a turn",
            "note",
            f"the template ends a turn with {name(end)} ({end}), EOS is {known} ({eos}), "
            f'and {told}; rollouts here stop at both. Set "eos_token": {json.dumps(name(end))} in '
            "tokenizer_config.json, so that verl's own loops and other servers do.",
        )
    if eos is not None and eos != end and eos in template.opening:
        yield Finding(
            "EOS",
            "note",
            f"EOS {name(eos)} ({eos}) is a token that the template opens turns with, so it ends nothing; correct "
            "eos_token in tokenizer_config.json.",
        )
    if tokenizer.pad_token_id is None:
        yield Finding(
            "padding",
            "note",
            f"there is no pad_token, and verl takes EOS ({eos}) for it; name another token of the vocabulary in "
            "tokenizer_config.json.",
        )
    elif tokenizer.pad_token_id == end:
        yield Finding(
            "padding",
            "note",
            "the pad token is the one that ends a turn; name another one as pad_token in tokenizer_config.json.",
        )


def roles(template: ChatTemplate) -> Iterator[Finding]:
    """Which roles the template takes, and what is done about the others."""
    if not template.shows({"role": "user", "content": "Hello."}):
        yield Finding("roles", "fails", _broken(template))
        return
    mended = []
    if not template.takes_system:
        mended.append("has no system message, which is put in front of the user's first one")
    if not template.takes_late_system:
        mended.append("takes no system message behind an answer, which becomes one of the user")
    if not template.takes_neighbours:
        mended.append("wants roles to alternate, so that neighbours of one role become one message")
    if not template.takes_tools:
        mended.append("has no form for results of tools, which become messages of the user")
    sentence = f"the template {'; it '.join(mended)}." if mended else "the template takes every role in any order."
    yield Finding("roles", "note" if mended else "ok", sentence)


def _broken(template: ChatTemplate) -> str:
    try:
        template.text([{"role": "user", "content": "Hello."}])
        why = "it leaves the message of the user out"
    except Exception as error:  # a template raises what it likes
        why = first_line(error)
    return f"the template cannot render one message of a user ({why}); correct chat_template, or set template: plain."


def tool_calls(tokenizer: Any, template: ChatTemplate) -> Iterator[Finding]:
    """How the template writes calls of tools, and which of verl's parsers reads that."""
    from verl.experimental.agent_loop.tool_parser import ToolParser

    from verl_hier.chat.tools import openings

    written = template.tool_call
    if written is None:
        yield Finding(
            "tool calls",
            "note",
            "the template writes no calls of tools; describe tools and the form of their calls in a prompt, or take "
            "another template.",
        )
        return
    readers = []
    for name, made in sorted(ToolParser._registry.items()):
        try:
            opened = openings(made(tokenizer))
        except Exception:  # a parser may want tokens that this vocabulary lacks
            continue
        if opened and any(opening in written for opening in opened):
            readers.append(name)
    text = f"the template writes a call as {written.strip()!r}"
    line = "actor_rollout_ref.rollout.multi_turn.format"
    if readers:
        yield Finding("tool calls", "ok", f"{text}; set {line} to {' or '.join(readers)}.")
    else:
        yield Finding("tool calls", "note", f"{text}, which no parser of verl reads; name one of your own in {line}.")


def conversation(tokenizer: Any, renderer: ChatRenderer) -> Iterator[Finding]:
    """Four turns with a system message and tools, continued token by token, against the template's own rendering."""
    try:
        yield _difference(tokenizer, renderer, [f"Answer {number}." for number in range(4)], "four turns")
    except Exception as error:  # a template raises what it likes, and so does verl's builder
        yield Finding(
            "four turns",
            "fails",
            f"the template refuses a conversation ({type(error).__name__}: {first_line(error)}); correct "
            "chat_template, or set hier.rollout.template: plain.",
        )
        return
    thinking = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\nOne."},
        {"role": "user", "content": "Two?"},
    ]
    kept = _THOUGHT in renderer.template.text(thinking)
    if kept:
        yield Finding("thoughts", "ok", "a thought stays in the history, in the template as here.")
    else:
        yield Finding(
            "thoughts",
            "note",
            "the template drops the thoughts of earlier answers; here they stay in the history, as trained tokens are "
            "the sampled ones, and a served model would not see them. Train with short thoughts, or serve with a "
            "template that keeps them.",
        )


def _difference(tokenizer: Any, renderer: ChatRenderer, answers: list[str], about: str) -> Finding:
    template, end = renderer.template, renderer.template.end
    tokens: list[int] = []
    history: list[dict[str, Any]] = []
    pending = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Question 0?"}]
    for number, answer in enumerate(answers):
        tokens = renderer.render(tokens, history, pending, [_TOOL])
        history += template.fitted(pending, later=number > 0)
        if number < len(answers) - 1:
            said = tokenizer.encode(answer, add_special_tokens=False)
            tokens = [*tokens, *said, *([] if end is None else [end])]
            history.append({"role": "assistant", "content": answer})
            pending = [{"role": "user", "content": f"Question {number + 1}?"}]
    text = template.text(history, [_TOOL], prompt=True)
    own = list(tokenizer.encode(text, add_special_tokens=False))
    if tokens == own:
        return Finding(about, "ok", f"{len(tokens)} tokens continued one by one are the template's own rendering.")
    place = next((at for at, (one, two) in enumerate(zip(tokens, own, strict=False)) if one != two), len(own))
    ours, its = (tokenizer.decode(each[max(0, place - 3) : place + 8]) for each in (tokens, own))
    return Finding(
        about,
        "note",
        f"from token {place} the context is {ours!r}, and the template writes {its!r}; the policy is trained on the "
        "first and a chat server gives it the second. Change the template until both agree where that matters.",
    )

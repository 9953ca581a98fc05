"""What a chat template does with a conversation, found by rendering: which roles it takes, and what follows a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

Messages = Sequence[Mapping[str, Any]]

_ASKED, _SAID, _TOLD = "Marker of a question.", "Marker of an answer.", "Marker of a message."
_USER, _ASSISTANT = {"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}


class ChatTemplate:
    """The chat template of a tokenizer. Nothing here depends on the name of a model or of its family."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            tokenizer: with a chat template.
            options: further arguments of the template.
        """
        self.tokenizer, self._options = tokenizer, dict(options or {})

    def text(self, messages: Messages, tools: Messages = (), prompt: bool = False) -> str:
        """The template's own rendering; raises what the template raises.

        Args:
            messages: the conversation.
            tools: JSON schemas.
            prompt: whether the opening of the next answer follows.
        """
        rendered: str = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=prompt,
            **self._options,
        )
        return rendered

    def shows(self, *messages: Mapping[str, Any]) -> bool:
        """Whether the template takes this conversation and has the content of each message in its rendering."""
        try:
            text = self.text(messages)
        except Exception:  # a template raises what it likes, also errors of Python inside it
            return False
        return all(str(message["content"]) in text for message in messages)

    @cached_property
    def takes_system(self) -> bool:
        """Whether a conversation may begin with a system message, in its rendering."""
        return self.shows({"role": "system", "content": _TOLD}, _USER)

    @cached_property
    def takes_late_system(self) -> bool:
        """Whether a system message may follow an answer."""
        return self.shows(_USER, _ASSISTANT, {"role": "system", "content": _TOLD})

    @cached_property
    def takes_neighbours(self) -> bool:
        """Whether two messages of the user may follow each other."""
        return self.shows(_USER, {"role": "user", "content": _TOLD})

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the result of a tool has a form, behind a call or behind an answer."""
        return self.tool_call is not None or self.shows(_USER, _ASSISTANT, {"role": "tool", "content": _TOLD})

    @cached_property
    def tool_call(self) -> str | None:
        """What the template writes between a question and the result of a tool that was called; None where it writes
        no calls."""
        for content in ("", None):
            for arguments in ({"marker_key": 17}, '{"marker_key": 17}'):
                written = self._written_call(content, arguments)
                if written is not None:
                    return written
        return None

    def _written_call(self, content: str | None, arguments: Any) -> str | None:
        function = {"name": "marker_tool", "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        made = {"role": "assistant", "content": content, "tool_calls": [call]}
        told = {"role": "tool", "content": _TOLD, "name": "marker_tool", "tool_call_id": "call00001"}
        try:
            text = self.text([_USER, made, told])
        except Exception:  # as in `shows`
            return None
        written = text.partition(_ASKED)[2].partition(_TOLD)[0]
        return written if _TOLD in text and "marker_tool" in written and "marker_key" in written else None

    def fitted(self, messages: Messages, later: bool = False) -> list[dict[str, Any]]:
        """The messages in roles that the template takes, and unchanged where it takes them as they are.

        A system message goes into the user message behind it, a result of a tool becomes a user message, and
        neighbours of one role become one message, each only where the template cannot have it otherwise.

        Args:
            messages: of which none has the role `CONTINUED`.
            later: whether the messages follow an answer.
        """
        fitted: list[dict[str, Any]] = []
        for number, message in enumerate(messages):
            role = message["role"]
            begins = not later and number == 0
            if (role == "system" and not (self.takes_system if begins else self.takes_late_system)) or (
                role == "tool" and not self.takes_tools
            ):
                message = {"role": "user", "content": message["content"]}
            moved = message["role"] != role and role == "system"
            fitted.append({**message, "_moved": True} if moved else dict(message))
        return self._merged(fitted)

    def _merged(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        merged: list[dict[str, Any]] = []
        for message in messages:
            moved = bool(message.pop("_moved", False))
            last = merged[-1] if merged else None
            same = last is not None and last["role"] == message["role"] and message["role"] != "tool"
            if last is not None and same and (last.get("_joins") or not self.takes_neighbours):
                last["content"] = f"{last['content']}\n\n{message['content']}"
                last["_joins"] = moved
            else:
                merged.append({**message, "_joins": moved})
        for message in merged:
            del message["_joins"]
        return merged

    def behind_answer(self, messages: Messages, tools: Messages = ()) -> list[int] | None:
        """The tokens that the template writes behind the text of an answer: its end, what separates messages, these
        messages, and the opening of the next answer. None where the template does not show the answer.

        Args:
            messages: in roles that the template takes.
            tools: JSON schemas.
        """
        text = self.text([_USER, _ASSISTANT, *messages], tools, prompt=True)
        _, found, rest = text.partition(_SAID)
        return list(self.tokenizer.encode(rest, add_special_tokens=False)) if found else None

    @cached_property
    def end(self) -> int | None:
        """The token of its own that the template writes behind an answer; None when it writes a text."""
        try:
            rest = self.text([_USER, _ASSISTANT]).partition(_SAID)[2].lstrip()
        except Exception:  # as in `shows`
            return None
        first = next(iter(self.tokenizer.encode(rest, add_special_tokens=False)), None) if rest else None
        added = {*self.tokenizer.all_special_ids, *self.tokenizer.get_added_vocab().values()}
        return first if first in added else None

    @cached_property
    def opening(self) -> list[int]:
        """The tokens of a question and the opening of its answer."""
        return list(self.tokenizer.encode(self.text([_USER], prompt=True), add_special_tokens=False))

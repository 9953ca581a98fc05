"""What a request wants of its answer beside its tools: that it is a call, or none, or JSON.

The endpoint cannot force what the policy writes. The policy is told in a sentence, and an answer that is otherwise is
invalid: it is handed over as text, and of calls where there may be one, the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from verl_hier.environments.thoughts import without_thoughts
from verl_hier.text import read_json


@dataclass(frozen=True)
class Demand:
    """What a request wants of its answer.

    Attributes:
        calls: whether it has to call tools; `auto` leaves it to the policy.
        names: the tools that it may call; None for all.
        one: whether it may have one call only.
        json: schema of the JSON that an answer without calls has to be, empty where any object will do; None where any
            text will do.
    """

    calls: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    one: bool = False
    json: Mapping[str, Any] | None = None

    @property
    def sentence(self) -> str:
        """What the policy is told; empty where nothing is demanded."""
        said = []
        if self.calls == "none":
            said.append("Answer without a call.")
        elif self.names is not None:
            named = " or ".join(self.names)
            said.append(f"Call {named}." if self.calls == "required" else f"Call {named}, or answer without a call.")
        elif self.calls == "required":
            said.append("Answer with a call.")
        if self.one and self.calls != "none":
            said.append("Call one tool at a time.")
        if self.json is not None:
            form = f" by the schema {json.dumps(self.json, ensure_ascii=False)}" if self.json else ""
            said.append(f"An answer that is no call is a JSON object{form}, and nothing else.")
        return " ".join(said)

    def allows(self, names: set[str]) -> bool:
        """Whether an answer may have calls of these tools."""
        return self.calls != "none" and (self.names is None or names <= set(self.names))

    def read(self, text: str) -> tuple[str, bool]:
        """An answer without calls as it is handed over, and whether it is as demanded.

        Of a schema, the names of its required properties are checked.
        """
        if self.calls == "required":
            return text, False
        if self.json is None:
            return text, True
        said = without_thoughts(text).strip()
        try:
            value = read_json(said)
        except ValueError:
            return text, False
        needed = self.json.get("required", ())
        needed = needed if isinstance(needed, list) else ()
        fits = isinstance(value, dict) and all(name in value for name in needed if isinstance(name, str))
        return (said, True) if fits else (text, False)


NOTHING = Demand()

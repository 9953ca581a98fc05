"""Parser for actions of the form `<verb>body</verb>` or `verb body`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from verl_hier.environments.thoughts import without_thoughts


def parse_verb(text: str, verbs: Sequence[str]) -> tuple[str, str] | None:
    """The verb and the body of an action, None when there is no verb. Linear in the length of the text.

    Args:
        text: a policy's turn, whose thoughts are ignored. The last complete pair of tags counts, because earlier ones
            may be quoted in the reasoning; without tags the text has to begin with a verb. A code fence around the body
            is removed.
        verbs: the known verbs.
    """
    text = without_thoughts(text)
    ends = {verb: text.rfind(f"</{verb}>") for verb in verbs}
    verb = max(ends, key=lambda each: ends[each])
    start = text.rfind(f"<{verb}>", 0, max(ends[verb], 0))
    if start >= 0:
        return verb, _unfenced(text[start + len(verb) + 2 : ends[verb]])
    found = re.match(rf"\s*({'|'.join(map(re.escape, verbs))})\b[ \t]*:?", text, re.IGNORECASE)
    return (found.group(1).lower(), _unfenced(text[found.end() :])) if found else None


def _unfenced(body: str) -> str:
    body = body.strip()
    if body.startswith("```") and "\n" in body:
        body = body.partition("\n")[2].rstrip().removesuffix("```")
    return body.strip()

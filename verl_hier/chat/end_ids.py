"""Which tokens end what a model generates; without torch, because renderers ask as well."""

from __future__ import annotations

from typing import Any


def end_ids(*sources: Any) -> frozenset[int]:
    """The end-of-sequence ids of a generation config, a model config and a tokenizer together.

    A server stops at each of them, so that a turn which does not end with one, or at a stop string, was cut.

    Args:
        sources: objects whose `eos_token_id` is an id, a list of ids, or None; None for what a model does not have.
    """
    found = (getattr(source, "eos_token_id", None) for source in sources)
    ids = (value if isinstance(value, list | tuple) else [value] for value in found if value is not None)
    return frozenset(token for several in ids for token in several)

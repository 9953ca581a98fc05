"""Long texts are worked on beside the event loop, so that one of them does not hold up all other episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
LONG = 50_000
"""Characters or tokens; shorter texts take less time than the way to a thread and back."""


async def off_loop(length: int, function: Callable[P, T], *args: P.args, **keywords: P.kwargs) -> T:
    """The result of a function, which runs in a thread when it works on more than `LONG` characters or tokens.

    Args:
        length: of the text that it works on.
        function: must not touch what other coroutines change meanwhile.
        args, keywords: its arguments.
    """
    if length <= LONG:
        return function(*args, **keywords)
    return await asyncio.to_thread(function, *args, **keywords)

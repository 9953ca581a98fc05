"""Values of overrides in Hydra's grammar."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from verl_hier.errors import RecipeError, first_line


def key_of(override: str) -> str:
    """The key of an override, without the signs that add or delete it."""
    return override.partition("=")[0].lstrip("+~")


def require_grammar(overrides: Iterable[str]) -> None:
    """Refuse the first override that Hydra's grammar cannot read, or reads as several values to choose from.

    Raises:
        RecipeError: with the override, and with its value quoted for Hydra and for the shell.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    for override in overrides:
        try:
            parsed, why = parser.parse_override(override), ""
        except HydraException as error:
            parsed, why = None, first_line(error)
        if parsed is not None and not parsed.is_sweep_override():
            continue
        key, equals, value = override.partition("=")
        if not equals:
            raise RecipeError(f"the override {override!r} is no key=value: {why}.")
        quoted = shlex.quote(f"{key}={hydra_value(value.strip(chr(39) + chr(34)))}")
        if parsed is not None:
            raise RecipeError(
                f"the override {override!r} gives several values to choose from; write "
                f"{shlex.quote(f'{key}=[{value}]')} for a list, or {quoted} for a text with a comma."
            )
        raise RecipeError(f"the override {override!r} is not in Hydra's grammar ({why}); write its text as {quoted}.")


def hydra_value(value: Any) -> str:
    """A value as the right side of an override: numbers and containers as they are, anything else as quoted text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {hydra_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(hydra_value, value)) + "]"
    # Hydra reads backslashes as themselves, except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), str(value))
    return f"'{escaped}'"

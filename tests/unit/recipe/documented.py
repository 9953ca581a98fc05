"""The defaults that docs/reference.md promises, against those of the code."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs/reference.md"


@cache
def documented() -> dict[str, str]:
    """Recipe line to the default that its row in the page names, as JSON or `required`."""
    row = r"^\| `(hier\.[^`]+)` \|.*?\| (?:`([^`]*)`|(required)) \| "
    rows = re.findall(row, PAGE.read_text("utf-8"), re.MULTILINE)
    return {line: default or required for line, default, required in rows}


def differences(block: str, options: type) -> dict[str, tuple[Any, Any]]:
    """Lines of a block whose default is another one in the page, with both; a field that is a block has no row."""
    found = {}
    for field in dataclasses.fields(options):
        line, default = f"{block}.{field.name}", field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(default):
            continue
        said = "required" if default is dataclasses.MISSING else json.dumps(default, default=list)
        if documented().get(line) != said:
            found[line] = documented().get(line), said
    return found

"""A small MCP server to try things with: a house with items in its rooms, which is another one in every session.

    python -m verl_hier_plugins.environments.mcp.sample              # speaks over stdio
    python -m verl_hier_plugins.environments.mcp.sample 8000         # over streamable HTTP, http://127.0.0.1:8000/mcp

What it keeps belongs to the session, or to the `house` that a call names.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from verl_hier_plugins.environments.mcp.house import HELD, ROOMS, furnished

server = MCPServer("house", log_level="ERROR")
places: dict[str, dict[str, str]] = defaultdict(dict)
"""Where each item is, by house."""


def _house(context: Context, house: str) -> dict[str, str]:
    return places[house or (context.headers or {}).get("mcp-session-id", "")]


@server.tool(description="Start over with the house of a number.")
def furnish(number: int, context: Context, house: str = "") -> str:
    _house(context, house).update(furnished(number))
    return f"house {house or number} is ready"


@server.tool(description="Say where an item is.", annotations=ToolAnnotations(read_only_hint=True))
def find(item: str, context: Context, house: str = "") -> str:
    found = _house(context, house)
    if item not in found:
        raise ToolError(f"there is no {item}")
    return f"{item} is in {found[item]}"


@server.tool(description="Take an item from the room that it is in.")
def take(item: str, room: str, context: Context, house: str = "") -> str:
    found = _house(context, house)
    if found.get(item) != room:
        raise ToolError(f"no {item} in {room}")
    found[item] = HELD
    return f"{item} is in {HELD}"


@server.tool(description="Put an item that you hold into a room.")
def put(item: str, room: str, context: Context, house: str = "") -> str:
    found = _house(context, house)
    if found.get(item) != HELD or room not in ROOMS:
        raise ToolError(f"no {item} in {HELD}" if room in ROOMS else f"there is no {room}")
    found[item] = room
    return f"{item} is in {room}"


def main() -> None:
    """Serve over stdio, or over HTTP at the port that the command line names."""
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()


if __name__ == "__main__":
    main()

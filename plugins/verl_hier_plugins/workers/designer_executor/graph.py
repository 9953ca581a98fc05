"""Designs as MAS-Orchestra writes them: agents and edges in tags, a graph without cycles whose only end answers.

`read_graph(text, limits)` gives a `Design` or raises a `DesignError` with a name. What is read is what
SalesforceAIResearch/MAS-Orchestra reads at 0527c70, mas_r1_reasoner/rewards/utils/harmony_parser/medium.py: agents
(line 24), edges (line 104), the order of execution (line 157), the rules of a graph (line 214) and references to what
others said (line 509). Unlike there, an agent that cannot be read refuses the design, as do two agents of one name.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from verl_hier_plugins.workers.designer_executor.design import Call, Design, DesignError, TextOf
from verl_hier_plugins.workers.designer_executor.script import Limits

_REFERENCE = re.compile(r"\$\{([^{}$]{1,200})\}")
SIDES_CHARACTERS = 2000
"""A longer list of sides is refused before it is read."""


def read_graph(text: str, limits: Limits) -> Design:
    """The design that agents and edges describe.

    Raises:
        DesignError: with the name of what is wrong with it; see `design.FAILURES`.
    """
    if len(text) > limits.max_bytes or len(text.encode("utf-8", "replace")) > limits.max_bytes:
        raise DesignError("too_long", f"the graph is longer than {limits.max_bytes} bytes")
    calls = dict[str, Call]()
    names = {name.lower(): name for name in limits.roles}
    for inner in parts(text, "agent"):
        name = first(inner, "agent_id")
        if name in calls:
            raise DesignError("doubled_agent", f"two agents are called {name[:40]!r}")
        calls[name] = _call(inner, name, names, limits)
        if len(calls) > limits.max_steps:
            raise DesignError("too_many_steps", f"more than {limits.max_steps} agents")
    if not calls:
        raise DesignError("empty", "there is no agent")
    order = ordered(list(calls), edges_of(text))
    heard = {name: set(order[:number]) for number, name in enumerate(order)}
    body = [replace(calls[name], order=_referring(calls[name].order, heard[name])) for name in order]
    return Design(limits.roles, tuple(body), len(order))


def _call(inner: str, name: str, names: Mapping[str, str], limits: Limits) -> Call:
    """One agent."""
    wanted = first(inner, "agent_name")
    role = names.get(wanted.lower())
    if not name or role is None:
        raise DesignError("unknown_role", f"there is no role {wanted[:40]!r}" if name else "an agent has no agent_id")
    arguments = first(inner, "required_arguments")
    given = first(arguments, "agent_input")
    sides = _sides(first(arguments, "debate_roles")) if limits.roles[role].block == "debate" else ()
    return Call(role, () if given in ("", '""') else (given,), name, sides)


def _referring(order: Sequence[str | TextOf], heard: Collection[str]) -> tuple[str | TextOf, ...]:
    """An order whose references to agents that work before it are what these have said; others stay as they are."""
    text, found, end = "".join(map(str, order)), list[str | TextOf](), 0
    for reference in _REFERENCE.finditer(text):
        if reference[1] in heard:
            found += [text[end : reference.start()], TextOf(reference[1])]
            end = reference.end()
    return tuple(part for part in (*found, text[end:]) if part)


def _sides(text: str) -> tuple[str, ...]:
    """Who debates; none where the design does not say so."""
    if not text:
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sides = ast.literal_eval(text) if len(text) <= SIDES_CHARACTERS else None
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        sides = None
    if not isinstance(sides, list) or len(sides) < 2 or not all(isinstance(it, str) and len(it) > 1 for it in sides):
        raise DesignError("sides", 'the sides of a debate are a list such as ["Mathematician", "Statistician"]')
    return tuple(sides)


def parts(text: str, tag: str) -> list[str]:
    """What stands between each opening and the next closing tag, in any case, in time linear in the text."""
    small = text.lower()
    if len(small) != len(text):  # a few letters change their length
        small = text
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, end = list[str](), 0
    while (start := small.find(opening, end)) >= 0:
        stop = small.find(closing, start)
        if stop < 0:
            break
        found.append(text[start + len(opening) : stop].strip())
        end = stop + len(closing)
    return found


def first(text: str, tag: str) -> str:
    """What the first pair of a tag holds; of one that is not closed, what stands before the next tag. Empty without."""
    found = parts(text, tag)
    if found:
        return found[0]
    begins = text.lower().find(f"<{tag}>")
    return "" if begins < 0 else text[begins + len(tag) + 2 :].partition("<")[0].strip()


def edges_of(text: str) -> list[tuple[str, str]]:
    """Pairs of the first block of edges: the first `from` with the first `to`, and so on."""
    block = first(text, "edge")
    return list(zip(parts(block, "from"), parts(block, "to"), strict=False))


def ordered(agents: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[str]:
    """The agents in the order in which they work: each behind those that lead to it, otherwise as they are written.

    Raises:
        DesignError: for edges that make no graph with one end.
    """
    if len(agents) == 1 and not edges:
        return list(agents)
    if not edges:
        raise DesignError("unconnected", "several agents need edges")
    following: dict[str, list[str]] = {agent: [] for agent in agents}
    waits = dict.fromkeys(agents, 0)
    for begin, end in edges:
        if begin not in waits or end not in waits:
            raise DesignError("unknown_agent", f"there is no agent {(end if begin in waits else begin)[:40]!r}")
        following[begin].append(end)
        waits[end] += 1
    ends = [agent for agent in agents if not following[agent]]
    if len(ends) > 1:
        raise DesignError("many_ends", f"{ends[0][:40]!r} and {ends[1][:40]!r} both lead to no other agent")
    order = [agent for agent in agents if not waits[agent]]
    for agent in order:
        for end in following[agent]:
            waits[end] -= 1
            if not waits[end]:
                order.append(end)
    if len(order) < len(agents):
        raise DesignError("cycle", "agents wait for each other")
    return order

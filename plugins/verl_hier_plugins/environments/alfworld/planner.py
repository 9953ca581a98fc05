"""The planner library below ALFWorld: translation from PDDL, and the one active game of each thread.

The state of a game lives inside `libdownward.so`, one game per loaded copy (33 MB each). Instead of a copy per
environment this module keeps one for each thread. Within a game it returns to a known state by its number; to change
games it loads the other game and replays operators (tenths of a millisecond). `engine.Game` needs either only for
transitions that it computes for the first time.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Atom = tuple[str, tuple[str, ...]]
"""A predicate and its arguments."""

Path = tuple[int, ...]
"""Operator numbers from the start of a game."""


@contextmanager
def _own_argv() -> Iterator[None]:
    """`fast_downward.pddl2sas` overwrites `sys.argv` of the whole process; this restores it."""
    saved = sys.argv
    try:
        yield
    finally:
        sys.argv = saved


def translate(domain: str, problem: str) -> tuple[Any, bytes]:
    """The parsed planning task and its grounded SAS form, translated as TextWorld does it (nothing pruned)."""
    import fast_downward

    with _own_argv():
        task, sas = fast_downward.pddl2sas(domain, problem, verbose=False)
    return task, sas.encode("utf-8")


def parse_atom(name: str) -> tuple[bool, Atom]:
    """`NegatedAtom holds(agent1, apple)` as `(False, ("holds", ("agent1", "apple")))`."""
    kind, rest = name.split(" ", 1)
    predicate, arguments = rest.split("(", 1)
    return kind != "NegatedAtom", (predicate, tuple(a for a in arguments[:-1].split(", ") if a))


class Planner:
    """One loaded copy of the library. `place` goes to a state; the other calls read or advance the current state."""

    def __init__(self) -> None:
        import fast_downward

        self._lib = fast_downward.load_lib()
        # Exported by the library, but not declared by its Python interface.
        self._lib.get_state_id.argtypes = []
        self._lib.get_state_id.restype = ctypes.c_int
        self._lib.set_state_id.argtypes = [ctypes.c_int]
        self._lib.set_state_id.restype = None
        self._operator = fast_downward.Operator
        self._atom = fast_downward.Atom
        self._game: object = None
        self._states: dict[Path, int] = {}
        self._path: Path = ()
        self._effects = (self._atom * 64)()
        self.loads = 0

    def place(self, game: object, sas: bytes, path: Path) -> None:
        """Make the state at the end of `path` the current one.

        Args:
            game: identity of the game; the same object means the same `sas`.
            sas: the grounded task.
            path: operators from the start.
        """
        if self._game is not game:
            self._lib.load_sas(sas)
            self.loads += 1
            self._game, self._path = game, ()
            self._states = {(): self._lib.get_state_id()}
        if self._path == path:
            return
        known = len(path)
        while path[:known] not in self._states:
            known -= 1
        self._lib.set_state_id(self._states[path[:known]])
        self._path = path[:known]
        for operator in path[known:]:
            self.apply(operator)

    def apply(self, operator: int) -> Sequence[tuple[bool, Atom]]:
        """Advance the current state by an applicable operator; its effects as (holds now, atom)."""
        count = self._lib.apply_operator(operator, self._effects)
        self._path = (*self._path, operator)
        self._states[self._path] = self._lib.get_state_id()
        return [parse_atom(self._effects[i].name) for i in range(count)]

    def applicable(self) -> list[tuple[int, str]]:
        """Number and ground name (`gotolocation agent1 loc_1 loc_2 fridge_1`) of each applicable operator."""
        count = self._lib.get_applicable_operators_count()
        operators = (self._operator * count)()
        self._lib.get_applicable_operators(operators)
        return [(operator.id, operator.name) for operator in operators]

    def state(self) -> list[Atom]:
        """The atoms that hold in the current state."""
        atoms = (self._atom * self._lib.get_state_size())()
        self._lib.get_state(atoms)
        return [atom for holds, atom in (parse_atom(a.name) for a in atoms) if holds]

    def goal_reached(self) -> bool:
        """Whether the current state satisfies the goal."""
        return bool(self._lib.check_goal())


_LOCAL = threading.local()


def planner() -> Planner:
    """The planner of this thread, loaded at the first call. One thread's planner must not be used by another."""
    if not hasattr(_LOCAL, "planner"):
        _LOCAL.planner = Planner()
    found: Planner = _LOCAL.planner
    return found

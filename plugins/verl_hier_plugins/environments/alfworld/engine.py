"""ALFWorld's text engine as a graph of states that is discovered while it is played.

A `Game` is one translated game file; a `Node` is one of its states. An edge is computed once, by the planner library
and the grammar of the game file, exactly as TextWorld computes it; walking it again, in another episode or in a fork,
is a dictionary look-up. A fork is therefore a reference to a node, and equal states are the same object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from verl_hier_plugins.environments.alfworld.grammar import Entity, Grammar, Key, Scene, parse_grammar, split_task
from verl_hier_plugins.environments.alfworld.planner import Atom, Path, planner, translate

NOTHING_HAPPENS = "Nothing happens."
Facts = dict[str, frozenset[tuple[str, ...]]]


@dataclass(frozen=True)
class Operator:
    """A ground action: the command that names it, the rule that reports it, its bound parameters."""

    number: int
    command: str
    feedback: str
    mapping: Mapping[Key, str]


@dataclass(eq=False)
class Node:
    """One state of a game. `edges` grows as commands are tried."""

    game: Game
    path: Path
    facts: Facts
    anchor: str
    won: bool
    operators: Mapping[str, Operator]
    admissible: tuple[str, ...]
    edges: dict[str, tuple[Node, str]] = field(default_factory=dict)

    @cached_property
    def scene(self) -> Scene:
        """The input from which texts about this state are derived."""
        return Scene(self.facts, self.game.types, self.game.entities, {})

    def walk(self, command: str) -> tuple[Node, str] | None:
        """The state after a command and the game's text; None when the command is not admissible."""
        if command not in self.edges:
            if command not in self.operators:
                return None
            self.edges[command] = self.game.expand(self, self.operators[command])
        return self.edges[command]


class Game:
    """A game file, translated once. Not thread-safe: to be used in the thread that made it.

    Attributes:
        task: the task sentence of the game.
        types: PDDL object to type.
        entities: PDDL object to the name that texts use.
        start: the state after a reset.
        intro: the game's text at a reset.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        source, self.task = split_task(data["grammar"])
        self.grammar: Grammar = parse_grammar(source)
        task, self._sas = translate(data["pddl_domain"], data["pddl_problem"])
        self._parameters = {a.name: [(p.name.strip("?"), p.type_name) for p in a.parameters] for a in task.actions}
        self.types: dict[str, str] = {o.name: o.type_name for o in task.objects}
        self._dynamic = _dynamic_predicates(task, self.grammar.reads)
        self._operators: dict[int, Operator] = {}
        self._choices: dict[tuple[int, ...], tuple[dict[str, Operator], tuple[str, ...]]] = {}
        self._nodes: dict[tuple[frozenset[tuple[str, ...]], ...], Node] = {}
        self._shared: frozenset[str] = frozenset()
        planner().place(self, self._sas, ())
        facts = self._first_facts(task)
        self.entities = _entities(facts, self.types)
        self._shared = _shared_receptacles(facts)
        self.start = self._node((), facts)
        self.intro = self.grammar.derive("#intro#", self.start.scene, self.task)

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Names of the receptacles that the room lists, in its order."""
        held = sorted(self.start.facts.get("receptacleatlocation", ()))
        return tuple(self.entities[receptacle].name for receptacle, _ in held)

    @property
    def states(self) -> int:
        """The number of states discovered so far."""
        return len(self._nodes)

    def expand(self, node: Node, operator: Operator) -> tuple[Node, str]:
        """Apply an operator for the first time in a state."""
        live = planner()
        live.place(self, self._sas, node.path)
        facts = dict(node.facts)
        for holds, (predicate, arguments) in live.apply(operator.number):
            changes = ((predicate, holds), ("not_" + predicate, not holds))
            for name, present in changes:
                if name in self._dynamic:
                    before = facts.get(name, frozenset())
                    facts[name] = before | {arguments} if present else before - {arguments}
        reached = self._node((*node.path, operator.number), facts)
        scene = Scene(facts, self.types, self.entities, operator.mapping)
        return reached, self.grammar.derive(operator.feedback, scene, self.task)

    def _node(self, path: Path, facts: Facts) -> Node:
        """The node of the planner's current state, which `facts` describe."""
        key = self._identity(facts)
        if key not in self._nodes:
            live = planner()
            operators, admissible = self._choose(live.applicable())
            self._nodes[key] = Node(
                game=self,
                path=path,
                facts=facts,
                anchor=self._anchor(key),
                won=live.goal_reached(),
                operators=operators,
                admissible=admissible,
            )
        return self._nodes[key]

    def _identity(self, facts: Facts) -> tuple[frozenset[tuple[str, ...]], ...]:
        """The identity of a state: everything that an action, the goal or a text can depend on.

        That an object is not in a receptacle is read only for the receptacle at the object's location, so it matters
        only where two receptacles share a location; elsewhere it would merely record where the object has been.
        """
        key = []
        for name in self._dynamic:
            held = facts.get(name, frozenset())
            if name == "not_inreceptacle":
                held = frozenset(pair for pair in held if pair[1] in self._shared)
            key.append(held)
        return tuple(key)

    def _anchor(self, key: tuple[frozenset[tuple[str, ...]], ...]) -> str:
        """`holding <what> | <hash of the facts>`: equal in equal states, the same in every process."""
        canonical = repr([(name, sorted(held)) for name, held in zip(self._dynamic, key, strict=True)])
        digest = hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()
        held = dict(zip(self._dynamic, key, strict=True)).get("holds", frozenset())
        names = sorted(self.entities[arguments[1]].name for arguments in held)
        return f"holding {', '.join(names) or 'nothing'} | {digest}"

    def _choose(self, applicable: list[tuple[int, str]]) -> tuple[dict[str, Operator], tuple[str, ...]]:
        """Command to operator, and the sorted commands; TextWorld takes the first operator of a command."""
        numbers = tuple(number for number, _ in applicable)
        if numbers not in self._choices:
            operators: dict[str, Operator] = {}
            for number, name in applicable:
                if number not in self._operators:
                    self._operators[number] = self._ground(number, name)
                operators.setdefault(self._operators[number].command, self._operators[number])
            self._choices[numbers] = operators, tuple(sorted(operators))
        return self._choices[numbers]

    def _ground(self, number: int, name: str) -> Operator:
        action, *arguments = name.split()
        mapping = dict(zip(self._parameters[action], arguments, strict=False))
        scene = Scene(self._static, self.types, self.entities, mapping)
        command = self.grammar.derive(self.grammar.templates[action], scene)
        return Operator(number, command, self.grammar.feedback[action], mapping)

    def _first_facts(self, task: Any) -> Facts:
        """Facts of the start as TextWorld lists them: those of the problem and those of the planner's state."""
        found: dict[str, set[tuple[str, ...]]] = {}
        for atom in (*_problem_atoms(task), *planner().state()):
            predicate, arguments = atom
            if not predicate.startswith("new-axiom@"):
                found.setdefault(predicate, set()).add(arguments)
        self._static: Facts = {name: frozenset(held) for name, held in found.items() if name not in self._dynamic}
        return {name: frozenset(held) for name, held in found.items()}


def _problem_atoms(task: Any) -> Iterable[Atom]:
    for entry in task.init:
        if hasattr(entry, "predicate") and entry.predicate != "=":
            yield entry.predicate, tuple(entry.args)


def _dynamic_predicates(task: Any, read_by_texts: frozenset[str]) -> tuple[str, ...]:
    """Predicates (with `not_` for those that texts read negated) that can change and that anything depends on.

    The others, such as `checked`, record history that no action, goal or text depends on.
    """
    read = {name for action in task.actions for name in _predicates(action.precondition)}
    read |= set(_predicates(task.goal)) | {name for axiom in task.axioms for name in _predicates(axiom.condition)}
    read |= {name.removeprefix("not_") for name in read_by_texts}
    changed: set[str] = set()
    for action in task.actions:
        for effect in action.effects:
            predicate = effect.literal.predicate
            changed.add(predicate)
            if predicate in read and set(_predicates(effect.condition)):
                raise ValueError(
                    f"the game's domain changes {predicate!r} under a condition, which ALFWorld's never does"
                )
    positive = sorted(read & changed)
    negated = sorted(n for n in read_by_texts if n.startswith("not_") and n.removeprefix("not_") in changed)
    return (*positive, *negated)


def _predicates(condition: Any) -> Iterable[str]:
    """Predicates of a parsed PDDL condition."""
    if hasattr(condition, "predicate"):
        yield condition.predicate
    for part in getattr(condition, "parts", ()):
        yield from _predicates(part)


def _entities(facts: Facts, types: Mapping[str, str]) -> dict[str, Entity]:
    """Entities with the names that ALFWorld's demangler gives them (`cabinet 1`)."""
    from alfworld.agents.utils.misc import Demangler

    mentioned = sorted({argument for held in facts.values() for arguments in held for argument in arguments})
    entities = {name: Entity(name, name) for name in mentioned}
    demangler = Demangler(game_infos=entities, shuffle=False)
    for name, entity in entities.items():
        entity.name = demangler.demangle_alfred_name(name)
    return {**{name: Entity(name, name) for name in types}, **entities}


def _shared_receptacles(facts: Facts) -> frozenset[str]:
    """Receptacles that share their location with another one."""
    at: dict[str, list[str]] = {}
    for receptacle, location in facts.get("receptacleatlocation", ()):
        at.setdefault(location, []).append(receptacle)
    return frozenset(r for together in at.values() if len(together) > 1 for r in together)

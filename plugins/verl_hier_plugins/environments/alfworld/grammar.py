"""ALFWorld's text grammar, evaluated without parsing it again for every sentence.

TextWorld parses a rule each time it derives a text and copies the context of every symbol, which takes nearly all of
its step time. Here TextWorld's own parser reads the rules once a process and grammar, so the language is the same;
`tests/unit/environments/test_alfworld_stock.py` compares the texts word for word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

Key = tuple[str, str]
"""A placeholder: its name and type."""

Facts = Mapping[str, frozenset[tuple[str, ...]]]
"""Predicate to the argument tuples for which it holds."""

TASK_SENTENCE = re.compile(r'"Your task is to: (.*?)\.?"', re.DOTALL)
UNKNOWN_TASK = "UNKNOWN GOAL"


@dataclass(frozen=True)
class Query:
    """A conjunction such as `atlocation(a:agent, l:location) & holds(a:agent, o:object)`."""

    terms: tuple[tuple[str, tuple[Key, ...]], ...]

    def solve(self, facts: Facts, mapping: Mapping[Key, str], types: Mapping[str, str]) -> Iterator[dict[Key, str]]:
        """All extensions of `mapping` that satisfy the query, in TextWorld's order (facts sorted by name).

        Distinct placeholders never take the same value, as in `textworld.logic.State.all_assignments`.
        """
        yield from self._solve(0, facts, dict(mapping), types)

    def holds(self, facts: Facts, mapping: Mapping[Key, str], types: Mapping[str, str]) -> bool:
        """Whether there is a solution."""
        return next(self.solve(facts, mapping, types), None) is not None

    def _solve(
        self, depth: int, facts: Facts, mapping: dict[Key, str], types: Mapping[str, str]
    ) -> Iterator[dict[Key, str]]:
        if depth == len(self.terms):
            yield mapping
            return
        predicate, keys = self.terms[depth]
        for arguments in sorted(facts.get(predicate, ())):
            extended = self._match(keys, arguments, mapping, types)
            if extended is not None:
                yield from self._solve(depth + 1, facts, extended, types)

    @staticmethod
    def _match(
        keys: tuple[Key, ...], arguments: tuple[str, ...], mapping: dict[Key, str], types: Mapping[str, str]
    ) -> dict[Key, str] | None:
        extended = dict(mapping)
        for key, value in zip(keys, arguments, strict=True):
            known = extended.get(key)
            if known is None:
                if types.get(value) != key[1] or value in extended.values():
                    return None
                extended[key] = value
            elif known != value:
                return None
        return extended


@dataclass(frozen=True)
class _Literal:
    text: str


@dataclass(frozen=True)
class _Reference:
    name: str


@dataclass(frozen=True)
class _Expression:
    code: CodeType


@dataclass(frozen=True)
class _Given:
    inner: _Symbol
    query: Query | None


@dataclass(frozen=True)
class _List:
    inner: _Symbol


_Symbol = _Literal | _Reference | _Expression | _Given | _List
_Rule = tuple[Query | None, tuple[_Symbol, ...]]


class Entity:
    """The attributes of an entity that grammar expressions use: `name`, `id`, `definite`, `indefinite`."""

    __slots__ = ("definite", "id", "indefinite", "name")

    def __init__(self, identifier: str, name: str) -> None:
        self.id = identifier
        self.name = name
        self.definite = "the"
        self.indefinite = "a"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Scene:
    """The input of a text: the facts, the types and names of entities, the placeholders bound so far."""

    facts: Facts
    types: Mapping[str, str]
    entities: Mapping[str, Entity]
    mapping: Mapping[Key, str]


class Grammar:
    """A parsed grammar: `derive` gives the text of a rule in a scene.

    Attributes:
        templates: action name to its command template, as source text.
        feedback: action name to the rule of the text that reports the action.
        reads: predicates that texts depend on (with the prefix `not_` where negated).
    """

    def __init__(self, source: str) -> None:
        from textworld.envs.pddl.logic import GameLogic

        logic = GameLogic(domain="", grammar=source)
        self.templates: dict[str, str] = {name: action.template for name, action in logic.actions.items()}
        self.feedback: dict[str, str] = {name: action.feedback_rule for name, action in logic.actions.items()}
        self._queries: dict[str, Query] = {}
        self._rules: dict[str, list[_Rule]] = {}
        for name, rules in logic.grammar._rules.items():
            self._rules[name] = [
                (self._query(rule.condition), tuple(self._symbol(s) for s in rule.rhs)) for rule in rules
            ]
        self._starts: dict[str, tuple[_Symbol, ...]] = {}
        for start in {*self.templates.values(), *self.feedback.values(), "#intro#"}:
            self._starts[start] = self._parse(start)
        self.reads = frozenset(predicate for query in self._queries.values() for predicate, _ in query.terms)

    def words(self) -> list[str]:
        """The literal texts of the rules for ordinary play."""
        found = [text for rules in self._rules.values() for _, symbols in rules for text in _literals(symbols)]
        # Rules of actions that ALFWorld's domain does not have give the action's own name (`PutObjectIn…`).
        return [text for text in found if not re.search("[a-z][A-Z]", text)]

    def derive(self, start: str, scene: Scene, task: str = "") -> str:
        """The text of `start` (a rule reference or a command template); `task` fills the task sentence."""
        text = "".join(self._texts(self._starts[start], scene))
        return text.replace(UNKNOWN_TASK, task) if task else text

    def _texts(self, symbols: tuple[_Symbol, ...], scene: Scene) -> list[str]:
        return [text for symbol in symbols for text in self._text(symbol, scene)]

    def _text(self, symbol: _Symbol, scene: Scene) -> list[str]:
        if isinstance(symbol, _Literal):
            return [symbol.text]
        if isinstance(symbol, _Expression):
            names = {key[0]: scene.entities[value] for key, value in scene.mapping.items()}
            return [str(eval(symbol.code, {}, names))]
        if isinstance(symbol, _Reference):
            return ["".join(self._texts(self._choose(symbol.name, scene), scene))]
        if isinstance(symbol, _Given):
            if symbol.query is None:
                return self._text(symbol.inner, scene)
            found = symbol.query.solve(scene.facts, scene.mapping, scene.types)
            return [
                "".join(self._text(symbol.inner, Scene(scene.facts, scene.types, scene.entities, mapping)))
                for mapping in found
            ]
        return [self._join(self._text(symbol.inner, scene), scene)]

    def _join(self, items: list[str], scene: Scene) -> str:
        if not items:
            return "".join(self._text(_Reference("list_empty"), scene))
        if len(items) == 1:
            return items[0]
        between = "".join(self._text(_Reference("list_separator"), scene))
        last = "".join(self._text(_Reference("list_last_separator"), scene))
        return between.join(items[:-1]) + last + items[-1]

    def _choose(self, name: str, scene: Scene) -> tuple[_Symbol, ...]:
        """The first rule whose condition holds, as TextWorld chooses."""
        for condition, symbols in self._rules[name]:
            if condition is None or condition.holds(scene.facts, scene.mapping, scene.types):
                return symbols
        raise LookupError(f"no rule of #{name}# applies")

    def _query(self, source: str) -> Query | None:
        if not source:
            return None
        if source not in self._queries:
            from textworld.logic import Rule

            terms = Rule.parse_conjunctive_query(source).preconditions
            self._queries[source] = Query(
                tuple((term.name, tuple((p.name, p.type) for p in term.parameters)) for term in terms)
            )
        return self._queries[source]

    def _parse(self, start: str) -> tuple[_Symbol, ...]:
        from textworld.envs.pddl import textgen

        return tuple(self._symbol(symbol) for symbol in textgen._parse_and_convert(start, rule_name="symbols"))

    def _symbol(self, symbol: Any) -> _Symbol:
        kind = type(symbol).__name__
        if kind == "TerminalSymbol":
            return _Literal(str(symbol.symbol))
        if kind == "NonterminalSymbol":
            return _Reference(str(symbol.symbol))
        if kind == "EvalSymbol":
            return _Expression(compile(symbol.expression.strip(), "<grammar>", "eval"))
        if kind == "ConditionalSymbol":
            return _Given(self._symbol(symbol.expression), self._query(symbol.given))
        if kind == "ListSymbol":
            return _List(self._symbol(symbol.symbol))
        raise TypeError(f"the ALFWorld grammar holds a symbol that is not known here: {kind}")


def _literals(symbols: tuple[_Symbol, ...]) -> Iterator[str]:
    for symbol in symbols:
        if isinstance(symbol, _Literal):
            yield symbol.text
        elif isinstance(symbol, _Given | _List):
            yield from _literals((symbol.inner,))


@functools.lru_cache(maxsize=8)
def parse_grammar(source: str) -> Grammar:
    """The grammar of a game file whose task sentence was taken out by `split_task`; parsed once a process."""
    return Grammar(source)


def split_task(source: str) -> tuple[str, str]:
    """A game's grammar with the task sentence taken out, and that sentence: games then share one parsed grammar."""
    found = TASK_SENTENCE.search(source)
    if found is None:
        return source, ""
    return source[: found.start(1)] + UNKNOWN_TASK + source[found.end(1) :], found.group(1)

"""ALFWorld's text grammar, evaluated without parsing it again for every sentence.

TextWorld parses a rule each time it derives a text and copies the context of every symbol, which takes nearly all of
its step time. Here TextWorld's own parser reads the rules once a process and grammar, so the language is the same;
`tests/unit/environments/test_alfworld_stock.py` compares the texts word for word.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl_hier.errors import RecipeError

Key = tuple[str, str]
"""A placeholder: its name and type."""

Facts = Mapping[str, frozenset[tuple[str, ...]]]
"""Predicate to the argument tuples for which it holds."""

TASK_SENTENCE = re.compile(r'"Your task is to: (.*?)\.?"', re.DOTALL)
LONGEST_EXPRESSION = 200
"""Characters; those of ALFWorld have at most thirty."""
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

    def names(self) -> dict[str, Entity]:
        """The bound entities by the name of their placeholder."""
        return {key[0]: self.entities[value] for key, value in self.mapping.items()}


Symbol = Callable[[Scene], list[str]]
"""A symbol of the grammar: the texts that it derives in a scene."""


class Grammar:
    """A parsed grammar: `derive` gives the text of a rule in a scene.

    Attributes:
        templates: action name to its command template, as source text.
        feedback: action name to the rule of the text that reports the action.
        reads: predicates that texts depend on (with the prefix `not_` where negated).
        words: the literal texts of the rules for ordinary play.
    """

    def __init__(self, source: str) -> None:
        from textworld.envs.pddl import textgen
        from textworld.envs.pddl.logic import GameLogic

        logic = GameLogic(domain="", grammar=source)
        self.templates: dict[str, str] = {name: action.template for name, action in logic.actions.items()}
        self.feedback: dict[str, str] = {name: action.feedback_rule for name, action in logic.actions.items()}
        self._queries: dict[str, Query] = {}
        literals: list[str] = []
        self._rules: dict[str, list[tuple[Query | None, list[Symbol]]]] = {
            name: [(self._query(rule.condition), [self._compile(s, literals) for s in rule.rhs]) for rule in rules]
            for name, rules in logic.grammar._rules.items()
        }
        # Rules of actions that ALFWorld's domain does not have give the action's own name (`PutObjectIn…`).
        self.words = [text for text in literals if not re.search("[a-z][A-Z]", text)]
        self._starts: dict[str, list[Symbol]] = {
            start: [self._compile(s, []) for s in textgen._parse_and_convert(start, rule_name="symbols")]
            for start in {*self.templates.values(), *self.feedback.values(), "#intro#"}
        }
        self.reads = frozenset(predicate for query in self._queries.values() for predicate, _ in query.terms)

    def derive(self, start: str, scene: Scene, task: str = "") -> str:
        """The text of `start` (a rule reference or a command template); `task` fills the task sentence."""
        text = "".join(text for symbol in self._starts[start] for text in symbol(scene))
        return text.replace(UNKNOWN_TASK, task) if task else text

    def _rule(self, name: str, scene: Scene) -> str:
        """The text of the first rule whose condition holds, as TextWorld chooses."""
        for condition, symbols in self._rules[name]:
            if condition is None or condition.holds(scene.facts, scene.mapping, scene.types):
                return "".join(text for symbol in symbols for text in symbol(scene))
        raise LookupError(f"no rule of #{name}# applies")

    def _join(self, items: list[str], scene: Scene) -> str:
        if not items:
            return self._rule("list_empty", scene)
        if len(items) == 1:
            return items[0]
        between, last = self._rule("list_separator", scene), self._rule("list_last_separator", scene)
        return between.join(items[:-1]) + last + items[-1]

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

    def _compile(self, symbol: Any, literals: list[str]) -> Symbol:
        """TextWorld's parsed symbol as a function; appends the literal texts in it to `literals`."""
        kind = type(symbol).__name__
        if kind == "TerminalSymbol":
            text = str(symbol.symbol)
            literals.append(text)
            return lambda scene: [text]
        if kind == "NonterminalSymbol":
            return lambda scene: [self._rule(str(symbol.symbol), scene)]
        if kind == "EvalSymbol":
            evaluate = expression(str(symbol.expression))
            return lambda scene: [str(evaluate(scene.names()))]
        if kind == "ConditionalSymbol":
            given, query = self._compile(symbol.expression, literals), self._query(symbol.given)
            return given if query is None else functools.partial(_each_solution, given, query)
        if kind == "ListSymbol":
            listed = self._compile(symbol.symbol, literals)
            return lambda scene: [self._join(listed(scene), scene)]
        raise TypeError(f"the ALFWorld grammar holds a symbol that is not known here: {kind}")


def expression(source: str) -> Callable[[Mapping[str, Entity]], Any]:
    """An expression of a grammar as a function of the entities by the names of their placeholders.

    TextWorld evaluates it as Python, so that the game file of a stranger could run what it likes. ALFWorld's games use
    names, their attributes, texts, `+` and `or`, and these are all that is understood here.

    Raises:
        RecipeError: for any other expression.
    """
    try:
        if len(source) > LONGEST_EXPRESSION:
            raise ValueError("too long")
        return _evaluation(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError) as error:
        raise RecipeError(
            f"hier.environment.data: the grammar of a game holds the expression {source!r:.60}, and only names, "
            f"{', '.join(Entity.__slots__)} of them, texts, `+` and `or` are allowed there; the file is not ALFWorld's."
        ) from error


def _evaluation(tree: ast.expr) -> Callable[[Mapping[str, Entity]], Any]:
    match tree:
        case ast.Name(id=name):
            return lambda names: names[name]
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute in Entity.__slots__:
            return lambda names: getattr(names[name], attribute)
        case ast.Constant(value=str(text)):
            return lambda names: text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _evaluation(left), _evaluation(right)
            return lambda names: str(first(names)) + str(second(names))
        case ast.BoolOp(op=ast.Or(), values=values):
            choices = [_evaluation(value) for value in values]
            return lambda names: next((found for choice in choices if (found := choice(names))), "")
    raise ValueError("not understood")


def _each_solution(symbol: Symbol, query: Query, scene: Scene) -> list[str]:
    """The text of a symbol for each solution of a query."""
    found = query.solve(scene.facts, scene.mapping, scene.types)
    return ["".join(symbol(replace(scene, mapping=mapping))) for mapping in found]


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

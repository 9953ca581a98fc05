"""TextWorld's logic as a graph of states that is discovered during play.

A `World` is a game; a `Node` is one of its states. TextWorld's rules give its actions, and an edge is computed once, by
TextWorld, and then looked up. A fork is therefore a reference, and equal states are the same object.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_WORDS = re.compile(r"[a-z]+|\d+")


def plain(text: str) -> str:
    """A command or name without capitals and punctuation: `Take dish-pit key` and `take dish pit key` are equal."""
    return " ".join(_WORDS.findall(text.lower()))


@dataclass(eq=False)
class Node:
    """One state of a game.

    Attributes:
        world: the game.
        state: TextWorld's state; never changed.
        quests: how often each quest was completed; -1 when it has failed.
        actions: command to TextWorld's action, in the order of the commands.
        anchor: identity of the state, the same in every process.
        edges: command to the next state; grows as commands are tried.
    """

    world: World
    state: Any
    quests: tuple[int, ...]
    actions: Mapping[str, Any]
    anchor: str
    edges: dict[str, Node] = field(default_factory=dict)

    @property
    def won(self) -> bool:
        """Whether every required quest is completed."""
        counting = [
            (quest, done)
            for quest, done in zip(self.world.game.quests, self.quests, strict=True)
            if quest.win_events and not quest.optional
        ]
        return bool(counting) and all(done > 0 for _, done in counting)

    @property
    def lost(self) -> bool:
        """Whether a required quest has failed."""
        pairs = zip(self.world.game.quests, self.quests, strict=True)
        return any(done < 0 and not quest.optional for quest, done in pairs)

    @property
    def points(self) -> int:
        """TextWorld's score: the sum of the rewards of completed quests."""
        pairs = zip(self.world.game.quests, self.quests, strict=True)
        return sum(quest.reward * max(0, done) for quest, done in pairs)

    def walk(self, command: str) -> Node:
        """The state after one of its actions."""
        if command not in self.edges:
            self.edges[command] = self.world.expand(self, self.actions[command])
        return self.edges[command]

    def follow(self, action: Any) -> Node:
        """The state after one of TextWorld's actions."""
        return self.walk(next(command for command, listed in self.actions.items() if listed is action))


class World:
    """A game and its states that were discovered.

    Attributes:
        game: TextWorld's game.
        inform: TextWorld's translator between actions and commands.
        start: the state after a reset.
    """

    def __init__(self, game: Any) -> None:
        from textworld.generator.inform7 import Inform7Game

        self.game = game
        self.inform = Inform7Game(game)
        self._rules = list(game.kb.rules.values())
        self._constants = game.kb.types.constants_mapping
        self._nodes: dict[tuple[frozenset[Any], tuple[int, ...]], Node] = {}
        state = game.world.state.copy()
        self.start = self._node(state, self._judge(state, (0,) * len(game.quests)))

    @property
    def states(self) -> int:
        """The number of states discovered so far."""
        return len(self._nodes)

    @property
    def most_points(self) -> float:
        """The highest possible score; infinite with a repeatable quest."""
        return float(self.game.max_score)

    def expand(self, node: Node, action: Any) -> Node:
        """Apply an action for the first time in a state."""
        state = node.state.copy()
        state.apply(action)
        return self._node(state, self._judge(state, node.quests))

    def name(self, variable: Any) -> str:
        """The name of a thing or a room in texts."""
        return str(self.game.infos[variable.name].name or variable.name)

    def _judge(self, state: Any, before: tuple[int, ...]) -> tuple[int, ...]:
        """The `quests` of a new state. A completed quest is judged again only if it is repeatable."""
        after = []
        for quest, done in zip(self.game.quests, before, strict=True):
            if done < 0 or (done > 0 and not quest.repeatable):
                after.append(done)
            elif quest.is_winning(state):
                after.append(done + 1)
            else:
                after.append(-1 if quest.is_failing(state) else done)
        return tuple(after)

    def _node(self, state: Any, quests: tuple[int, ...]) -> Node:
        facts = frozenset(state.facts)
        key = (facts, quests)
        if key not in self._nodes:
            canonical = repr((sorted(map(str, facts)), quests))
            anchor = hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()
            self._nodes[key] = Node(self, state, quests, self._actions(state), anchor)
        return self._nodes[key]

    def _actions(self, state: Any) -> dict[str, Any]:
        """Command to action, sorted, because TextWorld's order depends on the hash seed of the process."""
        actions = list(state.all_applicable_actions(self._rules, self._constants))
        # If several rules have one command, the rule with most preconditions is meant, as in TextWorld.
        actions.sort(key=lambda action: (-len(action.preconditions), str(action)))
        found: dict[str, Any] = {}
        for action, command in zip(actions, self.inform.gen_commands_from_actions(actions), strict=True):
            found.setdefault(command, action)
        return dict(sorted(found.items()))

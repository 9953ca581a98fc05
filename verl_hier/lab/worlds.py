"""The worlds of the lab; each isolates one difficulty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from verl_hier.lab.world import World


class Sketch:
    """States by name and what their actions do, from which a `World` is drawn up."""

    def __init__(self, actions: int) -> None:
        self._actions = actions
        self._names: list[Any] = []
        self._moves: list[tuple[Any, int, dict[Any, float], float]] = []
        self._agents: dict[Any, tuple[int, str, str, int]] = {}
        self._goals: set[Any] = set()
        self._spawns: set[tuple[Any, int]] = set()

    def act(self, state: Any, action: int, to: Any, reward: float = 0.0) -> None:
        """Let an action of a state lead to another one, or by chance to one of several: `{state: probability}`."""
        chances = to if isinstance(to, dict) else {to: 1.0}
        self._moves.append((state, action, chances, reward))
        for name in (state, *chances):
            if name not in self._names:
                self._names.append(name)

    def agent(self, state: Any, level: int, role: str, name: str = "", contexts: int = 0) -> None:
        """Say who acts in a state; without this, one agent does.

        Args:
            name: of the agent; its role where one agent alone holds it.
            contexts: that the agent has left behind. Without names an episode is one token sequence.
        """
        self._agents[state] = (level, role, name, contexts)

    def spawn(self, state: Any, action: int) -> None:
        """Say that an action begins a conversation of another agent."""
        self._spawns.add((state, action))

    def goal(self, state: Any) -> None:
        """Say that the task is solved in a state that ends the episode."""
        self._goals.add(state)

    def world(self, name: str, difficulty: str, horizon: int, start: Any = None) -> World:
        """The world; episodes start in the first state that was named, or in one of `{state: probability}`."""
        count = len(self._names)
        place = {state: number for number, state in enumerate(self._names)}
        moves, reward = np.zeros((count, self._actions, count)), np.zeros((count, self._actions))
        legal = np.zeros((count, self._actions), np.bool_)
        for state, action, chances, earned in self._moves:
            legal[place[state], action] = True
            reward[place[state], action] = earned
            for to, chance in chances.items():
                moves[place[state], action, place[to]] += chance
        roles = tuple(dict.fromkeys(each[1] for each in self._agents.values())) or ("agent",)
        agents = tuple(dict.fromkeys(name or role for _, role, name, _ in self._agents.values())) or roles
        who = [self._agents.get(state, (0, roles[0], "", 0)) for state in self._names]
        contexts = list(dict.fromkeys(each[2:] for each in who))
        spawns = np.zeros_like(legal)
        for state, action in self._spawns:
            spawns[place[state], action] = True
        begin = np.zeros(count)
        for state, chance in (start or {self._names[0]: 1.0}).items():
            begin[place[state]] = chance
        return World(
            name=name,
            difficulty=difficulty,
            start=begin,
            moves=moves,
            reward=reward,
            legal=legal,
            horizon=horizon,
            level=np.array([level for level, *_ in who]),
            role=np.array([roles.index(role) for _, role, *_ in who]),
            roles=roles,
            goal=np.array([state in self._goals for state in self._names]),
            agent=np.array([agents.index(name or role) for _, role, name, _ in who]),
            agents=agents,
            context=np.array([contexts.index(each[2:]) for each in who]),
            spawns=spawns,
        )


def horizon() -> World:
    """A corridor of eight doors; each has one right action of two, and the wrong one leads a door back."""
    sketch = Sketch(2)
    for door in range(8):
        sketch.act(door, door % 2, "out" if door == 7 else door + 1, reward=float(door == 7))
        sketch.act(door, 1 - door % 2, max(door - 1, 0))
    sketch.goal("out")
    return sketch.world("horizon", "a long way to the only reward", 24)


def decisive() -> World:
    """The first of six actions decides with which chance the task is solved; the others change nothing."""
    sketch = Sketch(4)
    for choice, chance in enumerate((0.9, 0.6, 0.3, 0.1)):
        sketch.act("start", choice, (choice, 1))
        for turn in range(1, 6):
            for action in range(4):
                last = turn == 5
                sketch.act((choice, turn), action, {"won": chance, "lost": 1 - chance} if last else (choice, turn + 1))
    # Only what is won earns: a turn from there takes the reward.
    sketch.act("won", 0, "paid", reward=1.0)
    sketch.goal("paid")
    return sketch.world("decisive", "an early choice decides, and the result comes late", 7)


def irrelevant() -> World:
    """Every third of nine actions matters; each right one earns at the end."""
    sketch = Sketch(3)
    for turn in range(9):
        for right in range((turn + 2) // 3 + 1):
            for action in range(3):
                now = right + (turn % 3 == 0 and action == turn % 2)
                if turn < 8:
                    sketch.act((turn, right), action, (turn + 1, now))
                else:
                    sketch.act((turn, right), action, ("end", now), reward=now / 3)
    sketch.goal(("end", 3))
    return sketch.world("irrelevant", "most actions change nothing", 9)


def delayed() -> World:
    """A small reward at once, or a large one after four turns that look like nothing."""
    sketch = Sketch(2)
    sketch.act("start", 0, ("small", 0), reward=0.3)
    sketch.act("start", 1, ("large", 0))
    for kind, paid in (("small", 0.0), ("large", 1.0)):
        for turn in range(4):
            for action in range(2):
                last = turn == 3
                right = kind == "large" and action == turn % 2
                to = ("won" if kind == "large" and right else "end") if last else (kind, turn + 1)
                sketch.act((kind, turn), action, to, reward=paid if last and right else 0.0)
    sketch.goal("won")
    return sketch.world("delayed", "a small reward now hides a larger one later", 5)


def stochastic() -> World:
    """A corridor of five cells in which every action slips with a chance of 0.3."""
    sketch = Sketch(2)
    for cell in range(5):
        on, back = "out" if cell == 4 else cell + 1, max(cell - 1, 0)
        sketch.act(cell, 0, {on: 0.7, back: 0.3})
        sketch.act(cell, 1, {on: 0.3, back: 0.7})
    sketch.act("out", 0, "done", reward=1.0)
    sketch.goal("done")
    return sketch.world("stochastic", "actions succeed by chance", 12)


def two_clocks(subgoals_pay: bool = False) -> World:
    """A planner names one of three subgoals, twice; an executor needs two actions that fit each of them.

    Args:
        subgoals_pay: half of the reward comes with each subgoal, instead of all at the end, where both are worth four
            times as much as one.
    """
    sketch = Sketch(3)
    right = (2, 0)
    for stage in range(2):
        for good in range(stage + 1):
            plan = ("plan", stage, good)
            sketch.agent(plan, 0, "planner")
            for goal in range(3):
                sketch.act(plan, goal, ("act", stage, good, goal, 0, 1))
                _execute(sketch, stage, good, goal, goal == right[stage], subgoals_pay)
    sketch.goal(("end", 2))
    return sketch.world("two_clocks", "subgoals and actions have to fit", 6)


def _execute(sketch: Sketch, stage: int, good: int, goal: int, wanted: bool, subgoals_pay: bool) -> None:
    for turn in range(2):
        for fits in (0, 1):
            state = ("act", stage, good, goal, turn, fits)
            if turn == 0 and not fits:
                continue
            sketch.agent(state, 1, "executor")
            for action in range(3):
                now = int(fits and action == (goal + turn) % 3)
                if turn == 0:
                    sketch.act(state, action, ("act", stage, good, goal, 1, now))
                    continue
                done = good + int(wanted and now)
                to = ("plan", 1, done) if stage == 0 else ("end", done)
                late = (done / 2) ** 2 if stage == 1 else 0.0
                sketch.act(state, action, to, reward=(done - good) / 2 if subgoals_pay else late)


def maze() -> World:
    """A maze of three forks with three ways each: one leads on, the others into dead ends."""
    sketch = Sketch(3)
    for fork in range(3):
        for way in range(3):
            if way == (fork * 2) % 3:
                sketch.act(fork, way, "out" if fork == 2 else fork + 1, reward=float(fork == 2))
            else:
                sketch.act(fork, way, ("dead", fork))
        for way in range(3):
            sketch.act(("dead", fork), way, "lost")
    sketch.goal("out")
    return sketch.world("maze", "one wrong turn ends in a dead end", 5)


def two_agents() -> World:
    """Two agents act in turn, three times; the first one earns four times as much for the team as the second."""
    sketch = Sketch(2)
    for turn in range(6):
        who = turn % 2
        sketch.agent(turn, 1, ("pioneer", "observer")[who])
        for action in range(2):
            earned = (0.8, 0.2)[who] / 3 * float(action == (turn // 2) % 2)
            sketch.act(turn, action, "end" if turn == 5 else turn + 1, reward=earned)
    sketch.goal("end")
    return sketch.world("two_agents", "two agents contribute unequally to one reward", 6)


def noisy_plans() -> World:
    """Three plans of different worth; after four actions that change nothing, chance decides by the plan."""
    sketch = Sketch(3)
    sketch.agent("plan", 0, "planner")
    for plan, chance in enumerate((0.2, 0.5, 0.8)):
        sketch.act("plan", plan, (plan, 0))
        for turn in range(4):
            sketch.agent((plan, turn), 1, "executor")
            for action in range(3):
                to = {"won": chance, "lost": 1 - chance} if turn == 3 else (plan, turn + 1)
                sketch.act((plan, turn), action, to)
    sketch.agent("won", 1, "executor")
    sketch.act("won", 0, "paid", reward=1.0)
    sketch.goal("paid")
    return sketch.world("noisy_plans", "plans differ, and executions are noise", 6)


def early_end() -> World:
    """To stop at once wins half of the time; to go on for five turns wins nearly always."""
    sketch = Sketch(2)
    for turn in range(5):
        sketch.act(turn, 0, {"won": 0.5, "lost": 0.5})
        sketch.act(turn, 1, {"won": 0.9, "lost": 0.1} if turn == 4 else turn + 1)
    sketch.act("won", 0, "paid", reward=1.0)
    sketch.goal("paid")
    return sketch.world("early_end", "short episodes tempt where each episode weighs the same", 6)


_BUILDERS: Sequence[Callable[[], World]] = (
    *(horizon, decisive, irrelevant, delayed, stochastic, two_clocks, maze, two_agents, noisy_plans, early_end),
)
WORLDS: dict[str, World] = {world.name: world for world in (build() for build in _BUILDERS)}
"""All worlds by name."""

"""What a policy reaches on a recipe, measured from rollout graphs: success with its interval, return, cost, by role."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from verl_hier.errors import RolloutError
from verl_hier.graph import Node, RolloutGraph
from verl_hier.graph.success import decided
from verl_hier.ops.intervals import Estimate, average, share
from verl_hier.ops.players import Source
from verl_hier.ops.rollouts import Plan, Progress, resolve_plan, roll_out
from verl_hier.ops.search import Search, prepare
from verl_hier.ops.searched import Searched, conclude
from verl_hier.recipe.composed import ComposedRecipe


@dataclass(frozen=True)
class RoleFigures:
    """What the turns of one role cost.

    Attributes:
        role: the role.
        turns: turns of an episode, mean.
        tokens: generated tokens of an episode, mean.
        tokens_per_turn: generated tokens of a turn, mean.
        invalid: share of its turns that the environment or the worker refused.
        reward: sum of the rewards of its turns in an episode, mean.
    """

    role: str
    turns: float
    tokens: float
    tokens_per_turn: float
    invalid: float
    reward: float


@dataclass(frozen=True)
class Evaluation:
    """What a policy reaches on a split.

    Attributes:
        policy: who played.
        recipe: name of the recipe.
        environment, worker: names of these parts.
        split: split of the environment.
        tasks: tasks that were played.
        episodes: episodes that ended regularly; the figures below are theirs.
        n: episodes asked for each task.
        temperature, top_p, top_k: how the policy sampled.
        seed: root of the random numbers, None when the server chose.
        success: share of solved episodes; None where the environment does not say, see `graph.success`. Its interval is
            Wilson's, with fewer episodes where those of a task resemble each other; see `share`.
        ret: return of an episode; its interval is that of the normal distribution over tasks.
        tokens: generated tokens of an episode, mean; NaN where nobody counts them.
        turns: turns of an episode, mean.
        roles: the same by role, in the order of their first turns.
        rewards: mean of each number in the episodes' `reward_info`, by name; each reward function has one.
        truncated: episodes that a limit ended, as a share.
        failed: episodes that were lost to faults of the environment; they are in no other figure.
        refused: requests that an endpoint refused.
        seconds: wall time.
        solved: solved episodes.
        judged: episodes that have a success; it is the share of the solved ones among them.
        search: what the choice of one episode of each task reaches; None where none is chosen.
    """

    policy: str
    recipe: str
    environment: str
    worker: str
    split: str
    tasks: int
    episodes: int
    n: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    success: Estimate | None
    ret: Estimate
    tokens: float
    turns: float
    truncated: float
    failed: int = 0
    refused: int = 0
    seconds: float = 0.0
    roles: tuple[RoleFigures, ...] = ()
    rewards: Mapping[str, Estimate] = field(default_factory=dict)
    solved: int = 0
    judged: int = 0
    search: Searched | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; numbers that are not known are None."""
        known: dict[str, Any] = _known(asdict(self))
        return known

    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for printing."""
        sampled = f"temperature {self.temperature:g}" if self.temperature else "greedy"
        asked = f"{self.tasks} tasks of {self.split} x {self.n}"
        rows = [("policy", self.policy), ("recipe", f"{self.recipe} ({self.environment}, {self.worker})")]
        rows.append(("played", f"{asked}, {sampled}, {self.episodes} episodes, {self.seconds:.0f} s"))
        if self.success is not None:
            rows.append(("success", _percent(self.success, f"{self.solved} of {self.judged}")))
        rows.append(("return", _number(self.ret)))
        rows += [(f"reward {name}", _number(value)) for name, value in self.rewards.items()]
        cost = "" if math.isnan(self.tokens) else f", {self.tokens:.0f} generated tokens"
        rows.append(("an episode", f"{self.turns:.1f} turns{cost}"))
        if self.truncated:
            rows.append(("truncated", f"{self.truncated:.1%} of the episodes, by a limit"))
        if self.failed:
            rows.append(("lost", f"{self.failed} episodes, to faults of the environment; they count nowhere"))
        if self.refused:
            rows.append(("refused", f"{self.refused} requests, by the endpoint"))
        return rows

    def role_lines(self) -> list[tuple[str, ...]]:
        """A row for each role: role, turns, tokens, tokens a turn, invalid turns, reward."""

        def count(value: float, digits: int) -> str:
            return "-" if math.isnan(value) else f"{value:.{digits}f}"

        figures = ((r, count(r.turns, 1), count(r.tokens, 0), count(r.tokens_per_turn, 1)) for r in self.roles)
        return [(r.role, *counts, f"{r.invalid:.1%}", f"{r.reward:.3f}") for r, *counts in figures]


async def evaluate(
    source: Source,
    recipe: ComposedRecipe,
    plan: Plan | None = None,
    served_model: str = "",
    on_progress: Progress = lambda graph, done, tasks: None,
    search: Search | None = None,
) -> tuple[Evaluation, list[RolloutGraph]]:
    """Measure what a policy reaches on a recipe; see `ops.rollouts.roll_out` for the other arguments.

    Args:
        search: how one episode of each task is chosen among those that the recipe's sampler makes of it; None plays
            independent episodes and chooses none.

    Returns:
        The figures, and the graphs that they were read from.

    Raises:
        RecipeError: when the sampler, or the choice, needs what is not there.
        RolloutError: when no episode ended regularly.
    """
    plan, started = plan or Plan(), time.perf_counter()
    prepared = None if search is None else prepare(source, recipe, plan, search)
    if prepared is not None:
        recipe, plan = prepared.recipe, prepared.plan
    graphs, player = await roll_out(source, recipe, plan, served_model, on_progress)
    resolved, parts = resolve_plan(recipe, plan), recipe.parts
    if not any(True for graph in graphs for _ in graph.complete()):
        refused = f" {player.refused} requests were refused by the endpoint." if player.refused else ""
        lost = next(episode.error for graph in graphs for episode in graph.episodes)
        raise RolloutError(f"no episode has a turn that counts, so there is nothing to measure ({lost}).{refused}")
    tokens_of = counted_tokens if player.messages else model_tokens
    evaluation = Evaluation(
        policy=player.name,
        recipe=recipe.hier.recipe.name,
        environment=parts.environment.spec.name,
        worker=parts.worker.spec.name,
        split=resolved.split,
        n=resolved.n,
        temperature=resolved.sampling.temperature,
        top_p=resolved.sampling.top_p,
        top_k=resolved.sampling.top_k,
        seed=recipe.hier.seed if plan.seed is None else plan.seed,
        refused=player.refused,
        seconds=time.perf_counter() - started,
        search=None if prepared is None else conclude(graphs, prepared, tokens_of),
        **measure(graphs, tokens_of),
    )
    return evaluation, graphs


def measure(graphs: Sequence[RolloutGraph], tokens_of: Callable[[Node], float]) -> dict[str, Any]:
    """The fields of `Evaluation` that rollout graphs give.

    Args:
        graphs: one a task, with at least one episode that ended regularly among them.
        tokens_of: generated tokens of a node, NaN when nobody counted them.
    """
    groups = [(graph, list(graph.complete())) for graph in graphs]
    groups = [(graph, episodes) for graph, episodes in groups if episodes]
    complete = [(graph, episode) for graph, episodes in groups for episode in episodes]
    paths = [[graph.nodes[number] for number in graph.path(episode.id)] for graph, episode in complete]
    count = len(complete)
    known = [[float(success) for _, success in episodes if success is not None] for episodes in decided(graphs)]
    judged = sum(map(len, known))
    names = dict.fromkeys(name for _, episode in complete for name in episode.reward_info)
    return {
        "tasks": len(graphs),
        "episodes": count,
        "success": share([group for group in known if group]) if judged else None,
        "solved": int(sum(map(sum, known))),
        "judged": judged,
        "ret": average([[episode.ret for episode in episodes] for _, episodes in groups]),
        "tokens": sum(tokens_of(node) for path in paths for node in path) / count,
        "turns": sum(not node.partial for path in paths for node in path) / count,
        "truncated": sum(episode.status == "truncated" for _, episode in complete) / count,
        "failed": sum(episode.status == "failed" for graph in graphs for episode in graph.episodes),
        "roles": _roles(paths, tokens_of),
        "rewards": {name: average(_noted(name, (episodes for _, episodes in groups))) for name in names},
    }


def model_tokens(node: Node) -> float:
    """Generated tokens of a node in the graph of a model."""
    return len(node.action)


def counted_tokens(node: Node) -> float:
    """Generated tokens of a node in a graph of messages: as the endpoint counts them, NaN when it does not."""
    return float(node.extra.get("counted_tokens", math.nan))


def _noted(name: str, groups: Any) -> list[list[float]]:
    noted = [[e.reward_info[name] for e in episodes if name in e.reward_info] for episodes in groups]
    return [group for group in noted if group]


def _roles(paths: Sequence[Sequence[Node]], tokens_of: Callable[[Node], float]) -> tuple[RoleFigures, ...]:
    by_role: dict[str, list[Node]] = {}
    for path in paths:
        for node in path:
            by_role.setdefault(node.role, []).append(node)
    figures = []
    for role, nodes in by_role.items():
        turns, tokens = sum(not node.partial for node in nodes), sum(map(tokens_of, nodes))
        figures.append(
            RoleFigures(
                role=role,
                turns=turns / len(paths),
                tokens=tokens / len(paths),
                tokens_per_turn=tokens / max(turns, 1),
                invalid=sum(not node.valid for node in nodes) / max(turns, 1),
                reward=sum(node.reward for node in nodes) / len(paths),
            )
        )
    return tuple(figures)


def _percent(value: Estimate, counted: str) -> str:
    interval = f"95 % interval {100 * value.low:.1f} % to {100 * value.high:.1f} %"
    return f"{100 * value.mean:.1f} % ({counted})  ({interval})"


def _number(value: Estimate) -> str:
    interval = "" if math.isnan(value.low) else f"  (95 % interval {value.low:.3f} to {value.high:.3f})"
    return f"{value.mean:.3f}{interval}"


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

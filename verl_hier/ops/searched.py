"""What a search has reached, for 1, 2, 4, … and all of its episodes at once, and what each of these has cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from verl_hier.environments.base import FINAL_ANSWER
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph
from verl_hier.graph.records import CHOICE
from verl_hier.graph.success import decided
from verl_hier.host.part import Part
from verl_hier.ops.intervals import Estimate, average, of_tasks
from verl_hier.ops.search import Prepared, Search
from verl_hier.ops.selection import of_drawn, of_the_highest, of_the_vote, sizes_up_to
from verl_hier.ops.verifier import NAME as VERIFIER


@dataclass(frozen=True)
class Reached:
    """What the choice among some of the episodes reaches.

    Attributes:
        n: episodes of a task that are chosen from.
        outcome: success, or where the world says none the return, of the chosen one.
        tokens: generated tokens of a task, mean; NaN where nobody counts them.
        calls: calls of the world for a task, mean.
    """

    n: int
    outcome: Estimate
    tokens: float
    calls: float


@dataclass(frozen=True)
class Searched:
    """What a search has reached.

    Attributes:
        select: see `Search`.
        sampler: name of the sampler.
        options: its options.
        measure: `success` or `return`.
        upper_bound: why it is one, empty where it is none.
        curve: for 1, 2, 4, … and all episodes of a task.
        replayed_calls: calls of the world that forks have repeated, of a task, mean; they are in no other figure.
        branched: whether episodes share turns.
        verifier: name of the verifier.
        verifier_requests, verifier_tokens: what it was asked and generated, of a task, mean.
        verifier_silent: share of its answers that have no verdict, which count as the worst one.
    """

    select: str
    sampler: str
    options: dict[str, Any]
    measure: str
    upper_bound: str
    curve: tuple[Reached, ...]
    replayed_calls: float = 0.0
    branched: bool = False
    verifier: str = ""
    verifier_requests: float = 0.0
    verifier_tokens: float = 0.0
    verifier_silent: float = 0.0

    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for printing."""
        set_to = ", ".join(f"{name} {value}" for name, value in self.options.items())
        rows = [("sampler", f"{self.sampler}{f' ({set_to})' if set_to else ''}")]
        rows.append(("select", self.select + (f" by {self.verifier}" if self.verifier else "")))
        if self.upper_bound:
            rows.append(("upper bound", self.upper_bound))
        if self.replayed_calls:
            rows.append(("repeated", f"{self.replayed_calls:.1f} further calls of the world a task, for forks"))
        if self.verifier_requests:
            cost = "" if math.isnan(self.verifier_tokens) else f", {self.verifier_tokens:.0f} generated tokens"
            silent = f", {self.verifier_silent:.1%} without a verdict" if self.verifier_silent else ""
            rows.append(("verifier", f"{self.verifier_requests:.1f} requests a task{cost}{silent}"))
        return rows

    def curve_head(self) -> tuple[str, ...]:
        """The heads of the columns of `curve_lines`."""
        bound = ", upper bound" if self.upper_bound else ""
        return "n", f"{self.measure}{bound}", "95 % interval", "tokens a task", "calls a task"

    def curve_lines(self) -> list[tuple[str, ...]]:
        """A row for each n."""
        share = self.measure == "success"

        def said(value: float) -> str:
            return "-" if math.isnan(value) else f"{100 * value:.1f} %" if share else f"{value:.3f}"

        return [
            (
                str(at.n),
                said(at.outcome.mean),
                f"{said(at.outcome.low)} to {said(at.outcome.high)}",
                "-" if math.isnan(at.tokens) else f"{at.tokens:.0f}",
                f"{at.calls:.1f}",
            )
            for at in self.curve
        ]


@dataclass(frozen=True)
class SearchedTask:
    """The episodes of one task that are chosen from: E of them.

    Attributes:
        graph: their graph.
        episodes: the leaves, those included that are not trained because a sampler kept others.
        outcomes: (E,) success or return.
        keys: (E,) what the choice goes by: a score, or an answer.
    """

    graph: RolloutGraph
    episodes: list[EpisodeRecord]
    outcomes: list[float]
    keys: list[Any]

    def reached(self, select: str, k: int) -> float:
        """The expected outcome of the choice among k of them."""
        choose = of_the_vote if select == "vote" else of_the_highest
        return choose(self.keys, self.outcomes, k)

    def tokens(self, tokens_of: Callable[[Node], float], k: int) -> float:
        """The expected tokens of k of them; those of turns that none of them has are counted in proportion."""
        counts, amounts, rest = self._turns(tokens_of)
        n = len(self.episodes)
        return of_drawn(counts, amounts, n, k) + rest * k / n

    def calls(self, k: int) -> float:
        """The expected calls of the world; where fewer than all are drawn, as many as their share of the turns."""
        counts, amounts, rest = self._turns(lambda node: float(not node.partial))
        n, every = len(self.episodes), sum(amounts) + rest
        drawn = of_drawn(counts, amounts, n, k) + rest * k / n
        return self.graph.counts.get("environment_calls", 0) * (drawn / every if every else 1.0)

    def _turns(self, amount_of: Callable[[Node], float]) -> tuple[list[int], list[float], float]:
        """For each node on their paths how many have it and its amount; and the amount of all other nodes."""
        amounts = [amount_of(node) for node in self.graph.nodes]
        shared = [(count, amount) for count, amount in zip(self._owners, amounts, strict=True) if count]
        rest = sum(amount for count, amount in zip(self._owners, amounts, strict=True) if not count)
        return [count for count, _ in shared], [amount for _, amount in shared], rest

    @cached_property
    def _owners(self) -> list[int]:
        """How many of the episodes have each node on their paths; the same for every number that is drawn."""
        owners = [0] * len(self.graph.nodes)
        for episode in self.episodes:
            for number in self.graph.path(episode.id):
                owners[number] += 1
        return owners

    def note(self, select: str) -> None:
        """Write onto the last turn of each episode what the choice goes by, and which one is the choice."""
        scores = self.keys
        if select == "vote":
            scores = [0.0 if key is None else float(self.keys.count(key)) for key in self.keys]
        chosen = scores.index(max(scores))
        for place, (episode, score) in enumerate(zip(self.episodes, scores, strict=True)):
            said = {"by": select, "score": score, "chosen": place == chosen}
            self.graph.nodes[episode.leaf].decision[CHOICE] = said


def conclude(graphs: Sequence[RolloutGraph], prepared: Prepared, tokens_of: Callable[[Node], float]) -> Searched:
    """What a search has reached, from the graphs of its rollouts, whose last turns are told how they were chosen.

    Args:
        graphs: one a task.
        prepared: the search.
        tokens_of: generated tokens of a node, NaN when nobody counted them.
    """
    search, sampler, verifier = prepared.search, prepared.recipe.parts.sampler, prepared.verifier
    tasks, measure = tasks_of(graphs, prepared)
    for task in tasks:
        task.note(search.select)
    most = max(len(task.episodes) for task in tasks)
    curve = []
    for k in sizes_up_to(most):
        drawn = [min(k, len(task.episodes)) for task in tasks]
        values = [task.reached(search.select, size) for task, size in zip(tasks, drawn, strict=True)]
        disjoint = sum(len(task.episodes) // size for task, size in zip(tasks, drawn, strict=True))
        estimate = of_tasks(values, disjoint) if measure == "success" else average([[value] for value in values])
        tokens = [task.tokens(tokens_of, size) for task, size in zip(tasks, drawn, strict=True)]
        calls = [task.calls(size) for task, size in zip(tasks, drawn, strict=True)]
        curve.append(Reached(k, estimate, sum(tokens) / len(tasks), sum(calls) / len(tasks)))
    return Searched(
        select=search.select,
        sampler=sampler.spec.name,
        options=dataclasses.asdict(sampler.options),
        measure=measure,
        upper_bound=_bound(search, sampler),
        curve=tuple(curve),
        replayed_calls=sum(graph.counts.get("replayed_calls", 0) for graph in graphs) / len(graphs),
        branched=any(episode.source >= 0 for graph in graphs for episode in graph.complete()),
        verifier=search.verifier,
        verifier_requests=0.0 if verifier is None else verifier.requests / len(graphs),
        verifier_tokens=0.0 if verifier is None else verifier.tokens / len(graphs),
        verifier_silent=0.0 if verifier is None else verifier.silent / max(verifier.requests, 1),
    )


def tasks_of(graphs: Sequence[RolloutGraph], prepared: Prepared) -> tuple[list[SearchedTask], str]:
    """The tasks with at least one episode to choose from, and what their outcomes are: `success` or `return`."""
    leaves = [
        [(episode, success) for episode, success in episodes if episode.trained or episode.withheld]
        for episodes in decided(graphs)
    ]
    says_won = any(success is not None for episodes in leaves for _, success in episodes)
    tasks = []
    for graph, episodes in zip(graphs, leaves, strict=True):
        if says_won:  # an episode of which the world has not been asked was stopped by the sampler, and is no attempt
            attempts = [(episode, float(success)) for episode, success in episodes if success is not None]
        else:
            attempts = [(episode, episode.ret) for episode, _ in episodes]
        if attempts:
            keys = [_key(graph, episode, outcome, prepared.search) for episode, outcome in attempts]
            records, outcomes = zip(*attempts, strict=True)
            tasks.append(SearchedTask(graph, list(records), list(outcomes), keys))
    if prepared.critic is not None:
        ends = [[episode.leaf for episode in task.episodes] for task in tasks]
        values = prepared.critic.values([task.graph for task in tasks], ends)
        tasks = [dataclasses.replace(task, keys=keys) for task, keys in zip(tasks, values, strict=True)]
    return tasks, "success" if says_won else "return"


def _key(graph: RolloutGraph, episode: EpisodeRecord, outcome: float, search: Search) -> Any:
    """What the choice goes by; the values of a critic are asked later."""
    if search.select in ("best", "value"):
        return outcome
    if search.select == "vote":
        said = [graph.nodes[number].extra.get(FINAL_ANSWER) for number in graph.path(episode.id)]
        return next((answer for answer in reversed(said) if answer is not None), None)
    name = search.verifier if search.verifier in episode.reward_info else VERIFIER
    return episode.reward_info[name]


def _bound(search: Search, sampler: Part) -> str:
    if search.select == "best":
        return "it chooses by the outcome, which nobody knows who searches"
    if sampler.spec.needs("sees_outcomes", sampler.options):
        return f"the sampler {sampler.spec.name} goes by the outcomes of episodes, which nobody knows who searches"
    return ""

"""Who lost the lost attempts of stored rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_hier.credit.blame import Blame, by_the_others
from verl_hier.errors import RecipeError
from verl_hier.graph import RolloutGraph, read_graphs
from verl_hier.ops.exchange.who_when import Fields, case
from verl_hier.ops.failures import Recorded, by_replay
from verl_hier.ops.runs import Run
from verl_hier.ops.stored import Stored
from verl_hier.recipe.composed import ComposedRecipe

REASONS = {
    False: "The other attempts at the same places made {drop:.2f} more of them before this turn than after it.",
    True: "Said as another attempt said it there, the task is solved.",
}


@dataclass
class LostAttempts:
    """The lost attempts, and who lost them.

    Attributes:
        cases: in the form of Who&When, those without a culprit too.
        named: lost attempts by the agent that lost them.
        turns: turns of the lost attempts by agent.
        places: by agent the numbers of the turns that lost, from 0.
    """

    cases: list[Fields] = field(default_factory=list)
    named: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[int]] = field(default_factory=dict)

    def add(self, graph: RolloutGraph, found: Sequence[Blame], replayed: bool) -> None:
        """Add the lost attempts at a task."""
        for blame in found:
            self.turns.update(graph.nodes[node].agent for node in blame.turns)
            reason = REASONS[replayed].format(drop=blame.drop) if blame.node >= 0 else "Nothing tells."
            about = {"drops": list(blame.drops)} if blame.drops else {}
            self.cases.append(case(graph, blame.episode, blame.node, reason, about))
            if blame.node >= 0:
                agent = graph.nodes[blame.node].agent
                self.named[agent] += 1
                self.places.setdefault(agent, []).append(blame.place)

    def told(self) -> str:
        """How many there are, and of how many it is known, in words."""
        named = self.named.total()
        return f"{len(self.cases)} lost attempts; a turn that lost is named in {named}, and nothing tells of the others"

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each agent: how many attempts it lost, their share, its share of the turns, and the mean turn."""
        return [
            (
                *(agent, str(self.named[agent]), f"{self.named[agent] / max(self.named.total(), 1):.3f}"),
                f"{turns / self.turns.total():.3f}",
                f"{1 + sum(self.places[agent]) / len(self.places[agent]):.1f}" if agent in self.places else "",
            )
            for agent, turns in self.turns.most_common()
        ]


def lost_attempts(stored: Stored) -> LostAttempts:
    """By what the other attempts at each task made of the same places, see `credit.blame`."""
    found = LostAttempts()
    for graph in read_graphs(stored.graphs):
        found.add(graph, by_the_others(graph), False)
    return found


async def lost_by_replay(stored: Stored, recipe: str | None) -> LostAttempts:
    """By playing the lost attempts again, see `failures`.

    Args:
        stored: the rollouts.
        recipe: that they were made by; None for that of their run.

    Raises:
        HierError: where neither is known, or the recipe has not the tasks of the rollouts.
    """
    if recipe is not None:
        chosen = ComposedRecipe.named(recipe)
    elif stored.run is not None:
        chosen = ComposedRecipe.of(Run.open(stored.run).recipe())
    else:
        raise RecipeError("--blame replay plays the attempts again: name their recipe with --recipe, or their run.")
    player, found = Recorded(chosen), LostAttempts()
    try:
        for graph in read_graphs(stored.graphs):
            found.add(graph, await by_replay(graph, player, player.request_of(graph)), True)
    finally:
        await player.close()
    return found

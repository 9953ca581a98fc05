"""A scripted expert: one search for each hop, first in the library, then on the web if nothing was found.

It uses only names from the question and from found documents, so its demonstrations can be imitated from the texts
alone. It decides anew in every state, so a wrong search in between costs a step but does not lose the episode.
"""

from __future__ import annotations

import random
from itertools import pairwise

from verl_hier_plugins.environments.search.actions import Action, write_action
from verl_hier_plugins.environments.search.environment import SearchEnvironment
from verl_hier_plugins.environments.search.questions import Chain


def plan(chain: Chain, rng: random.Random, skip_stage: float = 0.0) -> int:
    """The number of hops before the answer: all, or with probability `skip_stage` one too few."""
    hops = len(chain.relations)
    return hops - 1 if hops > 1 and rng.random() < skip_stage else hops


def subgoals(chain: Chain, hops: int) -> tuple[str, ...]:
    """The plan in words; each part can be understood from the last observation of the part before."""
    relations = chain.relations[:hops]
    steps = [f"{relations[0]} of {chain.entities[0]}"]
    steps += [f"{relation} of {before}" for before, relation in pairwise(relations)]
    return (*steps, f"answer {relations[-1]}")


class SearchExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`."""

    def __init__(self, environment: SearchEnvironment, chain: Chain, hops: int, remember: bool) -> None:
        self._environment = environment
        self._chain = chain
        self._hops = hops
        self._remember = remember
        self.subgoals = subgoals(chain, hops)

    def advise(self, subgoal: int) -> str | None:
        """The next search of a hop, None when its document was found; for the last subgoal the answer."""
        if subgoal == self._hops:
            return self._action("answer", self._chain.entities[self._hops])
        if self._chain.entities[subgoal] in self._known():
            return None
        last = self._environment.asked[-1:]
        wanted = self._query(subgoal)
        kinds = self._environment.collections
        missed = [number for number, kind in enumerate(kinds) if Action(kind, wanted) in last]
        return self._action(kinds[(missed[0] + 1) % len(kinds)] if missed else kinds[0], wanted)

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """A beginner's search: for another fact, the wrong entity or in the wrong collection."""
        entities, relations = self._chain.entities, self._chain.relations
        hop = min(subgoal, self._hops - 1)
        known = entities[: hop + 1]
        return self._action(rng.choice(self._environment.collections), f"{rng.choice(relations)} {rng.choice(known)}")

    def _known(self) -> frozenset[str]:
        if self._remember:
            return self._environment.found
        # A context that starts at this subgoal contains the latest documents only.
        return frozenset(document.name for document in self._environment.last)

    def _query(self, subgoal: int) -> str:
        return f"{self._chain.relations[subgoal]} {self._chain.entities[subgoal]}"

    def _action(self, kind: str, text: str) -> str:
        return write_action(Action(kind, text), self._environment.options.actions)

"""The search environment: a question, and the documents of an index in this process."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.corpus import GeneratedCorpus, corpus_of
from verl_hier_plugins.environments.search.episode import NO_ACTION, NOTHING, OVER, Episode
from verl_hier_plugins.environments.search.index import Library, library
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.questions import follow
from verl_hier_plugins.environments.search.world import build_world, write_document


class SearchEnvironment(Episode, Environment):
    """One question; see `Episode`."""

    def __init__(self, options: SearchOptions) -> None:
        super().__init__(options)
        self._library: Library = {}

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a question. `seed` has no effect, because all random choices are part of the task."""
        self._library = library(corpus_of(self._options, task))
        return self.begin(task, tuple(self._library))

    def step(self, action: str) -> StepResult:
        """Search, or answer the question."""
        asked = self.take(action)
        if isinstance(asked, StepResult):
            return asked
        return self.see(asked, self._library[asked.kind].search(asked.text, self._options.top_k))

    def fork(self) -> SearchEnvironment:
        """A copy that shares the index; the two move on independently."""
        return copy.copy(self)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for a generated question; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.search.expert import SearchExpert, plan

        if "relations" not in self.task:
            raise RecipeError(
                "hier.environment.data_path: the expert knows the way to the answer of generated questions only; leave "
                "data_path out to make demonstrations."
            )
        world = build_world(self.task["corpus"]["seed"], self.task["corpus"]["entities"])
        chain = follow(world, self.task["support"][0], tuple(self.task["relations"]))
        return SearchExpert(self, chain, plan(chain, rng, skip_stage), remember)

    def vocabulary(self) -> Iterable[str]:
        """All documents of the generated world, and the texts of the environment."""
        texts = (NOTHING, NO_ACTION, OVER)
        yield from (text[self._options.observation] for text in texts)
        corpus = corpus_of(self._options)
        if isinstance(corpus, GeneratedCorpus):
            world = build_world(corpus.seed, corpus.entities)
            yield from (write_document(world, name, corpus.prose) for name in world.kinds)

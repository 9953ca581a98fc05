"""The search environment. Its state is the question, the documents found so far, and a count of actions."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.environments.scoring import exact_match, f1
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.actions import Action, describe, parse_action
from verl_hier_plugins.environments.search.corpus import GeneratedCorpus, corpus_of
from verl_hier_plugins.environments.search.index import Found, Library, library
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.questions import follow
from verl_hier_plugins.environments.search.world import build_world, write_document

NOTHING = {"full": "Nothing was found.", "short": "nothing"}
NO_ACTION = {"full": "That is no action. ", "short": "what"}
OVER = {"full": "The question is answered.", "short": "over"}


class SearchEnvironment(Environment):
    """One question. Everything that changes is replaced and never modified, so a fork is a shallow copy.

    Attributes:
        task: the task of the reset.
        found: names of all documents found so far.
        last: the documents of the latest search.
        asked: the searches so far.
    """

    def __init__(self, options: SearchOptions) -> None:
        self.task: Mapping[str, Any] = {}
        self.found: frozenset[str] = frozenset()
        self.last: tuple[Found, ...] = ()
        self.asked: tuple[Action, ...] = ()
        self._options = options
        self._library: Library = {}
        self._titles: frozenset[str] = frozenset()
        self._steps = 0
        self._scores: tuple[bool, float] | None = None

    @property
    def options(self) -> SearchOptions:
        """The options of the recipe."""
        return self._options

    @property
    def collections(self) -> tuple[str, ...]:
        """The collections that are not empty."""
        return tuple(self._library)

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a question. `seed` has no effect, because all random choices are part of the task."""
        if not task.get("question") or not task.get("answers"):
            raise RecipeError("hier.environment: a search task needs `question` and `answers`; make it with `tasks`.")
        self.task = task
        self._library = library(corpus_of(self._options, task))
        self.found = self._titles = frozenset()
        self.last, self.asked = (), ()
        self._steps, self._scores = 0, None
        return self._answer(self._help() if self._options.observation == "full" else "")

    def step(self, action: str) -> StepResult:
        """Search, or answer the question."""
        self._steps += 1
        parsed = parse_action(action)
        if self._scores is not None:
            return self._answer(OVER[self._options.observation], valid=False)
        if parsed is None or (parsed.kind != "answer" and parsed.kind not in self._library):
            advice = self._help() if self._options.observation == "full" else ""
            return self._answer(NO_ACTION[self._options.observation] + advice, valid=False)
        if parsed.kind == "answer":
            self.last = ()
            self._scores = exact_match(parsed.text, self.task["answers"]), f1(parsed.text, self.task["answers"])
            return self._answer("", reward=self._reward(*self._scores))
        self.last = self._library[parsed.kind].search(parsed.text, self._options.top_k)
        self.found |= {document.name for document in self.last}
        self._titles |= {document.title for document in self.last}
        self.asked = (*self.asked, parsed)
        return self._answer(self._show())

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

    def _help(self) -> str:
        return describe(self._options.actions, "web" in self._library)

    def _show(self) -> str:
        """The documents of the latest search as the policy reads them."""
        options = self._options
        if not self.last:
            return NOTHING[options.observation]
        if options.observation == "short":
            return " | ".join(f"{found.title} : {_cut(found.text, options.max_characters)}" for found in self.last)
        return "\n".join(
            f"[{number}] {found.title}: {_cut(found.text, options.max_characters)}"
            for number, found in enumerate(self.last, start=1)
        )

    def _answer(self, text: str, reward: float = 0.0, valid: bool = True) -> StepResult:
        done = self._scores is not None
        won, share = self._scores or (False, 0.0)
        return StepResult(
            text=text,
            reward=reward if valid else reward - self._options.invalid_penalty,
            done=done,
            truncated=not done and self._steps >= self._options.max_steps,
            valid=valid,
            anchor=" | ".join((self.task["question"], *sorted(self.found))),
            info={
                "won": won,
                "score": share if self._options.reward == "f1" else float(won),
                "f1": share,
                "documents": [found.name for found in self.last] if valid else [],
                **self._recall(),
                **({} if self._steps else {"commands": self._help()}),
                **({"used_tool": bool(self.asked)} if done else {}),
            },
        )

    def _reward(self, won: bool, share: float) -> float:
        return {"em": float(won), "f1": share, "none": 0.0}[self._options.reward]

    def _recall(self) -> dict[str, float]:
        """The share of supporting documents that were found, where they are known."""
        support = self.task.get("support")
        if not support:
            return {}
        return {"recall": sum(title in self._titles for title in support) / len(support)}


def _cut(text: str, characters: int) -> str:
    """The start of a text, up to the end of a word where possible."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    return head if text[characters].isspace() else head.rpartition(" ")[0] or head

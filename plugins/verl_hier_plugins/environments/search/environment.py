"""The search environment: its state is the question, what was found so far, and a count of actions."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.actions import Action, describe, parse_action
from verl_hier_plugins.environments.search.corpus import GeneratedCorpus, corpus_of
from verl_hier_plugins.environments.search.index import Found, Library, library
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.questions import follow
from verl_hier_plugins.environments.search.scoring import exact_match, f1
from verl_hier_plugins.environments.search.world import build_world, write_document

NOTHING = {"full": "Nothing was found.", "short": "nothing"}
NO_ACTION = {"full": "That is no action. ", "short": "what"}
OVER = {"full": "The question is answered.", "short": "over"}


class SearchEnvironment(Environment):
    """One question. Everything that changes is replaced and never altered, so a fork is a shallow copy."""

    def __init__(self, options: SearchOptions) -> None:
        self._options = options
        self._task: Mapping[str, Any] = {}
        self._library: Library = {}
        self._found: frozenset[str] = frozenset()
        self._titles: frozenset[str] = frozenset()
        self._last: tuple[Found, ...] = ()
        self._asked: tuple[Action, ...] = ()
        self._steps = 0
        self._scores: tuple[bool, float] | None = None

    @property
    def options(self) -> SearchOptions:
        """What the recipe says."""
        return self._options

    @property
    def task(self) -> Mapping[str, Any]:
        """What was reset."""
        return self._task

    @property
    def found(self) -> frozenset[str]:
        """Names of all documents that were found so far."""
        return self._found

    @property
    def last(self) -> tuple[Found, ...]:
        """What the latest search found."""
        return self._last

    @property
    def asked(self) -> tuple[Action, ...]:
        """Searches so far."""
        return self._asked

    @property
    def collections(self) -> tuple[str, ...]:
        """Collections that hold anything."""
        return tuple(self._library)

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a question. Everything random was drawn when the task was made, so `seed` changes nothing."""
        if not task.get("question") or not task.get("answers"):
            raise RecipeError("hier.environment: a search task needs `question` and `answers`; make it with `tasks`.")
        self._task = task
        self._library = library(corpus_of(self._options, task))
        self._found = self._titles = frozenset()
        self._last, self._asked = (), ()
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
            self._last = ()
            self._scores = exact_match(parsed.text, self._task["answers"]), f1(parsed.text, self._task["answers"])
            reward = float(self._scores[0]) if self._options.reward == "em" else self._scores[1]
            return self._answer("", reward=reward)
        self._last = self._library[parsed.kind].search(parsed.text, self._options.top_k)
        self._found |= {document.name for document in self._last}
        self._titles |= {document.title for document in self._last}
        self._asked = (*self._asked, parsed)
        return self._answer(self._show())

    def fork(self) -> SearchEnvironment:
        """A copy; both share the index and move on independently."""
        return copy.copy(self)

    def close(self) -> None:
        """Let go of the index."""
        self._library = {}

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted expert for the generated question that was reset; see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.search.expert import SearchExpert, plan

        if "relations" not in self._task:
            raise RecipeError(
                "hier.environment.data_path: the expert knows the way to the answer of generated questions only; leave "
                "data_path out to make demonstrations."
            )
        world = build_world(self._task["corpus"]["seed"], self._task["corpus"]["entities"])
        chain = follow(world, self._task["support"][0], tuple(self._task["relations"]))
        return SearchExpert(self, chain, plan(chain, rng, skip_stage), remember)

    def vocabulary(self) -> Iterable[str]:
        """All documents of the generated world, and what the environment says."""
        texts = (NOTHING, NO_ACTION, OVER)
        yield from (text[self._options.observation] for text in texts)
        corpus = corpus_of(self._options)
        if isinstance(corpus, GeneratedCorpus):
            world = build_world(corpus.seed, corpus.entities)
            yield from (write_document(world, name, corpus.prose) for name in world.kinds)

    def _help(self) -> str:
        return describe(self._options.actions, "web" in self._library)

    def _show(self) -> str:
        """The documents of the latest search, as the policy reads them."""
        options = self._options
        if not self._last:
            return NOTHING[options.observation]
        if options.observation == "short":
            return " | ".join(f"{found.title} : {_cut(found.text, options.max_characters)}" for found in self._last)
        return "\n".join(
            f"[{number}] {found.title}: {_cut(found.text, options.max_characters)}"
            for number, found in enumerate(self._last, start=1)
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
            anchor=" | ".join((self._task["question"], *sorted(self._found))),
            info={
                "won": won,
                "score": float(won) if self._options.reward == "em" else share,
                "f1": share,
                "documents": [found.name for found in self._last] if valid else [],
                **self._recall(),
                **({} if self._steps else {"commands": self._help()}),
            },
        )

    def _recall(self) -> dict[str, float]:
        """Share of the supporting documents that were found, where they are known."""
        support = self._task.get("support")
        if not support:
            return {}
        return {"recall": sum(title in self._titles for title in support) / len(support)}


def _cut(text: str, characters: int) -> str:
    """The start of a text, whole words only where one ends in reach."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    return head if text[characters].isspace() else head.rpartition(" ")[0] or head

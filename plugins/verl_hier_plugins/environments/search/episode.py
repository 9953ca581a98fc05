"""One question, however its documents are found: the documents found so far, a count of actions, and the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_hier.environments.base import FINAL_ANSWER, StepResult
from verl_hier.environments.scoring import exact_match, f1, normalise
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.actions import Action, describe, parse_action
from verl_hier_plugins.environments.search.corpus import Found
from verl_hier_plugins.environments.search.options import SearchOptions

NOTHING = {"full": "Nothing was found.", "short": "nothing"}
REFUSED = {"full": "The search was refused; ask in other words, or in fewer.", "short": "refused"}
NO_ACTION = {"full": "That is no action. ", "short": "what"}
OVER = {"full": "The question is answered.", "short": "over"}


class Episode:
    """The state of one question. Everything that changes is replaced and never modified, so a shallow copy is a fork.

    Attributes:
        task: the task.
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
        self._collections: tuple[str, ...] = ()
        self._titles: frozenset[str] = frozenset()
        self._steps = 0
        self._scores: tuple[bool, float] | None = None

    @property
    def options(self) -> SearchOptions:
        """The options of the recipe."""
        return self._options

    @property
    def collections(self) -> tuple[str, ...]:
        """The collections that can be searched."""
        return self._collections

    def begin(self, task: Mapping[str, Any], collections: Sequence[str]) -> StepResult:
        """Start a question on these collections.

        Raises:
            RecipeError: when `task` is no question.
        """
        if not task.get("question") or not task.get("answers"):
            raise RecipeError("hier.environment: a search task needs `question` and `answers`; make it with `tasks`.")
        self.task = task
        self._collections = tuple(collections)
        self.found = self._titles = frozenset()
        self.last, self.asked = (), ()
        self._steps, self._scores = 0, None
        return self._answer(self._help() if self._options.observation == "full" else "")

    def take(self, text: str) -> Action | StepResult:
        """Count one action: the search that it asks for, or the answer to all else."""
        parsed = parse_action(text)
        self._steps += 1
        if self._scores is not None:
            return self._answer(OVER[self._options.observation], valid=False)
        if parsed is None or (parsed.kind != "answer" and parsed.kind not in self._collections):
            advice = self._help() if self._options.observation == "full" else ""
            return self._answer(NO_ACTION[self._options.observation] + advice, valid=False)
        if parsed.kind == "answer":
            self.last = ()
            self._scores = exact_match(parsed.text, self.task["answers"]), f1(parsed.text, self.task["answers"])
            given = normalise(parsed.text) or parsed.text
            return self._answer("", reward=self._reward(*self._scores), said={FINAL_ANSWER: given})
        return parsed

    def see(self, asked: Action, documents: Sequence[Found]) -> StepResult:
        """The answer to a search that found these documents, best first."""
        self.last = tuple(documents)
        self.found |= {document.name for document in documents}
        self._titles |= {document.title for document in documents}
        self.asked = (*self.asked, asked)
        return self._answer(self._show())

    def refuse(self) -> StepResult:
        """The answer to a search that the server of the documents does not take."""
        self.last = ()
        return self._answer(REFUSED[self._options.observation], valid=False)

    def _help(self) -> str:
        return describe(self._options.actions, "web" in self._collections)

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

    def _answer(
        self, text: str, reward: float = 0.0, valid: bool = True, said: Mapping[str, str] | None = None
    ) -> StepResult:
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
                **(said or {}),
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

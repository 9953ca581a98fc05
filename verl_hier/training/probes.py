"""What the policy thinks of given texts in given contexts of a step: asked of the actor in one pass, read as columns.

Shapes: T turns of the table, N response tokens of all rows one after the other, Q questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_hier.credit import group_ids
from verl_hier.errors import CreditError
from verl_hier.graph import TurnTable

if TYPE_CHECKING:  # plugins import this module in every process
    from verl_hier.training.ledger import Ledger

Tokens = NDArray[np.int64]
Array = NDArray[Any]
Rows = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class Question:
    """How likely is a text in a context?

    Attributes:
        turn: the turn that it is about, a row of the turn table.
        context: token ids that stand before the text; at least one.
        text: token ids of the text; at least one.
        counted: which tokens of the text are asked for; all when None.
    """

    turn: int
    context: Tokens
    text: Tokens
    counted: slice | None = None


class Probe(Protocol):
    """What a `ProbeSpec` builds."""

    def ask(self, contexts: Contexts) -> Sequence[Question]:
        """The questions of a step.

        Raises:
            CreditError: when the step does not have what they need.
        """

    def read(self, table: TurnTable, questions: Sequence[Question], answers: Rows) -> Mapping[str, ArrayLike]:
        """The columns of `ProbeSpec.provides`, (T,) each.

        Args:
            table: the turn table with all its columns but those of estimators and schedules.
            questions: of `ask`.
            answers: for each question the log-probs (nats) of the tokens that it counts.
        """


class Contexts:
    """What stood before each turn of a step, in its own row.

    Attributes:
        table: the turn table, before the trainer has added its token columns.
        tasks: the task of each group, as the environment made it, or the row of verl's data set.
    """

    def __init__(self, ledger: Ledger, sequences: Rows, tasks: Sequence[Mapping[str, Any]], tokenizer: Any) -> None:
        """
        Args:
            ledger: of the step.
            sequences: token ids of each row, prompt and response, in the order of the ledger.
            tasks: see above.
            tokenizer: of the policy.
        """
        self.table = ledger.table
        self.tasks = tasks
        self._ledger, self._sequences, self._tokenizer = ledger, sequences, tokenizer

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """(T, 4) row of each turn, its first token and its end there, and what it has observed; row -1 without one."""
        places = np.full((len(self.table), 4), -1, np.int64)
        prompts = [len(row) - length for row, length in zip(self._sequences, self._ledger.lengths, strict=True)]
        starts = np.cumsum([0, *self._ledger.lengths])
        for turn, row, start, length, observed in self._ledger.turn_runs():
            if places[turn, 0] < 0:
                first = prompts[row] + start - starts[row]
                places[turn] = row, first, first + length, observed
        return places

    @property
    def there(self) -> NDArray[np.bool_]:
        """(T,) whether a turn stands in a row of the step. Turns of roles that do not learn have none."""
        return np.asarray(self._places[:, 0] >= 0, bool)

    @property
    def observed(self) -> NDArray[np.int64]:
        """(T,) tokens between a turn and the one before it in its context; 0 where it begins the context, -1 where it
        is not `there`."""
        return self._places[:, 3]

    def before(self, turn: int) -> Tokens:
        """Tokens in front of a turn that is `there`."""
        row, start, _, _ = self._places[turn]
        return np.asarray(self._sequences[row][:start], np.int64)

    def action(self, turn: int) -> Tokens:
        """Tokens of a turn that is `there`."""
        row, start, stop, _ = self._places[turn]
        return np.asarray(self._sequences[row][start:stop], np.int64)

    def encode(self, text: str) -> Tokens:
        """Tokens of a text, without those that a tokenizer puts at the beginning and the end."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), np.int64)

    def encode_within(self, before: str, text: str, behind: str) -> tuple[Tokens, slice]:
        """Tokens of three texts in a row, and which of them belong to the one in the middle."""
        if not getattr(self._tokenizer, "is_fast", False):
            parts = [self.encode(part) for part in (before, text, behind)]
            return np.concatenate(parts), slice(len(parts[0]), len(parts[0]) + len(parts[1]))
        found = self._tokenizer(before + text + behind, add_special_tokens=False, return_offsets_mapping=True)
        first, last = len(before), len(before) + len(text)
        inside = [i for i, (start, stop) in enumerate(found["offset_mapping"]) if stop > first and start < last]
        return np.asarray(found["input_ids"], np.int64), slice(inside[0], inside[-1] + 1) if inside else slice(0, 0)

    @cached_property
    def generation_prompt(self) -> Tokens:
        """Tokens with which the chat template lets the policy speak; none without a chat template."""
        if not getattr(self._tokenizer, "chat_template", None):
            return np.zeros(0, np.int64)
        said = [{"role": "user", "content": "?"}]
        plain, opened = (
            self._tokenizer.apply_chat_template(said, tokenize=True, return_dict=False, add_generation_prompt=opens)
            for opens in (False, True)
        )
        return np.asarray(opened[len(plain) :], np.int64)


def followers(table: TurnTable) -> Iterator[tuple[int, int]]:
    """(turn, next turn of the same agent on a path), once a pair, in the order of the paths."""
    episode, turn = np.asarray(table.step_episode), np.asarray(table.step_turn)
    agent = group_ids(episode, np.asarray(table["agent"])[turn])
    order = np.argsort(agent, kind="stable")
    same = agent[order][1:] == agent[order][:-1]
    pairs = np.stack([turn[order][:-1], turn[order][1:]], 1)[same]
    yield from dict.fromkeys(map(tuple, pairs.tolist()))


@dataclass(frozen=True)
class Asked:
    """A probe of the recipe after its questions were answered.

    Attributes:
        name: as the recipe calls it.
        provides: columns that it fills.
        probe: reads the answers.
        questions: what was asked.
        answers: log-probs of the tokens that each question counts.
    """

    name: str
    provides: tuple[str, ...]
    probe: Probe
    questions: Sequence[Question]
    answers: Rows

    def columns(self, table: TurnTable) -> dict[str, Array]:
        """The columns of the probe, (T,) each.

        Raises:
            CreditError: when they are not those that it has promised.
        """
        found = {name: np.asarray(values, np.float64) for name, values in self._read(table).items()}
        if found.keys() != {*self.provides} or any(column.shape != (len(table),) for column in found.values()):
            raise CreditError(
                f"probe {self.name!r} must fill {', '.join(self.provides)} with one number for each of the "
                f"{len(table)} turns."
            )
        return found

    def _read(self, table: TurnTable) -> Mapping[str, ArrayLike]:
        return self.probe.read(table, self.questions, self.answers)

    def metrics(self) -> dict[str, float]:
        """`hier/probes/<name>/…`: questions, tokens that were forwarded for them, mean log-prob of what was asked."""
        tokens = sum(len(question.context) + len(question.text) for question in self.questions)
        found = {
            f"hier/probes/{self.name}/questions": float(len(self.questions)),
            f"hier/probes/{self.name}/tokens": float(tokens),
        }
        if self.questions:
            found[f"hier/probes/{self.name}/logprob_mean"] = float(np.mean(np.concatenate(self.answers)))
        return found

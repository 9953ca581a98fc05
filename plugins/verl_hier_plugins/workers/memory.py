"""Memory-R1: a manager keeps a memory of what it reads, and an agent answers from it; docs/methods/memory_r1.md.

Source: arXiv 2508.19828 (paper).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.hookspecs import hookimpl
from verl_hier.host.constraints import Count, NonNegative, Template
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Context, EpisodeView, Turn, Worker
from verl_hier.rollout.policy import DEFAULT_POLICY
from verl_hier.rollout.prompts import check_action_template, fields, observe
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.proposer_solver_judge.guards import likeness
from verl_hier_plugins.workers.react import parse_action

MANAGER, ANSWERER = "manager", "answerer"
ADD, UPDATE, DELETE, NOOP = "add", "update", "delete", "noop"
_OPERATION = re.compile(r"\s*(add|update|delete|noop)\b(.*)", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"\s*(\d{1,6})\b\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class MemoryOptions:
    """Options of `memory`.

    Templates may use {instruction}, {observation}, {admissible} and whatever the environment puts into the `info` of
    its reset; {memory} is what the bank holds, each entry with its number, {piece} what is read now, and {question}
    what is asked.
    """

    pieces: str | None = None
    """Field of the task with what is read, a list of texts such as the turns of conversations; omitted: the
    instruction, in pieces of `piece_words`."""
    piece_words: Count = 40
    """Words of a piece of the instruction."""
    question: str | None = None
    """Field of the task with what is asked in the end; omitted: {question} is empty."""
    manager_prompt: Annotated[str, Template("memory", "piece")] = "memory: {memory} | read: {piece}"
    """What the manager reads for each piece, in a new context."""
    answer_prompt: Annotated[str, Template("memory", "question")] = "memory: {memory} | {question}"
    """What the answering agent reads."""
    manager_system: str | None = None
    """System message of the manager, for chat models."""
    answer_system: str | None = None
    """System message of the answering agent, for chat models."""
    manager_policy: str = DEFAULT_POLICY
    """Name of the policy of the manager."""
    answer_policy: str = DEFAULT_POLICY
    """Name of the policy of the answering agent."""
    action_tag: str | None = None
    """When set, the {content} of the answer is the text inside <tag>…</tag>."""
    answer_action: str = "{content}"
    """The action that the answer makes in the environment, with {content}."""
    shown: Count = 60
    """Entries that an agent reads: those with most words in common with the piece or the question."""
    entries: Count = 1000
    """Entries that the bank holds; a further one is refused."""
    longest: Count = 400
    """Characters of an entry."""
    operations: Count = 8
    """Operations that one turn of the manager may have, each in a line or behind `;`; further ones are left out."""
    format_penalty: NonNegative = 0.0
    """Taken from the reward of a turn of the manager with an operation that cannot be done."""

    def __post_init__(self) -> None:
        check_action_template("answer_action", self.answer_action)

    def vocabulary(self) -> Iterator[str]:
        """Every word that the worker itself adds to prompts and turns."""
        yield " ".join((ADD, UPDATE, DELETE, NOOP, *map(str, range(1, 10))))


class Bank:
    """The memory: entries with numbers, which stay theirs.

    Args:
        entries: how many it holds.
        longest: characters of an entry.
    """

    def __init__(self, entries: int, longest: int) -> None:
        self._limit = entries
        self._longest = longest
        self._entries: dict[int, str] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, operation: str) -> str | None:
        """Do one operation: `ADD text`, `UPDATE number text`, `DELETE number` or `NOOP`; returns its name in small
        letters, None when it is none or cannot be done."""
        found = _OPERATION.fullmatch(operation)
        if found is None:
            return None
        name, rest = found[1].lower(), found[2].strip(" :\t\r\n")
        if name == NOOP:
            return None if rest else NOOP
        if name == ADD:
            if not rest or len(self._entries) >= self._limit:
                return None
            self._last += 1
            self._entries[self._last] = rest[: self._longest]
            return ADD
        number = _NUMBER.fullmatch(rest)
        if number is None or int(number[1]) not in self._entries:
            return None
        text = number[2].strip(" :")
        if name == DELETE:
            del self._entries[int(number[1])]
        elif text:
            self._entries[int(number[1])] = text[: self._longest]
        return name if name == DELETE or text else None

    def shown(self, about: str, most: int) -> str:
        """The entries that have most words in common with a text, in their order."""
        numbers = sorted(self._entries, key=lambda number: -likeness(self._entries[number], about))[:most]
        return " ".join(f"{number} {self._entries[number]}" for number in sorted(numbers))


class Memory(Worker):
    """See the module. The manager never sees the question, and the answering agent nothing but memory and question."""

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options

    async def run(self, episode: EpisodeView) -> None:
        """See `Worker.run`."""
        options, first = self._options, await episode.reset()
        bank, last = Bank(options.entries, options.longest), list[Turn]()
        for number, piece in enumerate(pieces_of(options, episode)):
            known = fields(episode, first, first, memory=bank.shown(piece, options.shown), piece=piece)
            context = episode.context(MANAGER, system=options.manager_system, policy=options.manager_policy)
            turn = await self._ask(episode, context, "manager_prompt", known, last, number)
            self._manage(bank, turn)
            last.append(turn)
        asked = "" if options.question is None else str(episode.task.get(options.question, ""))
        known = fields(episode, first, first, memory=bank.shown(asked, options.shown), question=asked)
        step: StepResult = first
        context = episode.context(ANSWERER, system=options.answer_system, policy=options.answer_policy)
        turn = await self._ask(episode, context, "answer_prompt", known, last, len(last))
        content = parse_action(turn.text, options.action_tag)
        turn.mark(format=int(content is not None), memory_size=len(bank), operations_done=0)
        if content is None:
            turn.mark(valid=False, failure="no_answer")
        step = await episode.act(options.answer_action.format(content=content or ""))
        if not (step.done or step.truncated):
            episode.finish()

    async def _ask(
        self, episode: EpisodeView, context: Context, prompt: str, known: dict[str, str], of: list[Turn], segment: int
    ) -> Turn:
        observe(context, self._options, prompt, known, {"memory": of})
        return await episode.generate(context, segment=segment)

    def _manage(self, bank: Bank, turn: Turn) -> None:
        """Do what a turn of the manager says."""
        most = self._options.operations
        # What is longer than so many operations can be is no list of them.
        begins = turn.text[: most * (self._options.longest + 32)]
        said = [line for line in re.split(r"[;\n]", begins) if line.strip()]
        done = [bank.apply(line) for line in said[:most]]
        sound = bool(done) and None not in done and len(said) <= most and len(begins) == len(turn.text)
        changes = sum(name not in (None, NOOP) for name in done)
        turn.mark(format=int(sound), memory_size=len(bank), operations_done=changes)
        if not sound:
            turn.mark(valid=False, failure="no_operation")
            turn.reward(-self._options.format_penalty)


def pieces_of(options: MemoryOptions, episode: EpisodeView) -> list[str]:
    """What the manager reads, one after the other.

    Raises:
        RecipeError: when the task does not have the field.
    """
    if options.pieces is None:
        return cut(episode.instruction, options.piece_words)
    found = episode.task.get(options.pieces)
    if not isinstance(found, list | tuple):
        raise RecipeError(
            f"hier.worker.pieces: tasks of this environment have no list {options.pieces!r}; name a field with the "
            "texts that are read, or leave it out, so that the instruction is read in pieces."
        )
    return [str(each) for each in found]


def cut(text: str, words: int) -> list[str]:
    """A text in pieces of so many words."""
    parts = text.split()
    return [" ".join(parts[start : start + words]) for start in range(0, len(parts), words)]


def transcribe(options: MemoryOptions, transcript: Transcript) -> list[str]:
    """What a policy has to say in this worker to do what an episode did, which answered its task in one action: every
    other piece is added, the ones between join the entry before, and the action follows.

    Raises:
        ValueError: in one word, for an episode or options that cannot be written so.
    """
    calls = [call.action for turn in transcript.turns for call in turn.calls]
    if len(calls) != 1 or options.pieces is not None:
        raise ValueError("one_action")
    said, tag = list[str](), options.action_tag
    pieces = cut(transcript.instruction, options.piece_words)
    for number, piece in enumerate(pieces):
        entry = f"{pieces[number - 1]} {piece}" if number % 2 else piece
        said.append(f"{UPDATE} {number // 2 + 1} {entry}" if number % 2 else f"{ADD} {entry}")
    return [*said, f"<{tag}>{calls[0]}</{tag}>" if tag else calls[0]]


@hookimpl
def hier_workers() -> WorkerSpec:
    return WorkerSpec(
        name="memory",
        factory=Memory,
        options=MemoryOptions,
        summary="a manager adds, updates and deletes what it reads in a memory; an agent answers from it alone",
        source="Memory-R1, arXiv 2508.19828",
        roles={MANAGER: 0, ANSWERER: 1},
        provides=("format", "memory_size", "operations_done"),
        transcribe=transcribe,
    )

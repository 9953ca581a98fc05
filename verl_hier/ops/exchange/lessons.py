"""Stored rollouts as rows of supervised training and as preference pairs, in the columns that TRL and verl read.

What they read: verl 0.9.1 `messages` (`verl/utils/dataset/multiturn_sft_dataset.py:103`; the loss is on every message
of the assistant, line 234) and texts `prompt`, `chosen`, `rejected` (`verl/utils/dataset/rm_dataset.py:44-46`); TRL
1.16.0 `messages`, `prompt` with `completion`, and `prompt` with `chosen` and `rejected`, each as messages or as texts
(`trl/data_utils.py:183-186`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from verl_hier.errors import GraphError
from verl_hier.graph import RolloutGraph, conversation, read_graphs
from verl_hier.graph.chat import require_messages
from verl_hier.graph.choices import Turn, good_attempts, on_path, turns_of
from verl_hier.graph.rows import chains
from verl_hier.ops.exchange.files import write_lines

Form = Literal["messages", "turns", "plain"]
Messages = list[dict[str, str]]
Fields = dict[str, Any]
LOST, INCOMPLETE, ONE_RETURN, OTHERS, AGAIN, REPEATED = (
    "attempts that were not won",
    "attempts that did not end",
    "attempts at tasks whose attempts all have one return",
    "turns of other roles or policies",
    "rows that say what another one says",
    "contexts whose prompts repeat words of the agent",
)


@dataclass
class Lessons:
    """What is taken from rollouts, and what was left out.

    Attributes:
        form: of the rows: whole contexts as messages, a turn a row as messages, or a turn a row as texts.
        least: the least return of an attempt to learn from. None: it has to be won; where the world does not say so,
            to be one with the highest return of its task, unless all have that.
        gap: the least by which the better one of a pair has the higher value.
        roles, policies: whose turns are learned, None for all.
        tokenizer: Hugging Face tokenizer of the run, for rows of texts.
        thought: what a revised attempt says where it turns back.
        left_out: how many of what were left out, by what they are.
        noted: how many rows are not what they could be, by why.
    """

    form: Form = "messages"
    least: float | None = None
    gap: float = 0.0
    roles: frozenset[str] | None = None
    policies: frozenset[str] | None = None
    tokenizer: Any = None
    thought: str = ""
    left_out: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)

    def write(
        self,
        source: str | os.PathLike[str],
        out: str | os.PathLike[str],
        rows: Callable[[RolloutGraph, Lessons], Iterator[Fields]],
    ) -> int:
        """Write the rows of stored rollouts, and return how many there are.

        Args:
            source: graph file, or a folder of them.
            out: `.jsonl` or `.parquet`.
            rows: `best_attempts`, or a function of `pairs` or `revisions`.

        Raises:
            GraphError: when there is no row, the turns of several policies would be mixed, the rollouts keep no
                messages, or a file cannot be read or written.
        """
        return write_lines(Path(out), (".jsonl", ".parquet"), self._rows(source, rows))

    def _rows(
        self, source: str | os.PathLike[str], rows: Callable[[RolloutGraph, Lessons], Iterator[Fields]]
    ) -> Iterator[Fields]:
        policies: set[str] = set()
        said: set[str] = set()
        for graph in read_graphs(source):
            require_messages(graph)
            self.left_out[INCOMPLETE] += len(graph.episodes) - len(list(graph.complete()))
            for row in rows(graph, self):
                policies.add(row["policy"])
                if len(policies) > 1:
                    raise GraphError(
                        f"the rollouts have turns of the policies {' and '.join(sorted(policies))}, and one model "
                        "learns from one of them; choose it with --policy NAME."
                    )
                words = str([row[name] for name in row if name in _WORDS])
                if words in said:
                    self.left_out[AGAIN] += 1
                    continue
                said.add(words)
                yield row
        if not said:
            raise GraphError(f"{source} holds no such row. Left out: {self.told() or 'nothing'}.")

    def told(self) -> str:
        """What was left out, in words."""
        return ", ".join(f"{count} {what}" for what, count in self.left_out.items() if count)

    def notes(self) -> list[str]:
        """How many rows are not what they could be, in words."""
        return [f"{count} {what}" for what, count in self.noted.items()]

    def against(self, turn: Turn, role: str) -> str | None:
        """Why a turn is not one of those to learn from; None where it is one."""
        mine = (self.roles is None or role in self.roles) and (self.policies is None or turn.policy in self.policies)
        return turn.flaw if mine else OTHERS

    def good(self, graph: RolloutGraph) -> set[int]:
        """The numbers of the attempts to learn from."""
        return good_attempts(graph, self.least)

    def words(self, graph: RolloutGraph, turn: Turn, **said: str) -> Fields:
        """The prompt of a turn and what is said to it, in the chosen form.

        Args:
            graph: that holds it.
            turn: whose prompt it is.
            **said: the answers by the names of their columns.
        """
        if self.form == "plain":
            prompt = self._plain(graph.prompt(graph.pieces(graph.nodes[turn.node])[0].id))
            return {"prompt": prompt, **said}
        told = conversation(graph, turn.node)[:-1]
        return {"prompt": told, **{name: answer(text) for name, text in said.items()}}

    def _plain(self, tokens: list[int]) -> str:
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=False))
        # Many tokenizers begin every text with a token of their own.
        for read in (text, text.removeprefix(self.tokenizer.bos_token or "")):
            if self.tokenizer.encode(read) == tokens:
                return read
        self.noted["prompts whose text is read as other tokens than the policy was given"] += 1
        return text


_WORDS = ("messages", "prompt", "completion", "chosen", "rejected")


def answer(text: str) -> Messages:
    """What an agent says, as messages."""
    return [{"role": "assistant", "content": text}]


def about(graph: RolloutGraph, node: int) -> Fields:
    """What every row says of the turn that it ends with."""
    last = graph.nodes[node]
    task = {name: graph.task.get(name) for name in ("uid", "index", "data_source")}
    who = {name: getattr(last, name) for name in ("agent", "role", "level", "policy", "turn")}
    return {**task, "step": graph.step, **who}


def best_attempts(graph: RolloutGraph, lessons: Lessons) -> Iterator[Fields]:
    """Rows of supervised training: the attempts to learn from, by context (`messages`) or by turn.

    A context is left out as a whole where one of its turns should not be learned, since every message of the assistant
    would be; the rows of single turns leave out that turn alone.
    """
    good, turns = lessons.good(graph), turns_of(graph)
    known = any(episode.success is not None for episode in graph.complete()) or lessons.least is not None
    lessons.left_out[LOST if known or good else ONE_RETURN] += len([*graph.complete()]) - len(good)
    taken: set[int] = set()
    for number in sorted(good):
        if lessons.form == "messages":
            ends = [chain for chain in chains(graph, number) if chain[-1] not in taken]
            taken.update(chain[-1] for chain in ends)
            rows = (_context(graph, chain, turns, lessons) for chain in ends)
        else:
            mine = [turn for turn in on_path(graph, number, turns) if turn.node not in taken]
            taken.update(turn.node for turn in mine)
            rows = (_single(graph, turn, lessons) for turn in mine)
        yield from (row | _earned(graph, number) for row in rows if row is not None)


def _single(graph: RolloutGraph, turn: Turn, lessons: Lessons) -> Fields | None:
    what = lessons.against(turn, graph.nodes[turn.node].role)
    if what is not None:
        lessons.left_out[what] += 1
        return None
    return lessons.words(graph, turn, completion=turn.text) | about(graph, turn.node)


def _context(graph: RolloutGraph, chain: list[int], turns: dict[int, Turn], lessons: Lessons) -> Fields | None:
    mine = [turns[node] for node in chain if node == chain[-1] or not graph.nodes[node].partial]
    flaws = (lessons.against(turn, graph.nodes[turn.node].role) for turn in mine)
    what = next((f"contexts with {flaw}" for flaw in flaws if flaw is not None), None)
    messages = conversation(graph, chain[-1])
    if what is None and [m["content"] for m in messages if m["role"] == "assistant"] != [turn.text for turn in mine]:
        what = REPEATED
    if what is not None:
        lessons.left_out[what] += 1
        return None
    return {"messages": messages, **about(graph, chain[-1])}


def _earned(graph: RolloutGraph, episode: int) -> Fields:
    record = graph.episodes[episode]
    return {"return": record.ret, "success": None if record.success is None else float(record.success)}

"""Stored rollouts as chat messages, and as verl's own rollout dump."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_hier.graph import chat_rows, dump_rows, read_graphs
from verl_hier.ops.exchange.files import write_lines
from verl_hier.training.schedule import Phase

PathLike = str | os.PathLike[str]
CHAT_SUFFIXES = (".jsonl", ".parquet")
DUMP_SUFFIXES = (".jsonl",)


def export_chat(source: PathLike, out: PathLike) -> int:
    """Write stored rollouts as chat messages, see `trajectory.chat_rows`; returns the number of lines.

    Args:
        source: graph file, or a folder of them.
        out: `.jsonl` for most tools, `.parquet` for verl's `MultiTurnSFTDataset`.

    Raises:
        GraphError: for another suffix, a source that cannot be read or keeps no messages, or a disk that refuses.
    """
    return write_lines(Path(out), CHAT_SUFFIXES, (line for graph in read_graphs(source) for line in chat_rows(graph)))


def export_dump(source: PathLike, out: PathLike, tokenizer: Any) -> int:
    """Write stored rollouts as verl dumps its own, see `trajectory.dump_rows`; returns the number of lines.

    Args:
        source: graph file, or a folder of them.
        out: a `.jsonl` file.
        tokenizer: Hugging Face tokenizer of the run.

    Raises:
        As `export_chat`.
    """

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    def lines() -> Iterator[dict[str, Any]]:
        for graph in read_graphs(source):
            yield from dump_rows(graph, decode, Phase.from_dict(graph.phase).trains)

    return write_lines(Path(out), DUMP_SUFFIXES, lines())

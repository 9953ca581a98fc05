"""Stored rollouts as chat messages, and back."""

from __future__ import annotations

import math
import os
from pathlib import Path

from verl_hier.errors import GraphError
from verl_hier.graph import EpisodeRecord, RolloutGraph, chat_rows, read_graphs
from verl_hier.ops.exchange.build import action_tokens, add_episode, add_turn, checked, graph_of
from verl_hier.ops.exchange.files import Line, read_lines, write_lines
from verl_hier.rollout import Context, Renderer
from verl_hier.rollout.plain_renderer import Tokenizer

PathLike = str | os.PathLike[str]


def export_chat(source: PathLike, out: PathLike) -> int:
    """Write stored rollouts as chat messages, see `graph.chat_rows`; returns the number of lines.

    Args:
        source: graph file, or a folder of them.
        out: `.jsonl` for most tools, `.parquet` for verl's `MultiTurnSFTDataset`.

    Raises:
        GraphError: for another suffix, a source that cannot be read or keeps no messages, or a disk that refuses.
    """
    lines = (line for graph in read_graphs(source) for line in chat_rows(graph))
    return write_lines(Path(out), (".jsonl", ".parquet"), lines)


def import_chat(source: PathLike, tokenizer: Tokenizer, renderer: Renderer) -> list[RolloutGraph]:
    """Graphs of chat messages: an episode for each line, a node for each message of the assistant.

    Lines of one `uid` and `step` are one task. Of what `export_chat` adds to the messages, `uid`, `index`,
    `data_source`, `step`, `agent`, `role`, `level`, `success`, `return` and `rewards` are read where they are; what the
    turns of a line have not earned of the return, its last turn gets.

    Args:
        source: `.jsonl`, or `.parquet` with a column `messages`.
        tokenizer: tokenises what the assistant said.
        renderer: tokenises what it was told, as a rollout does.

    Returns:
        Checked graphs in the order of their steps.

    Raises:
        GraphError: names the line that cannot be read.
    """
    graphs: dict[tuple[int, str], RolloutGraph] = {}
    for line in read_lines(Path(source)):
        step = line.natural("step", 0)
        uid = line.get("uid", str, "a text", line.name)
        graph = graph_of(graphs, step, uid)
        for key, value in (("index", line.natural("index")), ("data_source", line.get("data_source", str, "a text"))):
            if value is not None:
                graph.task[key] = value
        _add_conversation(graph, line, _messages(line), tokenizer, renderer)
    return checked(graphs.values())


def _messages(line: Line) -> list[dict[str, str]]:
    messages = line.need("messages", list, "a list of messages", "chat messages")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise GraphError(f"{line.where}: message {number} needs a text as `role` and one as `content`.")
        more = [key for key, value in message.items() if key not in ("role", "content") and value is not None]
        if more:
            raise GraphError(f"{line.where}: message {number} has `{more[0]}`; only `role` and `content` can be kept.")
    if not messages or messages[0]["role"] == "assistant" or messages[-1]["role"] != "assistant":
        raise GraphError(f"{line.where}: `messages` have to end, and must not begin, with the assistant's.")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _add_conversation(
    graph: RolloutGraph, line: Line, messages: list[dict[str, str]], tokenizer: Tokenizer, renderer: Renderer
) -> None:
    """One more episode of a task: a conversation, with the tokens that a rollout would have."""
    role = line.get("role", str, "a text", "agent")
    level, agent = line.natural("level", 0), line.get("agent", str, "a text", role)
    context, record = Context(renderer, role, level, agent), add_episode(graph)
    for message in messages:
        if message["role"] != "assistant":
            context.observe(message["content"], role=message["role"])
            continue
        try:
            prompt, kept = context.prompt()
        except Exception as error:  # templates raise what they like
            raise GraphError(f"{line.where}: the chat template refuses the messages ({error}).") from error
        action = action_tokens(line, message["content"], tokenizer)
        before = context.node.id if kept and context.node is not None else -1
        told = [message.to_message() for message in context.new_messages(kept > 0)]
        node = add_turn(graph, record, prompt[kept:], action, message["content"], told)
        node.context, node.agent, node.role, node.level = before, agent, role, level
        context.append_turn(prompt, action, node)
    success = line.get("success", (bool, int, float), "a number or a truth value")
    record.success = None if success is None else success > 0.5
    _reward(graph, record, line)


def _reward(graph: RolloutGraph, record: EpisodeRecord, line: Line) -> None:
    nodes = [graph.nodes[number] for number in graph.path(record.id)]
    rewards = line.get("rewards", list, "a list of numbers", [])
    if not all(isinstance(reward, int | float) and math.isfinite(reward) for reward in rewards):
        raise GraphError(f"{line.where}: `rewards` has to be a list of numbers.")
    if len(rewards) == len(nodes):  # several turns may share a message; their rewards have no place then
        for node, reward in zip(nodes, rewards, strict=True):
            node.reward = float(reward)
    earned = sum(node.reward for node in nodes)
    record.ret = float(line.get("return", (int, float), "a number", earned))
    nodes[-1].reward += record.ret - earned

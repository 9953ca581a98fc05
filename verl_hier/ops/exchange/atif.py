"""Stored rollouts in the Agent Trajectory Interchange Format (ATIF), which other people's viewers and tools read.

The format: https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from verl_hier import __version__
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph, read_graphs
from verl_hier.graph.nodes import CONTINUED
from verl_hier.graph.rows import chains
from verl_hier.ops.exchange.files import write_lines

VERSION = "ATIF-v1.8"
Fields = dict[str, Any]


def export_atif(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Write a trajectory for each complete episode, and return how many there are.

    The context in which an episode begins is its trajectory; each further context of it, such as that of an executor
    below its planner, is an embedded sub-agent, to which the step refers that ended before it began.

    Args:
        source: graph file, or a folder of them.
        out: `.jsonl`; a trajectory a line.

    Raises:
        GraphError: for another suffix, a source that cannot be read, or a disk that refuses.
    """
    return write_lines(Path(out), (".jsonl",), (line for graph in read_graphs(source) for line in trajectories(graph)))


def trajectories(graph: RolloutGraph) -> Iterator[Fields]:
    """The complete episodes of a graph as trajectories, in values of JSON."""
    for episode in graph.complete():
        yield _trajectory(graph, episode)


def _trajectory(graph: RolloutGraph, episode: EpisodeRecord) -> Fields:
    name = f"{graph.step}/{graph.task.get('uid', '')}/{episode.id}"
    first, *others = sorted(chains(graph, episode.id), key=lambda chain: chain[0])
    seen: set[int] = set()
    whole = _conversation(graph, first, seen) | {"session_id": name, "trajectory_id": name}
    inside = []
    for number, chain in enumerate(others, start=1):
        inside.append(_conversation(graph, chain, seen) | {"session_id": name, "trajectory_id": f"{name}/{number}"})
        asking = _step_before(whole["steps"], chain[0])
        results = asking.setdefault("observation", {"results": []})["results"]
        results.append({"subagent_trajectory_ref": [{"trajectory_id": f"{name}/{number}"}]})
    if inside:
        whole["subagent_trajectories"] = inside
    about = {"step": graph.step, "task": graph.task, "return": episode.ret, "success": episode.success}
    return whole | {"extra": about | {"status": episode.status, "forked_from": episode.source}}


def _step_before(steps: Sequence[Fields], node: int) -> Fields:
    """The last step of an agent whose turn is earlier than a node; the first one of an agent where none is."""
    turns = [step for step in steps if step["source"] == "agent"]
    earlier = [step for step in turns if step["extra"]["node"] < node]
    return (earlier or turns[:1])[-1]


def _conversation(graph: RolloutGraph, chain: Sequence[int], seen: set[int]) -> Fields:
    """One context: `agent`, `steps` and `final_metrics`.

    Args:
        graph: that holds it.
        chain: its turns.
        seen: turns that an earlier context has; they are marked as copied. Those of the chain are added.
    """
    steps: list[Fields] = []
    goes_on = False
    for node in (graph.nodes[number] for number in chain):
        before = len(steps)
        for message in node.messages:
            if message.role == CONTINUED and steps:
                steps[-1]["message"] += message.content
            else:
                source = "system" if message.role == "system" else "user"
                steps.append({"source": source, "message": message.content, "extra": {"role": message.role}})
        if goes_on and steps:
            _add_piece(steps[-1], node)
        else:
            steps.append({"source": "agent", "message": node.text, **_numbers(graph, node)})
        if node.id in seen:
            for step in steps[before:]:
                step["is_copied_context"] = True
        goes_on = node.partial
    seen.update(chain)
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
    last = graph.nodes[chain[-1]]
    return {
        "schema_version": VERSION,
        "agent": {"name": last.agent, "version": __version__, "extra": {"role": last.role, "level": last.level}},
        "steps": steps,
        "final_metrics": _total([step for step in steps if not step.get("is_copied_context")]),
    }


def _numbers(graph: RolloutGraph, node: Node) -> Fields:
    """What is known of a turn: `metrics` of its tokens, and `extra`."""
    metrics = {
        "prompt_tokens": node.prompt_tokens,
        "cached_tokens": node.cached_tokens,
        "completion_tokens": len(node.action),
        "completion_token_ids": [*node.action],
        "logprobs": [*node.logprobs],
    }
    about = {"node": node.id, "parent": node.parent, "reward": node.reward, "valid": node.valid}
    credit = {"credit": graph.credit[node.id]} if graph.credit else {}
    return {"metrics": metrics, "extra": about | credit}


def _add_piece(step: Fields, node: Node) -> None:
    """A turn that was cut into pieces is one step."""
    step["message"] += node.text
    step["metrics"]["completion_tokens"] += len(node.action)
    step["metrics"]["completion_token_ids"] += node.action
    step["metrics"]["logprobs"] += node.logprobs
    step["extra"] |= {"node": node.id, "reward": step["extra"]["reward"] + node.reward, "valid": node.valid}


def _total(steps: Sequence[Fields]) -> Fields:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    turns = [step["metrics"] for step in steps if "metrics" in step]
    return {**{f"total_{name}": sum(turn[name] for turn in turns) for name in names}, "total_steps": len(steps)}

"""A policy that answers from a stored rollout graph, so that the rollout can be replayed without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_hier.errors import RolloutError
from verl_hier.graph.nodes import Node, RolloutGraph
from verl_hier.graph.records import CHOICE
from verl_hier.rollout.policy import Generation, Sampling, Scored


class RecordedPolicy:
    """See `rollout.Policy`. A request is identified by its seed, which is derived from its turn's place in the tree.

    Raises:
        RolloutError: when the graph, or a turn of it, was rolled out without seeds (`hier.seed: null`).
    """

    def __init__(self, graph: RolloutGraph) -> None:
        if graph.seed is None:
            raise RolloutError("the rollout has no seed (`hier.seed: null`), so its requests cannot be identified.")
        self._graph = graph
        self._nodes: dict[int, list[Node]] = {}
        for node in graph.nodes:
            seed = node.decision.get("seed")
            if seed is None:
                raise RolloutError(f"turn {node.id} of the stored rollout has no seed, so it cannot be identified.")
            self._nodes.setdefault(seed, []).append(node)

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`.

        Raises:
            RolloutError: when the stored rollout has no such turn, or one with another prompt.
        """
        nodes = self._nodes.get(-1 if sampling.seed is None else sampling.seed)
        if nodes is None:
            raise RolloutError("the replay asks for a turn that the stored rollout does not have.")
        first, action = nodes[0], _joined(nodes, "action")  # what was cut since is several nodes
        forced = first.decision.get("forced", 0)
        if self._graph.prompt(first.id) + action[:forced] != prompt:
            raise RolloutError(f"the replay reaches turn {first.id} of the stored rollout with another prompt.")
        return Generation(
            token_ids=action[forced:],
            logprobs=_joined(nodes, "logprobs")[forced:],
            stop_reason=first.stop_reason,
            version=(first.policy_version[0], first.policy_version[1]),
            cached_tokens=first.cached_tokens,
            top_logprobs=[[(int(token), p) for token, p in at] for at in _joined(nodes, "top")[forced:]],
            entropy=_joined(nodes, "entropy")[forced:],
        )

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`; knows the tokens that were forced in turns."""
        for nodes in self._nodes.values():
            forced = nodes[0].decision.get("forced", 0)
            if forced and _joined(nodes, "action")[:forced] == tokens and self._graph.prompt(nodes[0].id) == prompt:
                low, high = nodes[0].policy_version
                return Scored(_joined(nodes, "logprobs")[:forced], version=(low, high))
        raise RolloutError("the replay scores tokens that the stored rollout did not.")


def _joined(nodes: list[Node], name: str) -> list[Any]:
    return [item for node in nodes for item in getattr(node, name)]


# What a replay does not repeat: wall time, and what was added after the rollout.
_NOT_REPEATED = ("counts", "seconds", "budget", "phase", "credit", "version")

# What version 1 of the schema did not have, or stored differently for turns of several pieces.
_NOT_IN_VERSION_1 = ("messages", "text")


def differences(stored: RolloutGraph, again: RolloutGraph) -> list[str]:
    """Where two rollouts of one task differ, as `nodes[3].action`; empty when they are the same tree."""
    left, right = stored.to_dict(), again.to_dict()
    for node in (*left["nodes"], *right["nodes"]):
        # It follows from the tokens; earlier versions have stored the server's word.
        node.pop("stop_reason", None)
        node["decision"].pop(CHOICE, None)
    if not any(node.messages for node in stored.nodes):
        for node in (*left["nodes"], *right["nodes"]):
            for name in _NOT_IN_VERSION_1:
                del node[name]
    return [place for name in left if name not in _NOT_REPEATED for place in _compare(left[name], right[name], name)]


def _compare(left: Any, right: Any, where: str) -> list[str]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        keys = [*left, *(key for key in right if key not in left)]
        return [place for key in keys for place in _compare(left.get(key), right.get(key), f"{where}.{key}")]
    if isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return [place for number, (a, b) in pairs for place in _compare(a, b, f"{where}[{number}]")]
    return [] if left == right else [where]

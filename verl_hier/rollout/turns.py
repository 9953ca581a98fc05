"""From what a worker wants to say to a node of the graph: one request, or none when every token is forced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.graph.nodes import Node, RolloutGraph
from verl_hier.rollout.context import Context, ContextMessage
from verl_hier.rollout.interfaces import Generation, Renderer

if TYPE_CHECKING:
    from verl_hier.rollout.episode import Episode


_HALF = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode the first tokens of a character to."""


@dataclass(frozen=True)
class TurnRequest:
    """What a worker says about the turn it wants.

    Attributes:
        context: whose turn it is.
        before: node whose tokens it continues, None in a new context.
        observation: tokens that its prompt adds.
        heard: the same in words.
        segment, plan: see `Node`.
    """

    context: Context
    before: Node | None
    observation: list[int]
    heard: list[ContextMessage]
    segment: int
    plan: Node | None


@dataclass(frozen=True)
class Forced:
    """Tokens that a node begins with although they were not sampled for it, and log p of each; None: ask the server."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None


async def sample_node(
    episode: Episode,
    turn_request: TurnRequest,
    prompt: list[int],
    forced: Forced,
    most: int,
    piece: int | None,
    stop: tuple[str, ...],
) -> tuple[Node, Generation]:
    """The next node of an episode, not yet part of the graph, and what the server answered.

    Args:
        episode: who speaks.
        wish: what for.
        prompt: the exact tokens before the node.
        forced: how it begins.
        most: tokens that its turn may still have.
        piece: tokens that this node may have; when that is fewer and not enough, the node is `partial`.
        stop: strings that end the turn.
    """
    rollout, tip = episode.rollout, episode.tip
    given = len(forced.tokens)
    limit = most if piece is None else min(most, max(piece, given + 1))
    sampling = rollout.sampling(f"{episode.lineage}/{len(episode.path)}", episode.greedy, limit - given, stop)
    read, version = forced.logprobs or [], (0, 0)
    if given and forced.logprobs is None:
        scored = await rollout.score(prompt, forced.tokens)
        read, version = scored.logprobs, scored.version
    if given and (sampling.max_tokens < 1 or _ended(episode, forced.tokens, stop)):
        generation = Generation([], [], version=version)
    else:
        generation = await rollout.generate(prompt + forced.tokens, sampling)
    action = forced.tokens + generation.token_ids
    logprobs = read + generation.logprobs
    decision = {"seed": sampling.seed, "greedy": episode.greedy}
    if given:
        decision["forced"] = given
    if tip is None or tip.episode != episode.id:
        decision |= episode.record.decision
    said = [token for earlier in _unfinished(rollout.graph, tip) for token in earlier.action]
    partial = limit < most and len(action) >= limit and not _ended(episode, action, stop)
    node = Node(
        **_placed(episode, turn_request, tip),
        observation=turn_request.observation,
        action=action,
        logprobs=logprobs if len(logprobs) == len(action) else [],
        partial=partial,
        trained=episode.trained,
        anchor=_anchor(episode),
        text=text_of(rollout.renderer, said, action, partial),
        policy_version=list(generation.version),
        prompt_tokens=len(prompt) if generation.token_ids else 0,
        cached_tokens=generation.cached_tokens,
        stop_reason=generation.stop_reason,
        decision=decision,
    )
    return node, generation


def restored_node(episode: Episode, turn_request: TurnRequest, old: Node) -> Node:
    """The next node of a resumed episode, not yet part of the graph: what an earlier step has sampled.

    Tokens, log-probs, entropies and policy version are the old ones; worker and world say anew what they have to say.

    Args:
        episode: who speaks.
        wish: what for.
        old: the node as it was, see `UnfinishedEpisode`.

    Raises:
        EnvironmentFailure: when the prompt is another one than it was.
    """
    tip, path = episode.tip, episode.path
    before = -1 if turn_request.before is None else path.index(turn_request.before.id)
    if turn_request.observation != old.observation or before != old.context:
        raise EnvironmentFailure("replay_mismatch", "what is asked now is not what the earlier step was asked")
    decision = old.decision if path else old.decision | episode.record.decision
    return replace(
        old,
        **_placed(episode, turn_request, tip),
        reward=0.0,
        done=False,
        truncated=False,
        valid=True,
        anchor=_anchor(episode),
        masks={},
        prompt_tokens=0,
        cached_tokens=0,
        decision=dict(decision),
        extra={},
    )


def _placed(episode: Episode, turn_request: TurnRequest, tip: Node | None) -> dict[str, Any]:
    """Where the next node stands after `tip`, who speaks it, and what was said to them."""
    return {
        "id": len(episode.rollout.graph.nodes),
        "parent": episode.record.leaf,
        "context": _number(turn_request.before),
        "episode": episode.id,
        "agent": turn_request.context.agent,
        "role": turn_request.context.role,
        "level": turn_request.context.level,
        "turn": _turn(tip),
        "segment": turn_request.segment,
        "plan": _number(turn_request.plan),
        "messages": [heard.kept() for heard in turn_request.heard],
    }


def text_of(renderer: Renderer, said: list[int], action: list[int], partial: bool) -> str:
    """What an action adds to the text of its turn, so that the texts of the pieces are the text of the whole.

    Args:
        renderer: decodes.
        said: tokens of the turn's earlier pieces.
        action: the tokens that follow them.
        partial: whether more will follow; half a character at the end is left to what follows.
    """
    before = renderer.decode(said).rstrip(_HALF) if said else ""
    text = renderer.decode(said + action)[len(before) :]
    return text.rstrip(_HALF) if partial else text


def _unfinished(graph: RolloutGraph, tip: Node | None) -> list[Node]:
    """Pieces of the turn that goes on after `tip`."""
    return graph.pieces(tip) if tip is not None and tip.partial else []


def _turn(tip: Node | None) -> int:
    """Number of the turn of the node after `tip`."""
    return 0 if tip is None else tip.turn + (not tip.partial)


def _anchor(episode: Episode) -> str | None:
    """State before the next node; only the first piece of a turn has one."""
    tip = episode.tip
    return None if episode.latest is None or (tip is not None and tip.partial) else episode.latest.anchor


def _ended(episode: Episode, action: list[int], stop: tuple[str, ...]) -> bool:
    """Whether a node that used up its piece ended its turn with the very last token."""
    renderer = episode.rollout.renderer
    return renderer.ends(action) or any(renderer.decode(action).endswith(word) for word in stop)


def _number(node: Node | None) -> int:
    """Its number now; a cut elsewhere in the graph may have changed it while the worker waited."""
    return -1 if node is None else node.id

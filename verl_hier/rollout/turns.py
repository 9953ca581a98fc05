"""From a requested turn to a node of the graph: one request to the policy, or none when all tokens are forced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.graph.nodes import Node
from verl_hier.graph.records import CUT
from verl_hier.rollout.context import Context
from verl_hier.rollout.end_reason import EndReason, EpisodeOver
from verl_hier.rollout.entropy import entropies
from verl_hier.rollout.episode_state import EpisodeState, Forced, TurnRequest
from verl_hier.rollout.off_loop import off_loop
from verl_hier.rollout.policy import Generation, Policy, Renderer, Sampling

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode the first tokens of a character to."""


async def sample_node(episode: EpisodeState, request: TurnRequest, prompt: list[int], most: int) -> Node:
    """Sample the next node of an episode and add it to the graph.

    Args:
        episode: has the permission for the turn.
        request: the turn.
        prompt: the exact tokens before the node.
        most: tokens that the turn may still have. `episode.most_tokens` limits this node of it; when that ends the
            node before the turn is complete, the node is `partial`.

    Raises:
        EpisodeOver: when a limit of the episode is reached, or the policy generates nothing.
    """
    rollout, limits = episode.rollout, episode.rollout.limits
    if episode.next_turn >= limits.max_turns:
        raise EpisodeOver(EndReason.MAX_TURNS)
    forced, episode.forced = episode.forced, Forced()
    given = len(forced.tokens)
    room = limits.context_tokens - len(prompt)
    if room < max(given, 1):
        raise EpisodeOver(EndReason.CONTEXT_TOKENS)
    most = min(room, most)
    limit = most if episode.most_tokens is None else min(most, max(episode.most_tokens, given + 1))
    sampling = _sampling(episode, request.context, len(episode.path), limit - given, request.stop)
    policy, version = rollout.policy(request.context.policy), (0, 0)
    renderer = rollout.setup.renderer_of(request.context.policy)
    logprobs = forced.logprobs or []
    if given and forced.logprobs is None:
        # At the temperature of the turn, as of tokens that are sampled; those of greedy ones are at 1.
        at = sampling.temperature or 1.0
        scored = await policy.score(prompt, forced.tokens, rollout.conversation, temperature=at)
        logprobs, version = scored.logprobs, scored.version
    if given and (sampling.max_tokens < 1 or _ended(renderer, forced.tokens, request)):
        generation = Generation([], [], version=version)
    else:
        # The answer may have been asked for before; the turns that are announced are asked for now.
        asked = episode.ahead.take(request.context.policy, prompt + forced.tokens, sampling)
        await _ask_ahead(episode)
        generation = await (asked or policy.generate(prompt + forced.tokens, sampling, rollout.conversation))
    # Turns of a million tokens happen; their lists are never changed in place, so nothing is copied without need.
    action = forced.tokens + generation.token_ids if given else generation.token_ids
    if not action:
        raise EpisodeOver(EndReason.EMPTY_ACTION)
    last = episode.last_node
    decision: dict[str, Any] = {"seed": sampling.seed, "greedy": episode.greedy}
    if given:
        decision["forced"] = given
    if last is None or last.episode != episode.id:
        decision |= episode.record.decision
    pieces = rollout.graph.pieces(last) if last is not None and last.partial else []
    before = [token for piece in pieces for token in piece.action]
    ended = _ended(renderer, before + action, request)
    partial = limit < most and len(action) >= limit and not ended
    logprobs = logprobs + generation.logprobs if given else generation.logprobs
    text = await off_loop(len(action), text_of, renderer, before, action, partial)
    node = Node(
        **_place(episode, request),
        observation=request.observation,
        action=action,
        logprobs=logprobs if len(logprobs) == len(action) else [],
        partial=partial,
        trained=episode.trained and request.context.policy in rollout.setup.trained,
        anchor=_anchor(episode),
        text=text,
        policy_version=list(generation.version),
        prompt_tokens=len(prompt) if generation.token_ids else 0,
        cached_tokens=generation.cached_tokens,
        stop_reason=_reason(generation.stop_reason, ended or partial),
        decision=decision,
        policy=request.context.policy,
    )
    if generation.counted_tokens is not None:
        node.extra["counted_tokens"] = generation.counted_tokens
    rollout.graph.nodes.append(node)
    if episode.grant is not None:
        episode.grant.spend_turn(len(generation.token_ids))
    await _note_entropy(episode, policy, node, prompt + forced.tokens, generation)
    return node


async def _ask_ahead(episode: EpisodeState) -> None:
    """Send the requests of the announced turns, where nothing limits what each may spend: a budget that episodes share,
    or a sampler that goes on token by token."""
    rollout, limits = episode.rollout, episode.rollout.limits
    expected = episode.ahead.take_expected()
    if rollout.budget.shared or episode.most_tokens is not None:
        return
    for place, turn in enumerate(expected[: limits.max_turns - episode.next_turn - 1], start=len(episode.path) + 1):
        context = turn.context
        prompt, _ = await off_loop(context.pending_characters, context.prompt)
        room = limits.context_tokens - len(prompt)
        if room < 1:
            return
        sampling = _sampling(episode, context, place, min(room, turn.max_tokens), turn.stop)
        request = rollout.policy(context.policy).generate(prompt, sampling, rollout.conversation)
        episode.ahead.begin(context.policy, prompt, sampling, request)


def _sampling(episode: EpisodeState, context: Context, place: int, most: int, stop: tuple[str, ...]) -> Sampling:
    """How to sample the node number `place` of an episode's path."""
    sampling = episode.rollout.sampling(f"{episode.seed_name}/{place}", episode.greedy, most, stop, context.sampling)
    renderer = episode.rollout.setup.renderer_of(context.policy)
    stop_tokens = (*renderer.stop_tokens, *context.stop_tokens)
    return replace(sampling, stop_tokens=stop_tokens) if stop_tokens else sampling


def restored_node(episode: EpisodeState, request: TurnRequest) -> Node:
    """Add the next node that an earlier trainer step sampled for a resumed episode to the graph.

    Tokens, log-probs, entropies and policy version are the old ones; the worker and the environment run again.

    Raises:
        EnvironmentFailure: when the prompt is not what it was in the earlier step.
    """
    old, path = episode.earlier_nodes.popleft(), episode.path
    before = -1 if request.before is None else path.index(request.before.id)
    if request.observation != old.observation or before != old.context:
        raise EnvironmentFailure("replay_mismatch", "the prompt differs from the one of the earlier step")
    node = replace(
        old,
        **_place(episode, request),
        reward=0.0,
        done=False,
        truncated=False,
        valid=True,
        anchor=_anchor(episode),
        masks={},
        prompt_tokens=0,
        cached_tokens=0,
        decision=dict(old.decision if path else old.decision | episode.record.decision),
        extra={},
    )
    episode.rollout.graph.nodes.append(node)
    episode.rollout.count("carried_tokens", len(node.action))
    return node


def text_of(renderer: Renderer, before: list[int], action: list[int], partial: bool) -> str:
    """What an action adds to the text of its turn, so that the texts of the pieces join to the text of the turn.

    Args:
        renderer: decodes.
        before: tokens of the turn's earlier pieces.
        action: the tokens that follow them.
        partial: whether more will follow; an incomplete character at the end is left to what follows.
    """
    earlier = renderer.decode(before).rstrip(_INCOMPLETE) if before else ""
    text = renderer.decode(before + action)[len(earlier) :]
    return text.rstrip(_INCOMPLETE) if partial else text


async def _note_entropy(
    episode: EpisodeState, policy: Policy, node: Node, prompt: list[int], generation: Generation
) -> None:
    """Store the entropies and likeliest tokens of a generation, whose tokens follow those that were forced."""
    rollout = episode.rollout
    forced = len(node.action) - len(generation.token_ids)
    if generation.top_logprobs and rollout.top_logprobs:
        top = [[list(pair) for pair in position[: rollout.top_logprobs]] for position in generation.top_logprobs]
        node.top = [[[token, 0.0]] for token in node.action[:forced]] + top
    if generation.token_ids:
        known = await entropies(rollout.setup.entropy, policy, prompt, generation, rollout.conversation)
        node.entropy = [0.0] * forced + known if len(known) == len(generation.token_ids) else []


def _place(episode: EpisodeState, request: TurnRequest) -> dict[str, Any]:
    """Where the next node of an episode stands in the graph, whose turn it is, and its messages.

    Numbers are read now: a cut elsewhere in the graph may have changed them while the worker waited.
    """
    context = request.context
    return {
        "id": len(episode.rollout.graph.nodes),
        "parent": episode.record.leaf,
        "context": -1 if request.before is None else request.before.id,
        "episode": episode.id,
        "agent": context.agent,
        "role": context.role,
        "level": context.level,
        "turn": episode.next_turn,
        "segment": request.segment,
        "plan": -1 if request.plan is None else request.plan.id,
        "messages": [message.to_message() for message in request.messages],
    }


def _anchor(episode: EpisodeState) -> str | None:
    """State before the next node; only the first piece of a turn has one."""
    last, result = episode.last_node, episode.last_result
    return None if result is None or (last is not None and last.partial) else result.anchor


def _ended(renderer: Renderer, action: list[int], request: TurnRequest) -> bool:
    """Whether the last token of an action has ended its turn."""
    stopped = bool(action) and action[-1] in request.context.stop_tokens
    return stopped or renderer.ends(action, request.stop)


def _reason(said: str | None, whole: bool) -> str | None:
    """Why a node stopped. Servers differ in what they call a cut answer, and some call all of them completed."""
    if whole:
        return "completed" if said in CUT else said
    return said if said in CUT else CUT[0]

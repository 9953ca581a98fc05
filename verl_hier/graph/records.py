"""The records that a rollout graph consists of: messages, nodes and episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 4
FIELDS_SINCE = 3
"""The first schema version with the present fields; what some of them mean has changed since, see `graph.success`."""
CONTINUED = "continued"
"""Role of a message that continues the agent's own; see `Context.extend`."""
RESET = "reset"
"""In the request of a graph: the answer to the reset, of a world whose answers depend on the actions alone."""
ANSWERS = "answers"
"""In the decision of a node, for such a world: what was done after its turn, as pairs of an action and the answer."""
CHOICE = "choice"
"""In the decision of the last turn of an episode: how a search has chosen among the episodes of its task, written when
all of them had ended."""
CUT = ("length", "aborted")
"""Values of `Node.stop_reason` of a turn that was cut."""
Status = Literal["running", "finished", "truncated", "failed", "pruned"]


@dataclass
class Message:
    """One message that a turn's prompt adds.

    Attributes:
        role: chat role: `system`, `user`, `tool`, …; `assistant` for the agent's own text where its context was
            rendered again, `CONTINUED` for text that is inserted into the message that it generated last.
        content: the text, as the worker gave it.
        sources: turns whose text it contains, for instance a planner's in the prompt of an executor; the last piece
            of a turn of several pieces. Empty for text of the environment or the recipe.
    """

    role: str
    content: str
    sources: list[int] = field(default_factory=list)


@dataclass
class Node:
    """One turn: one policy call by one agent.

    Attributes:
        id: position in `RolloutGraph.nodes`.
        parent: turn before it on its path, -1 for a first turn.
        context: turn whose prompt and action this prompt continues, -1 when the context is new.
        episode: the episode that sampled it; forks share it.
        agent, role, level: the agent that took the turn; level 0 is the highest.
        turn: 0-based number of the turn on its path; the pieces of a turn share it.
        segment: running number of the subgoal or plan on the path.
        plan: turn that holds the plan or design above this one, -1 without one.
        observation: token ids that the prompt adds after `context`.
        action: sampled token ids, in the server's order, end token included.
        logprobs: behaviour log p of each action token; empty when the server gives none.
        entropy: estimated entropy of the policy at each action token (nats); empty when the log-probs are all there is.
        top: likeliest [token id, log p] at each action token, likeliest first; only where a sampler asked for them.
        partial: whether the turn goes on in the next node of its path.
        trained: False for turns that only evaluate (greedy execution of a plan) or belong to a frozen role.
        reward, done, truncated, valid: the environment's answer to the action.
        anchor: state before the action, or None; None for all pieces of a turn but the first.
        text: decoded action, as the worker read it; of a piece, what it adds to the text of the pieces before.
        messages: `observation` as text, see `Message`; empty where a prompt adds none, and in graphs that schema
            version 1 wrote.
        masks: name to [start, stop) spans over the action tokens.
        policy_version: lowest and highest weight version that sampled the action.
        prompt_tokens, cached_tokens: length of the prompt, and how much of it the server did not compute again; 0 when
            the server was not asked for this node by itself.
        stop_reason: why the turn stopped, in the server's word. `length` and `aborted` do not depend on the server, but
            say that the turn was cut: its tokens end neither with an end token nor at a stop string. Earlier versions
            have stored the server's word in any case.
        decision: the random or scripted decision that created the turn, for replay.
        extra: columns of workers and environments (numbers or strings).
        policy: name of the policy that generated the turn; `default` where a run trains one policy.
    """

    id: int
    parent: int
    context: int
    episode: int
    agent: str
    role: str
    level: int
    turn: int
    segment: int
    plan: int
    observation: list[int]
    action: list[int]
    logprobs: list[float]
    entropy: list[float] = field(default_factory=list)
    top: list[list[list[Any]]] = field(default_factory=list)
    partial: bool = False
    trained: bool = True
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    valid: bool = True
    anchor: str | None = None
    text: str = ""
    masks: dict[str, list[list[int]]] = field(default_factory=dict)
    policy_version: list[int] = field(default_factory=lambda: [0, 0])
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stop_reason: str | None = None
    decision: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    policy: str = "default"


@dataclass
class EpisodeRecord:
    """One attempt from reset to end: a path through the graph.

    Attributes:
        id: position in `RolloutGraph.episodes`.
        source: episode it was forked from, -1 for a fresh start; it shares the first `shared` turns of it.
        tree: number of the root it grows from, within the task.
        leaf: its last turn, -1 before the first.
        status: `failed` episodes were lost to a fault, `pruned` ones were given up by the sampler.
        ret: sum of the rewards along the path.
        success: whether the task was solved, None when the environment does not say; see `graph.success`.
        trained: False for episodes that only evaluate something, such as a plan; they are no leaves of their own.
        greedy: sampled at temperature 0.
        error: for failed episodes what failed, for truncated and pruned ones the reason; None for finished ones.
        decision: the sampler's decisions about it: why it was created, and `kept: false` where it was not kept.
        reward_info: numbers that verl's reward function reported beside the score, by name.
    """

    id: int
    source: int = -1
    shared: int = 0
    tree: int = 0
    leaf: int = -1
    status: Status = "running"
    ret: float = 0.0
    success: bool | None = None
    trained: bool = True
    greedy: bool = False
    error: str | None = None
    decision: dict[str, Any] = field(default_factory=dict)
    reward_info: dict[str, float] = field(default_factory=dict)

    @property
    def withheld(self) -> bool:
        """Whether it is a complete leaf that the sampler evaluated and did not keep (`Episode.withhold`): its return
        counts for the turns that it shares with kept leaves, and no row trains it."""
        return not self.trained and self.decision.get("kept") is False

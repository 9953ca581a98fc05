"""The state of one episode: its record, what its worker has been answered, and the turn that it waits for."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_hier.environments.base import FINAL_ANSWER, StepResult, last_word
from verl_hier.environments.pool import EnvironmentFailure
from verl_hier.environments.tools import TOOL_REWARDS
from verl_hier.graph.nodes import EpisodeRecord, Node, Status
from verl_hier.graph.success import success_of
from verl_hier.rollout.ahead import Ahead
from verl_hier.rollout.budget import Grant
from verl_hier.rollout.context import Context, ContextMessage
from verl_hier.rollout.end_reason import EndReason, EpisodeOver
from verl_hier.rollout.replay_log import Event, ReplayLog
from verl_hier.rollout.task import EarlierReward, EnvironmentHandle, TaskRollout


@dataclass(frozen=True)
class TurnRequest:
    """A turn that a worker asks for.

    Attributes:
        context: whose turn it is.
        before: node whose tokens the prompt continues, None in a new context.
        observation: token ids that the prompt adds.
        messages: the same as text.
        segment, plan: see `Node`.
        stop: strings that end the turn.
    """

    context: Context
    before: Node | None
    observation: list[int]
    messages: list[ContextMessage]
    segment: int
    plan: Node | None
    stop: tuple[str, ...]


@dataclass(frozen=True)
class Forced:
    """Tokens that a node begins with instead of sampling them, and log p of each; None: the server is asked."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None


class EpisodeState:
    """What the sampler's side (`Episode`) and the worker's side (`EpisodeView`) of an episode have in common.

    Attributes:
        record: what the graph stores of it.
        worker: name of its worker's class, for errors.
        greedy: sample the coming turns at temperature 0.
        trained: whether the coming turns are trained.
        word: the last `info["won"]` of the environment; None while it has said none.
        last_result: the environment's last answer; None before the reset, and in a fork before its first step.
        turn_request: the turn that its worker waits for; None while the worker does not wait.
        finished_by_worker: whether its worker ends the task itself, see `EpisodeView.finish`.
        told_to_end: whether its worker was told by an `EpisodeOver` that the episode is over.
        seed_name: the seeds of its turns are derived from this name.
        worker_seed_name: name of its worker's random generator; a fork has its source's.
        ahead: turns that the policy generates before they are taken.
        waiting: whether its worker waits for the permission to take a turn.
        paused: set while it waits, and when the episode or its worker has ended.
    """

    def __init__(
        self,
        rollout: TaskRollout,
        record: EpisodeRecord,
        worker: str,
        seed_name: str,
        worker_seed_name: str,
        replayed: Sequence[Event] = (),
    ) -> None:
        self.rollout = rollout
        self.record = record
        self.worker = worker
        self.greedy = record.greedy
        self.trained = True
        self.seed_name = seed_name
        self.worker_seed_name = worker_seed_name
        self.events: list[Event] = []
        self.replay_log = ReplayLog(replayed, worker)
        self.earlier_nodes: deque[Node] = deque()
        self.earlier_reset: Mapping[str, Any] | None = None
        self.last_result: StepResult | None = None
        self.word: bool | None = None
        self.handle: EnvironmentHandle | None = None
        self.turn_request: TurnRequest | None = None
        self.told_to_end = False
        self.finished_by_worker = False
        self.forced = Forced()
        self.ahead = Ahead()
        self.grant: Grant | None = None
        self.most_tokens: int | None = None
        self.paused = asyncio.Event()
        self.permits = asyncio.Semaphore(0)

    @property
    def id(self) -> int:
        """Number of the episode within its task."""
        return self.record.id

    @property
    def stand_ins(self) -> dict[str, str]:
        """Roles that take no turn in it, and the text that stands for each of their messages; see `Rollout.start`."""
        return dict(self.record.decision.get("stand_ins", {}))

    @property
    def speakers(self) -> tuple[str, ...]:
        """The role that the sampler wants to speak in each segment; see `EpisodeView.speakers`."""
        return tuple(self.record.decision.get("speakers", ()))

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.record.status != "running"

    @property
    def complete(self) -> bool:
        """Whether it finished or was truncated, so that its return is meaningful."""
        return self.record.status in ("finished", "truncated")

    @property
    def ret(self) -> float:
        """Sum of the rewards on its path so far."""
        return sum(node.reward for node in self.nodes)

    @property
    def path(self) -> list[int]:
        """Its nodes so far, as numbers."""
        return self.rollout.graph.path(self.id)

    @property
    def nodes(self) -> list[Node]:
        """Its nodes so far, first one first; a turn that was sampled in pieces is several nodes."""
        return [self.rollout.graph.nodes[number] for number in self.path]

    @property
    def last_node(self) -> Node | None:
        """Its last node, None before the first; also of an episode that is over."""
        return self.rollout.graph.nodes[self.record.leaf] if self.record.leaf >= 0 else None

    @property
    def next_turn(self) -> int:
        """Number of the turn that its next node belongs to."""
        last = self.last_node
        return 0 if last is None else last.turn + (not last.partial)

    def end(self, status: Status, reason: EndReason | str | None) -> None:
        """Write the end into the record."""
        record = self.record
        record.status, record.ret = status, self.ret
        if self.complete:
            own = self.finished_by_worker and status == "finished"
            record.success = None if own else self._success()
            if record.success and self.last_result is not None and "used_tool" in self.last_result.info:
                used = self.last_result.info["used_tool"]
                self.rollout.count("solved_with_tool" if used else "solved_without_tool")
            last = self.last_node
            if own and last is not None:
                last.done = True
            if status == "truncated" and last is not None and reason is not None:
                last.truncated = last.truncated or not last.done
        record.error = reason.value if isinstance(reason, EndReason) else reason
        self.ahead.give_up()
        if self.ahead.unused:
            self.rollout.count("unused_ahead", self.ahead.unused)
        self.paused.set()

    def _success(self) -> bool | None:
        says_won = self.rollout.setup.says_won
        if self.word is None and says_won is None:
            self.rollout.without_word.append(self.record)
        return success_of(self.word, says_won)

    def fail(self, error: EnvironmentFailure) -> EpisodeOver:
        """End it as lost to its environment; returns what to raise in the worker."""
        self.rollout.count(f"failed_{error.kind}")
        self.end("failed", str(error))
        self.rollout.setup.on_lost(self.record)
        return EpisodeOver("environment")

    def hear(self, step: StepResult) -> None:
        """Take an answer of the environment in: the last one, and its word on the outcome."""
        self.last_result = step
        self.word = last_word(self.word, step)

    def credit(self, step: StepResult, writer: Node) -> None:
        """Write the environment's answer to an action into the graph.

        The end of the episode is noted on its last turn, reward and validity on the turn that wrote the action, and
        rewards for other agents on their last turns.

        A turn that other episodes share too cannot take a reward of this one alone: such a reward stays with the turn
        that it was given after, as the rewards do of agents that have not taken a turn (counted as
        `rewards_without_turn`). The return of the episode is the same in all cases. That an action was not understood
        is true of a turn in every episode that shares it.

        Args:
            step: the answer.
            writer: the turn.
        """
        node = self.last_node
        assert node is not None, "a turn of the path has written the action"
        node.done, node.truncated = step.done, step.truncated
        writer.valid = writer.valid and step.valid
        shared = self._shared() if step.rewards or writer is not node else set[int]()
        paid = node if writer.id in shared else writer
        if TOOL_REWARDS in step.info:
            paid.extra[TOOL_REWARDS] = json.dumps(step.info[TOOL_REWARDS])
        if FINAL_ANSWER in step.info:
            node.extra[FINAL_ANSWER] = str(step.info[FINAL_ANSWER])
        self._reward(node, paid, step.reward)
        last_turns = {each.agent: each for each in self.nodes} if step.rewards else {}
        for agent, amount in (step.rewards or {}).items():
            turn = last_turns.get(agent)
            if turn is None:
                self.rollout.count("rewards_without_turn")
            self._reward(node, node if turn is None or turn.id in shared else turn, amount)

    def pay(self, node: Node, amount: float) -> None:
        """Reward an earlier turn for what became clear after the last one; see `credit`."""
        last = self.last_node
        if last is not None:
            self._reward(last, last if node.id in self._shared() else node, amount)

    def _shared(self) -> set[int]:
        """The nodes that other episodes have on their paths."""
        graph = self.rollout.graph
        return {number for other in graph.episodes if other.id != self.id for number in graph.path(other.id)}

    def _reward(self, given: Node, credited: Node, amount: float) -> None:
        """Credit a reward that was given after one turn to another one, or to itself."""
        credited.reward += amount
        if credited is not given:
            self.rollout.earlier_rewards.append(EarlierReward(given, credited, amount))

    def keep_rewards_after(self, shared: set[int]) -> None:
        """Move rewards that were given after the `shared` nodes of a new fork from these to the turns after which they
        were given, so that the fork does not begin with rewards of what only its source did."""
        moved = [r for r in self.rollout.earlier_rewards if r.credited.id in shared and r.given.id not in shared]
        for reward in moved:
            reward.credited.reward -= reward.amount
            reward.given.reward += reward.amount
            self.rollout.earlier_rewards.remove(reward)

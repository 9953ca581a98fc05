"""Episodes of a planner and an executor, told as delegation: what a small model learns the tags from."""

from __future__ import annotations

import re

from verl_hier.rollout.transcript import Transcript, TranscriptTurn
from verl_hier_plugins.workers.delegation.options import ANSWER, RESULT, DelegationOptions
from verl_hier_plugins.workers.delegation.worker import may


def transcribe(options: DelegationOptions, transcript: Transcript) -> list[str]:
    """What the policy would say here to do what another worker's episode did.

    A blueprint becomes one task a subgoal, for the first agent that may take its actions; the episode of a single
    agent becomes tasks of one agent each, in runs of actions that one agent may take, each named by its first action.
    An action that the planner makes itself (`answer_action`) is told as its answer.

    Raises:
        ValueError: `too_many_tasks`, or `no_agent` when an action is nobody's.
    """
    goals = _goals(transcript)
    told: list[str] = []
    open_agent, open_segment, tasks = "", -1, 0
    for said in transcript.turns:
        for call in said.calls:
            answer = _answer(options, call.action)
            if answer is not None:
                told += _close(open_agent)
                return [*told, f"<{ANSWER}>{answer}</{ANSWER}>"]
            agent = next((name for name, one in options.agents.items() if may(one, call.action)), None)
            if agent is None:
                raise ValueError("no_agent")
            if agent != open_agent or _segment(said, goals) != open_segment:
                told += _close(open_agent)
                tasks += 1
                if tasks > options.max_tasks:
                    raise ValueError("too_many_tasks")
                open_agent, open_segment = agent, _segment(said, goals)
                told.append(f"<{agent}>{goals[open_segment] if goals else call.action}</{agent}>")
            told.append(call.action)
    return told


def _goals(transcript: Transcript) -> list[str]:
    """Subgoals of the first turn of a planner; none in the episode of a single agent."""
    for said in transcript.turns:
        if said.node.level == 0 and not said.calls:
            return [part.strip() for part in re.split(r"[;\n]", said.text) if part.strip()]
    return []


def _segment(said: TranscriptTurn, goals: list[str]) -> int:
    return min(said.node.segment, len(goals) - 1) if goals else 0


def _close(agent: str) -> list[str]:
    """An agent reports before the next task."""
    return [f"<{RESULT}>done</{RESULT}>"] if agent else []


def _answer(options: DelegationOptions, action: str) -> str | None:
    if options.answer_action is None:
        return None
    start, _, end = options.answer_action.partition("{content}")
    if action.startswith(start) and action.endswith(end) and len(action) >= len(start) + len(end):
        return action[len(start) : len(action) - len(end)].strip()
    return None

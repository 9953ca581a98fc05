"""Episodes of a planner and an executor, transcribed as delegation: a small model learns the tags from them."""

from __future__ import annotations

import re

from verl_hier.rollout.transcript import Transcript, TranscriptTurn
from verl_hier_plugins.workers.delegation.options import ANSWER, RESULT, DelegationOptions
from verl_hier_plugins.workers.delegation.worker import may


def transcribe(options: DelegationOptions, transcript: Transcript) -> list[str]:
    """The turns with which the policy would do here what another worker's episode did.

    Each subgoal of a blueprint becomes a task of the first agent that may take its actions. The episode of a single
    agent is cut into runs of actions that one agent may take; each run becomes a task, named by its first action. An
    action that matches `answer_action` becomes the planner's answer.

    Raises:
        ValueError: `too_many_tasks`, or `no_agent` when no agent may take an action.
    """
    goals = _goals(transcript)
    texts: list[str] = []
    open_agent, open_segment, tasks = "", -1, 0
    for turn in transcript.turns:
        for call in turn.calls:
            answer = _answer(options, call.action)
            if answer is not None:
                texts += _close(open_agent)
                return [*texts, f"<{ANSWER}>{answer}</{ANSWER}>"]
            agent = next((name for name, one in options.agents.items() if may(one, call.action)), None)
            if agent is None:
                raise ValueError("no_agent")
            if agent != open_agent or _segment(turn, goals) != open_segment:
                texts += _close(open_agent)
                tasks += 1
                if tasks > options.max_tasks:
                    raise ValueError("too_many_tasks")
                open_agent, open_segment = agent, _segment(turn, goals)
                texts.append(f"<{agent}>{goals[open_segment] if goals else call.action}</{agent}>")
            texts.append(call.action)
    return texts


def _goals(transcript: Transcript) -> list[str]:
    """Subgoals of a planner's first turn; none in the episode of a single agent."""
    for turn in transcript.turns:
        if turn.node.level == 0 and not turn.calls:
            return [part.strip() for part in re.split(r"[;\n]", turn.text) if part.strip()]
    return []


def _segment(turn: TranscriptTurn, goals: list[str]) -> int:
    return min(turn.node.segment, len(goals) - 1) if goals else 0


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

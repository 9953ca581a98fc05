"""Episodes of other workers as episodes of planner and agents, for cold starts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from verl_hier.rollout.prompts import content_of
from verl_hier.rollout.transcript import EnvironmentCall, Transcript
from verl_hier_plugins.workers.delegation.options import ANSWER, RESULT, DelegationOptions

DONE, NOTHING = "done", "nothing"
"""Reports of transcribed episodes where there is nothing else to say."""
_MARKER = re.compile(r"</?\w{1,64}>")
_WORD = re.compile(r"\w+")


def transcribe(options: DelegationOptions, transcript: Transcript) -> list[str]:
    """The turns with which the policy would do here what another worker's episode did.

    Actions of one subgoal that one agent may take become a task of that agent, which the planner names by the subgoal.
    Where the planner has to answer (`answer_action`), or where there are no subgoals, it names a task by its first
    action. A report says `done`; where the planner has to answer, it says what the next step takes from the agent's
    last observation.

    An agent that always works alone takes all actions itself, and its result is the answer.

    Raises:
        ValueError: `no_agent` when no agent may take an action; `too_many_tasks` or `too_many_turns` beyond the limits.
    """
    if options.alone_when == "always":
        return _alone(options, transcript)
    goals = transcript.subgoals if options.answer_action is None else []
    texts: list[str] = []
    now, last, tasks, spent = ("", -1), None, 0, 0
    for segment, call in [(turn.node.segment, call) for turn in transcript.turns for call in turn.calls]:
        answer = content_of(options.answer_action, call.action)
        agent = ANSWER if answer is not None else _agent_for(options, call.action)
        if now != (agent, segment):
            if last is not None:
                found = DONE if options.answer_action is None else found_for(transcript, last, call.action)
                # An agent whose turns are used up is not asked for a report.
                texts += [f"<{RESULT}>{found}</{RESULT}>"] if spent < options.agents[now[0]].turns else []
                texts += [found] if options.refine else []
            if answer is not None:
                return [*texts, f"<{ANSWER}>{answer}</{ANSWER}>"]
            now, tasks, spent = (agent, segment), tasks + 1, 0
            if tasks > options.max_tasks:
                raise ValueError("too_many_tasks")
            asked = asked_of(options.agents[agent].actions, call.action)
            task = goals[min(segment, len(goals) - 1)] if goals else asked
            texts.append(f"<{agent}>{task}</{agent}>")
        last, spent = call, spent + 1
        if spent > options.agents[agent].turns:
            raise ValueError("too_many_turns")
        texts.append(call.action)
    return texts


def _alone(options: DelegationOptions, transcript: Transcript) -> list[str]:
    """The turns of an agent that is given the question itself."""
    agent = options.agents[options.alone_for(transcript.instruction)]
    texts: list[str] = []
    for action in (call.action for turn in transcript.turns for call in turn.calls):
        answer = content_of(options.answer_action, action)
        if answer is None and not agent.may(action):
            raise ValueError("no_agent")
        texts.append(action if answer is None else f"<{RESULT}>{answer}</{RESULT}>")
        if len(texts) > agent.turns:
            raise ValueError("too_many_turns")
        if answer is not None:
            break
    return texts


def _agent_for(options: DelegationOptions, action: str) -> str:
    """The first agent that may take an action."""
    agent = next((name for name, one in options.agents.items() if one.may(action)), None)
    if agent is None:
        raise ValueError("no_agent")
    return agent


def asked_of(starts: Iterable[str], action: str) -> str:
    """What an action asks for: its text without the longest of these beginnings that it has, and without tags."""
    start = max((start for start in starts if action.startswith(start)), key=len, default="")
    return _MARKER.sub("", action[len(start) :]).strip() or action


def found_for(transcript: Transcript, last: EnvironmentCall, following: str) -> str:
    """What the step that follows takes from the last observation: its words there, new ones if there are any."""
    seen, asked = _WORD.findall(last.step.text), _WORD.findall(last.action)
    taken = [word for word in _WORD.findall(following) if word in seen and word not in asked]
    known = _WORD.findall(transcript.instruction)
    return " ".join([word for word in taken if word not in known] or taken) or NOTHING

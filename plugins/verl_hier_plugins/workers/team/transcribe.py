"""Episodes of other workers as episodes of a lead and its agents, for cold starts."""

from __future__ import annotations

from verl_hier.rollout.prompts import content_of
from verl_hier.rollout.transcript import Transcript
from verl_hier_plugins.workers.delegation.transcribe import asked_of, found_for
from verl_hier_plugins.workers.team.options import RoleOptions, TeamOptions
from verl_hier_plugins.workers.team.order import ANSWER


def transcribe(options: TeamOptions, transcript: Transcript) -> list[str]:
    """The turns with which the policy would do here what another worker's episode did.

    The actions of one subgoal become a task of the first agent that may take them, which the lead names by what its
    first action asks for. A report says what the next step takes from the agent's last observation. Each task stands
    in a turn of its own, because it may depend on the report before it.

    Raises:
        ValueError: `no_agent` for an action that no agent may take and that is no answer; `too_many_tasks` or
            `too_many_turns` beyond the limits; `no_answer` without one.
    """
    agents = {name: options.roles[name] for name in options.order.names[1:]}
    texts: list[str] = []
    now, last, tasks, spent = ("", -1), None, 0, 0
    for segment, call in [(turn.node.segment, call) for turn in transcript.turns for call in turn.calls]:
        agent = next((name for name, role in agents.items() if _may(role, call.action)), ANSWER)
        if now != (agent, segment):
            if last is not None and spent < agents[now[0]].turns:
                texts += _report(agents[now[0]], found_for(transcript, last, call.action))
            if agent == ANSWER:
                return [*texts, f"<{ANSWER}>{_answer(options, call.action)}</{ANSWER}>"]
            now, tasks, spent = (agent, segment), tasks + 1, 0
            if tasks >= (options.topology.rounds or 10):
                raise ValueError("too_many_tasks")
            texts.append(f"<{agent}>{asked_of(agents[agent].actions, call.action)}</{agent}>")
        last, spent = call, spent + 1
        if spent > agents[agent].turns:
            raise ValueError("too_many_turns")
        texts.append(_said(agents[agent], call.action))
    raise ValueError("no_answer")


def _may(role: RoleOptions, action: str) -> bool:
    content = content_of(role.action, action)
    return content is not None and bool(role.actions) and role.may(content)


def _said(role: RoleOptions, action: str) -> str:
    """The turn that takes an action."""
    content, tag = content_of(role.action, action), role.action_tag
    return f"<{tag}>{content}</{tag}>" if tag else str(content)


def _report(role: RoleOptions, found: str) -> list[str]:
    tag = role.message_tag
    return [f"<{tag}>{found}</{tag}>"] if tag else []


def _answer(options: TeamOptions, action: str) -> str:
    answer = content_of(options.answer_action, action)
    if answer is None:
        raise ValueError("no_agent")
    return answer

"""Three threads of other trainers as small cases, ours beside theirs, through a whole training step."""

from __future__ import annotations

import numpy as np
import pytest

from verl_hier.graph import EpisodeRecord, Node, RolloutGraph
from verl_hier.testing.builtin import estimator
from verl_hier.training.options import GuardOptions

from .test_step import run

SPEC = estimator("sub_agents")


def episodes(*conversations, returns):
    """A graph of one task: each episode is its conversations as (role, tokens), one turn and one context each."""
    graph = RolloutGraph(task={"uid": "u"})
    for number, (talks, value) in enumerate(zip(conversations, returns, strict=True)):
        for turn, (role, tokens) in enumerate(talks):
            last = turn == len(talks) - 1
            graph.nodes.append(
                Node(
                    id=len(graph.nodes), parent=len(graph.nodes) - 1 if turn else -1, context=-1, episode=number,
                    agent=f"{role} {turn}" if role == "helper" else role, role=role, level=int(role == "helper"),
                    turn=turn, segment=0, plan=-1, observation=[1, 2], action=[3] * tokens, logprobs=[-1.0] * tokens,
                    reward=value if last else 0.0, done=last,
                )
            )  # fmt: skip
        graph.episodes.append(
            EpisodeRecord(number, tree=number, leaf=len(graph.nodes) - 1, status="finished", ret=value)
        )
    graph.check()
    return graph


def loss_of(graph, guards=None, **options):
    """Rows of (credit, weights) by token, as verl gets them."""
    chosen = SPEC.options(scale="none", **options)
    _, rows, fields, _ = run(graph, SPEC, guards=guards, options=chosen)
    ones = [np.ones(len(row.response)) for row in rows]
    return [(fields["advantages"][i], fields.get("rollout_is_weights", ones)[i], np.array(row.mask) > 0)
            for i, row in enumerate(rows)]  # fmt: skip


def credit_of_rows(rows):
    """The credit of each row, on its trained tokens."""
    found = [set(np.round(credit[mask], 9).tolist()) for credit, _, mask in rows]
    assert all(len(each) == 1 for each in found)
    return [each.pop() for each in found]


def test_wrong_baseline():
    """slime#2302 (2062, 2300, 2301): a right rollout of three samples and a wrong one of one.

    Samples that vote have the baseline 3/4; the thread asks for (.5, .5, .5, -.5).
    """
    graph = episodes([("lead", 3), ("helper", 2), ("lead", 1)], [("lead", 4)], returns=[1.0, 0.0])
    assert credit_of_rows(loss_of(graph, practice="broadcast", conversation="row")) == [0.25, 0.25, 0.25, -0.75]
    for practice in ("by_role", "inherit"):
        assert credit_of_rows(loss_of(graph, practice=practice)) == [0.5, 0.5, 0.5, -0.5]


def test_wrong_weight():
    """uni-agent#185, agent-lightning#593, verl#7580: a session of one row and one of three.

    A mean over rows gives the second session three times the weight, and weights of 1/3 under the same divisor
    leave the whole at 2/4 of what it is with one row each; the threads ask that each session has one half.
    """
    graph = episodes([("lead", 6)], [("lead", 2), ("helper", 2), ("lead", 2)], returns=[1.0, 0.0])

    def parts(weight_by):
        rows = loss_of(graph, guards=GuardOptions(weight_by=weight_by))
        per_row = [weight[mask].sum() for _, weight, mask in rows]
        return np.array([per_row[0], sum(per_row[1:])]) / 12  # verl divides by the trained tokens

    assert parts("row") == pytest.approx([1 / 4, 3 / 4])
    assert parts("episode") == pytest.approx([1 / 2, 1 / 2])
    for more in (1, 7):  # whatever the number of rows, the sessions weigh the same and make one whole
        talks = [("lead", 2), *[("helper", 3)] * more, ("lead", 2)]
        graph = episodes([("lead", 6)], talks, returns=[1.0, 0.0])
        rows = loss_of(graph)
        assert sum(weight[mask].sum() for _, weight, mask in rows[1:]) == pytest.approx((10 + 3 * more) / 2)


def test_lost_context():
    """uni-agent keeps the context with most generated tokens (`trajectory_selection: longest`), here the helper's.

    The lead, which chose to spawn it and which a compaction has cut into two contexts, then learns nothing.
    """
    talks = [("lead", 3), ("helper", 9), ("lead", 4)]
    graph = episodes(talks, talks, returns=[1.0, 0.0])
    longest = loss_of(graph, practice="longest", conversation="row")
    assert [bool((credit * weight).any()) for credit, weight, _ in longest] == [False, True, False] * 2
    assert credit_of_rows(loss_of(graph)) == [0.5, 0.5, 0.5, -0.5, -0.5, -0.5]

"""Rows and tokens that verl's rollout correction rejects: neither compared nor weighed, by any estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import verl.trainer.ppo.v1  # noqa: F401  - our trainers register themselves when verl is asked for its own
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import TensorDict

from tests.fixtures.light import sent
from verl_hier.compat.corrections import rollout_correction
from verl_hier.credit import Credit
from verl_hier.graph import EpisodeRecord, Message, Node, RolloutGraph
from verl_hier.host.manager import PluginHost
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.testing import builtin_estimators
from verl_hier.testing.builtin import estimator
from verl_hier.training.options import GuardOptions
from verl_hier.training.step import CORRECTED_MASK, TrainingStep, train_step
from verl_hier_plugins.schedules.joint import Joint, JointOptions

Episodes = list[tuple[float, list[int]]]
"""Of each episode its return, and the tokens of each of its rows."""
NAMES = ("response_mask", "old_log_probs", "rollout_log_probs")


def graph_of(episodes: Episodes) -> RolloutGraph:
    graph = RolloutGraph(task={"uid": "u", "index": 0})
    for number, (ret, lengths) in enumerate(episodes):
        record = EpisodeRecord(number, tree=number, status="finished", ret=ret)
        for turn, length in enumerate(lengths):
            node = Node(
                len(graph.nodes), record.leaf, -1, number, "agent", "agent", 0, turn, 0, -1,
                [1, 2], [3] * length, [-1.0] * length, messages=[Message("user", "x")], prompt_tokens=2,
                anchor=f"state {turn}",
            )  # fmt: skip
            node.reward = ret if turn == len(lengths) - 1 else 0.0
            graph.nodes.append(node)
            record.leaf = node.id
        graph.episodes.append(record)
    return graph


def trained(
    episodes: Episodes, spec: EstimatorSpec, corrected: list[np.ndarray] | None, options: Any = None
) -> tuple[TrainingStep, dict[str, list[np.ndarray]]]:
    light, keys, rows = sent([graph_of(episodes)])
    step = TrainingStep(light, keys)
    columns = {"response_mask": [np.array(row.mask, float) for _, row in rows]}
    columns |= {name: [np.array(row.logprobs) for _, row in rows] for name in NAMES[1:]}
    if corrected is not None:
        columns[CORRECTED_MASK] = corrected
    fields = train_step(
        step, keys=keys, columns=columns, host=PluginHost([]), estimator=Part(spec, options or spec.options()),
        guards=GuardOptions(), schedule=Joint(JointOptions()), number=1, metrics={},
    )  # fmt: skip
    return step, fields


def verls_correction(differences: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
    """The mask that verl's own correction leaves of rows whose log-probs differ so much."""
    nested = torch.nested.as_nested_tensor
    data = TensorDict(
        {
            "response_mask": nested([torch.ones(len(row)) for row in differences], layout=torch.jagged),
            "old_log_probs": nested([torch.full((len(row),), -1.0) for row in differences], layout=torch.jagged),
            "rollout_log_probs": nested(
                [torch.as_tensor(-1.0 - row, dtype=torch.float32) for row in differences], layout=torch.jagged
            ),
        },
        batch_size=len(differences),
    )
    fields = rollout_correction(OmegaConf.create({"rollout_correction": config}), data, {})
    return [row.numpy() for row in fields["response_mask"].unbind()]


ROWS = {"bypass_mode": False, "rollout_is": None, "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.5_2.0"}


def test_a_winner_that_is_rejected_has_no_vote() -> None:
    episodes: Episodes = [(1.0, [5]), (0.0, [5]), (0.0, [7]), (0.0, [3])]
    corrected = verls_correction([np.full(5, 3.0), np.zeros(5), np.zeros(7), np.zeros(3)], ROWS)
    assert [row.sum() for row in corrected] == [0, 5, 7, 3]
    _, fields = trained(episodes, estimator("grpo"), corrected)
    assert not any(row.any() for row in fields["advantages"])
    _, before = trained(episodes, estimator("grpo"), None)
    assert before["advantages"][1][0] < 0


def compared() -> list[str]:
    """The built-in estimators that have all that they need in these graphs."""
    light, keys, _ = sent([graph_of([(1.0, [5]), (0.0, [4])])])
    known = set(TrainingStep(light, keys).ledger.table.columns())
    specs = builtin_estimators()
    return sorted(name for name, spec in specs.items() if not spec.native and known.issuperset(spec.requires))


ROLES_OF_ITS_OWN = "cory"
COUNT_ALL_TURNS = ("mars", "spo", "treeps_rag")
"""These count every turn of the table, also those that are not trained."""
COMPARED = [name for name in compared() if name != ROLES_OF_ITS_OWN]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([name for name in COMPARED if name not in COUNT_ALL_TURNS]))
def test_a_step_with_rejected_episodes_is_the_step_without_them(data: st.DataObject, name: str) -> None:
    lengths = st.lists(st.integers(1, 12), min_size=1, max_size=3)
    episodes = data.draw(
        st.lists(st.tuples(st.sampled_from([-2.0, 0.0, 0.5, 1.0, 7.0]), lengths), min_size=3, max_size=6)
    )
    gone = data.draw(st.sets(st.integers(0, len(episodes) - 1), min_size=1, max_size=len(episodes) - 2))
    corrected = [
        np.zeros(length) if number in gone else np.ones(length)
        for number, (_, rows) in enumerate(episodes)
        for length in rows
    ]
    kept = [episode for number, episode in enumerate(episodes) if number not in gone]
    _, with_them = trained(episodes, estimator(name), corrected)
    _, without = trained(kept, estimator(name), None)
    left = [place for place, row in enumerate(corrected) if row.any()]
    for field in ("advantages", "rollout_is_weights"):
        assert (field in with_them) == (field in without)
        for place, row in enumerate(with_them.get(field, ())):
            assert place in left or not row.any()
        for place, expected in zip(left, without.get(field, ()), strict=field in without):
            np.testing.assert_allclose(with_them[field][place], expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_weights_make_up_for_rejected_tokens(data: st.DataObject, tokens: bool) -> None:
    """The units that are left have equal parts, and together as many as there are tokens by which verl divides,
    whether or not the estimator leaves tokens out by itself."""
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
    corrected = [
        np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0, 1.0]), min_size=size, max_size=size))) for size in sizes
    ]

    def ones(table: Any, options: NoOptions) -> Credit:
        count = int(np.sum(table["n_tokens"]))
        return Credit(np.ones(len(table)), tokens=np.ones(count, bool) if tokens else None)

    episodes: Episodes = [(1.0, [size]) for size in sizes]
    step, fields = trained(episodes, EstimatorSpec("ones", ones, NoOptions), corrected)
    left = [row for row in corrected if row.any()]
    total = sum(row.sum() for row in left)
    parts = [weights.sum() for weights in fields["rollout_is_weights"]]
    for row, weights, part in zip(corrected, fields["rollout_is_weights"], parts, strict=True):
        assert not weights[row == 0].any()
        assert part == pytest.approx(total / len(left) if row.any() else 0.0)
    stored = step.credit["u"]["weight"]
    assert [bool(weight) for weight in stored] == [bool(row.any()) for row in corrected]


def test_one_row_of_an_episode_does_not_take_its_vote() -> None:
    episodes: Episodes = [(1.0, [5, 4]), (0.0, [5])]
    _, fields = trained(episodes, estimator("grpo"), [np.zeros(5), np.ones(4), np.ones(5)])
    assert not fields["advantages"][0].any() and fields["advantages"][1][0] > 0 > fields["advantages"][2][0]


@pytest.mark.parametrize("name", COMPARED)
def test_a_step_whose_rows_are_all_rejected_trains_nothing(name: str) -> None:
    _, fields = trained([(1.0, [5]), (0.0, [4])], estimator(name), [np.zeros(5), np.zeros(4)])
    assert all(np.isfinite(row).all() and not row.any() for field in fields.values() for row in field)

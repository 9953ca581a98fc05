"""The runner of recorded cases, and the cases that come with the package."""

import json
import re

import numpy as np
import pytest

from tests.conformance.adapters import ADAPTERS
from tests.conformance.loops import LOOPS, at_node, cases_of
from tests.conformance.runner import CASES, Result, compare, run_file, run_folder, run_loop
from verl_hier.errors import HierError


def test_every_fixture_passes():
    results = run_folder()
    assert [str(result) for result in results if not result.ok] == []
    assert {result.status for result in results} == {"passed"}
    assert {result.file for result in results} == {path.name for path in CASES.glob("*.json")}


def fixture(path, **changes):
    case = {
        "input": {
            "score": [1.0, 0.0], "index": ["a", "a"], "response_mask": [[1, 1], [1, 0]],
            "norm_by_std": True, "epsilon": 1e-6,
        },
        "output": {"adv": [[0.70710578, 0.70710578], [-0.70710578, 0.0]]},
    }  # fmt: skip
    path.write_text(json.dumps({"method": "grpo", "source": "", "cases": [case], **changes}))
    return path


def test_a_case_passes_and_a_wrong_one_says_where(tmp_path):
    path = fixture(tmp_path / "grpo.json")
    assert run_file(path) == [Result("grpo.json", "grpo", 0, "passed")]
    data = json.loads(path.read_text())
    data["cases"][0]["output"] = {"adv": [[0.7, 0.70710578], [-0.70710578, 0.0]], "more": 1}
    path.write_text(json.dumps(data))
    (result,) = run_file(path)
    assert not result.ok and "1 of 4 differ at [0, 0]: computed 0.707106, expected 0.7" in result.detail
    assert "more: not computed" in str(result)
    data["cases"][0]["input"].pop("score")
    path.write_text(json.dumps(data))
    assert "KeyError" in run_file(path)[0].detail


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [("n_tokens", [0, 2**31], "TimeoutError|MemoryError"), ("parent", [1, 0], "TimeoutError|MemoryError")],
)
def test_a_case_that_would_never_end_fails(tmp_path, name, values, said):
    data = json.loads((CASES / "at2po.json").read_text())
    data["cases"] = data["cases"][:1]
    given = data["cases"][0]["input"][name]
    given[: len(values)] = values
    (tmp_path / "case.json").write_text(json.dumps(data))
    (result,) = run_file(tmp_path / "case.json")
    assert not result.ok and re.search(said, result.detail)


def test_unknown_methods_and_samplers(tmp_path):
    (result,) = run_file(fixture(tmp_path / "x.json", method="nobody"))
    assert not result.ok and "no adapter" in result.detail
    path = fixture(tmp_path / "arpo_rollout.json", method="arpo_rollout")
    (result,) = run_file(path)
    assert not result.ok and "KeyError" in result.detail


def test_bad_folders_and_files(tmp_path):
    with pytest.raises(HierError, match="no fixture files"):
        run_folder(tmp_path)
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(HierError, match="not a conformance fixture"):
        run_folder(tmp_path)


def test_comparison_of_nested_values():
    assert compare({"a": [1.0, 2.0]}, {"a": [1.0, 2.00001]}) is None
    assert "keys differ" in compare({"a": 1}, {"b": 1})
    assert "[a]" in compare({"a": [1.0]}, {"a": [2.0]})
    assert compare([["x", 1.0]], [["x", 1.0]]) is None
    assert "differ" in compare([["x", 1.0]], [["y", 1.0]])
    assert compare([[1.0], [1.0, 2.0]], [[1.0], [1.0, 2.0]]) is None
    assert "2 entries" in compare([[1.0], [1.0, 2.0]], [[1.0], [1.0, 2.0], [1.0]])
    assert "shape" in compare([1.0], [1.0, 2.0])


def test_modes_that_no_recorded_case_has():
    """What the released functions give for inputs so small that it can be read off their definition."""
    rows = {"env_idx": [0] * 4, "turn_idx": [0, 0, 1, 1], "agent_idx": [0, 1, 0, 1], "reward": [5.0, 7.0, 1.0, 0.0]}
    found = ADAPTERS["at_grpo"]({**rows, "sample_num": 1, "rollout_mode": "no_tree"})
    assert found["kept_rows"].tolist() == [2, 3] and found["group"].tolist() == [0, 0]
    assert found["grpo_adv"].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)
    for used, correct, total in ((True, True, 2), (False, True, 1), (True, False, 0)):
        assert ADAPTERS["arise"]({"skill_used": used, "correct": correct})["out"] == total
    tokens = {"token_level_rewards": [[0.0, 1.0], [0.0, 0.0]], "response_mask": [[1, 1], [1, 1]], "index": ["a", "a"]}
    assert ADAPTERS["igpo"](tokens)["advantages"].tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    game = {
        "turn_rewards": [[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]],
        "turn_end": [[0, 0, 1], [0, 0, 1]],
        "response_mask": [[0, 1, 1], [0, 1, 1]],
        "group_ids": ["g0_p0", "g1_p0"],
        "tags": ["chess", "go"],
        "reward_norm": "mean",
        "separate_players": True,
        "whiten_rewards": False,
        "whiten_advantages": False,
        "advantage_norm": None,
        "gamma": 0.5,
    }
    assert not ADAPTERS["mars"](game)["advantages"].any(), "each game has one turn, which is its own mean"
    together = ADAPTERS["mars"]({**game, "tags": None})
    assert together["advantages"].tolist() == [[-0.5, -1.0], [0.5, 1.0]]


def test_matpo_with_a_fixed_divisor():
    case = json.loads((CASES / "matpo.json").read_text())["cases"][0]["input"]
    losses, mask = np.asarray(case["loss_matrix"]), np.asarray(case["response_mask"])
    found = ADAPTERS["matpo"]({**case, "loss_agg_mode": "seq-mean-token-sum-norm"})["loss"]
    assert found == pytest.approx((losses * mask).sum() / mask.shape[1])


REMOVED = {
    "igpo_optimiser_steps": "hier.update.mini_batch.rows=null",
    "igpo_trainer_mask": "hier.estimator.form=discounted",
    "treerl_loss_aggregation": "hier.guards.weight_by=token",
    "mars_loss_aggregation": "hier.guards.weight_by=token",
    "metaagentx_group_mode": "hier.estimator.executor_group=question",
    "metaagentx_optimiser_steps": "hier.schedule.inactive_weight=0.0002",
    "marft_action_ratio": "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla",
    "at_grpo_what_the_second_agent_reads": "hier.worker.topology.reads=in_turn",
}
"""A line of the recipe that is changed back, by the file whose cases then fail."""


@pytest.mark.parametrize("name", REMOVED)
def test_a_case_asks_the_recipe(name):
    (loop,) = LOOPS[name]
    case, *_ = cases_of(json.loads((CASES / f"{name}.json").read_text()))
    assert run_loop(name, 0, case, loop, at_node(loop.recipe)).ok
    assert not run_loop(name, 0, case, loop, at_node(loop.recipe, REMOVED[name])).ok

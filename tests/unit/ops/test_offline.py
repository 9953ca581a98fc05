"""Stored graphs under any estimator."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from verl_hier.errors import CreditError, GraphError, PluginError, RecipeError
from verl_hier.graph import EpisodeRecord, Node, RolloutGraph, write_graphs
from verl_hier.ops import offline


def graph(uid, returns, step=0, anchors=True, reward=None):
    """Episodes of two turns that start in one state; the second turn earns the return."""
    nodes, episodes = [], []
    for episode, value in enumerate(returns):
        for turn in range(2):
            node = len(nodes)
            nodes.append(
                Node(
                    id=node,
                    parent=node - 1 if turn else -1,
                    context=node - 1 if turn else -1,
                    episode=episode,
                    agent="a",
                    role="actor",
                    level=0,
                    turn=turn,
                    segment=0,
                    plan=-1,
                    observation=[1],
                    action=[2, 3],
                    logprobs=[-0.1, -0.2],
                    reward=value if turn else 0.0,
                    done=bool(turn),
                    anchor=f"s{turn}" if anchors else None,
                )
            )
        episodes.append(EpisodeRecord(id=episode, leaf=len(nodes) - 1, status="finished", ret=value))
    return RolloutGraph(task={"uid": uid}, nodes=nodes, episodes=episodes, step=step)


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "graphs.jsonl"
    write_graphs(path, [graph("t0", [1.0, 0.0]), graph("t1", [0.0, 0.0]), graph("t2", [1.0, 0.5], step=1)])
    return path


def test_credit_of_every_turn(stored, tmp_path):
    out = tmp_path / "credit" / "out.jsonl"
    assert offline.credit("gigpo", stored, out, {"omega": 0.0}) == 12
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["credit"] for row in rows[:4]] == [0.5, 0.5, -0.5, -0.5]
    assert [row["credit"] for row in rows[4:8]] == [0.0] * 4
    assert rows[0] | {"credit": 0} == {
        "step": 0, "uid": "t0", "node": 0, "episode": 0, "agent": "a", "role": "actor", "level": 0, "turn": 0,
        "trained": True, "reward": 0.0, "return": 1.0, "credit": 0, "weight": 1.0,
    }  # fmt: skip
    parquet = tmp_path / "out.parquet"
    offline.credit("gigpo", stored, parquet, {"omega": 0.0})
    assert pq.read_table(parquet).to_pylist() == rows


def test_steps_do_not_share_statistics(stored, tmp_path):
    sizes = [len(batch.table) for batch in offline.batches(stored)]
    assert sizes == [8, 4]


def test_token_and_step_credit_is_averaged(stored, tmp_path):
    out = tmp_path / "out.jsonl"
    offline.credit("arpo", stored, out)
    assert json.loads(out.read_text().splitlines()[0])["credit"] == pytest.approx(0.70710578)


def test_comparison(stored):
    result = offline.compare(["grpo", "gigpo", "at_grpo"], stored, {"gigpo": {"norm": "mean_std_norm"}})
    assert result.names == ("grpo", "gigpo", "at_grpo") and result.turns == 12
    np.testing.assert_allclose(np.diag(result.rank), 1)
    np.testing.assert_allclose(result.rank, result.rank.T)
    assert (result.flips == 0).all()
    assert result.nonzero.tolist() == pytest.approx([8 / 12, 8 / 12, 4 / 12])
    assert result.rows()[1]["name"] == "gigpo"
    constant = offline.compare(["grpo", "rloo"], _flat(stored))
    assert np.isnan(constant.rank).all() and (constant.nonzero == 0).all()


def _flat(stored):
    path = stored.with_name("flat.jsonl")
    write_graphs(path, [graph("t", [0.0, 0.0])])
    return path


def test_signs_and_ties():
    left, right = np.array([1.0, -1.0, 0.0, 2.0]), np.array([-1.0, -1.0, 5.0, 2.0])
    assert (left * right < 0).mean() == 0.25
    assert offline._ranks(np.array([3.0, 1.0, 3.0])).tolist() == [2.5, 1.0, 2.5]
    assert offline._rank_correlation(left, -left) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda s, o: offline.credit("gigppo", s, o), PluginError, "did you mean 'gigpo'"),
        (lambda s, o: offline.credit("gigpo", s, o, {"omgea": 1.0}), RecipeError, "did you mean 'omega'"),
        (lambda s, o: offline.credit("gigpo", s, o, {"omega": "much"}), RecipeError, "expected float"),
        (lambda s, o: offline.credit("gigpo", s, o, {"norm": "max"}), RecipeError, "mean_std_norm"),
        (lambda s, o: offline.credit("marft", s, o), CreditError, "'value'.*critic.*critic.enable"),
        (lambda s, o: offline.credit("gigpo", s, o.with_suffix(".csv")), RecipeError, "known suffix"),
        (lambda s, o: offline.compare(["gigpo"], s), RecipeError, "at least two"),
        (lambda s, o: offline.parse_settings(["omega"]), RecipeError, "option=value"),
    ],
)
def test_bad_input_is_one_sentence(stored, tmp_path, call, error, sentence):
    with pytest.raises(error, match=sentence) as caught:
        call(stored, tmp_path / "out.jsonl")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_files(tmp_path):
    empty, newer, nan, unnamed = (tmp_path / f"{name}.jsonl" for name in ("empty", "newer", "nan", "unnamed"))
    empty.write_text("")
    newer.write_text(json.dumps(graph("t", [1.0]).to_dict() | {"version": 99}) + "\n")
    write_graphs(nan, [graph("t", [float("nan"), 0.0])])
    write_graphs(unnamed, [graph("t", [1.0, 0.0], anchors=False)])
    out = tmp_path / "out.jsonl"
    with pytest.raises(GraphError, match="empty"):
        offline.credit("grpo", empty, out)
    with pytest.raises(GraphError, match="schema version 99"):
        offline.credit("grpo", newer, out)
    with pytest.raises(GraphError, match=r"nodes\[1\].reward is not a finite number"):
        offline.credit("grpo", nan, out)
    with pytest.raises(CreditError, match=r"'anchor'.*environment provides.*every anchor of this batch is -1"):
        offline.credit("gigpo", unnamed, out)


def test_settings_are_json_or_text():
    assert offline.parse_settings(["a=1", "b=x", "c=[1, 2]", "d=null", "e=true"]) == {
        "a": 1, "b": "x", "c": [1, 2], "d": None, "e": True,
    }  # fmt: skip


def test_tables_can_be_prepared(stored, tmp_path):
    def prepare(table, step):
        table.turns["bonus"] = np.full(len(table), float(step))

    assert offline.credit("grpo", stored, tmp_path / "o.jsonl", {"score": "bonus"}, prepare=prepare) == 12

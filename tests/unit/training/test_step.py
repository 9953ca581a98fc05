"""One training step between rollout and update: padding, order, critic columns, losses, metrics, the store."""

import logging

import numpy as np
import pytest

from tests.conformance.builtin_parts import value_head
from tests.fixtures import rollout_graphs
from tests.fixtures.light import sent, store_step
from verl_hier.credit import Credit
from verl_hier.errors import CreditError, RolloutError
from verl_hier.graph import build_table, graph_rows, read_graphs
from verl_hier.graph.columnar.light import light_of
from verl_hier.host.manager import PluginHost
from verl_hier.host.part import Part
from verl_hier.host.specs import EstimatorSpec, NoOptions
from verl_hier.testing.builtin import estimator
from verl_hier.training.metrics import credit_metrics, rollout_metrics
from verl_hier.training.options import GuardOptions
from verl_hier.training.step import TrainingStep, train_step
from verl_hier_plugins.schedules.joint import Joint, JointOptions

HOST = PluginHost([])


def make_step(graph):
    light, keys, rows = sent([graph])
    return TrainingStep(light, keys), keys, [row for _, row in rows]


def run(graph, spec, order=None, guards=None, options=None, schedule=None, heads=(), left_out=(), **more):
    """`train_step` on a batch in `order` (row numbers, None for verl's padding rows of one token)."""
    step, keys, rows = make_step(graph)
    order = list(range(len(rows))) if order is None else order
    columns = {
        "response_mask": [np.zeros(1) if i is None else np.array(rows[i].mask, float) for i in order],
        "old_log_probs": [np.zeros(1) if i is None else np.array(rows[i].logprobs) for i in order],
        "rollout_log_probs": [np.zeros(1) if i is None else np.array(rows[i].logprobs) for i in order],
    }
    columns |= {name: [np.full(1, 99.0) if i is None else make(rows[i]) for i in order] for name, make in more.items()}
    metrics = {}
    fields = train_step(
        step,
        keys=["padding" if i is None else keys[i] for i in order],
        columns=columns,
        host=HOST,
        estimator=Part(spec, options or spec.options()),
        guards=guards or GuardOptions(),
        schedule=schedule or Joint(JointOptions()),
        number=1,
        metrics=metrics,
        heads={head.name: head for head in heads},
        left_out=left_out,
    )
    return step, rows, fields, metrics


def test_order_and_padding_change_nothing():
    graph = rollout_graphs.hierarchical()
    _, rows, plain, _ = run(graph, estimator("himac"))
    order = [None, *reversed(range(len(rows))), None]
    _, _, shuffled, _ = run(graph, estimator("himac"), order)
    assert set(plain) == {"advantages", "returns", "rollout_is_weights"}
    for name, values in plain.items():
        assert [len(row) for row in values] == [len(row.response) for row in rows]
        for place, i in enumerate(order):
            expected = np.zeros(1) if i is None else values[i]
            np.testing.assert_array_equal(shuffled[name][place], expected)


def test_only_trained_tokens_have_credit():
    _, rows, fields, _ = run(rollout_graphs.hierarchical(), estimator("grpo"))
    for name in ("advantages", "returns", "rollout_is_weights"):
        for row, values in zip(rows, fields[name], strict=True):
            assert not values[np.array(row.mask) == 0].any()


def test_rows_that_are_left_out_are_compared_and_not_trained():
    graph = rollout_graphs.hierarchical()
    _, rows, every, _ = run(graph, estimator("grpo"))
    _, _, fields, _ = run(graph, estimator("grpo"), left_out=[1])
    for number, row in enumerate(rows):
        kept = np.zeros(len(row.mask)) if number == 1 else np.array(row.mask, float)
        np.testing.assert_array_equal(fields["response_mask"][number], kept)
        np.testing.assert_allclose(fields["advantages"][number], every["advantages"][number] * kept)
    weights = np.concatenate(fields["rollout_is_weights"])
    trained = np.concatenate(fields["response_mask"]) > 0
    assert not weights[~trained].any() and weights[trained].mean() == pytest.approx(1.0)


def test_a_native_estimator_keeps_its_advantages():
    """verl's own are read back as the credit of turns; loss weights, alarms and metrics are as for any other."""
    graph = rollout_graphs.hierarchical()
    native = EstimatorSpec("native", pytest.fail, NoOptions, native=True, needs_groups=False)
    marks = {}

    def advantages(row):
        marks[row.episode, row.nodes[-1]] = len(marks) + 1.0
        return np.full(len(row.response), marks[row.episode, row.nodes[-1]])

    step, rows, fields, metrics = run(graph, native, advantages=advantages)
    _, _, ours, _ = run(graph, estimator("himac"))
    assert set(fields) == {"rollout_is_weights"}
    for mine, theirs in zip(fields["rollout_is_weights"], ours["rollout_is_weights"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    stored = step.credit["u"]["credit"]
    for row in rows:
        for node in set(row.turn_index) - {-1}:
            assert stored[node] == marks[row.episode, row.nodes[-1]]
    assert metrics["hier/guards/alarms"] == 0 and "hier/credit/planner/mean" in metrics


def test_what_rollout_and_training_differ_by_is_kept_for_each_turn():
    def old(row):
        return np.array(row.logprobs) - 0.25 * (1 + row.episode)

    step, rows, _, metrics = run(rollout_graphs.flat(), estimator("grpo"), order=[None, 1, 0], old_log_probs=old)
    graph, found = rollout_graphs.flat(), step.credit["u"]["logprob_difference"]
    expected = {node: 0.25 * (1 + row.episode) for row in rows for node in row.nodes}
    assert [found[node.id] for node in graph.nodes] == pytest.approx([expected[node.id] for node in graph.nodes])
    assert metrics["hier/logprob_difference/agent"] > 0.25


def test_token_weights_are_left_to_verl():
    _, _, fields, _ = run(rollout_graphs.flat(), estimator("grpo"), guards=GuardOptions(weight_by="token"))
    assert "rollout_is_weights" not in fields


def test_the_critics_values_reach_the_table():
    seen = {}

    def remember(table, options):
        seen.update(values=table["tokens.value"], first=table["value"], old=table["tokens.old_logprob"], table=table)
        return np.zeros(len(table))

    spec = EstimatorSpec("remember", remember, NoOptions, requires=("value", "tokens.value"))
    run(rollout_graphs.flat(), spec, values=lambda row: np.arange(len(row.response), dtype=float) + 100 * row.episode)
    table, graph = seen["table"], rollout_graphs.flat()
    starts = np.concatenate([[0], np.cumsum(table["n_tokens"])[:-1]])
    assert (seen["first"] == seen["values"][starts]).all()
    for row in graph_rows(graph, lambda node: True):
        places = [i for i, turn in enumerate(row.turn_index) if turn >= 0]
        mine = np.isin(table["tokens.turn"], row.nodes)
        assert seen["values"][mine].tolist() == [i + 100 * row.episode for i in places]
        assert seen["old"][mine].tolist() == [-1.0] * len(places)


def test_metrics_of_a_step():
    graph = rollout_graphs.hierarchical()
    step, _, _, metrics = run(graph, estimator("himac"))
    assert metrics["hier/guards/alarms"] == 0
    assert metrics["hier/logprob_difference/planner"] == metrics["hier/logprob_difference/executor"] == 0
    assert {"hier/credit/planner/mean", "hier/credit/executor/std", "hier/credit/zero_share"} <= set(metrics)
    assert len(step.credit["u"]["credit"]) == len(graph.nodes)


def test_an_alarm_can_stop_the_run():
    with pytest.raises(CreditError, match="max_singleton_share"):
        run(rollout_graphs.flat(n=1), estimator("grpo"), guards=GuardOptions(on_alarm="raise"))


def test_a_broken_world_stops_the_run():
    graph = rollout_graphs.flat(n=3)
    graph.episodes[1].status, graph.episodes[1].error = "failed", "raised: the floor broke"
    step, _, _ = make_step(graph)
    step.check_losses(0.5)
    with pytest.raises(RolloutError, match=r"1 of 3 episodes .*max_failed_share \(30%\) allows.* the floor broke"):
        step.check_losses(0.3)


def test_the_store(tmp_path, caplog):
    graphs = [rollout_graphs.flat()]
    done = {"hier/store/failed": 0.0, "hier/store/missing": 0.0}
    assert store_step(tmp_path / "graphs", 1, graphs) == done
    assert list(read_graphs(tmp_path / "graphs")) == [rollout_graphs.flat()]
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert store_step(tmp_path / "file", 1, graphs) == {"hier/store/failed": 1.0, "hier/store/missing": 1.0}
    assert "The run goes on without it (hier.store.path)" in caplog.text


def test_rollout_metrics_count_what_happened():
    graph = rollout_graphs.flat(n=2)
    graph.episodes[1].status, graph.short = "failed", True
    graph.nodes[0].valid, graph.nodes[0].cached_tokens = False, 2
    graph.counts |= {"forks": 2}
    graph.seconds = {"rollout": 1.5}
    metrics = rollout_metrics(light_of([graph]))
    prompt = sum(node.prompt_tokens for node in graph.nodes)
    expected = {
        "hier/episodes/count": 2,
        "hier/episodes/turns_mean": len(graph.nodes) / 2,
        "hier/episodes/failed": 1,
        "hier/episodes/return_mean": graph.episodes[0].ret,
        "hier/episodes/success": 1,
        "hier/groups/short": 1,
        "hier/turns/count": len(graph.nodes),
        "hier/turns/invalid_share": sum(not node.valid for node in graph.nodes) / len(graph.nodes),
        "hier/tokens/generated": sum(len(node.action) for node in graph.nodes),
        "hier/tokens/prompt": prompt,
        "hier/tokens/prefix_hit": 2 / prompt,
        "hier/time/rollout_s": 1.5,
        "hier/counts/forks": 2,
        "hier/counts/environment_calls": graph.counts["environment_calls"],
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_worlds_that_do_not_say_who_won_have_no_success():
    graph = rollout_graphs.flat()
    for episode in graph.episodes:
        episode.success = None
    assert "hier/episodes/success" not in rollout_metrics(light_of([graph]))
    assert rollout_metrics(light_of([]))["hier/episodes/count"] == 0


def test_credit_metrics_look_at_trained_turns():
    graph = rollout_graphs.flat()
    graph.nodes[0].trained = False
    table = build_table([graph])
    values = np.ones(len(table))
    values[0], values[1] = 100.0, 0.0
    metrics = credit_metrics(table, Credit(values))
    trained = values[1:]
    assert metrics == pytest.approx(
        {
            "hier/credit/zero_share": 1 / len(trained),
            "hier/credit/agent/mean": trained.mean(),
            "hier/credit/agent/std": trained.std(),
        }
    )
    assert credit_metrics(build_table([]), Credit(np.zeros(0))) == {}


def test_hiper_reads_the_critic_and_leaves_tokens_without_a_level_out():
    graph = rollout_graphs.flat()
    for node in graph.nodes:
        node.action, node.logprobs = [7, 7, 7, 7], [-1.0] * 4
        node.entropy, node.top, node.prompt_tokens = [], [], 0
        node.masks = {"switch": [[0, 1]], "subgoal": [[1, 2]], "action": [[2, 4]]}
        node.extra |= {"switch": int(node.turn == 0), "format": 1}
    _, rows, fields, metrics = run(
        graph,
        estimator("hiper"),
        guards=GuardOptions(weight_by="token"),
        heads=[value_head("low")],
        values_low=lambda row: np.linspace(0.0, 1.0, len(row.response)),
    )
    assert {"advantages", "returns", "response_mask"} <= set(fields) and metrics["hier/guards/alarms"] == 0
    for row, mask, credit in zip(rows, fields["response_mask"], fields["advantages"], strict=True):
        place = dict.fromkeys(row.turn_index, 0)
        for i, turn in enumerate(row.turn_index):
            at, place[turn] = place[turn], place[turn] + 1
            carries = turn >= 0 and (at >= 2 or (at == 1 and graph.nodes[turn].turn == 0))
            assert mask[i] == float(carries) and (carries or credit[i] == 0)


def test_tokens_without_credit_leave_the_loss():
    """They are 0 in the mask that verl reads, and the weights are shared out among the others."""
    graph = rollout_graphs.hierarchical()

    def first_token(table, options):
        turn = table["tokens.turn"]
        first = np.append(True, turn[1:] != turn[:-1])
        return Credit(np.ones(len(turn)), per="token", tokens=first)

    spec = EstimatorSpec("first", first_token, NoOptions, granularity="token", needs_groups=False)
    _, rows, fields, _ = run(graph, spec, [*range(len(graph_rows(graph, lambda node: True))), None])
    assert fields["response_mask"][-1].tolist() == [0]
    kept = 0
    for row, mask, weight, credit in zip(
        rows, fields["response_mask"], fields["rollout_is_weights"], fields["advantages"], strict=False
    ):
        starts = [i for i, turn in enumerate(row.turn_index) if turn >= 0 and (i == 0 or row.turn_index[i - 1] != turn)]
        expected = [float(i in starts and bool(row.mask[i])) for i in range(len(row.mask))]
        assert mask.tolist() == credit.tolist() == expected
        assert not weight[mask == 0].any()
        kept += mask.sum()
    assert sum(weight.sum() for weight in fields["rollout_is_weights"]) == pytest.approx(kept)

    def short(table, options):
        return Credit(np.ones(len(table)), tokens=np.ones(1, bool))

    with pytest.raises(CreditError, match="must say of each of the"):
        run(graph, EstimatorSpec("short", short, NoOptions))

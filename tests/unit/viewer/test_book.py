"""What a page is told: the overview, a group, why, and the states that a store can be in."""

from __future__ import annotations

import json
import shutil
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures import rollout_graphs
from tests.fixtures.viewed_run import METHODS, disagree, log_step
from tests.unit.ops.test_lessons import rollout
from verl_hier.cli.view import book_of
from verl_hier.credit.blame import by_the_others
from verl_hier.errors import HierError
from verl_hier.graph import SCHEMA_VERSION, read_graphs, write_graphs, write_step
from verl_hier.graph.columnar.encode import uid_of
from verl_hier.graph.records import CUT
from verl_hier.graph.success import LAST_WORD_SINCE
from verl_hier.ops.offline import credit
from verl_hier.ops.stored import Stored
from verl_hier.viewer import steps
from verl_hier.viewer.book import dumps
from verl_hier.viewer.group import LONGEST_WORDS


def book(folder: Path, *estimators: str):
    return book_of(Stored.at(folder), list(estimators))


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


def test_the_overview_counts_what_the_graphs_hold(runs):
    found = book(runs["himac"]).overview()
    graphs = {
        (1 + number // 3, uid_of(graph)): graph for number, graph in enumerate(read_graphs(runs["himac"] / "graphs"))
    }
    assert len(found["groups"]) == len(graphs) == 6
    for group in found["groups"]:
        graph = graphs[group["step"], group["uid"]]
        trained = [episode.ret for episode in graph.complete() if episode.trained]
        assert group["episodes"] == len(graph.episodes) and group["turns"] == len(graph.nodes)
        assert group["spread"] == pytest.approx(max(trained) - min(trained))
        assert group["mean"] == pytest.approx(np.mean(trained))
        assert group["invalid"] == sum(not node.valid for node in graph.nodes)
        assert group["tokens"] == sum(len(node.action) for node in graph.nodes)
        silent = [node for node, value in zip(graph.nodes, graph.credit, strict=True) if node.trained and value == 0]
        assert group["without_credit"] == len(silent)
        assert group["title"] == graph.task["instruction"]
    flat = next(alarm for alarm in found["alarms"] if alarm["name"] == "flat")
    assert {found["groups"][place]["uid"] for place in flat["places"]} == {"task-2"} and flat["many"] == 2
    assert [step["step"] for step in found["steps"]] == [1, 2]


@pytest.mark.parametrize("version", [*rollout_graphs.OLDER, SCHEMA_VERSION])
@pytest.mark.parametrize("stored", [False, True], ids=["file", "store"])
def test_figures_of_an_earlier_version_are_shown_as_it_stored_them_and_a_note_says_so(version, stored, tmp_path):
    """What `success` and `stop_reason` mean has changed; nobody knows what they would be today."""
    golden = read_graphs(rollout_graphs.OLDER.get(version, rollout_graphs.GOLDEN))
    graphs = sorted(golden, key=lambda graph: graph.step)
    for number, graph in enumerate(graphs):
        graph.task["uid"] = f"u{number}"
    source = tmp_path / "graphs.jsonl"
    if stored:
        source = tmp_path / "store"
        for number, members in groupby(graphs, key=lambda graph: graph.step):
            write_step(source, number, list(members))
    else:
        write_graphs(source, graphs)
    found = book(source).overview()
    won = [sum(bool(episode.success) for episode in graph.complete()) for graph in graphs]
    cut = [sum(node.stop_reason in CUT for node in graph.nodes) for graph in graphs]
    assert [group["succeeded"] for group in found["groups"]] == won
    assert sum(cut) == sum(group["cut"] for group in found["groups"])
    said = [note for note in found["notes"] if "An earlier version wrote" in note and "as it stored them" in note]
    assert len(said) == (version < LAST_WORD_SINCE) and len(found["notes"]) == len(said)


def test_lost_and_lonely_episodes_are_alarms(tmp_path):
    lost = rollout_graphs.broken()
    alone = rollout_graphs.flat(n=1)
    alone.task["uid"] = "alone"
    write_graphs(tmp_path / "graphs.jsonl", [lost, alone])
    found = book(tmp_path / "graphs.jsonl").overview()
    many = {alarm["name"]: alarm["many"] for alarm in found["alarms"]}
    assert many["failed"] == sum(episode.status == "failed" for episode in lost.episodes) > 0
    lonely = next(alarm for alarm in found["alarms"] if alarm["name"] == "singleton")
    assert "alone" in {found["groups"][place]["uid"] for place in lonely["places"]}


def test_turns_that_are_trained_with_other_log_probs_are_alarms_by_role(runs, tmp_path):
    run = copied(runs["himac"], tmp_path / "run")
    disagree(run, 2, {"planner": 0.3, "executor": 0.05})
    assert "logprobs" not in {alarm["name"] for alarm in book(run).overview()["alarms"]}  # the default allows 0.5
    record = json.loads((run / "run.json").read_text())
    record["recipe"]["hier"]["guards"] = {"max_logprob_difference": 0.1}
    (run / "run.json").write_text(json.dumps(record))
    whole = book(run)
    found = whole.overview()
    (alarm,) = (alarm for alarm in found["alarms"] if alarm["name"] == "logprobs")
    plans = [[node.role for node in graph.nodes].count("planner") for graph in read_graphs(run / "graphs")]
    assert "'planner'" in alarm["says"] and "more than 0.1 nats" in alarm["says"]
    assert alarm["many"] == sum(plans[3:]) and sorted(alarm["places"]) == [3, 4, 5]
    assert [group["logprobs"] for group in found["groups"]] == [0, 0, 0, *plans[3:]]
    names = {name for name in found["steps"][1] if name.startswith("log-prob difference")}
    assert sorted(found["steps"][1][name] for name in names) == pytest.approx([0.05, 0.3])
    turns = whole.group(2, "task-0")["turns"]
    assert turns["logprob_difference"] == [0.3 if role == "planner" else 0.05 for role in turns["role"]]


def test_what_is_wrong_with_a_step_leads_to_its_groups(runs, tmp_path):
    run = copied(runs["himac"], tmp_path / "run")
    whole = book(run)
    before = whole.overview()
    log_step(run, 1, {"hier/rows/padding": 3.0, "hier/rows/trained": 5.0, "hier/guards/alarms": "two"})
    log_step(run, 2, {"hier/rows/padding": 1.0, "hier/rows/trained": 9.0, "hier/guards/alarms": 2.0})
    log_step(run, 3, {"hier/rows/padding": 9.0, "hier/rows/trained": 1.0, "hier/sharing/unique_share": 0.25})
    found = whole.overview()
    assert found["stamp"] != before["stamp"] and found["groups"] == before["groups"]
    alarms = {alarm["name"]: alarm for alarm in found["alarms"] if alarm["steps"]}
    assert alarms.keys() == {"padding", "guards"}, "step 3 is not stored, so nothing can be shown of it"
    assert (alarms["padding"]["many"], alarms["padding"]["steps"]) == (3, [1])
    assert (alarms["guards"]["many"], alarms["guards"]["steps"]) == (2, [2])
    assert [step["padding among rows"] for step in found["steps"]] == pytest.approx([3 / 8, 0.1])
    log_step(run, 1, {"hier/sharing/unique_share": 0.25})
    assert whole.overview()["steps"][0]["tokens trained over unique"] == 4.0
    (run / "metrics.jsonl").write_text("{}\n")
    (note,) = whole.overview()["notes"]
    assert "metrics.jsonl, line 1, does not hold the metrics of a step" in note
    assert whole.overview()["alarms"] == before["alarms"]


def test_a_store_of_before_log_probs_were_compared_is_read(runs, tmp_path):
    import pyarrow.parquet as pq

    run = copied(runs["himac"], tmp_path / "run")
    disagree(run, 2, {"planner": 9.0})
    mark = run / "graphs" / "step_000002" / "credit.parquet"
    pq.write_table(pq.read_table(mark).drop_columns(["logprob_difference"]), mark)
    found, expected = book(run).overview(), book(runs["himac"]).overview()
    assert found["notes"] == [] and found["groups"] == expected["groups"]


@pytest.mark.parametrize("method", METHODS)
def test_why_has_the_numbers_that_the_estimator_gives(runs, method, tmp_path):
    credit(method, runs[method] / "graphs", tmp_path / "credit.jsonl")
    given = {
        (row["step"], row["uid"], row["node"]): row
        for row in map(json.loads, (tmp_path / "credit.jsonl").read_text().splitlines())
    }
    whole = book(runs[method])
    turns = 0
    for group in whole.overview()["groups"]:
        (why,) = whole.why(group["step"], group["uid"])["methods"]
        assert why["ran"] and why["name"] == method and why["terms"] and not why["differs"]
        for node, value, weight in zip(why["turns"], why["credit"], why["weight"], strict=True):
            row = given[group["step"], group["uid"], node]
            assert (value, weight) == (row["credit"], row["weight"])
            turns += 1
        compared = [each for term in why["terms"] for each in term["comparisons"]]
        assert compared and not any(each["elsewhere"] for each in compared)
    assert turns == len(given)


def test_why_says_who_lost_the_lost_attempts(tmp_path):
    graph = rollout(tmp_path)  # attempts 1 to 3 are lost: 1 by its second turn, the others by their first one
    write_graphs(tmp_path / "graphs.jsonl", [graph])
    lost = book(tmp_path / "graphs.jsonl", "grpo").why(0, "u")["lost"]
    assert [(each["episode"], each["turns"].index(each["turn"])) for each in lost] == [(1, 1), (2, 0), (3, 0)]
    assert [each["drops"] for each in lost] == [blame.drops for blame in by_the_others(graph)]


def test_another_estimator_is_shown_beside_the_one_that_ran(runs):
    whole = book(runs["tree_grpo"], "gigpo")
    first, second = whole.why(1, "task-0")["methods"]
    assert (first["name"], first["ran"], second["name"], second["ran"]) == ("tree_grpo", True, "gigpo", False)
    stored = whole.group(1, "task-0")["turns"]["credit"]
    given = dict(zip(second["turns"], second["credit"], strict=True))
    assert second["flips"] == [node for node, value in given.items() if value * stored[node] < 0] != []


def test_an_estimator_that_cannot_credit_says_so(runs):
    methods = book(runs["arpo"], "archer").why(1, "task-0")["methods"]
    assert "needs the column" in methods[1]["says"]


def test_a_group_is_what_its_graph_holds(runs):
    whole = book(runs["himac"])
    for number, graph in enumerate(read_graphs(runs["himac"] / "graphs")):
        step, uid = 1 + number // 3, uid_of(graph)
        tree, said = whole.group(step, uid), whole.words(step, uid)["turns"]
        for name, column in tree["turns"].items():
            if name == "credit":
                assert column == graph.credit
            elif name == "logprob_difference":
                assert column == [None] * len(graph.nodes)
            elif name == "n_action":
                assert column == [len(node.action) for node in graph.nodes]
            elif name == "mean_entropy":
                assert column == pytest.approx(
                    [np.mean(node.entropy or -np.array(node.logprobs)) for node in graph.nodes]
                )
            else:
                assert column == [getattr(node, name) for node in graph.nodes]
        for name, column in tree["episodes"].items():
            assert column == [getattr(episode, name) for episode in graph.episodes]
        for node, words in zip(graph.nodes, said, strict=True):
            assert words["id"] == node.id and words["text"] == node.text and words["tokens"] == node.action
            assert words["logprobs"] == pytest.approx(node.logprobs, abs=1e-4) and words["extra"] == node.extra
            assert [each["content"] for each in words["messages"]] == [each.content for each in node.messages]
            readers = [each.id for each in graph.nodes if any(node.id in message.sources for message in each.messages)]
            assert words["heard"] == readers
        assert any(words["heard"] for words in said)
        assert whole.words(step, uid, [2, 0])["turns"] == [said[2], said[0]]


def test_words_are_found_in_what_was_said_and_told(runs):
    whole = book(runs["himac"])
    found = whole.search("GO ON")()
    graphs = list(read_graphs(runs["himac"] / "graphs"))
    expected = sum(
        "go on" in node.text or any("go on" in message.content for message in node.messages)
        for graph in graphs
        for node in graph.nodes
    )
    assert found["many"] == expected > 0 and len(found["hits"]) == expected


def test_a_file_of_graphs_is_read_like_a_store(runs, tmp_path):
    graphs = list(read_graphs(runs["himac"] / "graphs"))
    write_graphs(tmp_path / "graphs.parquet", graphs)
    stored, alone = book(runs["himac"]), book(tmp_path / "graphs.parquet", "himac")
    assert stored.overview()["groups"] == alone.overview()["groups"]
    assert stored.why(2, "task-1")["methods"][0]["terms"] == alone.why(2, "task-1")["methods"][0]["terms"]
    assert stored.group(2, "task-1") == alone.group(2, "task-1")
    assert stored.words(2, "task-1") == alone.words(2, "task-1")
    assert sorted(stored.search("go on")()["hits"], key=str) == sorted(alone.search("go on")()["hits"], key=str)


def test_a_search_reads_a_file_once_whatever_the_number_of_its_steps(tmp_path, monkeypatch):
    graphs = [rollout_graphs.flat() for _ in range(12)]
    for number, graph in enumerate(graphs):
        graph.step, graph.task["uid"] = number, f"task-{number}"
    write_graphs(tmp_path / "graphs.jsonl", graphs)
    read = []

    def counted(source, *args):
        for graph in read_graphs(source, *args):
            read.append(graph.step)
            yield graph

    made = book(tmp_path / "graphs.jsonl", "himac")
    made.overview()
    monkeypatch.setattr(steps, "read_graphs", counted)
    words = graphs[0].nodes[0].text
    found = made.search(words)()
    assert {hit["step"] for hit in found["hits"]} == set(range(12)) and read == [*range(12)]
    read.clear()
    given_up = made.search(words, lambda: len(read) > 3)()
    assert read == [*range(4)] and {hit["step"] for hit in given_up["hits"]} == {0, 1, 2}


def test_a_long_text_is_cut_and_its_length_said(tmp_path):
    graph = rollout_graphs.flat()
    graph.nodes[0].text = "a" * 1_000_000
    write_graphs(tmp_path / "graphs.jsonl", [graph])
    (turn,) = book(tmp_path / "graphs.jsonl").words(graph.step, uid_of(graph), [0])["turns"]
    assert len(turn["text"]) == LONGEST_WORDS and turn["characters"] == 1_000_000


def test_a_step_that_is_being_written_is_left_out_and_comes_when_it_is_whole(runs, tmp_path):
    run = copied(runs["himac"], tmp_path / "run")
    mark = run / "graphs" / "step_000002" / "credit.parquet"
    mark.rename(tmp_path / "mark")
    whole = book(run)
    found = whole.overview()
    assert {group["step"] for group in found["groups"]} == {1}
    assert any("step_000002" in note and "not written to its end" in note for note in found["notes"])
    (tmp_path / "mark").rename(mark)
    assert {group["step"] for group in whole.overview()["groups"]} == {1, 2}


def test_the_last_step_is_shown_before_the_others_are_read_and_none_is_read_twice(runs, tmp_path):
    run = copied(runs["himac"], tmp_path / "run")
    whole = book(run)
    first = whole.overview(patience=0.0)
    assert {group["step"] for group in first["groups"]} == {2} and first["unread"] == 1
    assert whole.overview(patience=0.0) is first
    assert whole.group(1, "task-0")["step"] == 1  # which is read because it is asked for
    then = whole.overview(patience=0.0)
    assert {group["step"] for group in then["groups"]} == {1, 2} and then["unread"] == 0
    assert then["stamp"] != first["stamp"] and then == book(run).overview()
    kept = whole._steps[1]
    (run / "graphs" / "step_000002" / "credit.parquet").touch()
    assert whole.overview()["stamp"] != then["stamp"] and whole._steps[1] is kept


def test_a_run_without_a_step_is_shown_empty(runs, tmp_path):
    run = copied(runs["himac"], tmp_path / "run")
    shutil.rmtree(run / "graphs")
    (run / "graphs").mkdir()
    found = book(run).overview()
    assert found["groups"] == [] and found["steps"] == [] and len(found["notes"]) == 1


def test_a_damaged_step_and_one_of_a_newer_version_are_a_sentence_each(runs, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = copied(runs["himac"], tmp_path / "run")
    index = run / "graphs" / "step_000002" / "tasks-trainer-0.parquet"
    table = pq.read_table(index)
    place = table.schema.get_field_index("version")
    newer = table.set_column(place, table.schema.field(place), pa.array([99] * len(table), pa.int32()))
    pq.write_table(newer, index)
    (note,) = book(run).overview()["notes"]
    assert "schema version 99" in note and "upgrade" in note
    (run / "graphs" / "step_000001" / "nodes-trainer-0.parquet").write_bytes(b"PAR1")
    found = book(run).overview()
    assert len(found["notes"]) == 2 and found["groups"] == []


def test_an_environment_draws_its_state_after_the_turns_of_a_path(runs):
    whole = book(runs["tree_grpo"])
    plain = whole.words(1, "task-0")["turns"]
    whole._render = lambda task, path: (
        f"{task['uid']}: {len(path)} turns, {path[-1]['text']}" if len(path) > 1 else None
    )
    drawn = whole.words(1, "task-0")["turns"]
    (graph,) = [graph for graph in read_graphs(runs["tree_grpo"] / "graphs") if uid_of(graph) == "task-0"][:1]
    for turn, before in zip(drawn, plain, strict=True):
        depth = len(graph.chain(turn["id"]))
        expected = {"picture": f"task-0: {depth} turns, {turn['text']}"} if depth > 1 else {}
        assert turn == before | expected


def test_a_plugin_of_the_run_draws_boards_of_textarena_alone(runs):
    from verl_hier_plugins.environments.textarena.board import board

    path = [
        {"messages": [{"content": "Board:\n+---+---+\n|  P  | <b> |\n+---+---+\n|  H  |  G  |\n+"}]},
        {"messages": []},
    ]
    assert board({"data_source": "alfworld"}, path) is None and board({"data_source": "textarena"}, []) is None
    drawn = board({"data_source": "textarena"}, path)
    assert drawn.startswith("<svg") and drawn.count("<rect") == 4 and "&lt;b&gt;" in drawn
    assert all("picture" not in turn for turn in book(runs["himac"]).words(1, "task-0")["turns"])


def test_a_group_that_is_not_there_is_a_sentence(runs):
    whole = book(runs["himac"])
    for view in (whole.group, whole.words, whole.why):
        with pytest.raises(HierError, match="step 7 with a task 'nobody' is not stored"):
            view(7, "nobody")
    with pytest.raises(HierError, match="step 1 with a task 'task-0' has no turn 999"):
        whole.words(1, "task-0", [0, 999])


def test_json_has_no_number_that_a_browser_refuses():
    assert json.loads(dumps({"a": [float("nan"), float("inf"), 1.5], "b": (True, "x")})) == {
        "a": [None, None, 1.5],
        "b": [True, "x"],
    }

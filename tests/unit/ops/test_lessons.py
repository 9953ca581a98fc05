"""Rows to learn from: whose words they are, what is left out, and that verl and TRL read them."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings

from tests.fixtures import rollout_graphs
from verl_hier.errors import GraphError
from verl_hier.graph import conversation, read_graphs, write_graphs
from verl_hier.graph.choices import choices_of, on_path, turns_of
from verl_hier.ops.exchange import import_chat, lessons, pairs
from verl_hier.ops.exchange.lessons import Lessons
from verl_hier.rollout.plain_renderer import PlainRenderer
from verl_hier.testing.rollout import CharacterTokenizer

# What an attempt says, and whether it is won: two begin with a and differ then, two begin with b and are lost.
ATTEMPTS = (("ab", 1.0), ("ac", 0.0), ("bx", 0.0), ("bx", 0.0))


def told(said):
    """The messages of an attempt: after each letter the world names all that was said."""
    messages = [{"role": "user", "content": "start"}]
    for place, letter in enumerate(said):
        messages += [{"role": "assistant", "content": letter}]
        messages += [{"role": "user", "content": f"after {said[: place + 1]}"}] if place < len(said) - 1 else []
    return messages


def rollout(tmp_path, attempts=ATTEMPTS):
    file = tmp_path / "chat.jsonl"
    lines = [{"messages": told(said), "uid": "u", "return": ret, "success": ret} for said, ret in attempts]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    (graph,) = import_chat(file, CharacterTokenizer(), PlainRenderer(CharacterTokenizer()))
    return graph


def written(tmp_path, graphs, rows, name="rows.jsonl", **options):
    write_graphs(tmp_path / "graphs.jsonl", graphs)
    chosen = Lessons(**options)
    count = chosen.write(tmp_path / "graphs.jsonl", tmp_path / name, rows)
    if name.endswith(".parquet"):
        return count, chosen
    found = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    assert len(found) == count
    return found, {what: many for what, many in chosen.left_out.items() if many}


def said(row):
    """What a row ends with in words: prompt, and what is answered."""
    answers = [row[name] for name in ("completion", "chosen", "rejected") if name in row]
    return [message["content"] for message in row["prompt"]], *(answer[-1]["content"] for answer in answers)


def test_the_best_choice_of_a_place_against_the_worst(tmp_path):
    rows, left = written(tmp_path, [rollout(tmp_path)], pairs.siblings)
    assert [said(row) for row in rows] == [(["start"], "a", "b"), (["start", "a", "after a"], "b", "c")]
    assert [(row["chosen_return"], row["rejected_return"]) for row in rows] == [(0.5, 0.0), (1.0, 0.0)]
    assert left == {pairs.ALONE: 1}
    rows, left = written(tmp_path, [rollout(tmp_path)], pairs.siblings, gap=0.6)
    assert len(rows) == 1 and left == {pairs.ALONE: 1, pairs.CLOSE: 1}
    rows, left = written(tmp_path, [rollout(tmp_path)], pairs.siblings, least=0.6)
    assert len(rows) == 1 and left == {pairs.ALONE: 1, pairs.CLOSE: 1}


def test_ties_are_counted_and_make_no_pair(tmp_path):
    with pytest.raises(GraphError, match=r"no such row\. Left out: 1 places whose choices are worth the same"):
        written(tmp_path, [rollout(tmp_path, (("a", 1.0), ("b", 1.0)))], pairs.siblings)
    assert not (tmp_path / "rows.jsonl").exists()


def test_the_first_error_against_what_went_right_there(tmp_path):
    rows, left = written(tmp_path, [rollout(tmp_path)], pairs.errors)
    assert [said(row) for row in rows] == [(["start", "a", "after a"], "b", "c"), (["start"], "a", "b")]
    assert left == {pairs.SAME_ERROR: 1}
    with pytest.raises(GraphError, match="2 lost attempts from whose places no other one was won"):
        written(tmp_path, [rollout(tmp_path, (("ab", 0.0), ("c", 0.0)))], pairs.errors)


def test_a_revised_attempt_turns_back_behind_its_first_error(tmp_path):
    graph, thought = rollout(tmp_path), "I turn back."
    rows, left = written(tmp_path, [graph], pairs.revisions, thought=thought)
    assert [said(row) for row in rows] == [(["start", "b", "after b"], f"{thought}\na", "x")]
    assert left == {pairs.AT_THE_END: 1, pairs.SAME_ERROR: 1}
    rows, left = written(tmp_path, [graph], pairs.revised_attempts, form="turns", thought=thought)
    assert [said(row) for row in rows] == [
        (["start", "b", "after b"], f"{thought}\na"),
        (["start", "b", "after b", f"{thought}\na", "after a"], "b"),
    ]
    assert left == {pairs.AT_THE_END: 1, pairs.SAME_ERROR: 1}
    mended = rollout(tmp_path, (("a", 1.0), ("ba", 0.0)))
    with pytest.raises(GraphError, match="1 lost attempts that mended their first error at once"):
        written(tmp_path, [mended], pairs.revisions, thought=thought)


def test_attempts_that_were_won_are_learned_whole_or_by_turn(tmp_path):
    rows, left = written(tmp_path, [rollout(tmp_path)], lessons.best_attempts)
    assert [row["messages"] for row in rows] == [told("ab")] and left == {lessons.LOST: 3}
    rows, left = written(tmp_path, [rollout(tmp_path)], lessons.best_attempts, form="turns")
    assert [said(row) for row in rows] == [(["start"], "a"), (["start", "a", "after a"], "b")]


@pytest.mark.parametrize("least, learned", [(None, "best"), (0.25, "least"), (1.0, "none")])
def test_where_the_world_does_not_say_won_the_highest_return_counts(tmp_path, least, learned):
    graph = rollout(tmp_path, (("a", 0.5), ("b", 0.25), ("c", 0.0)))
    for episode in graph.episodes:
        episode.success = None
    assert Lessons(least=least).good(graph) == {"best": {0}, "least": {0, 1}, "none": set()}[learned]
    for episode in graph.episodes:
        episode.ret = 0.5
    assert Lessons().good(graph) == set()


def test_what_nobody_should_learn_is_left_out_and_counted(tmp_path):
    graph = rollout(tmp_path, (("ab", 1.0), ("cd", 1.0), ("ef", 1.0), ("gh", 1.0), ("ij", 0.0)))
    first = [graph.nodes[graph.path(episode.id)[0]] for episode in graph.episodes]
    first[1].stop_reason, first[2].trained, first[3].valid, first[3].role = "length", False, False, "critic"
    rows, left = written(tmp_path, [graph], lessons.best_attempts)
    assert len(rows) == 1
    assert left == {
        **{lessons.LOST: 1, "contexts with turns that a limit of tokens has cut": 1},
        **{
            "contexts with turns of agents that do not learn": 1,
            "contexts with turns that the world did not understand": 1,
        },
    }
    rows, left = written(tmp_path, [graph], lessons.best_attempts, form="turns", roles=frozenset({"agent"}))
    assert [said(row)[1] for row in rows] == ["a", "b", "d", "f", "h"]
    assert left[lessons.OTHERS] == 1 and sum(left.values()) == 4


def test_turns_of_several_policies_are_not_mixed(tmp_path):
    graph = rollout(tmp_path)
    graph.nodes[graph.path(0)[1]].policy = "second"
    with pytest.raises(GraphError, match=r"policies default and second.*--policy NAME"):
        written(tmp_path, [graph], lessons.best_attempts, form="turns")
    rows, left = written(tmp_path, [graph], lessons.best_attempts, form="turns", policies=frozenset({"second"}))
    assert [said(row)[1] for row in rows] == ["b"] and left[lessons.OTHERS] == 1


def test_a_context_that_repeats_an_agents_words_is_for_rows_of_turns(tmp_path):
    graph = rollout(tmp_path, (("ab", 1.0),))
    graph.nodes[0].messages[0].role = "assistant"
    with pytest.raises(GraphError, match="1 contexts whose prompts repeat words of the agent"):
        written(tmp_path, [graph], lessons.best_attempts)
    assert len(written(tmp_path, [graph], lessons.best_attempts, form="turns")[0]) == 2


@settings(max_examples=60, deadline=None)
@given(graph=rollout_graphs.trees())
def test_nothing_is_dropped_in_silence(tmp_path_factory, graph):
    folder = tmp_path_factory.mktemp("rows")
    turns = turns_of(graph)
    mine = {turn.node for episode in graph.complete() for turn in on_path(graph, episode.id, turns)}
    for rows, units in (
        (lessons.best_attempts, len(mine)),
        (pairs.siblings, len(choices_of(graph))),
    ):
        counts = Counter()
        chosen = Lessons("turns", least=-1e9, left_out=counts)
        write_graphs(folder / "graphs.jsonl", [graph])
        try:
            count = chosen.write(folder / "graphs.jsonl", folder / "rows.jsonl", rows)
        except GraphError:
            count = 0
        if not graph.nodes:
            continue
        incomplete = len(graph.episodes) - len([*graph.complete()])
        if rows is lessons.best_attempts:
            assert counts.total() - incomplete + count == units
        else:
            ends = pairs.ALONE, pairs.TIES, pairs.CLOSE, lessons.AGAIN
            assert sum(counts[what] for what in ends) + count == units


def test_verls_own_classes_read_both_files(tmp_path, byte_model):
    from transformers import AutoTokenizer
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
    from verl.utils.dataset.rm_dataset import RMDataset

    tokenizer = AutoTokenizer.from_pretrained(byte_model)
    graph = import_again(tmp_path, byte_model)
    count, _ = written(tmp_path, [graph], lessons.best_attempts, "sft.parquet")
    config = {"pad_mode": "no_padding", "max_length": 4096}
    rows = MultiTurnSFTDataset(str(tmp_path / "sft.parquet"), tokenizer, config)
    assert len(rows) == count == 1
    trained = tokenizer.decode(rows[0]["input_ids"][rows[0]["loss_mask"].bool()])
    assert trained == "a<|im_end|>\nb<|im_end|>\n"

    count, chosen = written(tmp_path, [graph], pairs.siblings, "pairs.parquet", form="plain", tokenizer=tokenizer)
    found = RMDataset(str(tmp_path / "pairs.parquet"), tokenizer, max_length=256, cache_dir=str(tmp_path))
    assert len(found) == count == 2 and not chosen.notes()
    first = [tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(*found[0].values(), strict=True)]
    prompt = "<|im_start|>user\nstart<|im_end|>\n<|im_start|>assistant\n"
    assert first == [f"{prompt}a<|im_end|>", f"{prompt}b<|im_end|>"]


def import_again(tmp_path, model):
    """The same rollout with the tokens of a model."""
    from verl_hier.chat.tokenizer import load_renderer, load_tokenizer

    rollout(tmp_path)
    tokenizer = load_tokenizer(model)
    (graph,) = import_chat(tmp_path / "chat.jsonl", tokenizer, load_renderer(model, tokenizer, "chat"))
    return graph


def test_a_prompt_whose_text_is_read_as_other_tokens_is_noted(tmp_path, byte_model):
    from transformers import AutoTokenizer

    graph = import_again(tmp_path, byte_model)
    tokenizer = AutoTokenizer.from_pretrained(byte_model)
    tokenizer.add_tokens(["start"])  # the policy was given letters
    _, chosen = written(tmp_path, [graph], pairs.siblings, "pairs.parquet", form="plain", tokenizer=tokenizer)
    assert chosen.notes() == ["2 prompts whose text is read as other tokens than the policy was given"]


# The columns that TRL 1.16.0 takes together, trl/data_utils.py:182-189.
TOGETHER = ({"messages"}, {"prompt", "completion"}, {"prompt", "chosen", "rejected"})
KNOWN = {"prompt", "chosen", "rejected", "completion", "messages", "label"}
EXPORTS = (
    (lessons.best_attempts, {}, "sft"),
    (lessons.best_attempts, {"form": "turns"}, "sft"),
    (pairs.revised_attempts, {"form": "turns", "thought": "I turn back."}, "sft"),
    (pairs.siblings, {}, "dpo"),
    (pairs.errors, {}, "dpo"),
    (pairs.revisions, {"thought": "I turn back."}, "dpo"),
)


@pytest.mark.parametrize("rows, options, kind", EXPORTS)
def test_the_columns_are_those_that_trl_takes(tmp_path, rows, options, kind):
    found, _ = written(tmp_path, [rollout(tmp_path)], rows, **options)
    for row in found:
        assert KNOWN & row.keys() in TOGETHER
        for name in KNOWN & row.keys():
            assert row[name] and all(message.keys() == {"role", "content"} for message in row[name])
        assert "prompt" not in row or row["prompt"][-1]["role"] == "user"


@pytest.mark.slow
@pytest.mark.parametrize("rows, options, kind", EXPORTS)
def test_trl_itself_trains_on_the_files(tmp_path, byte_model, rows, options, kind):
    trl = pytest.importorskip("trl", reason="needs trl 1.16, beside which verl 0.9.1 loads no model")
    from datasets import Dataset
    from transformers import AutoTokenizer

    found, _ = written(tmp_path, [rollout(tmp_path)], rows, **options)
    tokenizer = AutoTokenizer.from_pretrained(byte_model)
    config, trainer = (trl.SFTConfig, trl.SFTTrainer) if kind == "sft" else (trl.DPOConfig, trl.DPOTrainer)
    chosen = config(
        output_dir=str(tmp_path / "out"), max_steps=2, report_to=[], use_cpu=True, bf16=False, save_strategy="no"
    )
    made = trainer(
        model=str(byte_model), args=chosen, train_dataset=Dataset.from_list(found), processing_class=tokenizer
    )
    assert len(made.train_dataset) == len(found)
    if kind == "dpo":
        first = made.train_dataset[0]
        told = tokenizer.apply_chat_template(found[0]["prompt"], add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(first["prompt_ids"]) == told
        for name in ("chosen", "rejected"):
            assert tokenizer.decode(first[f"{name}_ids"]) == f"{found[0][name][0]['content']}<|im_end|>\n"
    assert made.train().metrics["train_loss"] > 0


def test_a_row_says_what_the_agent_was_told(tmp_path):
    graph = rollout_graphs.hierarchical(n=4)
    graph.check()
    rows, _ = written(tmp_path, [graph], lessons.best_attempts, form="turns", least=-9.0)
    again = next(iter(read_graphs(tmp_path / "graphs.jsonl")))
    known = [conversation(again, node.id) for node in again.nodes]
    assert {row["role"] for row in rows} == {"planner", "executor"}
    assert all([*row["prompt"], *row["completion"]] in known for row in rows)

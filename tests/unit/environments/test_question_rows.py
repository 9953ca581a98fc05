"""Questions and answers in the columns of public data sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.environments.question_rows import BOXED, COLUMNS, answers_of, boxed, question_of
from verl_hier.graph.bounded_reading import parquet_columns, parquet_rows

FORMS = Path(__file__).parents[2] / "fixtures" / "data_forms"
FIRST = {
    "aime2024": ("AIME 0", ["100"]),
    "dapo_math": ("Solve: 0+2. The last line should be Answer: $Answer.", ["2"]),
    "extra_info_float_index": ("0+1 ####", ["1"]),
    "flashrag": ("who 0", ["x"]),
    "geo3k": ("Find x.", ["0"]),
    "ground_truth_list": ("0+1 ####", ["1"]),
    "gsm8k": ("What is 0+1?", ["1"]),
    "gsm8k_hf": ("q0?", ["x #### 0"]),
    "gsm8k_interaction": ("0+1", ["1"]),
    "math_hf": ("q0?", ["1"]),
    "math_lighteval": (
        "Half of 0? Let's think step by step and output the final answer within \\boxed{}.",
        ["\\frac{0}{2}"],
    ),
    "math_qa": ("q0?", ["\\frac{1}{2}"]),
    "mc_a": ("q0?", ["A"]),
    "no_extra_info": ("0+1 ####", ["1"]),
    "nq_open": ("q0?", ["a0", "b"]),
    "prompt_string": ("", ["1"]),
    "search_r1": ("who is 0", ["Person 0"]),
    "search_r1_verl_tool": ("who is 0", ["Person 0"]),
    "swe_gym": ("fix 0", []),
    "toolrl": (
        "**Dialogue Records History**\n<user> weather 0 </user>",
        ['<think> t </think>\n<tool_call>\n{"name": "w", "parameters": {"c": "x"}}\n</tool_call>'],
    ),
    "triviaqa": ("q0?", ["a"]),
}


def rows_of(file):
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in file.read_text().splitlines()]
    return list(parquet_rows(file, [name for name in parquet_columns(file) if name in COLUMNS]))


@pytest.mark.parametrize("file", sorted(FORMS.iterdir()), ids=lambda file: file.stem)
def test_every_form_of_public_data_is_read(file):
    rows = rows_of(file)
    assert (question_of(rows[0]), answers_of(rows[0])) == FIRST[file.stem]
    # The first row is like the others.
    assert {(bool(question_of(row)), bool(answers_of(row))) for row in rows} == {tuple(map(bool, FIRST[file.stem]))}


WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).map(str.strip).filter(bool)


@given(st.lists(WORDS, min_size=1, unique=True), st.sampled_from(["golden", "answer", "target", "aliases", "truth"]))
def test_answers_are_found_wherever_they_stand(answers, where):
    row = {
        "golden": {"golden_answers": answers},
        "answer": {"answer": answers},
        "target": {"reward_model": {"ground_truth": {"target": answers}}},
        "aliases": {"answer": {"value": answers[0], "aliases": [*answers, answers[0]], "normalized_value": "z"}},
        "truth": {"reward_model": {"ground_truth": answers, "style": "rule"}},
    }[where]
    assert answers_of({"question": "q", "answer": None, **row}) == answers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(COLUMNS), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(COLUMNS), JSON))
def test_rows_of_any_form_are_read_without_an_error(row):
    assert question_of(row) == question_of(row).strip()
    answers = answers_of(row)
    assert len(set(answers)) == len(answers) and all(text and text == text.strip() for text in answers)


@given(
    st.recursive(st.text("ab ", max_size=4), lambda inner: inner.map(lambda text: f"\\frac{{{text}}}"), max_leaves=4)
)
def test_what_is_boxed_last_counts(inner):
    assert boxed(f"so {BOXED}wrong}} and {BOXED}{inner}}}.") == inner.strip()
    assert boxed(f"{BOXED}{inner}") == boxed("no box") == ""

"""Numbers are equal where they are, in every notation, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hier.environments import math_answers, scoring
from verl_hier.environments.numbers import last_number, number_of
from verl_hier.errors import RecipeError
from verl_hier.rewards import answers
from verl_hier.rollout.rewards import RatedTurn
from verl_hier_plugins.environments.gateway import SPEC as GATEWAY
from verl_hier_plugins.environments.gateway.options import GatewayOptions
from verl_hier_plugins.environments.gateway.scoring import scorer_of
from verl_hier_plugins.environments.mcp import SPEC as MCP
from verl_hier_plugins.environments.mcp.options import McpOptions
from verl_hier_plugins.environments.python_tool.arithmetic import same_number

SIGNS = ("-", "−", "－", "–", "\u2011")


def notations(value: Fraction) -> list[str]:
    """The ways to write a decimal fraction that are tried."""
    up, down = value.numerator, value.denominator
    whole = [f"{up}", f"{up:,}", f"{up}.0", f"{up}e0", f"${abs(up):,}" if up >= 0 else f"-${abs(up):,}"]
    found = [f"{up}/{down}", f"\\frac{{{up}}}{{{down}}}", f"{2 * up} / {2 * down}"]
    decimal = f"{float(value):.6f}"
    exact = Fraction(decimal) == value
    if exact:
        found += [decimal, decimal.rstrip("0") + "0", f"{value.numerator * 10**6 // value.denominator}e-6"]
        found += [decimal.replace("0.", ".", 1)] if abs(value) < 1 else []
        found += [f"{float(value):,.6f}", f"{value.numerator * 10**6 // value.denominator} × 10^{{-6}}"]
    return found + (whole if down == 1 else [])


RATIONALS = st.builds(Fraction, st.integers(-(10**7), 10**7), st.sampled_from([1, 2, 3, 4, 5, 8, 10, 100, 7]))


@given(RATIONALS, RATIONALS, st.sampled_from(SIGNS), st.data())
def test_the_scorer_is_equality_of_fractions(one, other, sign, data):
    score = scorer_of(GatewayOptions(scorer="number"))
    for value in (one, -one, other):
        said = data.draw(st.sampled_from(notations(value))).replace("-", sign)
        true = data.draw(st.sampled_from(notations(one)))
        assert last_number(said) == number_of(said) == value, said
        assert score({"answers": [true]}, f"It is {said}.") == float(value == one), (said, true)


@given(st.integers(2**53, 2**80), st.integers(-3, 3))
def test_large_numbers_are_exact(number, more):
    assert (
        scoring.number(str(number + more), [str(number)]) == (more == 0) == same_number(f"{number + more}", f"{number}")
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(
            ("10-3", 3),
            ("x = -3", -3),
            ("(−3)", -3),
            ("1 1/2", Fraction(3, 2)),
            ("-1½", Fraction(-3, 2)),
            ("5 7/2", 3.5),
        ),
        *(("1,2,3", 3), ("1.234,5", 1234.5), ("12.345.678", 12345678), ("1\u202f234", 1234), ("1{,}234", 1234)),
        *(("8" * 500, int("8" * 500)), ("9" * 5000, None), ("1e999999999", None), ("1/0", None), ("no", None)),
        *(("5.", 5), ("so...5", 5), ("x5", None), ("０.５", 0.5), ("\\frac12", 0.5), ("1 2 42", 42), ("-.5", -0.5)),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == number


HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("text", "number", "computed"),
    [
        *(("5", 5, False), (" 5. ", 5, False), ("5 .", 5, False), ("5..", None, False), ("five 5", None, False)),
        *(("$5$", 5, False), ("$ 5 $", 5, False), ("$5", 5, False), ("5$", None, False), ("$-5$", -5, False)),
        *(("", None, False), (" ", None, False), ("$", None, False), ("$$", None, False), (".", None, False)),
        *(("- 5", -5, False), ("+ .5", HALF, False), ("- $5", -5, False), ("-$5", -5, False), ("$-5", -5, False)),
        *(("-$-5", 5, False), ("+5", 5, False), ("--5", None, False), ("- x", None, False)),
        *(("1 234 567", 1234567, False), ("12 34", None, False), ("1 2345", None, False), ("1\\ 234", 1234, False)),
        *(("1,234.5", Fraction(2469, 2), False), ("1.234,5", Fraction(2469, 2), False), ("1,234", 1234, False)),
        *(("0,5", HALF, False), ("12,34", Fraction(617, 50), False), ("1.234.567", 1234567, False)),
        *(("1,234,567.25", Fraction(4938269, 4), False), ("0,234", Fraction(117, 500), False), ("1,23,4", None, False)),
        *(("2e-3", Fraction(1, 500), False), ("2E3", 2000, False), ("2e3x", None, False)),
        *(("1/2", HALF, True), ("-1/2", -HALF, True), ("1/-2", -HALF, True), ("1 1/2", Fraction(3, 2), True)),
        *(
            ("½", HALF, True),
            ("1½", Fraction(3, 2), True),
            ("1/0", None, True),
            ("0/5", 0, True),
            ("1/2/3", None, True),
        ),
        *(("\\frac{1}{2}", HALF, True), ("\\dfrac12", HALF, True), ("\\tfrac{1}2", HALF, True)),
        *(("-\\frac1{2}", -HALF, True), ("\\frac{-1}{-2}", HALF, True), ("\\frac{ 1 }{ 2 }", HALF, True)),
        *(("2 × 10^3", 2000, True), ("2*10**-3", Fraction(1, 500), True), ("2\\cdot10^{ 3 }", 2000, True)),
        *(("1e1000", 10**1000, False), ("1e-1001", None, False)),
        *(("1e1001", None, False), ("1e-1000", Fraction(1, 10**1000), False)),
        *(("7" * 1000, int("7" * 1000), False), ("7" * 1001, None, False)),
    ],
)
def test_a_whole_text_is_one_number(text, number, computed):
    """`computed` for what says how a number is computed, which is none where only what is written out counts."""
    assert number_of(text) == number
    assert number_of(text, written_out=False) == (None if computed else number)


@pytest.mark.parametrize("text", ["2 0/5", "2 5/5"])
def test_a_part_behind_a_whole_number_is_above_0_and_below_1(text):
    """Others stand by themselves: these are two numbers, and the last one counts."""
    assert last_number(text) == Fraction(text.split()[1])


def test_a_long_text_is_read_from_its_end():
    """As docs/rewards.md says: the last 4,000 characters."""
    digits = "1" * 1000
    assert last_number(digits) == int(digits) and last_number(f"1{digits}") is None
    for more, found in ((0, 7), (1, None)):
        text = "7" + "." * (3999 + more)
        assert last_number(text) == found
        assert scoring.number(text, ["7"]) is (found == 7)
    for spaces, negative in ((3997, True), (3998, False)):
        assert scoring.number("- 5" + " " * spaces, ["-5"]) is negative, "one number as a whole, or the last one in it"


@pytest.mark.parametrize(
    ("given_", "true"), [("1,2", "12"), ("10/2", "5"), ("5 or 6", "6"), ("-5", "5"), ("nan", "nan")]
)
def test_python_tools_scorer_stays_strict(given_, true):
    assert not same_number(given_, true)


ANSWERS = [("-5", "number"), ("1.5", "number"), ("1815", "number"), ("3/4", "number"), ("A", "number_or_words")]


@pytest.mark.parametrize(
    ("answer", "cure"), [*ANSWERS, ("the", "number_or_words"), ("½", "number"), ("+", "number_or")]
)
@pytest.mark.parametrize("name", ["gateway", "mcp"])
def test_an_answer_that_the_scorer_cannot_compare_is_refused_with_its_line(tmp_path, name, answer, cure):
    file = tmp_path / "tasks.jsonl"
    lines = [{"instruction": "a", "answer": "a word"}, {"instruction": "b", "answer": answer}]
    file.write_text("\n".join(map(json.dumps, lines)))

    def tasks(**options):
        common = {"data_path": str(file), "validation_path": str(file), "pool": 0, "validation": 0, **options}
        if name == "gateway":
            return GATEWAY.tasks(GatewayOptions(command="cat", **common), "train")
        return MCP.tasks(McpOptions(command="cat", **common), "train")

    with pytest.raises(RecipeError, match=rf"line 2: the answer '.*' is .*`{cure}"):
        tasks()
    assert len(tasks(scorer="number_or_words")) == 2


@pytest.mark.parametrize(
    ("answer", "true", "right"),
    [
        *(
            ("5", "-5", False),
            ("−5", "-5", True),
            ("A", "A", True),
            ("B", "A", False),
            ("A.", "A", True),
            ("", "A", False),
        ),
        *(
            ("the lake", "Lake", True),
            ("15", "1.5", False),
            ("it is 1.50", "1.5", True),
            ("..", ".", False),
            ("- 5", "-5", True),
            ("10 - 5", "5", True),
            ("12 000", "12000", True),
            ("+", "-", False),
        ),
    ],
)
def test_numbers_or_words(answer, true, right):
    assert scoring.number_or_words(answer, [true]) is right


def test_latex_is_compared_by_math_verify():
    pytest.importorskip("math_verify")
    same = [("so $\\dfrac{1}{2}$", "\\frac{1}{2}"), ("\\boxed{1+x^2}", "x^2+1"), ("2\\sqrt{2}", "\\sqrt{8}")]
    assert all(scoring.math_verify(answer, [true]) for answer, true in same)
    assert not any(scoring.math_verify(answer, ["3"]) for answer in ("4", "", "the", "-3"))


def test_what_cannot_be_read_as_mathematics_is_not_equal():
    pytest.importorskip("math_verify")
    reader = math_answers._begin()
    try:
        assert math_answers._ask(reader, b'["1"]\n', math_answers.START_S) == b"0"
        assert math_answers._ask(reader, b'["1", ["1"]]\n', math_answers.START_S) == b"1"
    finally:
        reader.kill()
        reader.wait()
        math_answers._readers.clear()


def test_an_answer_that_sympy_does_not_finish_is_wrong_in_time(monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.setattr(math_answers, "LIMIT_S", 1.0)
    assert scoring.math_verify("$2^3$", ["8"]), "begins the process, which may take longer"
    for answer in ("9^{9^{9^{9^9}}}", "(" * 64_000, "\\frac{" * 10_000, "2!" + "!" * 2000):
        started = time.monotonic()
        assert not scoring.math_verify(f"${answer}$", ["1"])
        assert time.monotonic() - started < math_answers.START_S, answer
    assert scoring.math_verify("$2^3$", ["8"])


def test_the_reward_leaves_the_event_loop_free(monkeypatch):
    """While an answer is compared other episodes go on."""
    seen = []

    def compare(answer, truths):
        seen.append((threading.current_thread() is threading.main_thread(), answer, truths))
        return True

    monkeypatch.setitem(scoring.MATCHES, "math_verify", compare)
    turn = RatedTurn({"answers": ["8"]}, "solver", "a", 0, 0, (), "<answer>2^3</answer>", True, 0.0, {})
    assert asyncio.run(answers.math_verify(turn)) == 1.0 and seen == [(False, "2^3", ["8"])]


def test_without_math_verify_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"pip install 'verl-hier\[math\]'"):
        scorer_of(GatewayOptions(scorer="math_verify"))

"""What a line of the authors' files is read as, what is said of one that reads otherwise, which values are equal."""

from __future__ import annotations

from typing import Any

import pytest

from verl_hier.recipe.authors import _COMPUTED, ABSENT, PRESENT, AuthorsValue, Place, _payments, _same, _where

LINES = (
    *("top_k: 5", "stop_k: 5 kl_coef 0.1", "name = 'grpo',", "sizes=[1, 2]  # more", "--lr 1e-6 --epochs=3"),
    *("k = 1 or k = 2", "words alone"),
)


@pytest.mark.parametrize(
    ("number", "key", "reads", "said"),
    [
        *((1, "top_k", 5, None), (1, "top_k", 5.0, None), (2, "kl_coef", 0.1, None), (3, "name", "grpo", None)),
        *((4, "sizes", [1, 2], None), (5, "--lr", 1e-6, None), (5, "--epochs", 3, None)),
        *((6, "k", 1, None), (6, "k", 2, None), (7, "words", PRESENT, None), (None, "none of them", ABSENT, None)),
        (1, "top_k", 6, "has 5 in line 1, and is recorded with top_k = 6"),
        (2, "top_k", 5, "has no 'top_k' in line 2, and is recorded with top_k = 5"),
        (6, "k", 3, "has 1 or 2 in line 6, and is recorded with k = 3"),
        (4, "sizes", [1], "has [1, 2] in line 4, and is recorded with sizes = [1]"),
        (7, "top_k", PRESENT, "does not have 'top_k' in line 7"),
        (8, "top_k", PRESENT, "has no line 8"),
        (None, "top_k", 5, "has no line None"),
        (None, "top_k", ABSENT, "holds 'top_k' in line 1, and is recorded without it"),
        (None, "k = ", ABSENT, "holds 'k = ' in line 6, and is recorded without it"),
    ],
)
def test_a_line_is_read_by_its_key(number: int | None, key: str, reads: Any, said: str | None) -> None:
    assert Place("theirs", "0" * 40, "config.sh", number, key, reads).wrong(LINES) == said


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        *((1, 1.0, True), ("1e-6", 1e-6, True), (1, 1 + 1e-10, True), (1, 1 + 1e-8, False), (0, 1e-12, False)),
        *((True, True, True), (True, 1, False), (0, False, False), (None, None, True), (None, 0, False)),
        *(("a", "a", True), ("a", "b", False), ("a", 1, False), ([1, "a"], [1.0, "a"], True), ([1, 2], [2, 1], False)),
        *(([1], [1, 2], False), ([1, 2], [1], False), ([], [], True), ([1], 1, False)),
    ],
)
def test_values_are_equal_whatever_writes_them(ours: Any, theirs: Any, same: bool) -> None:
    assert _same(ours, theirs) is _same(theirs, ours) is same


def test_values_are_computed_as_their_rule_says() -> None:
    tried: dict[str, list[tuple[tuple[float, ...], Any]]] = {
        "product": [((2, 3, 4), 24)],
        "quotient": [((6, 4), 1.5), ((4, 8), 0.5)],
        "product over the last": [((2, 3, 4), 1.5)],
        "quotient, at least one": [((6, 4), 1.5), ((4, 6), 1)],
        "difference": [((5, 2), 3)],
        "kibi": [((3,), 3072)],
        "sum of kibis": [((1, 2), 3072)],
        "one more": [((3,), 4)],
        "one less": [((3,), 2)],
        "one more than the product": [((2, 3), 7)],
        "of each player": [((3,), 6)],
        "of both players": [((3,), 1.5)],
        "list": [((1, 2), [1, 2])],
    }
    assert tried.keys() == _COMPUTED.keys()
    for rule, examples in tried.items():
        assert [_COMPUTED[rule](*reads) for reads, _ in examples] == [result for _, result in examples], rule


def test_a_value_says_where_it_was_read() -> None:
    place = Place("theirs", "0" * 40, "config.sh", 3, "k", 1)
    assert _where(AuthorsValue("k", None, (), 1, (place, place))) == "config.sh:3"
    assert _where(AuthorsValue("k", None, (), 1, (), case="k.json")) == "the executed case k.json"
    whole = Place("theirs", "0" * 40, "config.sh", None, "k", ABSENT)
    assert _where(AuthorsValue("k", None, (), 1, (whole,))) == "config.sh"


def test_penalties_and_rewards_that_are_paid_are_named() -> None:
    paid = {"format_penalty": 0.1, "win_reward": 10, "other_reward": 0, "reward_model": 3, "text_penalty": "no"}
    config = {"hier": {"environment": paid, "worker": {"turn_penalty": -1.5}, "estimator": None, "sampler": paid}}
    assert list(_payments(config)) == [
        *(("hier.environment.format_penalty", 0.1), ("hier.environment.win_reward", 10)),
        ("hier.worker.turn_penalty", -1.5),
    ]

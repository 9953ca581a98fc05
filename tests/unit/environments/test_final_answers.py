"""The final answers that worlds say: equal ones are equal texts, whatever they look like."""

from __future__ import annotations

from typing import Any

import pytest

from verl_hier.environments.base import FINAL_ANSWER
from verl_hier.environments.scoring import equal_form, stated_answer
from verl_hier.host.manager import PluginHost

HOST = PluginHost.load({"builtin": True})


@pytest.mark.parametrize(
    ("equal", "other"),
    [
        (("1,234.50", "1234.5", "$1234.5$"), "1234"),
        (("-5", "- 5"), "5"),
        (("1/2", "0.5", "\\frac{1}{2}"), "2"),
        (("The Beatles", "beatles."), "Beatle"),
        (("A", " A "), "B"),
        (("+",), "-"),
    ],
)
def test_equal_answers_have_one_form(equal: tuple[str, ...], other: str) -> None:
    assert len({equal_form(text) for text in equal}) == 1 and equal_form(other) != equal_form(equal[0])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>4</answer>, no: <answer>5</answer>", "5"),
        (r"thus \boxed{\frac{1}{2}}", "1/2"),
        ("she has 3 + 4 = 7\n#### 7\n", "7"),
        ("<think><answer>4</answer></think> <answer>6</answer>", "6"),
        ("<think>#### 4</think> seven", None),
        ("", None),
        ("<answer> </answer>", None),
    ],
)
def test_a_text_states_its_answer(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer


def _answered(name: str, action: str, options: dict[str, Any], task: dict[str, Any]) -> Any:
    from verl_hier.host.options import build_options

    spec: Any = HOST.spec("environment", name)
    built = build_options(spec, options)
    world = spec.factory(built)
    world.reset(task, 0)
    return FINAL_ANSWER in spec.fills(built), world.step(action).info.get(FINAL_ANSWER)


def test_worlds_say_what_they_declare() -> None:
    sum_of_two = {"instruction": "1 + 2", "family": "arithmetic", "answer": "3", "data_source": "python_tool"}
    alone = {"tool": False}
    assert _answered("python_tool", "<answer>3.0</answer>", alone, sum_of_two) == (True, "3")
    assert _answered("python_tool", "<answer>4</answer>", alone, sum_of_two) == (True, "4"), "wrong ones too"
    assert _answered("python_tool", "nothing", alone, sum_of_two) == (True, None)
    chained = {**sum_of_two, "next": [sum_of_two]}
    assert _answered("python_tool", "<answer>3</answer>", {**alone, "chain": 2}, chained) == (False, None)
    asked = {"messages": [{"role": "user", "content": "1 + 2"}]}
    assert _answered("prompt", r"\boxed{3}", {}, asked) == (True, "3")
    assert _answered("prompt", "three", {}, asked) == (True, None)
    assert FINAL_ANSWER not in HOST.spec("environment", "alfworld").fills()

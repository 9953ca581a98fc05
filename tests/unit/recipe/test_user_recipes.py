"""Mistakes in a recipe file of a user's own: one sentence with the file, the line and the key."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_hier.errors import FileError, HierError, RecipeError
from verl_hier.host.discovery import Candidate
from verl_hier.host.lazy import named_function
from verl_hier.host.loading import load_failure
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.recipe.yaml_files import read_yaml

TOP = "defaults:\n  - ppo_trainer\n  - hier/base\n"
REST = "  - hier/method: grpo\n  - hier/size: cpu\n  - _self_\n"
WHOLE = "  - hier/variant: ${hier/size}\n" + REST
MISTAKES: dict[str, tuple[str, list[str]]] = {
    "empty file": ("", ["mine.yaml", "is empty", "ppo_trainer"]),
    "comments alone": ("# nothing yet\n", ["mine.yaml", "is empty"]),
    "a list": ("- ppo_trainer\n", ["mine.yaml", "no mapping"]),
    "defaults is a word": ("defaults: ppo_trainer\n", ["mine.yaml", "no list"]),
    "duplicate key": (
        TOP + "trainer: {nnodes: 1}\ndata: {seed: 1}\ntrainer:\n  device: cpu\n",
        ["'trainer'", "4", "6"],
    ),
    "duplicate key below": (TOP + "trainer:\n  nnodes: 1\n  device: cpu\n  nnodes: 2\n", ["'nnodes'", "5", "7"]),
    "duplicate key in one line": (TOP + "trainer: {nnodes: 1, nnodes: 2}\n", ["'nnodes'", "twice in line 4"]),
    "bad indent": (TOP + "trainer:\n  nnodes: 1\n   device: cpu\n", ["line 6", "device: cpu"]),
    "unclosed bracket": (TOP + "trainer: {nnodes: 1\ndata: {seed: 1}\n", ["line 5", "line 4", "trainer"]),
    "unclosed quote": (TOP + "trainer: {device: 'cpu}\n", ["line 4"]),
    "a tab": ("defaults:\n\t- ppo_trainer\n", ["line 2"]),
    "an unknown anchor": (TOP + "trainer: *there\n", ["line 4", "there"]),
    "no ppo_trainer": ("defaults:\n  - hier/base\n  - hier/environment: sokoban\n" + REST, ["lacks `ppo_trainer`"]),
    "no hier/base": ("defaults:\n  - ppo_trainer\n  - hier/environment: sokoban\n" + REST, ["hier/base"]),
    "no group at all": ("defaults: [ppo_trainer]\nhier: {environment: {name: sokoban}}\n", ["lacks `hier/base`"]),
    "misspelt method": (TOP + "  - hier/method: grppo\n", ["hier/method", "did you mean 'grpo'"]),
    "misspelt environment": (TOP + "  - hier/environment: alfwrld\n", ["hier/environment", "did you mean 'alfworld'"]),
    "misspelt group": (TOP + "  - hier/metod: grpo\n", ["mine.yaml:4", "did you mean 'hier/method: grpo'"]),
    "misspelt group by which another goes": (
        TOP + "  - hier/enviroment: sokoban\n  - hier/prompt: game\n" + WHOLE,
        ["mine.yaml:4", "did you mean 'hier/environment: sokoban'"],
    ),
    "group without its colon": (TOP + "  - hier/method grpo\n", ["mine.yaml:4", "did you mean 'hier/method: grpo'"]),
    "misspelt file": ("defaults:\n  - ppo_trainr\n  - hier/base\n", ["mine.yaml:2", "did you mean 'ppo_trainer'"]),
    "group without a choice": (TOP + "  - hier/method:\n", ["hier/method", "names no choice"]),
    "two groups in one line": (TOP + "  - {hier/method: grpo, hier/size: cpu}\n", ["a line for each"]),
    "a number in the list": (TOP + "  - 3\n", ["3", "neither"]),
    "misspelt block": (TOP + REST + "hier:\n  enviroment: {name: sokoban}\n", ["did you mean 'environment'"]),
    "misspelt key below": (
        TOP + REST + "hier:\n  rollout: {max_turn: 3}\n",
        ["hier.rollout", "did you mean 'max_turns'"],
    ),
    "no environment": (TOP + REST, ["hier.environment.name", "hier/environment"]),
    "a word for a part": (
        TOP + REST + "hier: {environment: {name: sokoban}, worker: react}\n",
        ["hier.worker", "{name: "],
    ),
    "rewards as a list": (
        TOP + REST + "hier: {environment: {name: sokoban}, rewards: [{function: a.b}]}\n",
        ["hier.rewards", "{function: "],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_in_one_sentence(mistake: str, tmp_path: Path) -> None:
    text, names = MISTAKES[mistake]
    sentence = _refusal(tmp_path, text)
    assert all(name in sentence for name in names), sentence
    assert "\n" not in sentence and "search path" not in sentence


GROUPS = {"method": "himac", "environment": "sokoban", "prompt": "game", "size": "cpu"}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(group=st.sampled_from([*GROUPS]), place=st.integers(0, 20), letter=st.sampled_from(["", "x", "_"]))
def test_a_misspelt_line_of_the_defaults_is_answered_with_the_right_one(
    group: str, place: int, letter: str, tmp_path: Path
) -> None:
    """One letter of `group: choice` is left out or replaced, wherever it stands."""
    line = f"{group}: {GROUPS[group]}"
    at = place % len(line)
    wrong = line[:at] + letter + line[at + 1 :]
    lines = [f"  - hier/{wrong if name == group else f'{name}: {choice}'}\n" for name, choice in GROUPS.items()]
    sentence = _refusal(tmp_path, TOP + "".join(lines) + "  - hier/variant: ${hier/size}\n  - _self_\n")
    asked = f"did you mean '{GROUPS[group]}'" in sentence or f"did you mean 'hier/{line}'" in sentence
    assert asked or f"`- hier/{line.partition(':')[0]}: …`" in sentence, (wrong, sentence)


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("hier.worker=react", "hier.worker={name: react}"),
        ("hier.environment=3", "hier.environment={name: 3}"),
        ("hier.environment.name=3", "hier.environment.name"),
        ("hier.estimator.name=[grpo]", "hier.estimator.name"),
        ("hier/method=grppo", "did you mean 'grpo'"),
        ("hier/enviroment=sokoban", "hier/enviroment"),
        ("hier/variant=node", "size="),
    ],
)
def test_an_override_is_refused_in_one_sentence(override: str, names: str) -> None:
    with pytest.raises(HierError) as refused:
        check_recipe(compose("grpo_sokoban", [override]))
    assert names in str(refused.value) and "\n" not in str(refused.value)


KEYS = st.sampled_from(["a", "b", "trainer", "q", "1", "true"])


@st.composite
def _mapping(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Lines of a block mapping, in which keys may stand twice."""
    lines: list[str] = []
    for key in draw(st.lists(KEYS, min_size=1, max_size=4)):
        if depth < 2 and draw(st.booleans()):
            lines += [f"{key}:", *(f"  {line}" for line in draw(_mapping(depth + 1)))]
        else:
            lines.append(f"{key}: {draw(st.sampled_from(['1', '[1, 2]', '{x: 1}', '{x: 1, x: 2}', 'word']))}")
    return lines


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=_mapping())
def test_keys_that_stand_twice_are_named_with_both_lines(lines: list[str], tmp_path: Path) -> None:
    """Compared with a reader that looks at each level of indentation by itself."""
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join(lines))
    twice = _twice(lines)
    if not twice:
        assert read_yaml(path)[1] == yaml.safe_load(path.read_text())
        return
    with pytest.raises(FileError) as refused:
        read_yaml(path)
    assert any(f"the key {key!r} stands" in str(refused.value) for key, _, _ in twice)
    assert any(
        f"line {first}" in str(refused.value) and f"line {last}" in str(refused.value) for _, first, last in twice
    )


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    place=st.integers(0, 400),
    text=st.sampled_from(["{", "]", "\t", ": ", "'", "&a", "*b", "%", "@", "\x00", "?", "- "]),
)
def test_a_broken_file_is_refused_or_read(place: int, text: str, tmp_path: Path) -> None:
    """A shipped recipe with some characters more: never a traceback, and a refusal says in which line."""
    whole = find("himac_alfworld").text
    path = tmp_path / "mine.yaml"
    path.write_text(whole[:place] + text + whole[place:])
    try:
        read_yaml(path)
    except FileError as error:
        assert "\n" not in str(error)
        assert "line " in str(error) or "\x00" in text, str(error)


def _twice(lines: list[str]) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    seen: dict[int, dict[str, int]] = {}
    for number, line in enumerate(lines, 1):
        depth = len(line) - len(line.lstrip())
        for deeper in [each for each in seen if each > depth]:
            del seen[deeper]
        key = line.strip().rpartition(": ")[0] or line.strip().removesuffix(":")
        key = key.partition(": {")[0].strip("'")
        if "x: 1, x" in line:
            found.append(("x", number, number))
            key = line.strip().partition(": {")[0].strip("'")
        if key in seen.setdefault(depth, {}):
            found.append((key, seen[depth][key], number))
        seen[depth][key] = number
    return found


def _refusal(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as refused:
        check_recipe(compose(str(path)))
    return str(refused.value)


FAULTS = {
    "raises": ("import os\n\nraise RuntimeError('boom')\n", 3, "boom"),
    "raises below": ("def f():\n    return {}['no']\n\n\nf()\n", 2, "no"),
    "does not parse": ("def score(episode):\n    return (\n", 2, "never closed"),
    "imports what is not there": ("import nothing_of_that_name\n", 1, "nothing_of_that_name"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_module_that_raises_at_import_is_named_with_its_line(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, line, said = FAULTS[fault]
    name = f"mine_{abs(hash(fault))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RecipeError) as refused:
        named_function(f"{name}:score", "hier.rewards.mine.function")
    assert f"{name}.py:{line})" in str(refused.value) and said in str(refused.value)
    assert str(refused.value).startswith("hier.rewards.mine.function: ")
    with pytest.raises(Exception) as raised:
        importlib.import_module(name)
    failure = str(load_failure(Candidate(name, name, "here", "1.0"), raised.value))
    assert f"{name}.py:{line})" in failure


def test_a_reward_beside_the_recipe_is_found_by_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_rewards.py").write_text("def score(episode):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path not in ("", ".", str(tmp_path))])
    with pytest.raises(RecipeError, match=r"my_own_rewards\.py is in this folder: put `PYTHONPATH=\.` before the"):
        named_function("my_own_rewards:score", "hier.rewards.mine.function")

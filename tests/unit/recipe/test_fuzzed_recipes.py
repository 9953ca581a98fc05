"""Composed recipes with one value replaced by an absurd one: refused in one sentence, or sound; never a traceback."""

from __future__ import annotations

import pickle
import random
import resource
import time
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import pytest
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tests.unit.recipe.test_mutations import composed
from verl_hier.errors import HierError, RecipeError
from verl_hier.recipe.check import check_recipe

RECIPES = (
    *("grpo_sokoban", "himac_alfworld", "istar_shop", "archer_alfworld", "mae_math", "metaagentx_alfworld"),
    *("igpo_search", "grpo_gateway", "himac_mcp", "mars_games", "treerl_math", "gdro_python_tool", "flat"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 0.5, 10**9, 10**30, -(10**30), 1e308, float("nan"), float("inf")),
    *("", " ", "x", "3", "nonsense/of/no/use", "???", "${nowhere.at.all}", "a\nb", "\x00", "é" * 300, "{", "{x}", "%s"),
    *([], [1, "a", None], [[]], ["x"] * 50, {}, {"name": "x"}, {"a": {"b": [1]}}, date(2026, 1, 1)),
)
MOST_SECONDS = 30.0
"""Of one check, on a busy machine."""
MOST_BYTES = 2**30
"""Of this process after all of them."""


def lines(config: Any, above: str = "") -> Iterator[str]:
    """Every line of a configuration, blocks too; `data.hier` repeats the hier block."""
    for key, inner in OmegaConf.to_container(config, resolve=False).items() if not above else config.items():
        line = f"{above}{key}"
        yield line
        if isinstance(inner, Mapping) and line != "data.hier":
            yield from lines(inner, f"{line}.")


def sweep(seed: int, count: int) -> None:
    """Refused in one sentence or sound, each within the time."""
    chance = random.Random(seed)
    for _ in range(count):
        recipe = chance.choice(RECIPES)
        config = pickle.loads(composed(recipe, ()))
        known = sorted(lines(config))
        ours = [line for line in known if line.startswith("hier.")]
        line, value = chance.choice(chance.choice((known, ours))), chance.choice(VALUES)
        with open_dict(config):
            try:
                OmegaConf.update(config, line, value, force_add=True, merge=False)
            except (OmegaConfBaseException, ValueError):
                continue  # what OmegaConf itself does not hold
        begun = time.perf_counter()
        try:
            check_recipe(config)
        except HierError as error:
            assert str(error) and "\n" not in str(error).strip(), f"{recipe} {line}={value!r}: {error}"
        except Exception as error:
            raise AssertionError(f"{recipe} {line}={value!r:.80}: {type(error).__name__}: {error}") from error
        assert time.perf_counter() - begun < MOST_SECONDS, f"{recipe} {line}={value!r:.80}"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 4 * MOST_BYTES


def test_one_absurd_value_is_a_sentence_or_sound() -> None:
    sweep(0, 60)


@pytest.mark.parametrize("value", [1, "nonsense", ["dp"], {"dp": 1}, 10**30, " "])
def test_an_engine_that_verl_does_not_have(value: Any) -> None:
    config = pickle.loads(composed("flat", ()))
    with open_dict(config):
        config.model_engine = value
    with pytest.raises(RecipeError, match=r"^model_engine: "):
        check_recipe(config)


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.long
def test_many_absurd_values(seed: int) -> None:
    sweep(seed, 250)

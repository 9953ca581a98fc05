"""Columns of the turn table that an estimator reads, beside those that it declares."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from verl_hier.credit.tables import make_table
from verl_hier.errors import CreditError, RecipeError, did_you_mean
from verl_hier.graph.turn_table import TURN_COLUMNS, TurnTable
from verl_hier.recipe.checks.parts import TOKEN_COLUMNS, columns_of
from verl_hier.recipe.checks.rule import rule
from verl_hier.recipe.composed import ComposedRecipe

_TASKS, _EPISODES, _TURNS, _TOKENS = 2, 2, 2, 2


@rule
def check_read_columns(recipe: ComposedRecipe) -> None:
    """Refuse an estimator that reads a column of the turn table which it does not declare and the recipe does not fill:
    it is run once on a small table of the columns that there are."""
    part = recipe.parts.estimator
    if part.spec.native:
        return
    table = _table(columns_of(recipe), recipe.parts.worker.spec.levels(recipe.parts.worker.options))
    missing = _missing(part.spec, table, part.options)
    if missing:
        known = list(table.columns())
        near = did_you_mean(missing, known) or did_you_mean(missing, (name.rpartition(".")[2] for name in known))
        raise RecipeError(
            f"hier.estimator.name: {part.spec.name!r} reads the column {missing!r}{near}, which nothing in the recipe "
            f"fills; list it in the `requires` of its EstimatorSpec, or read one of {', '.join(known)}."
        )


def _missing(spec: Any, table: TurnTable, options: Any) -> str:
    """The first column that the estimator misses; empty when it misses none, or stumbles over something else, since
    the numbers of the table mean nothing."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec.factory(table, options)
    except CreditError as error:
        asked = str(error).partition("the turn table has no column ")[2]
        return asked.partition("'")[2].partition("'")[0]
    except KeyError as error:
        # `table.turns["name"]`, of which the place is the last frame of the estimator's own.
        name = error.args[0] if error.args else None
        homes = {"turns": "", "episodes": "episodes.", "tokens": "tokens."}
        source = _last_line(error)
        home = next((home for home in homes if f".{home}[" in source), None)
        return f"{homes[home]}{name}" if home is not None and isinstance(name, str) else ""
    except Exception:
        return ""
    return ""


def _last_line(error: BaseException) -> str:
    """The source line that raised."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "turn_table" not in frame.filename]
    return (own[-1].line or "") if own else ""


def _table(columns: Iterable[str], levels: dict[str, int]) -> TurnTable:
    """Chains of turns with these columns and no other ones."""
    count = _TASKS * _EPISODES * _TURNS
    number = np.arange(count)
    roles = list(levels)
    role = number % len(roles)
    turns: dict[str, Any] = {
        "group": number // (_EPISODES * _TURNS),
        "episode": number // _TURNS,
        "turn": number % _TURNS,
        "role": role,
        "agent": role,
        "level": np.array([levels[roles[each]] for each in role]),
        "reward": number % 3 / 2.0,
        "anchor": number % _TURNS,
        "n_tokens": np.full(count, _TOKENS),
    }
    turn = np.repeat(number, _TOKENS)
    tokens: dict[str, Any] = {"turn": turn, **{name: turn * 0.0 for name in TOKEN_COLUMNS if name != "turn"}}
    for column in columns:
        home, _, name = column.rpartition(".")
        if home == "tokens" and name not in tokens:
            tokens[name] = turn % 2 == 0
        elif not home and name not in TURN_COLUMNS:
            turns[name] = number % 2
    return make_table(
        turns, tokens=tokens, names={"role": roles, "agent": roles}, anchors=[f"s{i}" for i in range(_TURNS)]
    )

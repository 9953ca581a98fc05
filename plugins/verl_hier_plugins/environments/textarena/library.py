"""Access to TextArena: find a game by its name, start it, and see whether it refused a move."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from verl_hier.errors import RecipeError, did_you_mean


def start(name: str, settings: Mapping[str, Any], players: int | None, seed: int) -> Any:
    """A game after its reset, without TextArena's wrappers.

    Always a new instance: some games keep a shuffled deck over a reset.
    """
    game = _make(name, settings)
    refusal = ""
    for count in (1, 2) if players is None else (players,):
        try:
            game.reset(num_players=count, seed=seed)
        except (AssertionError, ValueError) as error:
            refusal = str(error)
            continue
        except OSError as error:
            raise _impossible(name, error) from error
        # Refused moves are undone here, so they must not end the game.
        game.state.error_allowance = sys.maxsize
        return game
    raise RecipeError(f"hier.environment.players: {name} cannot be played by {players or '1 or 2'}: {refusal}.")


def _make(name: str, settings: Mapping[str, Any]) -> Any:
    import textarena as package

    registry = package.envs.registration.ENV_REGISTRY
    if name not in registry:
        raise RecipeError(f"hier.environment.game: TextArena has no game {name!r}{did_you_mean(name, registry)}.")
    try:
        game = package.make(name, **settings)
    except TypeError as error:
        raise RecipeError(f"hier.environment.settings: {name} refuses these settings: {error}.") from error
    except (ImportError, SyntaxError, ValueError, OSError, LookupError) as error:
        raise _impossible(name, error) from error
    while isinstance(game, package.Wrapper):
        game = game.env
    return game


def _impossible(name: str, error: Exception) -> RecipeError:
    """The error for a missing download (word lists), API key, package or Python version."""
    reason = next((line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line))), "")
    return RecipeError(f"hier.environment.game: TextArena cannot make {name} here ({type(error).__name__}: {reason}).")


def refused(game: Any) -> bool:
    """Whether the game refused the last move."""
    return bool(getattr(game.state, "error_count", 0))

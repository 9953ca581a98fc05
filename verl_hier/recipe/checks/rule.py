"""What a rule is: a function that looks at a recipe and raises when it cannot run."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from verl_hier.recipe.composed import ComposedRecipe

TOPICS = (
    *(
        "keys",
        "numbers",
        "choices",
        "correction",
        "lengths",
        "parts",
        "columns",
        "losses",
        "roles",
        "policies",
        "teachers",
        "self_imitation",
        "sampling",
    ),
    *("tasks", "rows", "tools", "prompts", "resources", "updates", "places", "engine", "unread"),
)
"""The modules of rules, in the order in which they look: first single values, then what does not go together."""

Check = TypeVar("Check", bound=Callable[[ComposedRecipe], None])


@dataclass(frozen=True)
class Rule:
    """One thing that is refused.

    Attributes:
        topic: first sentence of the module that it is in.
        refuses: what it refuses, the first paragraph of its docstring.
        check: raises `RecipeError`, naming the recipe line.
    """

    topic: str
    refuses: str
    check: Callable[[ComposedRecipe], None]


_RULES: list[Rule] = []


def rule(check: Check) -> Check:
    """Register a rule. Rules of a module look in the order in which they are written there."""
    module = inspect.cleandoc(getattr(sys.modules.get(check.__module__), "__doc__", None) or "")
    text = " ".join((inspect.getdoc(check) or "").partition("\n\n")[0].split())
    _RULES.append(Rule(module.partition("\n")[0].rstrip("."), text, check))
    return check


def rules() -> Iterator[Rule]:
    """All rules of the topics, in the order in which they look."""
    for topic in TOPICS:
        module = importlib.import_module(f"{__package__}.{topic}")
        yield from (known for known in _RULES if known.check.__module__ == module.__name__)


def value(config: Mapping[str, Any], line: str) -> Any:
    """The value at a dotted recipe line, None when a part of it is missing."""
    place: Any = config
    for key in line.split("."):
        if not isinstance(place, Mapping) or key not in place:
            return None
        place = place[key]
    return place


def there(config: Mapping[str, Any], line: str) -> bool:
    """Whether the config has a dotted recipe line."""
    above, _, key = line.rpartition(".")
    block = value(config, above) if above else config
    return isinstance(block, Mapping) and key in block


def needs_critic(config: Mapping[str, Any]) -> bool:
    """Whether verl builds a critic: its own rule (`trainer/ppo/utils.py::need_critic`) without importing verl."""
    enable = (config.get("critic") or {}).get("enable")
    return bool(enable) if enable is not None else config["algorithm"]["adv_estimator"] == "gae"


def needs_reference(config: Mapping[str, Any]) -> bool:
    """Whether verl builds a reference policy: `trainer/ppo/utils.py::need_reference_policy` without importing verl."""
    return bool(config["algorithm"].get("use_kl_in_reward") or config["actor_rollout_ref"]["actor"].get("use_kl_loss"))

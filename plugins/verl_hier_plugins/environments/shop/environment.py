"""The shop as an `Environment`. Its state is a place, which is replaced and never modified, and a count of actions."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.expert import Expert
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.shop.actions import parse_action, plain, write_action
from verl_hier_plugins.environments.shop.catalogue import Generated, Shop, generated_shop, shop_of
from verl_hier_plugins.environments.shop.options import ShopOptions
from verl_hier_plugins.environments.shop.pages import (
    BACK,
    BOUGHT,
    BUY,
    CONTROLS,
    IMPOSSIBLE,
    ITEM,
    NEXT,
    NOTHING,
    OVER,
    PREVIOUS,
    RESULTS,
    SEARCH,
    SUB_PAGES,
    Place,
    clickable,
    show,
)
from verl_hier_plugins.environments.shop.reward import Goal, Score, score


class ShopEnvironment(Environment):
    """One errand.

    Attributes:
        options: the options of the recipe.
        goal: what is to be bought; set by `reset`.
        shop: the shop of the task; set by `reset`.
        place: where the customer is.
    """

    goal: Goal
    shop: Shop

    def __init__(self, options: ShopOptions) -> None:
        self.options = options
        self.place = Place()
        self._instruction = ""
        self._steps = 0
        self._score: Score | None = None

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start an errand. `seed` has no effect, because all random choices are part of the task."""
        if not task.get("goal") or "instruction" not in task:
            raise RecipeError("hier.environment: a shop task needs `goal` and `instruction`; make it with `tasks`.")
        self.goal, self.shop = Goal.of(task["goal"]), shop_of(self.options, task)
        self.place, self._steps, self._score = Place(), 0, None
        self._instruction = task["instruction"]
        return self._answer()

    def step(self, action: str) -> StepResult:
        """Search, or click on something."""
        self._steps += 1
        parsed = parse_action(action)
        place = self._after(*parsed) if parsed is not None else None
        if place is None:
            return self._answer(valid=False)
        self.place = place
        if place.page == BOUGHT:
            values = [value for _, value in place.chosen]
            self._score = score(self.goal, self.shop.products[place.item], values, self.shop.exact)
            return self._answer(self._reward(self._score.total))
        return self._answer()

    def fork(self) -> ShopEnvironment:
        """A copy that shares the shop; the two move on independently."""
        return copy.copy(self)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """A scripted customer, see `verl_hier.environments.expert`."""
        from verl_hier_plugins.environments.shop.expert import ShopExpert

        return ShopExpert(self, rng, skip_stage, remember)

    def vocabulary(self) -> Iterable[str]:
        """The pages of every product of a generated catalogue, and the texts of the environment."""
        yield from (text[self.options.observation] for text in (NOTHING, IMPOSSIBLE, OVER))
        yield from CONTROLS
        if self.options.generated:
            shop = generated_shop(Generated.of(self.options))
            for item in shop.products:
                for page in (RESULTS, ITEM, *SUB_PAGES):
                    place = Place(page=page, found=(item,), item=item)
                    yield show(shop, place, self.options.page_size, self.options.observation)

    def clickable(self) -> tuple[str, ...]:
        """What can be clicked now."""
        return clickable(self.shop, self.place, self.options.page_size)

    def _after(self, verb: str, words: str) -> Place | None:
        """The place after an action; None when the action is not possible."""
        place = self.place
        if verb == "search":
            return Place(page=RESULTS, found=self.shop.search(words)) if place.page == SEARCH else None
        possible = {plain(name): name for name in reversed(self.clickable())}
        target = possible.get(plain(words))
        if target is None:
            return None
        if target in CONTROLS:
            return self._controlled(target)
        if place.page == RESULTS:
            return replace(place, page=ITEM, item=target, chosen=())
        return replace(place, chosen=self._choosing(target))

    def _controlled(self, control: str) -> Place:
        place = self.place
        if control == BACK:
            return Place()
        if control == NEXT:
            return replace(place, number=place.number + 1)
        if control == BUY:
            return replace(place, page=BOUGHT)
        if control in SUB_PAGES:
            return replace(place, page=control)
        if place.page == RESULTS:
            return replace(place, number=place.number - 1)
        if place.page == ITEM:
            return replace(place, page=RESULTS, item="", chosen=())
        assert control == PREVIOUS
        return replace(place, page=ITEM)

    def _choosing(self, value: str) -> tuple[tuple[str, str], ...]:
        """The chosen values after a click on one; of several options that have it, the first without it takes it."""
        chosen = dict(self.place.chosen)
        names = [name for name, values in self.shop.products[self.place.item].options.items() if value in values]
        free = [name for name in names if chosen.get(name) != value]
        chosen[(free or names)[0]] = value
        return tuple(sorted(chosen.items()))

    def _reward(self, total: float) -> float:
        options = self.options
        return options.win_reward * (total if options.reward == "score" else float(total == 1.0))

    def _answer(self, reward: float = 0.0, valid: bool = True) -> StepResult:
        options, place = self.options, self.place
        text = show(self.shop, place, options.page_size, options.observation)
        possible = self._possible()
        if not valid:
            text = IMPOSSIBLE[options.observation] + text
        if options.show_admissible and not self._score:
            known = possible if place.page != SEARCH else (write_action("search", "words", options.actions),)
            text = f"{text}\nYou can: {'; '.join(known)}"
        done = self._score is not None
        total = self._score.total if self._score else 0.0
        return StepResult(
            text=text,
            reward=reward if valid else reward - options.invalid_penalty,
            done=done,
            truncated=not done and self._steps >= options.max_steps,
            valid=valid,
            admissible=possible,
            anchor=text if options.anchor == "text" else f"{self._instruction} | {place.anchor}",
            info={"won": total == 1.0, "score": total, **({"parts": asdict(self._score)} if self._score else {})},
        )

    def _possible(self) -> tuple[str, ...]:
        """The possible actions; of the searches only one for the words of the instruction."""
        form = self.options.actions
        if self.place.page == SEARCH:
            words = " ".join("".join(letter if letter.isalnum() else " " for letter in self._instruction).split())
            return (write_action("search", words.lower(), form),)
        return tuple(write_action("click", name, form) for name in self.clickable())

"""Task pools: instructions for a generated catalogue, or those of WebShop's files."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

from verl_hier.environments.splits import SPLITS, draw_tasks
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.shop.catalogue import STEP, Generated, Product, Shop, generated_shop
from verl_hier_plugins.environments.shop.options import ShopOptions
from verl_hier_plugins.environments.shop.reward import Goal, score

DATA_SOURCE = "shop"
SHARE = 0.5
"""Share of the products of the same type that may meet all of an instruction but its options and its price."""
LIMITS = 3
"""How many limits an instruction may have, the lowest at its product's price or next above it."""
FULL_STEP = 10
"""Dollars between two limits in a catalogue that is not tiny."""
SENTENCES = (
    "I am looking for a {noun} that is {attributes}{options}, for at most ${limit:.2f}.",
    "Please buy me a {noun}. It should be {attributes}{options}, and cost ${limit:.2f} or less.",
    "Find a {attributes} {noun}{options}. My budget is ${limit:.2f}.",
    "I need a {noun}, {attributes}{options}; it must not cost more than ${limit:.2f}.",
)


def tasks(options: ShopOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order.

    Each is `{instruction, goal, data_source, id}`; a generated one has the numbers of its catalogue as `shop`.

    Raises:
        RecipeError: for an unknown split, invalid files, or when there are too few different tasks.
    """
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: shop has no split {split!r}; it has {', '.join(SPLITS)}.")
    if not options.generated:
        from verl_hier_plugins.environments.shop.files import file_tasks

        return file_tasks(options, split)
    which = Generated.of(options)
    shop = generated_shop(which)
    counts = options.attribute_counts

    def draw(number: int, found: int) -> tuple[str, dict[str, Any]] | None:
        rng = random.Random(f"goal-{options.seed}-{split}-{number}")
        goal = _goal(shop, counts[found % len(counts)], options.level == "tiny", rng)
        if goal is None:
            return None
        instruction = _instruction(goal, options.level == "tiny", rng)
        content = f"{sorted(goal.attributes)} {goal.query} {sorted(goal.options)} {goal.limit}"
        task = {"instruction": instruction, "goal": goal.block(), "shop": asdict(which), "data_source": DATA_SOURCE}
        return content, task

    return draw_tasks(draw, split, options.pool if split == "train" else options.validation, "shop")


def _goal(shop: Shop, attributes: int, tiny: bool, rng: random.Random) -> Goal | None:
    """A goal that one of the products is right for; None when it has too few attributes, or too many others are."""
    product = rng.choice(tuple(shop.products.values()))
    if len(product.attributes) < attributes:
        return None
    names = [name for name in product.options if tiny or rng.random() < 0.7] or list(product.options)[:1]
    goal = Goal(
        item=product.item,
        words=tuple(sorted(product.words)),
        query=product.query,
        category=product.category,
        attributes=tuple(rng.sample(product.attributes, attributes)),
        options=tuple(rng.choice(product.options[name]) for name in names),
        limit=_limit(product, tiny, rng),
    )
    return goal if _share(shop, goal) <= SHARE else None


def _limit(product: Product, tiny: bool, rng: random.Random) -> float:
    if tiny:
        return product.price + STEP * rng.randrange(LIMITS)
    return float((int(product.price) // FULL_STEP + rng.randint(1, LIMITS)) * FULL_STEP)


def _share(shop: Shop, goal: Goal) -> float:
    """The share of the products of its type that meet the attributes of a goal."""
    same = [product for product in shop.products.values() if product.query == goal.query]
    met = sum(score(goal, product, (), shop.exact).attributes == len(goal.attributes) for product in same)
    return met / len(same)


def _instruction(goal: Goal, tiny: bool, rng: random.Random) -> str:
    if tiny:
        return f"buy {' '.join((*goal.attributes, goal.query))} : {' '.join(goal.options)} : at most : {goal.limit:.0f}"
    chosen = f", with the choice of {' and '.join(goal.options)}"
    return rng.choice(SENTENCES).format(
        noun=goal.query, attributes=" and ".join(goal.attributes), options=chosen, limit=goal.limit
    )

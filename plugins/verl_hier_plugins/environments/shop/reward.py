"""The reward of a purchase as WebShop defines it (arXiv 2207.01206, section 3 and its appendix on the reward).

    r = r_type · (attributes met + options met + [price at most the limit]) / (attributes + options + 1)

`r_type` says whether the purchase is the type of product that was asked for: 0 when the titles share no noun, 0.1 when
they share less than a tenth of the wanted ones, 0.5 when they share at most a fifth and neither the search words nor
the category agree, else 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from verl_hier_plugins.environments.shop.catalogue import Product

ALIKE = 0.85
"""How similar two texts that people wrote must be to count as the same attribute or option."""
SAME_CATEGORY = 2
"""Parts of their categories that two products of one type share."""


@dataclass(frozen=True)
class Goal:
    """What is to be bought.

    Attributes:
        item: a product that is right; there may be others.
        words: nouns of its title.
        query: its search words.
        category: its category, from the widest to the narrowest.
        attributes: what the purchase must be.
        options: values that must be chosen.
        limit: the highest price in dollars.
    """

    item: str
    words: tuple[str, ...]
    query: str
    category: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    limit: float

    @classmethod
    def of(cls, block: Mapping[str, Any]) -> Goal:
        """The goal of a task, whose lists came from JSON."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in block.items()
        }
        return cls(**fields)

    def block(self) -> dict[str, Any]:
        """The goal as JSON-able values for a task; the opposite of `of`."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Score:
    """What a purchase is worth.

    Attributes:
        type: `r_type`, between 0 and 1.
        attributes: number of wanted attributes that it has.
        options: number of wanted options that were chosen.
        price: whether its price is within the limit.
        total: the reward, between 0 and 1.
    """

    type: float
    attributes: int
    options: int
    price: bool
    total: float


def score(goal: Goal, product: Product, chosen: Iterable[str], exact: bool) -> Score:
    """The score of buying a product.

    Args:
        goal: what was asked for.
        product: what was bought.
        chosen: the values of the options that were chosen.
        exact: whether texts are compared word for word, see `Shop`.
    """
    values = tuple(chosen)
    kind = type_factor(goal, product)
    attributes = sum(has_attribute(product, attribute, exact) for attribute in goal.attributes)
    options = sum(any(same(value, wanted, exact) for value in values) for wanted in goal.options)
    price = product.price <= goal.limit
    share = (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)
    return Score(kind, attributes, options, price, kind * share)


def type_factor(goal: Goal, product: Product) -> float:
    """`r_type`, see the module."""
    shared = len(product.words.intersection(goal.words)) / len(goal.words) if goal.words else 1.0
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    related = product.query == goal.query or len({*product.category} & {*goal.category}) >= SAME_CATEGORY
    return 1.0 if shared > 0.2 or related else 0.5


def has_attribute(product: Product, wanted: str, exact: bool) -> bool:
    """Whether a product has an attribute: among its own, or, where people wrote them, anywhere in its texts."""
    if any(same(attribute, wanted, exact) for attribute in product.attributes):
        return True
    if exact:
        return False
    texts = (product.title, product.description, *product.features)
    return any(wanted.lower() in text.lower() for text in texts)


def same(given: str, wanted: str, exact: bool) -> bool:
    """Whether two texts are the same attribute or option.

    Roughly, they are when the words of one contain those of the other, or when their sorted words are `ALIKE`.
    """
    if exact or given == wanted:
        return given == wanted
    first, second = _words(given), _words(wanted)
    if not first or not second:
        return False
    if first <= second or second <= first:
        return True
    common = " ".join(sorted(first & second))
    one, other = (f"{common} {' '.join(sorted(words - (first & second)))}".strip() for words in (first, second))
    pairs = [(one, other), *([(common, one), (common, other)] if common else [])]
    return max(SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in pairs) > ALIKE


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))

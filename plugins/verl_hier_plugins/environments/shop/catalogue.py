"""Products, generated catalogues, and the shop that finds products by BM25; one a process for all its environments."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verl_hier.environments.splits import hash_number
from verl_hier_plugins.environments.search.bm25 import best, index_texts
from verl_hier_plugins.environments.shop.options import MOST_ATTRIBUTES, RESULTS, ShopOptions
from verl_hier_plugins.environments.shop.words import KINDS, SYLLABLES, Kind

KEPT_SHOPS = 4
KEPT_QUERIES = 4096
TINY_KINDS, TINY_ATTRIBUTES = 8, 4
STEP = 5
"""Dollars between two prices of a tiny catalogue."""
BASE36 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
GAIN = (
    "It is {}, which buyers notice at once.",
    "Made to be {}.",
    "You get one that is {} for years.",
    "This model is {}.",
)


@dataclass(frozen=True)
class Product:
    """What the shop sells.

    Attributes:
        item: its number or code, as it is clicked.
        title: its name.
        words: the nouns of its title, by which products are the same type or not.
        query: what a customer would call it.
        category: from the widest to the narrowest.
        price: in dollars.
        tag: the price as pages show it.
        attributes: what it is; not all are in the title, and none is shown as such.
        options: values to choose from, by the name of the option.
        description: text of its own page.
        features: lines of their own page.
        reviews: text of its own page.
    """

    item: str
    title: str
    words: frozenset[str]
    query: str
    category: tuple[str, ...]
    price: float
    tag: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    description: str = ""
    features: tuple[str, ...] = ()
    reviews: str = ""


class Shop:
    """A catalogue and its index.

    Attributes:
        products: all products by their item, in a fixed order.
        exact: whether attributes and options are compared word for word; those that people wrote are compared roughly.
        search: `search(query)` returns the items of at most `RESULTS` products, best first.
    """

    def __init__(self, products: Iterable[Product], exact: bool) -> None:
        self.products = {product.item: product for product in products}
        self.exact = exact
        self._items = tuple(self.products)
        self._index = index_texts([_indexed(product) for product in self.products.values()])
        self.search = lru_cache(KEPT_QUERIES)(self._search)

    def _search(self, query: str) -> tuple[str, ...]:
        return tuple(self._items[number] for number in best(self._index, query, RESULTS))


def _indexed(product: Product) -> str:
    values = (value for those in product.options.values() for value in those)
    return " ".join((product.title, product.description, *product.features, *values))


@dataclass(frozen=True)
class Generated:
    """Which catalogue is generated; the fields are a task's `shop` entry."""

    seed: int
    level: str
    products: int

    @classmethod
    def of(cls, options: ShopOptions) -> Generated:
        """The catalogue that the options ask for."""
        return cls(options.seed, options.level, options.size)


def shop_of(options: ShopOptions, task: Mapping[str, Any]) -> Shop:
    """The shop of a task, cached: the catalogue that the task names, otherwise the one of the files."""
    if "shop" in task:
        return generated_shop(Generated(**task["shop"]))
    from verl_hier_plugins.environments.shop.files import file_shop

    return file_shop(options.items_path, options.attributes_path, options.products)


@lru_cache(KEPT_SHOPS)
def generated_shop(which: Generated) -> Shop:
    """The shop of a generated catalogue, cached."""
    kinds = KINDS[:TINY_KINDS] if which.level == "tiny" else KINDS
    make = _tiny if which.level == "tiny" else _full
    products = (
        make(kinds[number % len(kinds)], number, random.Random(f"shop-{which.seed}-{which.level}-{number}"))
        for number in range(which.products)
    )
    return Shop(products, exact=True)


def _tiny(kind: Kind, number: int, rng: random.Random) -> Product:
    """A product in few words: all its attributes are in its title."""
    attributes = _some(kind.attributes[:TINY_ATTRIBUTES], rng, 1, MOST_ATTRIBUTES["tiny"])
    price = rng.randrange(kind.prices[0], kind.prices[1] + 1, STEP)
    return Product(
        item=f"item {number + 1}",
        title=" ".join((*attributes, kind.noun)),
        words=frozenset((kind.noun,)),
        query=kind.noun,
        category=kind.category,
        price=price,
        tag=str(price),
        attributes=attributes,
        options=_values(kind, rng),
        description=kind.category[-1],
        features=attributes,
        reviews="none",
    )


def _full(kind: Kind, number: int, rng: random.Random) -> Product:
    """A product with a brand and pages of its own: some of its attributes are on the page of its features only."""
    attributes = _some(kind.attributes, rng, 2, MOST_ATTRIBUTES["full"])
    told = set(rng.sample(attributes, rng.randint(1, 2)))
    price = rng.randint(*kind.prices) - 0.01
    brand = "".join(rng.sample(SYLLABLES, 2)).title()
    first, second, third, fourth = kind.uses
    shown = [attribute for attribute in attributes if attribute in told]
    title = f"{brand} {' '.join(shown)} {kind.noun}, {first} and {second} for {third} and {fourth}"
    return Product(
        item=_code(f"shop-{number}-{rng.random()}"),
        title=title,
        words=frozenset((kind.noun, *kind.uses)),
        query=kind.noun,
        category=kind.category,
        price=price,
        tag=f"${price:.2f}",
        attributes=attributes,
        options=_values(kind, rng),
        description=f"A {kind.noun} by {brand}. Department: {', '.join(kind.category)}.",
        features=tuple(rng.choice(GAIN).format(attribute) for attribute in attributes),
        reviews=f"{rng.randint(30, 50) / 10:.1f} of 5 stars, {rng.randint(3, 900)} ratings.",
    )


def _some(values: tuple[str, ...], rng: random.Random, least: int, most: int) -> tuple[str, ...]:
    """A few of the values, in their order."""
    chosen = set(rng.sample(values, rng.randint(least, most)))
    return tuple(value for value in values if value in chosen)


def _values(kind: Kind, rng: random.Random) -> dict[str, tuple[str, ...]]:
    return {name: _some(values, rng, 2, len(values)) for name, values in kind.options.items()}


def _code(text: str) -> str:
    """Ten letters and digits, as the codes of a large shop look."""
    number, letters = hash_number(text), ""
    for _ in range(8):
        number, digit = divmod(number, 36)
        letters += BASE36[digit]
    return f"B0{letters}"

"""WebShop's own files: its products, their attributes, and the instructions that people wrote for them.

| file | holds |
|---|---|
| `items_shuffle*.json` | a list of products: `asin`, `name`, `query`, `product_category`, `pricing`, `full_description`, `small_description`, `customization_options` |
| `items_ins_v2*.json` | by `asin`: `attributes`, and one made-up `instruction` with its `instruction_attributes` |
| `items_human_ins.json` | by `asin`: a list of `instruction`, `instruction_attributes`, `instruction_options` |
"""  # noqa: E501

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from verl_hier.environments.splits import hash_number, held_out
from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import read_json
from verl_hier_plugins.environments.search.bm25 import split_words
from verl_hier_plugins.environments.shop.actions import plain
from verl_hier_plugins.environments.shop.catalogue import Product, Shop
from verl_hier_plugins.environments.shop.options import ShopOptions
from verl_hier_plugins.environments.shop.pages import CONTROLS
from verl_hier_plugins.environments.shop.reward import Goal

DATA_SOURCE = "shop"
KEPT_SHOPS = 2
LARGEST = 2**34
"""Bytes of the largest file; that of all products of WebShop has five gigabytes."""
UNPRICED = 100.0
"""The price in dollars of a product without one."""
LIMITS = tuple(10.0 * tens for tens in range(1, 100))
"""Limits in dollars, of which an instruction gets one of the nearest above the price of its product."""
NEAREST = 4
UNLIMITED = 1_000_000.0
LONGEST_CODE = 10
_RESERVED = {plain(name) for name in CONTROLS}


@lru_cache(KEPT_SHOPS)
def file_shop(items_path: str, attributes_path: str, most: int | None) -> Shop:
    """The shop of some files, cached.

    Args:
        items_path: the products.
        attributes_path: their attributes.
        most: how many of the products are read; None reads all.

    Raises:
        RecipeError: for an unreadable or invalid file.
    """
    rows = _read(items_path, "items_path", list)
    attributes = _read(attributes_path, "attributes_path", dict)
    products: dict[str, Product] = {}
    for number, row in enumerate(rows if most is None else rows[:most]):
        where = f"hier.environment.items_path: item {number} of {Path(items_path).name}"
        if not isinstance(row, dict) or not isinstance(row.get("asin"), str) or not isinstance(row.get("name"), str):
            raise RecipeError(f"{where} needs the texts `asin` and `name`.")
        code = row["asin"].lower()
        if code != "nan" and len(code) <= LONGEST_CODE and code not in products:
            said = _texts(_entry(attributes, row["asin"]).get("attributes"), f"{where} needs in its `attributes`")
            products[code] = _product(row, said, where)
    if not products:
        raise RecipeError(f"hier.environment.items_path: there is no product in {items_path}.")
    return Shop(products.values(), exact=False)


def file_tasks(options: ShopOptions, split: str) -> list[dict[str, Any]]:
    """The instructions of a split as tasks, in the order of the products. A hash of the text holds out two tenths.

    Raises:
        RecipeError: for an invalid file, and for a split without instructions.
    """
    shop = file_shop(options.items_path, options.attributes_path, options.products)
    made = _written(options, shop) if options.instructions_path else _made_up(options, shop)
    limit = options.pool if split == "train" else options.validation
    mine = (task for task in made if held_out(task["instruction"]) == split)
    found = [
        {**task, "id": f"{split}-{number:05d}"}
        for number, task in enumerate(itertools.islice(mine, limit or None), start=1)
    ]
    if not found:
        option = "instructions_path" if options.instructions_path else "attributes_path"
        raise RecipeError(
            f"hier.environment.{option}: {getattr(options, option)} has no instruction for the split {split!r} and the "
            "products of items_path."
        )
    return found


def _written(options: ShopOptions, shop: Shop) -> Iterator[dict[str, Any]]:
    """The instructions by people; those without attributes are left out, as WebShop does."""
    instructions = _read(options.instructions_path, "instructions_path", dict)
    for code, rows in instructions.items():
        product = shop.products.get(code.lower())
        if product is None:
            continue
        where = f"hier.environment.instructions_path: {code} of {Path(options.instructions_path).name}"
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise RecipeError(f"{where} needs a list of instructions.")
        for number, row in enumerate(rows):
            attributes = _texts(row.get("instruction_attributes"), f"{where} needs in `instruction_attributes`")
            if attributes:
                wanted = row.get("instruction_options")
                wanted = list(wanted.values()) if isinstance(wanted, dict) else wanted
                values = _texts(wanted, f"{where} needs in `instruction_options`")
                yield _task(row.get("instruction"), product, attributes, values, f"{where}, number {number},")


def _made_up(options: ShopOptions, shop: Shop) -> Iterator[dict[str, Any]]:
    """The made-up instruction of each product, with every option that the product has."""
    attributes = _read(options.attributes_path, "attributes_path", dict)
    for code, row in attributes.items():
        product = shop.products.get(code.lower())
        where = f"hier.environment.attributes_path: {code} of {Path(options.attributes_path).name}"
        wanted = _texts(_entry(attributes, code).get("instruction_attributes"), f"{where} needs in its attributes")
        if product is None or not wanted or not row.get("instruction"):
            continue
        rng = random.Random(f"options-{code}")
        chosen = {name: rng.choice(values) for name, values in product.options.items()}
        said = "".join(f", and {name}: {value}" for name, value in chosen.items())
        yield _task(row["instruction"], product, wanted, tuple(chosen.values()), where, said)


def _task(
    text: Any, product: Product, attributes: tuple[str, ...], options: tuple[str, ...], where: str, more: str = ""
) -> dict[str, Any]:
    if not isinstance(text, str) or not text.strip():
        raise RecipeError(f"{where} needs a text in `instruction`.")
    above = [limit for limit in LIMITS if limit > product.price][:NEAREST]
    # The nearest limit would leave no room, so it is never drawn.
    limit = random.Random(f"limit-{text}").choice(above[1:]) if len(above) > 1 else UNLIMITED
    priced = f", and price lower than {limit:.2f} dollars" if limit < UNLIMITED else ""
    goal = Goal(product.item, tuple(sorted(product.words)), product.query, product.category, attributes, options, limit)
    return {
        "instruction": f"{text.strip().rstrip('.')}{more}{priced}",
        "goal": goal.block(),
        "data_source": DATA_SOURCE,
    }


def _product(row: Mapping[str, Any], attributes: tuple[str, ...], where: str) -> Product:
    price, tag = _price(row.get("pricing"), row["asin"], where)
    parts = (part.strip().lower() for part in str(row.get("product_category") or "").split("›"))
    features = row.get("small_description") or ()
    return Product(
        item=row["asin"].lower(),
        title=row["name"],
        words=_nouns(row["name"], attributes),
        query=str(row.get("query") or "").lower().strip(),
        category=tuple(part for part in parts if part),
        price=price,
        tag=tag,
        attributes=attributes,
        options=_options(row.get("customization_options"), where),
        description=str(row.get("full_description") or ""),
        features=_texts([features] if isinstance(features, str) else features, f"{where} needs in `small_description`"),
    )


def _nouns(title: str, attributes: tuple[str, ...]) -> frozenset[str]:
    """The words of a title but the commonest of English, numbers, and those of its attributes.

    WebShop takes the nouns that a tagger finds; what is left here is nearly those, without a model of the language.
    """
    words, said = split_words([title, " ".join(attributes)])
    return frozenset(word for word in words if not word.isdigit()) - frozenset(said)


def _price(pricing: Any, code: str, where: str) -> tuple[float, str]:
    """The price and its text. Between two prices it is drawn once, by the product's code, as WebShop draws it."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", str(pricing or "").replace(",", ""))]
    if pricing and not numbers:
        raise RecipeError(f"{where} has no number in `pricing` but {pricing!r:.40}.")
    if len(numbers) < 2:
        price = numbers[0] if numbers else UNPRICED
        return price, f"${price:.2f}"
    low, high = sorted(numbers[:2])
    return low + (high - low) * hash_number(f"price-{code}", 4) / 2**32, f"${low:.2f} to ${high:.2f}"


def _options(block: Any, where: str) -> dict[str, tuple[str, ...]]:
    """Values by the name of the option, in lower case; values that read like a control of the page are left out."""
    if not block:
        return {}
    if not isinstance(block, dict):
        raise RecipeError(f"{where} needs an object in `customization_options`, not {block!r:.40}.")
    found: dict[str, tuple[str, ...]] = {}
    for name, rows in block.items():
        if not isinstance(rows, list | None):
            raise RecipeError(f"{where} needs a list in each of its `customization_options`, not {rows!r:.40}.")
        values = (str(row.get("value") or "") for row in rows or () if isinstance(row, dict))
        kept = dict.fromkeys(" ".join(value.replace("/", " | ").lower().split()) for value in values)
        found[name.lower()] = tuple(value for value in kept if plain(value) and plain(value) not in _RESERVED)
    return {name: values for name, values in found.items() if values}


def _entry(block: Mapping[str, Any], code: str) -> Mapping[str, Any]:
    entry = block.get(code)
    return entry if isinstance(entry, dict) else {}


def _texts(values: Any, where: str) -> tuple[str, ...]:
    """The texts of a list, in lower case and without blank ones."""
    if not isinstance(values, list | None):
        raise RecipeError(f"{where} a list of texts, not {values!r:.40}.")
    return tuple(text for value in values or () if (text := " ".join(str(value).lower().split())))


def _read(path: str, option: str, kind: type) -> Any:
    """The content of a file.

    Raises:
        RecipeError: when it cannot be read, or holds no object of this type.
    """
    try:
        content = read_json(Path(path).expanduser(), LARGEST, repair=True)
    except FileError as error:
        raise RecipeError(f"hier.environment.{option}: {error}") from error
    if not isinstance(content, kind):
        wanted = "one list" if kind is list else "one object"
        raise RecipeError(f"hier.environment.{option}: {path} must hold {wanted}.")
    return content

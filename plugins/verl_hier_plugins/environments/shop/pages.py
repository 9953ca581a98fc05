"""The pages of the shop: what can be clicked on each, and how it reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from verl_hier_plugins.environments.shop.actions import plain
from verl_hier_plugins.environments.shop.catalogue import Product, Shop

SEARCH, RESULTS, ITEM, BOUGHT = "search", "results", "item", "bought"
SUB_PAGES = ("description", "features", "reviews")
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
CONTROLS = frozenset((BACK, PREVIOUS, NEXT, BUY, *SUB_PAGES))
NOTHING = {"full": "No product was found.", "short": "nothing"}
IMPOSSIBLE = {"full": "That is not possible here. ", "short": "what "}
OVER = {"full": "You have bought the product.", "short": "bought"}


@dataclass(frozen=True)
class Place:
    """Where the customer is; everything that a further action depends on.

    Attributes:
        page: `search`, `results`, `item`, one of `SUB_PAGES`, or `bought`.
        found: items that the last search found.
        number: page of the results, from 1.
        item: the opened product.
        chosen: the chosen values, by the name of their option, sorted by name.
    """

    page: str = SEARCH
    found: tuple[str, ...] = ()
    number: int = 1
    item: str = ""
    chosen: tuple[tuple[str, str], ...] = ()

    @property
    def anchor(self) -> str:
        """Equal texts mean equal places."""
        found = hashlib.blake2b("\n".join(self.found).encode(), digest_size=8).hexdigest() if self.found else ""
        chosen = " & ".join(f"{name}={value}" for name, value in self.chosen)
        return " | ".join((self.page, found, str(self.number), self.item, chosen))

    def listed(self, size: int) -> tuple[str, ...]:
        """The items on this page of results, of which each has `size`."""
        return self.found[(self.number - 1) * size : self.number * size]

    def pages(self, size: int) -> int:
        """Pages of results, at least 1."""
        return max(1, -(-len(self.found) // size))


def clickable(shop: Shop, place: Place, size: int) -> tuple[str, ...]:
    """What can be clicked, in the order of the page."""
    if place.page in (SEARCH, BOUGHT):
        return ()
    if place.page == RESULTS:
        before = (PREVIOUS,) if place.number > 1 else ()
        after = (NEXT,) if place.number < place.pages(size) else ()
        return (BACK, *before, *after, *place.listed(size))
    if place.page in SUB_PAGES:
        return (BACK, PREVIOUS)
    values = (value for those in shop.products[place.item].options.values() for value in those)
    return tuple(dict.fromkeys((BACK, PREVIOUS, *SUB_PAGES, *values, BUY)))


def show(shop: Shop, place: Place, size: int, style: str) -> str:
    """The page as it reads, in the style `full` or `short`."""
    if place.page == SEARCH:
        return "Search page. Search for words to see products." if style == "full" else "search page"
    if place.page == BOUGHT:
        return OVER[style]
    if place.page == RESULTS:
        return _results(shop, place, size, style)
    product = shop.products[place.item]
    if place.page == ITEM:
        return _item(product, dict(place.chosen), style)
    texts = {"description": product.description, "features": " ".join(product.features), "reviews": product.reviews}
    text = texts[place.page] or "none"
    return f"{place.page.title()} of {product.title}:\n{text}" if style == "full" else f"{place.page} : {text}"


def _results(shop: Shop, place: Place, size: int, style: str) -> str:
    if not place.found:
        return NOTHING[style]
    products = [shop.products[item] for item in place.listed(size)]
    last = place.pages(size)
    if style == "short":
        more = [plain(NEXT)] if place.number < last else []
        return " | ".join([*(f"{product.item} {product.title} : {product.tag}" for product in products), *more])
    head = f"Page {place.number} of {last}, {len(place.found)} products found."
    return "\n".join([head, *(f"[{product.item}] {product.title}. Price: {product.tag}" for product in products)])


def _item(product: Product, chosen: dict[str, str], style: str) -> str:
    if style == "short":
        options = [f"{name} {' '.join(values)}" for name, values in product.options.items()]
        taken = [f"chosen {' '.join(chosen.values())}"] if chosen else []
        return " | ".join((f"{product.item} {product.title} : {product.tag}", *options, *taken))
    lines = [f"[{product.item}] {product.title}", f"Price: {product.tag}"]
    for name, values in product.options.items():
        taken = [f" (chosen: {chosen[name]})"] if name in chosen else []
        lines.append("".join((f"{name}: {', '.join(values)}", *taken)))
    return "\n".join(lines)

"""A scripted customer: searches, opens what looks right, reads its features, chooses the options and buys.

It judges products by what pages have shown, so its demonstrations can be imitated from the texts alone. Only where all
its searches have failed does it search for the very title of a product that is right.
"""

from __future__ import annotations

import random

from verl_hier_plugins.environments.shop.actions import write_action
from verl_hier_plugins.environments.shop.catalogue import Product
from verl_hier_plugins.environments.shop.environment import ShopEnvironment
from verl_hier_plugins.environments.shop.pages import BACK, BUY, ITEM, NEXT, PREVIOUS, RESULTS, SEARCH, SUB_PAGES
from verl_hier_plugins.environments.shop.reward import has_attribute, same, type_factor

READ = "features"
"""The page that says what a title leaves out."""


class ShopExpert:
    """Follows one environment; see `verl_hier.environments.expert.Expert`.

    Its subgoals are to find a product, to choose each of its options, and to buy: `find steel mug : red small : at most
    : 20`, `choose red`, `choose small`, `buy`.
    """

    def __init__(self, environment: ShopEnvironment, rng: random.Random, skip_stage: float, remember: bool) -> None:
        goal = environment.goal
        self._environment = environment
        self._goal = goal
        wanted = list(goal.options)
        if wanted and rng.random() < skip_stage:
            wanted.pop(rng.randrange(len(wanted)))
        self._wanted = tuple(wanted)
        self._remember = remember
        self._refused: set[str] = set()
        self._read: set[str] = set()
        self._asked = 0
        what = " ".join((*goal.attributes, goal.query))
        self._queries = (" ".join((what, *goal.options)), what, goal.query, environment.shop.products[goal.item].title)
        self.subgoals: tuple[str, ...] = (
            f"find {what} : {' '.join(goal.options)} : at most : {goal.limit:.0f}",
            *(f"choose {value}" for value in self._wanted),
            "buy",
        )

    def advise(self, subgoal: int) -> str | None:
        """The next action towards a subgoal, None when it is reached."""
        place = self._environment.place
        if place.page not in (SEARCH, RESULTS, ITEM, *SUB_PAGES):
            return None
        if place.page != ITEM or not self._fits():
            return self._look()
        if subgoal == 0:
            return None
        last = subgoal == len(self.subgoals) - 1
        # What an action in between has undone is made good, unless the context no longer says what it was.
        wanted = self._wanted[: subgoal if self._remember else 0] or self._wanted[subgoal - 1 : subgoal]
        missing = [button for value in wanted if (button := self._missing(value)) is not None]
        return self._click(missing[0]) if missing else self._click(BUY) if last else None

    def mistake(self, subgoal: int, rng: random.Random) -> str | None:
        """A beginner's action: a search for too little, any product, another value of an option, or a page to read."""
        place = self._environment.place
        if place.page == SEARCH:
            return write_action("search", self._goal.query, self._environment.options.actions)
        if place.page == RESULTS:
            clicks: tuple[str, ...] = place.listed(self._environment.options.page_size)
        elif place.page == ITEM:
            options = self._environment.shop.products[place.item].options.values()
            wanted = self._wanted[subgoal - 1 : subgoal]
            clicks = (*SUB_PAGES, *(value for values in options if {*values} & {*wanted} for value in values))
        else:
            clicks = (BACK,)
        return self._click(rng.choice(clicks)) if clicks else None

    def _look(self) -> str:
        """The next action on the way to the page of a product that fits."""
        place, size = self._environment.place, self._environment.options.page_size
        if place.page == SEARCH:
            query = self._queries[min(self._asked, len(self._queries) - 1)]
            return write_action("search", query, self._environment.options.actions)
        if place.page in SUB_PAGES:
            if place.page == READ:
                self._read.add(place.item)
            return self._click(PREVIOUS)
        if place.page == ITEM:
            product = self._environment.shop.products[place.item]
            if self._offers(product) and self._untold(product) and product.item not in self._read:
                return self._click(READ)
            self._refused.add(place.item)
            return self._click(PREVIOUS)
        right = [item for item in place.listed(size) if self._looks_right(item)]
        if right:
            return self._click(min(right, key=lambda item: len(self._untold(self._environment.shop.products[item]))))
        if place.number < place.pages(size) and self._asked < len(self._queries) - 1:
            return self._click(NEXT)
        self._asked += 1
        return self._click(BACK)

    def _looks_right(self, item: str) -> bool:
        """Whether a result may be right, as far as its line says."""
        product = self._environment.shop.products[item]
        return item not in self._refused and product.price <= self._goal.limit and type_factor(self._goal, product) == 1

    def _fits(self) -> bool:
        """Whether the opened product is right, as far as its pages have said."""
        product, exact = self._environment.shop.products[self._environment.place.item], self._environment.shop.exact
        told = product.item in self._read or not self._untold(product)
        has = all(has_attribute(product, attribute, exact) for attribute in self._goal.attributes)
        return told and has and self._offers(product)

    def _offers(self, product: Product) -> bool:
        """Whether the page of a product itself says that it is the right type, cheap enough, and has the options."""
        values = [value for those in product.options.values() for value in those]
        offered = all(any(self._same(value, wanted) for value in values) for wanted in self._goal.options)
        return offered and product.price <= self._goal.limit and type_factor(self._goal, product) == 1

    def _untold(self, product: Product) -> list[str]:
        """The wanted attributes that are not in the title of a product."""
        title = product.title.lower()
        return [attribute for attribute in self._goal.attributes if attribute.lower() not in title]

    def _missing(self, wanted: str) -> str | None:
        """What has to be clicked for a wanted value, None where it is chosen."""
        place = self._environment.place
        values = self._environment.shop.products[place.item].options.values()
        offered = [value for those in values for value in those if self._same(value, wanted)]
        return None if {value for _, value in place.chosen} & {*offered} else offered[0]

    def _same(self, value: str, wanted: str) -> bool:
        return same(value, wanted, self._environment.shop.exact)

    def _click(self, name: str) -> str:
        return write_action("click", name, self._environment.options.actions)

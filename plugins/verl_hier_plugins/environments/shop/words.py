"""The kinds of products of generated catalogues, with what their titles, attributes and options may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COLORS = ("red", "blue", "green", "black", "white")
SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class Kind:
    """A kind of product.

    Attributes:
        noun: what it is called.
        uses: four more nouns of its titles. Two kinds have at most one noun in common.
        category: from the widest to the narrowest; two kinds share at most the widest.
        attributes: what its products may be; the first four are single words.
        options: values by the name of the option.
        prices: the lowest and the highest price in dollars.
    """

    noun: str
    uses: tuple[str, str, str, str]
    category: tuple[str, ...]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[int, int]


def _kind(noun: str, uses: str, category: str, attributes: str, prices: tuple[int, int], **options: str) -> Kind:
    values = {name: tuple(text.split(", ")) for name, text in options.items()}
    chosen = values or {"color": COLORS, "size": SIZES}
    first, second, third, fourth = uses.split()
    return Kind(
        noun,
        (first, second, third, fourth),
        tuple(category.split(" > ")),
        tuple(attributes.split(", ")),
        chosen,
        prices,
    )


KINDS = (
    _kind(
        "lamp",
        "light shade bedroom reading",
        "home > lighting > table lamps",
        "wooden, dimmable, bendable, brass, energy saving, touch control",
        (15, 60),
    ),
    _kind(
        "rug",
        "carpet floor hallway nursery",
        "home > textiles > area rugs",
        "woolen, washable, braided, thick, stain resistant, non slip",
        (20, 60),
    ),
    _kind(
        "chair",
        "seat office furniture desk",
        "home > furniture > single chairs",
        "padded, swivel, stackable, oak, lumbar support, easy assembly",
        (25, 60),
    ),
    _kind(
        "mug",
        "cup coffee kitchen camping",
        "kitchen > drinkware > coffee mugs",
        "ceramic, insulated, handmade, stainless, dishwasher safe, spill proof",
        (10, 30),
    ),
    _kind(
        "shirt",
        "top sleeve weekend summer",
        "clothing > tops > casual shirts",
        "linen, cotton, striped, fitted, machine washable, wrinkle free",
        (10, 45),
    ),
    _kind(
        "jacket",
        "coat rain hiking autumn",
        "clothing > outerwear > light jackets",
        "waterproof, quilted, windproof, hooded, quick drying, inner pocket",
        (30, 60),
    ),
    _kind(
        "bag",
        "backpack travel school laptop",
        "luggage > backpacks > day packs",
        "canvas, leather, padlocked, slim, water resistant, hidden pocket",
        (20, 60),
    ),
    _kind(
        "bottle",
        "flask water gym bike",
        "sports > hydration > drinking bottles",
        "glass, steel, squeezable, light, leak proof, wide mouth",
        (10, 35),
    ),
    _kind(
        "kettle",
        "pot stove tea boiler",
        "kitchen > appliances > electric kettles",
        "electric, copper, quiet, cordless, auto shutoff, fast boiling",
        (20, 90),
        color="red, black, white, silver",
        capacity="1 liter, 1.5 liter, 2 liter",
    ),
    _kind(
        "sneaker",
        "shoe running trainer trail",
        "clothing > footwear > sport shoes",
        "breathable, vegan, cushioned, reflective, memory foam, rubber sole",
        (30, 140),
        color="red, blue, black, white",
        size="7, 8, 9, 10, 11",
        width="narrow, regular, wide",
    ),
    _kind(
        "speaker",
        "music bluetooth party audio",
        "electronics > sound > portable speakers",
        "wireless, rugged, compact, stereo, long battery, deep bass",
        (20, 160),
        color="red, blue, black",
        style="single, pair, with case",
    ),
    _kind(
        "headphones",
        "earphone studio gaming headset",
        "electronics > wearables > headphones",
        "foldable, wired, adjustable, silent, noise cancelling, built in microphone",
        (25, 220),
        color="black, white, blue, rose gold",
        style="over ear, on ear",
    ),
    _kind(
        "shampoo",
        "hair wash shower scalp",
        "beauty > hair care > shampoos",
        "organic, mild, moisturizing, unscented, sulfate free, cruelty free",
        (8, 40),
        scent="lavender, mint, coconut",
        size="200 ml, 400 ml, 1 liter",
    ),
    _kind(
        "cream",
        "skin face night lotion",
        "beauty > skin care > face creams",
        "hydrating, hypoallergenic, natural, tinted, fragrance free, anti aging",
        (9, 70),
        scent="rose, aloe, unscented",
        size="30 ml, 50 ml, 100 ml",
    ),
    _kind(
        "tea",
        "leaves infusion breakfast herb",
        "grocery > beverages > loose teas",
        "decaffeinated, smoky, spiced, fermented, fair trade, sugar free",
        (6, 35),
        flavor="ginger, jasmine, lemon, mint",
        pack="20 bags, 50 bags, 100 bags",
    ),
    _kind(
        "cookies",
        "biscuit snack dessert lunchbox",
        "grocery > bakery > biscuits",
        "crunchy, buttery, vegetarian, soft, gluten free, low sodium",
        (5, 25),
        flavor="chocolate, oat, vanilla, hazelnut",
        pack="single, pack of 3, pack of 6",
    ),
)

SYLLABLES = ("hal", "den", "mor", "vik", "tau", "ler", "son", "bra", "quil", "nor", "esk", "pel", "zan", "ori", "fen")
"""Of which the brands of the larger catalogues are made."""

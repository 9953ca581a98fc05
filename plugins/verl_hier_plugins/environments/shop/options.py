"""The options of the shop: the schema of `hier.environment` when its name is `shop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import Count, NonNegative, Positive

LEVELS: dict[str, int] = {"tiny": 64, "small": 1_000, "large": 10_000}
"""Products of a generated catalogue. `tiny` has eight kinds of products, with titles of a few words that a model of
200k parameters can learn on a CPU; the others have sixteen kinds, with brands, descriptions and features."""

FEWEST_PRODUCTS = 32
MOST_ATTRIBUTES = {"tiny": 2, "full": 3}
"""Attributes that a generated product has at most, in a tiny catalogue and in others."""
RESULTS = 50
"""Products that a search finds at most."""


@dataclass(frozen=True)
class ShopOptions:
    """Options of the `shop` environment."""

    level: Literal["tiny", "small", "large"] = "tiny"
    """Size and style of a generated catalogue, see `LEVELS`."""
    products: int | None = None
    """Products of a generated catalogue, instead of those of the level; of `items_path`, the first so many."""
    attributes: int | tuple[int, ...] = (1, 2)
    """Number of attributes that a generated instruction asks for; a list mixes them evenly."""
    pool: int = 480
    """Tasks in the training split; 0 means all of the files."""
    validation: int = 64
    """Tasks in each held-out split; 0 means all of the files."""
    seed: int = 0
    """Seed of the catalogue and of the choice of tasks."""
    items_path: str = ""
    """WebShop's products (`items_shuffle*.json`); empty generates a catalogue."""
    attributes_path: str = ""
    """WebShop's attributes of its products (`items_ins_v2*.json`), with a written instruction for each."""
    instructions_path: str = ""
    """WebShop's instructions by people (`items_human_ins.json`); empty takes those of `attributes_path`."""
    page_size: Count = 10
    """Products on a page of results."""
    max_steps: Count = 30
    """Actions after which an episode is truncated."""
    actions: Literal["brackets", "plain"] = "brackets"
    """The form of actions in texts and demonstrations: `click[buy now]` or `click buy now`. Both are understood."""
    observation: Literal["full", "short"] = "full"
    """`full` has a line for everything on a page; `short` is one line."""
    show_admissible: bool = False
    """Append what can be clicked to each observation."""
    reward: Literal["score", "success"] = "score"
    """Reward of a purchase: `score` between 0 and 1, or only `success`, a score of 1."""
    win_reward: Positive = 1.0
    """Factor of the reward of a purchase."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of an action that is not possible."""
    anchor: Literal["state", "text"] = "state"
    """What names a state for estimators that compare turns from equal states: `state` is the page, the products
    found and the options chosen; `text` is the last observation as it stands."""

    def __post_init__(self) -> None:
        if not self.attribute_counts or min(self.attribute_counts) < 1:
            raise ValueError(f"attributes must be at least 1, got {self.attributes}")
        if self.generated:
            self._check_generated()
        else:
            self._check_files()

    def _check_generated(self) -> None:
        lost = [name for name in ("attributes_path", "instructions_path") if getattr(self, name)]
        if lost:
            raise ValueError(f"{lost[0]} needs items_path, the products that belong to it")
        if self.size < FEWEST_PRODUCTS:
            raise ValueError(f"products must be at least {FEWEST_PRODUCTS}, got {self.size}")
        most = MOST_ATTRIBUTES["tiny" if self.level == "tiny" else "full"]
        if max(self.attribute_counts) > most:
            raise ValueError(f"attributes must be at most {most} at the level {self.level}, got {self.attributes}")
        if self.pool < 1 or self.validation < 1:
            raise ValueError("pool and validation must be at least 1 for a generated catalogue")

    def _check_files(self) -> None:
        if not self.attributes_path:
            raise ValueError("items_path needs attributes_path, the attributes of its products")
        if self.products is not None and self.products < 1:
            raise ValueError(f"products must be at least 1, got {self.products}")
        if self.pool < 0 or self.validation < 0:
            raise ValueError("pool and validation must not be negative")

    @property
    def generated(self) -> bool:
        """Whether the catalogue is generated."""
        return not self.items_path

    @property
    def attribute_counts(self) -> tuple[int, ...]:
        """`attributes` as a tuple."""
        return (self.attributes,) if isinstance(self.attributes, int) else tuple(self.attributes)

    @property
    def size(self) -> int:
        """Products of a generated catalogue."""
        return LEVELS[self.level] if self.products is None else self.products

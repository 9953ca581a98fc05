"""Multi-hop questions on a generated world: chains of facts, and the split that a chain belongs to."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.splits import hash_number
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.world import World, build_world

DATA_SOURCE = "search"
DRAWS_PER_QUESTION = 100


@dataclass(frozen=True)
class Chain:
    """A path through the facts.

    Attributes:
        relations: the relation of each hop, first hop first.
        entities: the start and the entity after each hop, the last of which is the answer; no entity occurs twice.
    """

    relations: tuple[str, ...]
    entities: tuple[str, ...]


def follow(world: World, start: str, relations: tuple[str, ...]) -> Chain:
    """The chain that a task's start and relations describe."""
    entities = [start]
    for relation in relations:
        entities.append(world.facts[entities[-1]][relation])
    return Chain(relations, tuple(entities))


def draw(world: World, starts: list[str], hops: int, rng: random.Random) -> Chain | None:
    """A random chain, None when the walk returned to an earlier entity."""
    start = rng.choice(starts)
    relations: list[str] = []
    here = start
    for _ in range(hops):
        relations.append(rng.choice(list(world.facts[here])))
        here = world.facts[here][relations[-1]]
    chain = follow(world, start, tuple(relations))
    return chain if len(set(chain.entities)) == hops + 1 else None


def ask(world: World, chain: Chain) -> str:
    """The question in words."""
    word = "who" if world.kinds[chain.entities[-1]] == "person" else "what"
    return f"{word} is the {' of the '.join(reversed(chain.relations))} of {chain.entities[0]}?"


def split_of(chain: Chain) -> str:
    """`test` by the entity that the question starts from, else `val` or `train` by the whole question."""
    if hash_number(chain.entities[0]) % 8 == 0:
        return "test"
    return "val" if hash_number(" ".join((chain.entities[0], *chain.relations))) % 6 == 0 else "train"


def generated_tasks(options: SearchOptions, split: str) -> list[dict[str, Any]]:
    """The questions of a split, in a fixed order; they alternate between hop counts.

    Raises:
        RecipeError: when the world has too few questions.
    """
    size = options.pool if split == "train" else options.validation
    world = build_world(options.seed, options.size)
    counts = itertools.cycle(options.hop_counts)
    found = {hops: _chains(world, hops, split, options.seed) for hops in set(options.hop_counts)}
    tasks: list[dict[str, Any]] = []
    for hops in itertools.islice(counts, size):
        chain = next(found[hops], None)
        if chain is None:
            line = "pool" if split == "train" else "validation"
            raise RecipeError(
                f"hier.environment.{line}: a world of {options.size} entities has no more than "
                f"{sum(task['hops'] == hops for task in tasks)} questions of {hops} hop(s) in the split {split!r}; ask "
                "for fewer, or raise hier.environment.entities."
            )
        tasks.append(_task(options, world, chain, f"{split}-{len(tasks):05d}"))
    return tasks


def _chains(world: World, hops: int, split: str, seed: int) -> Iterator[Chain]:
    """Different chains of a split, until many draws in a row give no new one."""
    rng = random.Random(f"questions-{seed}-{split}-{hops}")
    starts = list(world.kinds)
    seen: set[Chain] = set()
    misses = 0
    while misses < DRAWS_PER_QUESTION * len(starts):
        chain = draw(world, starts, hops, rng)
        if chain is None or chain in seen or split_of(chain) != split:
            misses += 1
            continue
        misses = 0
        seen.add(chain)
        yield chain


def _task(options: SearchOptions, world: World, chain: Chain, name: str) -> dict[str, Any]:
    question = ask(world, chain)
    return {
        "instruction": question,
        "question": question,
        "answers": [chain.entities[-1]],
        "hops": len(chain.relations),
        "support": list(chain.entities[:-1]),
        "relations": list(chain.relations),
        "corpus": {
            "seed": options.seed,
            "entities": options.size,
            "prose": options.prose,
            "web_share": options.web_share,
        },
        "data_source": DATA_SOURCE,
        "id": name,
    }

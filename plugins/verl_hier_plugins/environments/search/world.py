"""A generated world: people, towns, companies, rivers and regions, their relations, and a document on each.

Relations are functions (everybody has one hometown) and consistent: a capital lies in its region, a mayor comes from
the town, a company has its seat where its founder comes from. A document states the relations from its entity and none
to it, so a question of k hops needs k documents.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

RELATIONS: dict[str, dict[str, str]] = {
    "person": {"mentor": "person", "hometown": "town", "employer": "company"},
    "town": {"river": "river", "region": "region", "mayor": "person"},
    "company": {"founder": "person", "seat": "town"},
    "river": {"source": "region", "port": "town"},
    "region": {"capital": "town", "governor": "person"},
}
"""Kind of entity to relation to the kind of its value."""

SHARES = {"town": 0.2, "company": 0.14, "river": 0.08, "region": 0.08}
"""Share of each kind of entity; the rest are people."""

ENDINGS = {"person": ("",), "town": ("ton", "ham", "by"), "company": ("ex", "co"), "river": ("a",), "region": ("ia",)}

WORDINGS: dict[str, tuple[str, ...]] = {
    "mentor": ("the mentor of {name} is {value}.", "{name} learned everything from the mentor {value}."),
    "hometown": ("the hometown of {name} is {value}.", "{name} grew up in the hometown {value}."),
    "employer": ("the employer of {name} is {value}.", "{name} works for the employer {value}."),
    "river": ("the river of {name} is {value}.", "{name} lies on the river {value}."),
    "region": ("the region of {name} is {value}.", "{name} belongs to the region {value}."),
    "mayor": ("the mayor of {name} is {value}.", "{name} is governed by the mayor {value}."),
    "founder": ("the founder of {name} is {value}.", "{name} was started by the founder {value}."),
    "seat": ("the seat of {name} is {value}.", "{name} has its seat in {value}."),
    "source": ("the source of {name} is in {value}.", "{name} has its source in {value}."),
    "port": ("the port of {name} is {value}.", "{name} reaches its port at {value}."),
    "capital": ("the capital of {name} is {value}.", "{name} is ruled from the capital {value}."),
    "governor": ("the governor of {name} is {value}.", "{name} elected the governor {value}."),
}

_RESERVED = {"river", *RELATIONS, *(relation for kind in RELATIONS.values() for relation in kind)}
_ONSETS, _VOWELS, _CODAS = "bdfhklmnprstvz", "aeiou", "lmnrst"


@dataclass(frozen=True)
class World:
    """All facts.

    Attributes:
        kinds: entity to its kind, in the order of the documents.
        facts: entity to relation to entity; only the first person has no mentor.
    """

    kinds: dict[str, str]
    facts: dict[str, dict[str, str]]


@lru_cache(maxsize=8)
def build_world(seed: int, entities: int) -> World:
    """The world of a seed; equal arguments give equal worlds in every process."""
    rng = random.Random(f"world-{seed}-{entities}")
    counts = {kind: max(2, round(share * entities)) for kind, share in SHARES.items()}
    counts = {"person": entities - sum(counts.values()), **counts}
    names = _names(counts, rng)
    facts = _facts(names, rng)
    order = [name for kind in names for name in names[kind]]
    rng.shuffle(order)
    kind_of = {name: kind for kind, group in names.items() for name in group}
    return World({name: kind_of[name] for name in order}, {name: facts[name] for name in order})


def write_document(world: World, name: str, prose: bool) -> str:
    """The document on an entity: one plain sentence, or in prose a sentence for each fact."""
    kind, facts = world.kinds[name], list(world.facts[name].items())
    if not prose:
        parts = [f"{relation} {value}" for relation, value in facts]
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
        return f"{name} is a {kind} with {listed}."
    rng = random.Random(f"document-{name}")
    rng.shuffle(facts)
    sentences = [rng.choice(WORDINGS[relation]).format(name=name, value=value) for relation, value in facts]
    sentences[0] = sentences[0].replace(name, f"the {kind} {name}", 1)
    return " ".join(sentences)


def _names(counts: dict[str, int], rng: random.Random) -> dict[str, list[str]]:
    """Invented names for each kind; no two share a stem, and none is a word of the documents."""
    used = set(_RESERVED)
    found: dict[str, list[str]] = {}
    for kind, count in counts.items():
        found[kind] = []
        while len(found[kind]) < count:
            sounds = (_ONSETS, _VOWELS, _ONSETS, _VOWELS, _CODAS)
            stem = "".join(rng.choice(letters) for letters in sounds)
            if stem not in used:
                used.add(stem)
                found[kind].append(stem + rng.choice(ENDINGS[kind]))
    return found


def _facts(names: dict[str, list[str]], rng: random.Random) -> dict[str, dict[str, str]]:
    people, towns, companies = names["person"], names["town"], names["company"]
    region_of = _spread(towns, names["region"], rng)
    river_of = _spread(towns, names["river"], rng)
    home_of = _spread(people, towns, rng)
    residents = _inverse(home_of)
    facts: dict[str, dict[str, str]] = {}
    for rank, person in enumerate(people):
        mentor = {"mentor": rng.choice(people[:rank])} if rank else {}
        facts[person] = {**mentor, "hometown": home_of[person], "employer": rng.choice(companies)}
    for town in towns:
        facts[town] = {"river": river_of[town], "region": region_of[town], "mayor": rng.choice(residents[town])}
    for company in companies:
        founder = rng.choice(people)
        facts[company] = {"founder": founder, "seat": home_of[founder]}
    for river, along in _inverse(river_of).items():
        facts[river] = {"source": region_of[rng.choice(along)], "port": rng.choice(along)}
    for region, within in _inverse(region_of).items():
        governor = rng.choice(residents[rng.choice(within)])
        facts[region] = {"capital": rng.choice(within), "governor": governor}
    return facts


def _spread(members: list[str], groups: list[str], rng: random.Random) -> dict[str, str]:
    """A group for each member; every group occurs, because there are at least as many members."""
    drawn = [*groups, *(rng.choice(groups) for _ in range(len(members) - len(groups)))]
    rng.shuffle(drawn)
    return dict(zip(members, drawn, strict=True))


def _inverse(mapping: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member, group in mapping.items():
        found.setdefault(group, []).append(member)
    return found

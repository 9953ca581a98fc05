"""The tables that compare us with the authors: their settings, what is claimed, and what the audit found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from docs_markdown import cell, table
from omegaconf import OmegaConf

from verl_hier.recipe.authors import authors, unread, whole
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.checks.rule import there, value
from verl_hier.recipe.compose import compose
from verl_hier.recipe.papers import groups, settings_of
from verl_hier.recipe.schema import HierConfig

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLAIMS = DOCS / "claims.yaml"
"""What the README claims of each method, and the files and tests that back each claim."""
AUDIT = DOCS / "audit.yaml"
"""What an audit against released code found, and what became of it."""
OTHERS = DOCS / "other_papers.yaml"
"""Papers that no method here is named after, what of them is here, and what carries it."""


def paper(group: str) -> Iterator[str]:
    """The authors' settings beside those of the recipe of that name at size `node`."""
    config = at_node(group)
    options = HierConfig.of(config).paper
    rows = [
        (f"`{setting.line}`", *shown(setting.value, value(config, setting.line)), cell(setting.where))
        for setting in settings_of(group)
        if setting.line not in options.differs
    ]
    for what, difference in options.differs.items():
        known = there(config, what)
        ours = value(config, what) if known else difference.ours
        rows.append((f"`{what}`" if known else cell(what), *shown(difference.theirs, ours), cell(difference.why)))
    sizes = [f"`size={size}`" for size in find(group).sizes if size != "cpu"]
    take = "take" if len(sizes) > 1 else "takes"
    yield f"The authors' settings, read from {options.source}; {' and '.join(sizes)} {take} them over."
    yield from ("", *table(("setting", "theirs", "ours", "where it is, or why ours differs"), *rows))
    yield from ("", confirmed(group))


def confirmed(group: str) -> str:
    """How far the settings of a group are confirmed by the authors' files, and why its loop is not called whole."""
    theirs, reason = authors().get(group), whole(group, at_node(group))
    if theirs is None:
        return f"The training loop is not called whole: {reason}."
    count = len(theirs.values) - len(theirs.unconfirmed)
    of = f" (a copy of {theirs.copy_of})" if theirs.copy_of else ""
    said = f"{count} values are confirmed by {theirs.repository}{of} at `{theirs.commit[:7]}`, file and line."
    return (
        f"{said} The training loop is not called whole: {reason}." if reason else f"{said} The training loop is whole."
    )


def loop(claim: Mapping[str, Any]) -> str:
    """What is said of a method's training loop: `whole` where each of its groups is found to be so."""
    says = str(claim["loop"]["says"])
    if not says.startswith("built"):
        return says
    recorded = [theirs for group in claim["settings"] if (theirs := authors().get(group))]
    if not recorded or len(recorded) < len(claim["settings"]):
        return f"{says}, not compared with their files"
    if count := sum(len(theirs.unconfirmed) for theirs in recorded):
        return f"{says}, {count} value{'s' if count > 1 else ''} unconfirmed"
    different = any(whole(group, at_node(group)) for group in claim["settings"])
    return f"{says}, different" if different else says.replace("built", "whole", 1)


@cache
def at_node(recipe: str) -> Mapping[str, Any]:
    """A recipe at size `node`, with the first server that it offers there, as plain containers."""
    words = next(words for words in find(recipe).combinations() if "size=node" in words)
    plain = OmegaConf.to_container(compose(recipe, words), resolve=True)
    assert isinstance(plain, dict)
    return plain


def shown(theirs: Any, ours: Any) -> tuple[str, str]:
    """Two values as cells; equal ones are said to be so."""
    return word(theirs), "the same" if theirs == ours else word(ours)


def word(setting: Any) -> str:
    """A value as YAML writes it, prose as it is."""
    if isinstance(setting, str):
        return cell(setting)
    return f"`{yaml.safe_dump(setting, default_flow_style=True).removesuffix('...' + chr(10)).strip()}`"


def paper_groups() -> Iterator[str]:
    """The groups of authors' settings with their sources."""
    rows = []
    for group in groups():
        config = at_node(group)
        differs = len(HierConfig.of(config).paper.differs)
        rows.append(
            (f"`{group}`", cell(value(config, "hier.paper.source")), str(len(settings_of(group))), str(differs))
        )
    yield from table(("group", "source", "settings taken over", "different"), *rows)
    for reason in dict.fromkeys(unread().values()):
        names = " and ".join(f"`{group}`" for group, why in unread().items() if why == reason)
        yield from ("", f"Not compared with files of the authors: {names}, since {reason}.")


def claims(folder: str = "") -> Iterator[str]:
    """What is whole of each method, and how that is known.

    Args:
        folder: `docs` for a page there; empty for the README.
    """
    methods = "methods" if folder else "docs/methods"
    rows = []
    for method, claim in yaml.safe_load(CLAIMS.read_text("utf-8")).items():
        settings = ", ".join(f"`{group}`" for group in claim["settings"]) or "not taken over"
        cells = (claim["formula"]["says"], loop(claim))
        rows.append((f"[{method}]({methods}/{claim['page']})", *cells, settings, claim["proof"]["says"]))
    yield from table(("method", "formula", "training loop", "authors' settings", "shown to learn"), *rows)


def others() -> Iterator[str]:
    """The papers that no method here is named after."""
    rows = []
    for paper, entry in yaml.safe_load(OTHERS.read_text("utf-8")).items():
        by = ", ".join(f"[{name}]({name})" if name.endswith(".md") else f"`{name}`" for name in entry["by"])
        rows.append((cell(paper), cell(entry["idea"]), entry["here"], by, cell(entry["says"])))
    yield from table(("paper", "its idea", "here", "by", "what there is, or is not"), *rows)


def audit(kind: str) -> Iterator[str]:
    """One part of the audit: `deviations` or `options`."""
    found: Mapping[str, Any] = yaml.safe_load(AUDIT.read_text("utf-8"))[kind]
    rows = []
    for name, entry in found.items():
        tests = ", ".join(f"`{test.rpartition('/')[2]}`" for test in entry.get("tests", ()))
        state = "; ".join(text for text in (entry["now"], tests) if text)
        rows.append((cell(str(name)), cell(entry["was"]), cell(state)))
    yield from table(("", "what was different", "what holds now, and the test"), *rows)


BLOCKS = {"paper": paper, "paper_groups": paper_groups, "claims": claims, "others": others, "audit": audit}

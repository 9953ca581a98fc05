"""Write the generated parts of the documentation.

    python scripts/docs.py            # rewrite every generated block below docs/, in README.md and SECURITY.md,
                                      # and the JSON schema of the store
    python scripts/docs.py --check    # change nothing; name the pages that are stale and exit with 1

A page holds generated text between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end -->`; NAME is a function of
`BLOCKS`. Everything outside of such a block is written by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import docs_baselines
import docs_front
import docs_lab
import docs_measured
import docs_papers
import docs_policies
import docs_rooms
import typer
import yaml
from docs_markdown import cell, table
from docs_reference import api, fields, options
from docs_store import COLUMNS_FILE, columns_json, store_columns

from verl_hier.cli.main import app
from verl_hier.graph import read_graphs
from verl_hier.graph.turn_table import EPISODE_COLUMNS, TURN_COLUMNS
from verl_hier.host.describe import needs_of
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.specs import EstimatorSpec, Kind, NoOptions, SamplerSpec, Spec, WorkerSpec
from verl_hier.recipe import catalogue, pairs, verl_lines
from verl_hier.recipe.checks.choices import CHOICES, SETS
from verl_hier.recipe.checks.numbers import NUMBERS
from verl_hier.recipe.checks.rule import rules
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier.training.loss_table import VERL
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.react import React, ReactOptions

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RECIPES = ROOT / "recipes"
BLOCK = re.compile(r"(<!-- generated: ([\w ./:-]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
KINDS: tuple[Kind, ...] = ("environment", "worker", "sampler", "estimator", "schedule")


@cache
def host() -> PluginHost:
    """Every built-in part."""
    return PluginHost.load({"builtin": True})


def part(kind: Kind, name: str) -> Iterator[str]:
    """The recipe line, the facts and the options of one part."""
    spec = host().spec(kind, name)
    yield from table(("in a recipe", f"`hier.{kind}.name: {name}`"), *facts_of(spec))
    yield ""
    yield from options(spec.options)


def facts_of(spec: Spec) -> Iterator[tuple[str, str]]:
    """What the spec declares, as label and text; empty declarations are left out."""
    if isinstance(spec, EstimatorSpec):
        yield from (("needs", needs_of(spec)), ("credit per", spec.granularity), ("confidence", spec.confidence))
    if isinstance(spec, WorkerSpec):
        yield "roles", ", ".join(f"`{role}` (level {level})" for role, level in spec.roles.items())
        if spec.transcribe is not None:
            yield "cold start", "episodes of other workers can be distilled for it (`transcribe`)"
    needs = [text for field, text in NEEDS.items() if getattr(spec, field, False)]
    if isinstance(spec, SamplerSpec) or needs:
        yield "needs", "; ".join(needs) or "nothing beyond `reset` and `step` of the environment"
    if provided := spec.fills():
        yield "fills the columns", ", ".join(f"`{column}`" for column in provided)
    if spec.extra:
        yield "pip extra", f"`{spec.extra}`"
    if spec.source:
        yield "source", spec.source


NEEDS = {
    "needs_fork": "an environment that can fork, by itself or by replay",
    "leaves_out": "a worker whose roles can be left out of episodes",
    "needs_top_logprobs": "a rollout server that returns top-k log-probs",
    "needs_scores": "a rollout server that returns log-probs of prompts",
    "needs_stop_strings": "a rollout server that stops at strings",
}


def part_pages() -> Iterator[str]:
    """For each kind the pages on which the options of its parts are; relative to docs/."""
    for kind in KINDS:
        found = sorted(host().specs(kind).items())
        yield f"- `hier.{kind}`: {', '.join(f'[`{name}`]({spec.doc})' for name, spec in found)}"


def method(*groups: str) -> Iterator[str]:
    """The parts that the method groups combine, and the recipes that use them; for pages in docs/methods/."""
    head = ("", *(f"`hier/method: {group}`" for group in groups))
    files = [yaml.safe_load((RECIPES / "hier" / "method" / f"{group}.yaml").read_text("utf-8")) for group in groups]
    blocks = [{**file["hier"], **file.get("shared", {}).get("hier", {})} for file in files]
    rows = []
    for kind in KINDS[1:]:
        names = [block.get(kind, {}).get("name", "joint" if kind == "schedule" else "") for block in blocks]
        if any(names):
            rows.append((kind, *(f"[`{name}`]({link(host().spec(kind, name).doc)})" for name in names)))
    forms = [docs_policies.links(file) for file in files]
    if any(forms):
        rows.append((f"[policies]({link('policies.md')})", *forms))
    rows.append(("recipes", *(", ".join(recipes_of(group)) for group in groups)))
    yield from table(head, *rows)


def recipes_of(group: str) -> Iterator[str]:
    """The recipes of a method group, with the sizes that they offer."""
    for recipe in catalogue.recipes():
        if recipe.groups.get("method") == group or f"hier/method/{group}," in recipe.text:
            yield f"`{recipe.name}` ({', '.join(recipe.sizes) or 'any size'})"


def recipe_matrix() -> Iterator[str]:
    """Methods by environments: which pairs were tried, with their sizes, and which compose; then the other recipes."""
    tried, refused = set(pairs.tried()), pairs.refused()

    def mark(method: str, environment: str) -> str:
        name = f"{method}_{environment}"
        if name not in tried:
            return "" if name in refused else "+"
        sizes = catalogue.find(name).sizes
        return "all sizes" if len(sizes) == len(catalogue.SIZES) else ", ".join(sizes)

    environments = list(pairs.table()["environments"])
    rows = ((method, *(mark(method, each) for each in environments)) for method in pairs.table()["methods"])
    yield from table(("method", *environments), *rows)
    composing = len(pairs.by_name()) - len(refused)
    yield from ("", f"{composing} of {len(pairs.by_name())} pairs compose, and {len(tried)} were tried.", "")
    others = (recipe for recipe in catalogue.recipes() if not recipe.method_and_environment)
    yield from table(("recipe", ""), *((f"`{recipe.name}`", cell(recipe.summary)) for recipe in others))


def parts(kind: Kind) -> Iterator[str]:
    """All parts of one kind with their pages; relative to docs/methods/."""
    rows = []
    for spec in (spec for _, spec in sorted(host().specs(kind).items())):
        row = [f"[`{spec.name}`]({link(spec.doc)})", cell(spec.summary)]
        if isinstance(spec, EstimatorSpec):
            row += [needs_of(spec), spec.granularity, spec.confidence]
        rows.append(row)
    extra = ("needs", "credit per", "confidence") if kind == "estimator" else ()
    yield from table((kind, "what it does", *extra), *rows)


def link(page: str) -> str:
    """A page below docs/, seen from docs/methods/."""
    return page.removeprefix("methods/") if page.startswith("methods/") else f"../{page}"


def mapping(reference: str, head: str, prefix: str = "") -> Iterator[str]:
    """The names and meanings that a dictionary in the code holds."""
    found: dict[str, str] = pkgutil.resolve_name(reference)
    yield from table((head, ""), *((f"`{prefix}{name}`", cell(text)) for name, text in found.items()))


def losses() -> Iterator[str]:
    """The policy losses with the pages that the docstrings of their modules name."""
    rows = []
    for name, loss in sorted(host().specs("policy_loss").items()):
        page = re.search(r"docs/methods/([\w/-]+\.md)", sys.modules[loss.function.__module__].__doc__ or "")
        rows.append((f"[`{name}`]({page[1] if page else f'{name}.md'})", cell(loss.summary)))
    yield from table(("policy loss", "what it does"), *rows)


def columns(kind: str) -> Iterator[str]:
    """The columns of the turn table, of one kind: `turn` or `episode`."""
    known = {"turn": TURN_COLUMNS, "episode": EPISODE_COLUMNS}[kind]
    rows = ((f"`{name}`", *(cell(part) for part in text.split("; ", 1))) for name, text in known.items())
    yield from table(("column", "type", "meaning"), *rows)


def policy_losses() -> Iterator[str]:
    """What each policy loss does with loss weights, and how it adds up tokens."""
    words = {
        "token": "multiplies each token by its weight",
        "row": "multiplies each row by one weight",
        "none": "does not read them",
        "ratio": "takes them for an importance ratio",
    }
    sums = {
        "loss_agg_mode": "as `loss_agg_mode` says",
        "seq-mean-token-mean": "always as `seq-mean-token-mean`",
        "micro-batch-mean": "mean over the rows of a micro-batch",
    }
    uses = [(name, "verl", use.weights, use.aggregation) for name, use in VERL.items()]
    losses = PluginHost.load(DEFAULT_ENABLED).specs("policy_loss")
    uses += [(name, "verl-hier", loss.weights, loss.aggregation) for name, loss in losses.items()]
    rows = [(f"`{name}`", of, words[str(weights)], sums[aggregation]) for name, of, weights, aggregation in uses]
    yield from table(("`loss_mode`", "of", "loss weights", "adds up tokens"), *rows)


def example_graph() -> Iterator[str]:
    """A rollout graph as its file holds it: an agent that goes right twice."""
    sys.path.insert(0, str(ROOT))
    from tests.fixtures.corridor import Corridor

    rollout = roll_out_scripted(
        environment=lambda: Corridor(2),
        worker=lambda: React(ReactOptions()),
        sampler=Independent(NoOptions()),
        answer=lambda prompt, sampling: "right",
        n=1,
    )
    text = json.dumps(asyncio.run(rollout)[0].to_dict(), indent=2, ensure_ascii=False)
    yield from ("```json", re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text), "```")


def picture() -> Iterator[str]:
    """A stored rollout as a tree: a line for each plan and each episode below it, with the credit that they got."""
    (graph,) = read_graphs(DOCS / "example_rollout.jsonl.gz")
    paths = [graph.path(episode.id) for episode in graph.episodes]
    plans = sorted({path[0] for path in paths})
    yield from ("```text", f"task  {graph.task['instruction']}")
    for plan in plans:
        fork, stem = ("└─", "   ") if plan == plans[-1] else ("├─", "│  ")
        yield from ("│", f"{fork} plan  {graph.nodes[plan].text:<56} {signed(graph.credit[plan])}")
        below = [episode for episode in graph.episodes if paths[episode.id][0] == plan]
        for episode in below:
            turns, end = len(paths[episode.id]) - 1, "won, " if episode.success else "lost,"
            kind, credit = ("trial, greedy", "")
            if episode.trained:
                kind, credit = ("execution", signed(graph.credit[episode.leaf]))
            branch = "└─" if episode is below[-1] else "├─"
            yield f"{stem}{branch} {kind:<14}{turns:>3} turns   {end} return {episode.ret:>5.2f}{credit:>30}".rstrip()
    yield "```"


def signed(credit: float) -> str:
    """A credit with its sign."""
    return f"credit {credit:+.2f}"


def commands() -> Iterator[str]:
    """What `verl-hier COMMAND --help` says, command by command."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        usage = command.get_usage(command.context_class(command, info_name=f"verl-hier {name}"))
        yield from (f"### `{name}`", "", command.help or "", "", f"    {' '.join(usage.split()[1:])}", "")
        rows = [
            (f"`{'`, `'.join(option.opts)}`", cell(option.help or ""), f"`{option.default}`" if option.default else "")
            for option in command.params
            if option.param_type_name == "option"
        ]
        if rows:
            yield from (*table(("option", "what it does", "default"), *rows), "")


def rules_of_the_check() -> Iterator[str]:
    """What `verl-hier check` refuses, a table for each topic."""
    for topic, found in itertools.groupby(rules(), key=lambda rule: rule.topic):
        rows = [
            (cell(rule.refuses.removeprefix("Refuse ")[:1].upper() + rule.refuses.removeprefix("Refuse ")[1:]),)
            for rule in found
        ]
        yield from (f"### {topic}", "", *table(("refused",), *rows), "")


def numbers() -> Iterator[str]:
    """What the numbers of verl's own blocks may be."""
    yield from table(("recipe line", "expected"), *((f"`{line}`", str(number)) for line, number in NUMBERS.items()))


def unread_lines() -> Iterator[str]:
    """Lines of verl that some recipes leave without a reader."""
    found: dict[tuple[str, str], list[str]] = {}
    for line, name in verl_lines.table().items():
        if name != verl_lines.VERL:
            reader = verl_lines.READERS[name]
            found.setdefault((reader.there or "nothing", "refused" if reader.refused else "noted"), []).append(line)
    yield from table(
        ("read with", "otherwise", "recipe lines"),
        *((there, otherwise, _shortened(lines)) for (there, otherwise), lines in found.items()),
    )


def _shortened(lines: Sequence[str]) -> str:
    """Lines as a list; a block of which no other line is left by its name."""
    others, named = verl_lines.table().keys() - set(lines), []
    for line in lines:
        above = list(itertools.accumulate(line.split(".")[:-1], "{}.{}".format))
        whole = [f"{block}." for block in above if not any(other.startswith(f"{block}.") for other in others)]
        named.append(f"`{whole[0]}*`" if whole else f"`{line}`")
    return ", ".join(dict.fromkeys(named))


def words() -> Iterator[str]:
    """Words that lines of verl's own blocks may hold."""
    rows = [
        (line, ", ".join("null" if word is None else f"`{word}`" for word in known)) for line, known in CHOICES.items()
    ]
    rows += [(line, "some of " + ", ".join(f"`{word}`" for word in known)) for line, known in SETS.items()]
    yield from table(("recipe line", "expected"), *((f"`{line}`", text) for line, text in rows))


def redteam() -> Iterator[str]:
    """What held of docs/security.json, which `python scripts/redteam.py --write` measures."""
    found = json.loads((DOCS / "security.json").read_text("utf-8"))
    measured = found["configurations"]
    kinds = list(dict.fromkeys(kind for result in measured.values() for kind in result["kinds"].values()))
    rows = []
    for kind in kinds:
        row = [kind]
        for result in measured.values():
            held = [not result["probes"][name] for name, of in result["kinds"].items() if of == kind]
            row.append(f"{sum(held)} of {len(held)}")
        rows.append(row)
    rows.append(["layers", *(", ".join(result["layers"]) for result in measured.values())])
    names = {"A": "root", "B": "root, no namespaces", "C": "a user", "D": "a user, no namespaces"}
    yield from table(("attack on", *(names[configuration] for configuration in measured)), *rows)
    about = found["about"]
    yield from ("", f"Linux {about['kernel']}, {about['machine']}, Python {about['python']}.")


BLOCKS: dict[str, Callable[..., Iterator[str]]] = {
    **{kind: lambda name, kind=kind: part(kind, name) for kind in KINDS},
    "parts": parts,
    "losses": losses,
    "mapping": mapping,
    "recipes": recipe_matrix,
    "method": method,
    "columns": columns,
    "store_columns": store_columns,
    "policy_losses": policy_losses,
    "example_graph": example_graph,
    "picture": picture,
    "commands": commands,
    "checks": rules_of_the_check,
    "numbers": numbers,
    "words": words,
    "unread": unread_lines,
    "options": lambda reference: options(pkgutil.resolve_name(reference)),
    "fields": lambda path, reference: fields(path, pkgutil.resolve_name(reference)),
    "part_pages": part_pages,
    "redteam": redteam,
    "api": api,
    **docs_baselines.BLOCKS,
    **docs_front.BLOCKS,
    **docs_lab.BLOCKS,
    **docs_measured.BLOCKS,
    **docs_papers.BLOCKS,
    **docs_policies.BLOCKS,
    **docs_rooms.BLOCKS,
}


def generated(text: str) -> str:
    """The text of a page with every generated block as it should be."""

    def fill(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        return f"{match[1]}\n" + "\n".join(BLOCKS[name](*arguments)) + f"\n\n{match[4]}"

    return BLOCK.sub(fill, text)


def stale() -> dict[Path, str]:
    """The pages that are not up to date, and the schema of the store if it is not, with the text they should have."""
    pages = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    found = {page: fresh for page, text in texts.items() if (fresh := generated(text)) != text}
    schema = columns_json()
    return found if COLUMNS_FILE.read_text(encoding="utf-8") == schema else {**found, COLUMNS_FILE: schema}


def main() -> int:
    """Rewrite the stale pages, or only name them."""
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is stale")
    only_check = parser.parse_args().check
    found = stale()
    for page, text in found.items():
        if not only_check:
            page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{page.relative_to(ROOT)} {'is stale' if only_check else 'written'}\n")
    return 1 if only_check and found else 0


if __name__ == "__main__":
    sys.exit(main())

"""`environments`, `workers`, `samplers`, `estimators`, `schedules`: the registered parts, from their specs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from verl_hier.cli.inspect import Enable, RecipeOption, enabled
from verl_hier.cli.output import LIST, heading, line, table
from verl_hier.host.describe import needs_of, options_of, page_of
from verl_hier.host.specs import Kind

if TYPE_CHECKING:
    from verl_hier.host.manager import PluginHost
    from verl_hier.host.specs import Spec

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME|WORD]", help="Explain this one, or list those with this word.")
]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Fields of the specs that are promises or needs, in the words of the recipe author.
_FACTS = (
    ("requires", "reads the columns"),
    ("provides", "fills the columns"),
    ("roles", "roles (level)"),
    ("levels", "credits the levels"),
    ("granularity", "credit per"),
    ("fork", "episodes are copied"),
    ("needs_fork", "needs an environment that forks"),
    ("needs_top_logprobs", "needs the likeliest tokens' log-probs"),
    ("needs_scores", "needs log-probs of prompts"),
    ("needs_logprobs", "goes by the log-probs of sampled tokens"),
    ("needs_tokens", "begins, cuts or samples turns in pieces"),
    ("sees_outcomes", "goes by the outcomes of episodes"),
    ("stand_ins", "roles can be left out of episodes"),
    ("leaves_out", "leaves roles out of episodes"),
    ("needs_stop_strings", "needs a server that stops at strings"),
    ("needs_groups", "needs groups"),
    ("needs_critic", "needs a critic"),
    ("needs_tree", "needs a tree"),
    ("modules", "needs the packages"),
    ("extra", "pip extra"),
    ("source", "source"),
    ("confidence", "confidence"),
    ("doc", "page in docs/"),
)


def command(kind: Kind) -> Callable[..., None]:
    """The command that lists one kind, or explains one part of it."""

    def show(
        name: Name = None,
        recipe: RecipeOption = None,
        enable: Enable = None,
    ) -> None:
        from verl_hier.host.manager import PluginHost

        host = PluginHost.load(enabled(recipe, enable))
        specs = _sorted(host, kind)
        found = [spec for spec in specs if name is None or _speaks_of(spec, name)]
        if name is not None and (name in host.specs(kind) or not found):
            explain(host, host.spec(kind, name))
        else:
            _list(host, kind, found)

    show.__doc__ = f"List the {kind}s, or explain one of them."
    return show


def _list(host: PluginHost, kind: Kind, specs: list[Spec]) -> None:
    """One entry a part; estimators also say what they need."""
    from verl_hier.host.specs import EstimatorSpec

    if kind == "estimator":
        needs = [(spec.name, needs_of(spec), spec.summary) for spec in specs if isinstance(spec, EstimatorSpec)]
        table(needs, head=(kind, "needs", "in a line"), width=LIST)
    else:
        plain = [(spec.name, spec.summary, host.provenance(kind, spec.name).plugin) for spec in specs]
        table(plain, head=(kind, "in a line", "plugin"), width=LIST)


def _speaks_of(spec: Spec, word: str) -> bool:
    """Whether a word is in what the lists say of a part."""
    from verl_hier.host.specs import EstimatorSpec

    needs = needs_of(spec) if isinstance(spec, EstimatorSpec) else ""
    return word.lower() in " ".join((spec.name, spec.summary, spec.source, needs)).lower()


def explain(host: PluginHost, spec: Spec) -> None:
    """Print everything that a spec says about its part, and for an estimator its page: formula and example."""
    line(f"{spec.name}: {spec.summary}")
    origin = host.provenance(spec.kind, spec.name)
    facts = [(label, _fact(getattr(spec, name, None))) for name, label in _FACTS]
    table([*((label, text) for label, text in facts if text), ("from", f"{origin.module} ({origin.distribution})")])
    options = [(option.name, option.type, option.default, option.text) for option in options_of(spec.options)]
    heading(f"options (hier.{spec.kind})")
    if options:
        table(options, head=("option", "type", "default", "what it does"))
    else:
        line("none")
    if spec.kind == "estimator":
        _page(spec)


def _page(spec: Spec) -> None:
    page = page_of(spec)
    if page is not None:
        heading(f"docs/{spec.doc}")
        line(page.read_text(encoding="utf-8"))


def _sorted(host: PluginHost, kind: Kind) -> list[Spec]:
    return [spec for _, spec in sorted(host.specs(kind).items())]


def _fact(value: Any) -> str:
    if value is True:
        return "yes"
    if callable(value):
        return "with some options"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({level})" for name, level in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return str(value) if value else ""

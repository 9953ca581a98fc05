"""`credit`: stored rollout graphs under another estimator, or several side by side."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verl_hier.cli.arrow import without_pandas
from verl_hier.cli.inspect import Enable, RecipeOption, enabled
from verl_hier.cli.options import Graphs, new_file
from verl_hier.cli.output import line, table
from verl_hier.errors import RecipeError

if TYPE_CHECKING:
    from verl_hier.host.manager import PluginHost


class Blame(str, Enum):
    """How it is found who lost an attempt."""

    OTHERS = "others"
    REPLAY = "replay"


def credit(
    source: Graphs,
    estimator: Annotated[str | None, typer.Option(help="Credit every turn by this estimator.")] = None,
    compare: Annotated[str | None, typer.Option(help="Two or more estimators: a,b,c.")] = None,
    out: Annotated[Path | None, new_file("Where the credit goes.", ".jsonl", ".parquet")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="option=value, or with --compare NAME.option=value.")
    ] = None,
    blame: Annotated[
        Blame | None, typer.Option(help="Say who lost each lost attempt: by the others, or by playing it again.")
    ] = None,
    recipe: RecipeOption = None,
    enable: Enable = None,
) -> None:
    """Credit stored rollouts again, or say which turn lost them.

    With --blame, --out writes the lost attempts in the form of Who&When.
    """
    without_pandas()
    if blame is not None:
        if estimator is not None or compare is not None or settings:
            raise RecipeError("--blame asks no estimator; leave --estimator, --compare and --set out.")
        _blame(source, blame, out, recipe)
        return
    from verl_hier.host.manager import PluginHost

    if (estimator is None) == (compare is None):
        raise RecipeError("give either --estimator NAME with --out FILE, or --compare a,b,c, or --blame others.")
    from verl_hier.ops.stored import Stored

    stored = Stored.at(source)
    host = PluginHost.load(enabled(recipe, enable, stored.plugins()), "estimator")
    if compare is not None:
        _compare(host, stored.graphs, compare, settings or [])
    elif out is None:
        raise RecipeError("--estimator writes the credit of every turn; say where with --out FILE.jsonl or .parquet.")
    else:
        _credit(host, stored.graphs, str(estimator), out, settings or [])


def _blame(source: Path, how: Blame, out: Path | None, recipe: str | None) -> None:
    import asyncio

    from verl_hier.ops.exchange.files import write_lines
    from verl_hier.ops.lost_attempts import lost_attempts, lost_by_replay
    from verl_hier.ops.stored import Stored

    stored = Stored.at(source)
    found = lost_attempts(stored) if how is Blame.OTHERS else asyncio.run(lost_by_replay(stored, recipe))
    line(found.told())
    table(found.rows(), head=("agent", "lost", "share", "of the turns", "mean turn"))
    if out is not None:
        write_lines(out, (".jsonl",), found.cases)
        line(f"{len(found.cases)} lines: {out}")


def _credit(host: PluginHost, source: Path, name: str, out: Path, pairs: list[str]) -> None:
    from verl_hier.ops import offline

    spec: Any = host.spec("estimator", name)
    turns = offline.credit(spec, source, out, offline.parse_settings(pairs), prepare=_prepare(host))
    line(f"{turns} turns: {out}")


def _compare(host: PluginHost, source: Path, names: str, pairs: list[str]) -> None:
    from verl_hier.ops import offline

    specs: list[Any] = [host.spec("estimator", name.strip()) for name in names.split(",") if name.strip()]
    settings = by_estimator(offline.parse_settings(pairs))
    strangers = sorted(set(settings) - {spec.name for spec in specs})
    if strangers:
        raise RecipeError(f"--set {strangers[0]}.…: {strangers[0]!r} is not among the estimators of --compare {names}.")
    found = offline.compare(specs, source, settings, prepare=_prepare(host))
    line(f"{found.turns} trained turns; rank correlation and sign flips against {found.names[0]}")
    rows = [(row["name"], *(f"{row[key]:.3f}" for key in ("nonzero", "rank", "flips"))) for row in found.rows()]
    table(rows, head=("estimator", "with credit", "rank", "flips"))


def by_estimator(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """`{"gigpo.omega": 0}` as `{"gigpo": {"omega": 0}}`."""
    sorted_out: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, dot, option = key.partition(".")
        if not dot:
            raise RecipeError(f"--set {key}=…: with --compare say whose option it is, NAME.{key}=….")
        sorted_out.setdefault(name, {})[option] = value
    return sorted_out


def _prepare(host: PluginHost) -> Any:
    """Shape the table as a run would: by the plugins' `hier_table_ready`."""
    return lambda turns, step: host.hook.hier_table_ready(table=turns, step=step)

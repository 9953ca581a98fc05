"""`plugins`, `doctor`, `conformance`."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verl_hier.cli.output import LIST, heading, line, table
from verl_hier.errors import HierError

if TYPE_CHECKING:
    from verl_hier.host.manager import PluginStatus

Enable = Annotated[
    list[str] | None, typer.Option("--enable", metavar="PLUGIN", help="Also load this plugin; may be repeated.")
]
RecipeOption = Annotated[str | None, typer.Option("--recipe", help="Take `hier.plugins` from this recipe.")]


def enabled(
    recipe: str | None, more: list[str] | None, otherwise: Mapping[str, bool] | None = None
) -> Mapping[str, bool]:
    """What to load: the recipe's block, or `otherwise`, or the built-ins; and what the command line adds."""
    from verl_hier.host.manager import DEFAULT_ENABLED

    block: dict[str, bool] = dict(DEFAULT_ENABLED if otherwise is None else otherwise)
    if recipe:
        from verl_hier.recipe.compose import compose

        block = {str(name): bool(on) for name, on in compose(recipe).hier.plugins.items()}
    return block | dict.fromkeys(more or (), True)


def plugins(
    word: Annotated[
        str | None, typer.Argument(metavar="[WORD]", help="List those with this in their name or in what they bring.")
    ] = None,
    recipe: RecipeOption = None,
    enable: Enable = None,
) -> None:
    """List installed plugins and what they bring."""
    from verl_hier.host.manager import discover

    rows = [_row(status) for status in discover(enabled(recipe, enable))]
    found = [row for row in rows if (word or "").lower() in " ".join(row).lower()]
    if not found:
        raise HierError(f"no plugin has {word!r} in its name or in what it brings; `verl-hier plugins` lists them all.")
    table(found, head=("plugin", "state", "distribution", "brings"), width=LIST)


def _row(status: PluginStatus) -> tuple[str, str, str, str]:
    state = "blocked" if status.blocked else "enabled" if status.enabled else "off"
    brings = [f"{kind} {', '.join(names)}" for kind, names in status.provides.items()]
    brings += [f"hook {name}" for name in status.hooks]
    return status.name, state, f"{status.distribution} {status.version}", status.blocked or "; ".join(brings)


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Folder or name of a model; omitted: this installation is examined."),
    ] = None,
    recipe: RecipeOption = None,
    enable: Enable = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="List every seam and every plugin.")] = False,
) -> None:
    """Verify this installation and machine, or a model.

    An installation is its versions, seams to verl and plugins. A model is examined by its config and tokenizer alone,
    without its weights. Exit code 1 when something is broken.
    """
    if model is not None:
        _model(model)
        return
    broken = _versions() + _seams(verbose) + _plugins(enabled(recipe, enable), verbose)
    _machine()
    line()
    if broken:
        typer.echo(f"verl-hier: {len(broken)} problem(s): {'; '.join(broken)}", err=True)
        raise typer.Exit(1)
    line("everything in order")


def _model(model: str) -> None:
    with _keeping_garbage():
        from verl_hier.chat.examined.model import examine
        from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
        from verl_hier.recipe.checks.resources import COPY_BYTES_PER_PARAMETER, TRAINED_BYTES_PER_PARAMETER

        heading(f"model {model}")
        host = PluginHost.load(DEFAULT_ENABLED)
        findings = list(examine(model, host, TRAINED_BYTES_PER_PARAMETER, COPY_BYTES_PER_PARAMETER))
    table((finding.verdict, finding.about, finding.sentence) for finding in findings)
    line("hours to the last step: unknown, until `verl-hier train` has measured a step of your recipe")
    broken = [finding.about for finding in findings if finding.verdict == "fails"]
    line()
    if broken:
        typer.echo(f"verl-hier: {len(broken)} problem(s): {', '.join(broken)}", err=True)
        raise typer.Exit(1)
    line("nothing stands against a rollout with this model; read the notes")


def _versions() -> list[str]:
    from verl_hier import __version__
    from verl_hier.verl_facts.versions import RANGE, SHOWN, installed, verl_problem

    heading("versions")
    rows = [("python", sys.version.split()[0], ""), ("verl-hier", __version__, "")]
    rows += [(name, installed(name) or "missing", f"tested: {RANGE}" if name == "verl" else "") for name in SHOWN]
    table(rows)
    problem = verl_problem()
    return [problem] if problem else []


def _seams(verbose: bool) -> list[str]:
    from verl_hier.compat.seams.table import SEAMS, verify
    from verl_hier.errors import PluginError
    from verl_hier.verl_facts.validation import require_registration

    heading(f"seams to verl ({len(SEAMS)})")
    broken: list[str] = []
    rows = []
    with warnings.catch_warnings():
        # verl warns of every optional engine that is not installed.
        warnings.simplefilter("ignore")
        with _keeping_garbage():
            problems = {seam.name: verify(seam) for seam in SEAMS}
    for seam in SEAMS:
        problem = problems[seam.name]
        if problem or verbose:
            rows.append(("broken" if problem else "ok", seam.name, problem or seam.why))
        if problem:
            broken.append(f"seam {seam.name}: {problem}")
    table(rows)
    if not verbose:
        line(f"{len(SEAMS) - len(broken)} hold; `verl-hier doctor --verbose` lists them")
    try:
        require_registration()
    except PluginError as error:
        broken.append(str(error))
    return broken


@contextmanager
def _keeping_garbage() -> Iterator[None]:
    """Importing verl makes millions of objects, and looking for garbage among them takes a sixth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _plugins(block: Mapping[str, bool], verbose: bool) -> list[str]:
    from verl_hier.errors import PluginError
    from verl_hier.host.manager import PluginHost, discover

    heading("plugins")
    statuses = discover(block)
    table(_row(status) for status in statuses if verbose or status.blocked)
    if not verbose:
        on = sum(status.enabled and not status.blocked for status in statuses)
        line(f"{on} of {len(statuses)} are enabled; `verl-hier plugins` lists them")
    broken = [f"plugin {status.name}: {status.blocked}" for status in statuses if status.enabled and status.blocked]
    if not broken:
        try:
            PluginHost.load(block)
        except PluginError as error:
            broken.append(str(error))
    return broken


def _machine() -> None:
    import importlib.util

    import torch

    from verl_hier.recipe.checks.resources import available_bytes

    heading("this machine")
    free = available_bytes()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = {name: importlib.util.find_spec(name) is not None for name in ("vllm", "sglang", "alfworld", "textworld")}
    table(
        [
            ("CPU cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())),
            ("free memory", f"{free / 2**30:.1f} GiB"),
            ("GPUs", str(gpus)),
            ("sandbox", _sandbox()),
            *((name, "installed" if found else "not installed") for name, found in there.items()),
            ("can run", _can_run(gpus, there)),
        ]
    )


def _sandbox() -> str:
    """Which layers the sandbox for model-written Python has here, and what that promises."""
    from verl_hier.local_sandbox.local import promises_of, run_python
    from verl_hier.sandbox.provider import SandboxError

    try:
        layers = run_python("").layers
    except SandboxError as error:
        return f"none: {error}"
    return f"protects {', '.join(sorted(promises_of(layers))) or 'nothing'}, by {', '.join(layers)}"


def _can_run(gpus: int, there: Mapping[str, bool]) -> str:
    sizes = ["recipes at size=cpu"]
    engines = [engine for engine in ("vllm", "sglang") if there[engine]]
    if gpus and engines:
        sizes.append(f"recipes on {gpus} GPU(s) with {' or '.join(engines)}")
    elif gpus:
        sizes.append("GPU recipes once vllm or sglang is installed (`pip install 'verl-hier[vllm]'`)")
    worlds = [] if there["alfworld"] else ["the alfworld recipes need `pip install 'verl-hier[alfworld]'`"]
    return "; ".join([" and ".join(sizes), *worlds])


def conformance(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            exists=True,
            file_okay=False,
            help="Folder of case files (*.json); omitted: those of the checkout.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            help="Instead of running cases, confirm the recorded values and lines of the authors in this checkout of "
            "their repository.",
        ),
    ] = None,
) -> None:
    """Run recorded cases of released code against the plugins.

    The cases and their adapters belong to the tests of a source checkout. Exit code 1 when a case, or a value of
    --source, differs.
    """
    if source is not None:
        _confirm(source)
        return
    runner = _conformance_runner()
    results = runner.run_folder(folder) if folder else runner.run_folder()
    for result in results:
        line(str(result))
    failed = sum(not result.ok for result in results)
    line(f"{len(results) - failed} passed, {failed} failed")
    if failed:
        raise typer.Exit(1)


def _confirm(checkout: Path) -> None:
    """Confirm the authors' values that a checkout of their repository has.

    Raises:
        HierError: when it is the checkout of no recorded repository.
    """
    from verl_hier.recipe.authors import authors, confirm, holders, places_in

    found = holders(checkout)
    if not found:
        known = ", ".join(sorted({f"{theirs.repository} at {theirs.commit[:7]}" for theirs in authors().values()}))
        raise HierError(f"{checkout} has the files of no recorded repository; recorded are {known}.")
    wrong = [sentence for theirs in found for sentence in confirm(theirs, checkout)]
    for sentence in wrong:
        line(sentence)
    for theirs in found:
        places = places_in(theirs, checkout)
        values = len({name for name, _ in places})
        line(f"{theirs.group}: {values} values in {len(places)} places, {len(theirs.unconfirmed)} unconfirmed")
    line(f"{len(wrong)} places differ")
    if wrong:
        raise typer.Exit(1)


def _conformance_runner() -> Any:
    """The module `tests.conformance.runner` of the checkout that verl-hier is installed from.

    Raises:
        HierError: when verl-hier is not installed from a checkout.
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / "tests" / "conformance" / "runner.py").is_file():
        raise HierError(
            "the recorded cases are part of the source checkout, and this verl-hier is installed without it; clone "
            "the repository and install it with `pip install -e .`."
        )
    sys.path.insert(0, str(checkout))
    return importlib.import_module("tests.conformance.runner")

"""`lab`: estimators on small worlds whose best policy and gradient are known."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_hier.cli.inspect import Enable, RecipeOption, enabled
from verl_hier.cli.options import new_file, whole
from verl_hier.cli.output import LIST, heading, line, table
from verl_hier.errors import CreditError, HierError

if TYPE_CHECKING:
    from verl_hier.host.manager import PluginHost


class Question(str, Enum):
    """What the lab is asked."""

    worlds = "worlds"
    run = "run"
    bias = "bias"
    durations = "durations"
    delegation = "delegation"
    recommend = "recommend"


class Horizon(str, Enum):
    """How long the tasks of a problem are."""

    short = "short"
    long = "long"


class Reward(str, Enum):
    """What the reward of a problem is like."""

    dense = "dense"
    sparse = "sparse"
    delayed = "delayed"
    noisy = "noisy"


class Agents(str, Enum):
    """Who acts."""

    one = "one"
    planner = "planner"
    team = "team"


class ForkCost(str, Enum):
    """What a copy of an episode costs in the environment of a problem."""

    low = "low"
    high = "high"


def lab(
    question: Annotated[Question, typer.Argument(help="What to do.")] = Question.worlds,
    methods: Annotated[str, typer.Option(help="Estimators: a,b@SAMPLER,c+SCHEDULE, or all.")] = "",
    worlds: Annotated[str, typer.Option(help="Worlds: a,b,c, or all.")] = "",
    seeds: Annotated[int, whole("Runs of each method in each world.")] = 30,
    budget: Annotated[str, typer.Option(help="turns=N, calls=N or tokens=N; all the same here.")] = "turns=40000",
    batches: Annotated[int, whole("Batches for gradients, steps for `durations`.", least=20)] = 2000,
    quick: Annotated[bool, typer.Option("--quick", help="3 worlds, 6 methods, 5 seeds.")] = False,
    horizon: Annotated[Horizon, typer.Option(help="For `recommend`: length of the tasks.")] = Horizon.long,
    reward: Annotated[Reward, typer.Option(help="For `recommend`: the reward.")] = Reward.sparse,
    agents: Annotated[Agents, typer.Option(help="For `recommend`: who acts.")] = Agents.one,
    fork_cost: Annotated[ForkCost, typer.Option(help="For `recommend`: price of a fork.")] = ForkCost.low,
    out: Annotated[Path | None, new_file("Keep the runs of `run` here, and go on from it.", ".json")] = None,
    plot: Annotated[Path | None, new_file("Draw the curves of `run`.", ".png", ".svg", ".pdf")] = None,
    recipe: RecipeOption = None,
    enable: Enable = None,
) -> None:
    """Compare estimators on small worlds with known answers."""
    from verl_hier.host.manager import PluginHost

    plugins = enabled(recipe, enable)
    host = PluginHost.load(plugins)
    if question is Question.worlds:
        _worlds()
    elif question is Question.run:
        _run(host, plugins, methods, worlds, seeds, _turns(budget), quick, out, plot)
    elif question is Question.bias:
        _bias(host, methods, worlds, batches)
    elif question is Question.durations:
        _durations(batches)
    elif question is Question.delegation:
        _delegation(host, worlds, batches, seeds, _turns(budget))
    else:
        _recommend(host, horizon, reward, agents, fork_cost is ForkCost.low)


def _worlds() -> None:
    from verl_hier.lab.delegation import DELEGATED
    from verl_hier.lab.worlds import WORLDS

    for known, what in ((WORLDS, "what is difficult"), (DELEGATED, "of `delegation`: what helpers are worth")):
        rows = [(world.name, str(world.horizon), f"{world.best:.2f}", world.difficulty) for world in known.values()]
        table(rows, head=("world", "turns", "best", what), width=LIST)


def _turns(budget: str) -> int:
    name, _, number = budget.partition("=")
    if name not in ("turns", "calls", "tokens") or not number.isdigit() or int(number) < 1:
        raise HierError(f"--budget {budget}: say turns=N, calls=N or tokens=N with a whole number above 0.")
    return int(number)


def _run(
    host: PluginHost,
    plugins: Mapping[str, bool],
    methods: str,
    worlds: str,
    seeds: int,
    turns: int,
    quick: bool,
    out: Path | None,
    plot: Path | None,
) -> None:
    from verl_hier.lab import study
    from verl_hier.lab.learn import Setting
    from verl_hier.lab.worlds import WORLDS

    plain = (",".join(study.QUICK_METHODS), ",".join(study.QUICK_WORLDS)) if quick else ("all", "all")
    chosen, places = _chosen(host, methods or plain[0], worlds or plain[1])
    count = min(seeds, 5) if quick else seeds
    cells = [(name, world, seed) for name in chosen for world in places for seed in range(count)]
    found = study.study(cells, Setting(turns), out, plugins)
    for world in places:
        heading(f"{world}: {WORLDS[world].difficulty}")
        rows = []
        for name in chosen:
            each = study.summarise(found[name, world, seed] for seed in range(count))
            if each is None:
                rows.append((name, "", "", "", "needs other roles"))
                continue
            regret, area, solved = (_with(pair) for pair in (each.regret, each.area, each.solved))
            rows.append((name, regret, area, solved, each.verdict))
        table(rows, head=("method", "regret", "mean regret", "solved", ""), width=LIST)
    if plot is not None:
        from verl_hier.lab.curves import draw

        draw(found, plot)
        line(f"curves: {plot}")


def _chosen(host: PluginHost, methods: str, worlds: str) -> tuple[list[str], list[str]]:
    """Methods and worlds by name."""
    from verl_hier.lab.study import feedable, names
    from verl_hier.lab.worlds import WORLDS

    all_ = feedable(host)
    known = [*all_, *host.specs("estimator")]
    return names(methods, known, "--methods", all_), names(worlds, WORLDS, "--worlds", [*WORLDS])


def _bias(host: PluginHost, methods: str, worlds: str, batches: int) -> None:
    from verl_hier.lab import study
    from verl_hier.lab.bias import measure
    from verl_hier.lab.methods import method
    from verl_hier.lab.worlds import WORLDS

    chosen, places = _chosen(host, methods or "all", worlds or ",".join(study.BIASED_WORLDS))
    for world in places:
        heading(f"{world}: gradients of {batches} batches against the exact one")
        rows = []
        for name in chosen:
            try:
                found = measure(WORLDS[world], method(name, host), batches)
            except CreditError:
                rows.append((name, "", "", "needs other roles", "", "", ""))
                continue
            if found is None:
                rows.append((name, "", "", "no credit", "", "", ""))
                continue
            low, high = found.interval
            sign = "unbiased" if found.unbiased else "biased"
            by_role = ", ".join(f"{role} {noise:.3g}" for role, (_, noise) in found.roles.items())
            numbers = f"{found.bias:.3f}", f"{low:.3f} to {high:.3f}", sign, f"{found.noise:.3g}"
            rows.append((name, *numbers, by_role, f"{100 * found.silent:.0f} %"))
        head = ("method", "bias", "95 % interval", "", "noise a turn", "by role", "silent tasks")
        table(rows, head=head, width=LIST)


def _durations(steps: int) -> None:
    from verl_hier.lab.patience import HEAD, Patience, compared

    world = Patience()
    heading(f"to persist takes {world.seconds[1]:g} s and pays; {100 * world.slow:.1f} % of the tasks are slow")
    table(list(compared(world, steps)), head=HEAD, width=LIST)


def _delegation(host: PluginHost, worlds: str, batches: int, seeds: int, turns: int) -> None:
    from verl_hier.lab.delegation import DELEGATED, HEAD, compared, exact, shown
    from verl_hier.lab.learn import Setting
    from verl_hier.lab.study import names

    for name in names(worlds or "all", DELEGATED, "--worlds", [*DELEGATED]):
        world = DELEGATED[name]
        heading(f"{name}: {world.difficulty}; {batches} batches, and {turns} turns of {seeds} seeds")
        rows = [shown(cost.to_dict()) for cost in compared(world, host, batches, seeds, Setting(turns))]
        table([exact(world), *rows], head=HEAD, width=LIST)


def _recommend(host: PluginHost, horizon: Horizon, reward: Reward, agents: Agents, fork: bool) -> None:
    from verl_hier.host.specs import EstimatorSpec
    from verl_hier.lab.advice import advise, worlds_for
    from verl_hier.lab.methods import shape_of
    from verl_hier.lab.study import stored

    specs = [spec for spec in host.specs("estimator").values() if isinstance(spec, EstimatorSpec)]
    trees = [spec.name for spec in specs if shape_of(spec).branches]
    places = worlds_for(horizon.value, reward.value, agents.value)
    found = advise(stored(), places, trees, fork)
    line(f"Worlds that stand for such a problem: {', '.join(places)}.")
    rows = [(each.method, _with((each.area, each.width)), ", ".join(each.learned)) for each in found[:10]]
    table(rows, head=("method", "mean regret", "learns in"), width=LIST)
    line("Small worlds with a table for a policy: docs/lab.md says what that does not show.")


def _with(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3f} ± {pair[1]:.3f}"

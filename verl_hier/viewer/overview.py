"""The overview: what deserves a look, a line a group, and curves over the steps. All of it from light columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.graph.columnar.table import cut_nodes
from verl_hier.viewer.steps import Step

View = dict[str, Any]
LONGEST_TITLE = 160
MOST_PLACES = 50
"""Places that an alarm links; it counts all of them."""
_FLAT = 1e-9
MOST_PADDING = 0.25
"""Share of padding among the rows of a step, up to which nobody needs to look."""
_DIFFERENCE = 0.5
"""Nats a token, where the guards of a run do not say it: the default of `hier.guards.max_logprob_difference`."""
_TITLES = ("instruction", "question", "task", "goal", "prompt", "problem")
"""Fields of a task that say in words what is to be done, the likeliest first."""

ALARMS: tuple[tuple[str, str, Callable[[View], int]], ...] = (
    ("failed", "episodes were lost to faults", lambda group: group["failed"]),
    ("singleton", "groups have one trained attempt, so nothing is compared", lambda group: group["singleton"]),
    ("flat", "groups have attempts of one return, so they teach nothing", lambda group: group["flat"]),
    ("without_credit", "trained turns have no credit, so no gradient", lambda group: group["without_credit"]),
    ("invalid", "turns were not understood by the environment", lambda group: group["invalid"]),
    ("truncated", "episodes were cut before their end", lambda group: group["truncated"]),
    ("pruned", "episodes were given up by the sampler", lambda group: group["pruned"]),
    ("cut", "turns were cut by their limit of tokens", lambda group: group["cut"]),
    ("stale", "turns were begun under the weights of an earlier step", lambda group: group["stale"]),
)
"""Name of an alarm, what it counts, and how often it is in a group; the most urgent first."""

STEP_ALARMS: tuple[tuple[str, str, Callable[[View], float]], ...] = (
    (
        "guards",
        "limits of hier.guards were exceeded; the log of the run says which",
        lambda record: record.get("hier/guards/alarms", 0),
    ),
    (
        "padding",
        f"rows are padding, more than {MOST_PADDING:.0%} of the rows of their steps",
        lambda record: record["hier/rows/padding"] if (_padding(record) or 0) > MOST_PADDING else 0,
    ),
)
"""Name of an alarm, what it counts, and how often it is among the metrics of a step."""


def overview(
    steps: Sequence[Step], guards: Mapping[str, Any] | None = None, records: Sequence[Mapping[str, Any]] = ()
) -> View:
    """What the first page shows.

    Args:
        steps: the stored steps.
        guards: `hier.guards` of the run, for its limits.
        records: metrics of steps, each with its number as `step`; those of steps that are not stored are not shown.

    Returns:
        `groups` (a mapping each, see `_groups`), `steps` (a mapping of numbers each, see `_curves`), and `alarms`: of
        each its `name`, what it `says`, how `many` there are, in how many `groups`, and up to `MOST_PLACES` `places`
        (group numbers) or `steps` (their numbers), the worst first. Its `kind` is `alarm` where something is wrong with
        the run, and `hint` where training goes on as it should and it is worth a look; alarms come first.
    """
    limit = _limit(guards)
    logged = {record["step"]: _numbers(record) for record in records}
    groups: list[View] = []
    curves: list[View] = []
    apart: dict[str, dict[int, int]] = {}
    for step in steps:
        found = _groups(step, limit)
        for role, counts in _apart(step, limit):
            mine = {len(groups) + place: int(counts[place]) for place in np.flatnonzero(counts).tolist()}
            apart.setdefault(role, {}).update(mine)
        curves.append(_curves(step, found) | _logged(logged.get(step.number, {})))
        groups += found
    stored = [logged[step.number] for step in steps if step.number in logged]
    return {
        "groups": groups,
        "steps": curves,
        "alarms": sorted(
            [*_of_roles(apart, limit), *_of_groups(groups), *_of_steps(stored)], key=lambda alarm: alarm["kind"]
        ),
    }


_WRONG = {"failed", "logprobs", "guards"}
"""Names of what is wrong with a run; all else is a hint."""


def _limit(guards: Any) -> float:
    found = guards.get("max_logprob_difference") if isinstance(guards, Mapping) else None
    return float(found) if isinstance(found, int | float) else _DIFFERENCE


def _of_roles(apart: Mapping[str, Mapping[int, int]], limit: float) -> Iterator[View]:
    for role in sorted(apart):
        if apart[role]:
            says = f"turns of the role {role!r:.60} differ in log p between rollout and training"
            yield _alarm("logprobs", f"{says}, by more than {limit:g} nats a token", apart[role])


def _of_groups(groups: Sequence[View]) -> Iterator[View]:
    for name, says, count in ALARMS:
        counts = {number: int(many) for number, group in enumerate(groups) if (many := count(group))}
        if counts:
            yield _alarm(name, says, counts)


def _of_steps(records: Sequence[View]) -> Iterator[View]:
    for name, says, count in STEP_ALARMS:
        counts = {record["step"]: int(many) for record in records if (many := count(record))}
        if counts:
            found = _alarm(name, says, counts)
            yield found | {"groups": 0, "places": [], "steps": found["places"]}


def _alarm(name: str, says: str, counts: Mapping[int, int]) -> View:
    worst = sorted(counts, key=lambda place: (-counts[place], place))[:MOST_PLACES]
    return {
        "name": name,
        "kind": "alarm" if name in _WRONG else "hint",
        "says": says,
        "many": sum(counts.values()),
        "groups": len(counts),
        "places": worst,
        "steps": [],
    }


def title_of(task: View) -> str:
    """What a task is, in a line."""
    for name in _TITLES:
        if isinstance(task.get(name), str) and task[name].strip():
            return _short(task[name])
    texts = [value for name, value in task.items() if isinstance(value, str) and name not in ("uid", "data_source")]
    return _short(max(texts, key=len, default=str(task.get("uid", ""))))


def _short(text: str) -> str:
    line = " ".join(text[: 4 * LONGEST_TITLE].split())
    return line if len(line) <= LONGEST_TITLE else f"{line[: LONGEST_TITLE - 1]}…"


def _groups(step: Step, limit: float) -> list[View]:
    """A mapping a group: its place (`step`, `uid`), `title`, and numbers of its episodes, turns and returns."""
    tasks, episodes = step.columns.tasks, step.columns.episodes
    counts, sizes = (tasks[name].to_numpy() for name in ("episodes", "nodes"))
    of_episode, of_node = (np.repeat(np.arange(len(tasks)), each) for each in (counts, sizes))
    status = {
        name: _equal(episodes["status"], name) for name in ("failed", "pruned", "truncated", "finished", "running")
    }
    complete = status["finished"] | status["truncated"]
    compared = complete & _bools(episodes["trained"])
    ret = episodes["ret"].to_numpy()
    success = np.asarray(pc.fill_null(episodes["success"], False), bool)

    def total(of: NDArray[Any], values: Any) -> list[int]:
        found: list[int] = np.bincount(of, values, len(tasks)).astype(np.int64).tolist()
        return found

    columns: dict[str, Sequence[Any]] = {
        "uid": step.uids(),
        "source": tasks["data_source"].to_pylist(),
        "index": tasks["index"].to_pylist(),
        "title": [title_of(task) for task in step.tasks],
        "episodes": counts.tolist(),
        "trained": total(of_episode, compared),
        "succeeded": total(of_episode, success & complete),
        **{name: total(of_episode, status[name]) for name in ("failed", "pruned", "truncated")},
        "forks": total(of_episode, episodes["source"].to_numpy() >= 0),
        "turns": sizes.tolist(),
        **{name: total(of_node, values) for name, values in _marks(step, of_node, limit).items()},
        **_returns(of_episode, ret, compared, len(tasks)),
    }
    found = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for group in found:
        group["step"] = step.number
        group["singleton"] = int(group["trained"] == 1)
        group["flat"] = int(group["trained"] > 1 and group["spread"] <= _FLAT)
    return found


def _marks(step: Step, of_node: NDArray[np.int64], limit: float) -> dict[str, NDArray[Any]]:
    """(M,) each: what is counted in the turns of a group."""
    nodes = step.columns.nodes
    tokens = nodes["n_action"].to_numpy()
    trained = _bools(nodes["trained"]) & _learning(step, of_node)
    return {
        "tokens": tokens,
        "invalid": ~_bools(nodes["valid"]),
        "without_credit": trained & (np.nan_to_num(step.credit) == 0) & ~np.isnan(step.credit),
        "cut": cut_nodes(nodes),
        "stale": (step.started < step.number)[of_node],
        "logprobs": step.difference > limit,
    }


def _apart(step: Step, limit: float) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Of each role (G,) how many of its turns are trained with other log-probs than they were sampled with."""
    beyond = step.difference > limit
    if beyond.any():
        sizes = step.columns.tasks["nodes"].to_numpy()
        of_node = np.repeat(np.arange(len(sizes)), sizes)
        roles = step.columns.nodes["role"]
        for role in pc.unique(roles).to_pylist():
            yield role, np.bincount(of_node[beyond & _equal(roles, role)], minlength=len(sizes))


def _learning(step: Step, of_node: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(M,) whether the schedule trained the level and role of each turn."""
    if not any(phase.get("levels") or phase.get("roles") for phase in step.phases):
        return np.ones(len(of_node), bool)
    level, role = step.columns.nodes["level"].to_numpy(), np.asarray(step.columns.nodes["role"].to_pylist(), object)
    learning = np.ones(len(of_node), bool)
    for number, phase in enumerate(step.phases):
        mine = of_node == number
        for chosen, column in ((phase.get("levels"), level), (phase.get("roles"), role)):
            if chosen is not None:
                learning[mine] &= np.isin(column[mine].astype(str), [str(each) for each in chosen])
    return learning


def _returns(
    of_episode: NDArray[np.int64], ret: NDArray[np.float64], compared: NDArray[np.bool_], count: int
) -> dict[str, list[Any]]:
    """Of each group the mean, the best and the spread (best less worst) of the returns of its trained attempts."""
    of, values = of_episode[compared], ret[compared]
    best, worst = np.full(count, -np.inf), np.full(count, np.inf)
    np.maximum.at(best, of, values)
    np.minimum.at(worst, of, values)
    votes = np.bincount(of, minlength=count)
    mean = np.bincount(of, values, count) / np.maximum(votes, 1)
    some = votes > 0
    return {
        name: [float(value) if there else None for value, there in zip(each, some, strict=True)]
        for name, each in (("mean", mean), ("best", best))
    } | {"spread": np.where(some, best - worst, 0.0).tolist()}


def _curves(step: Step, groups: Sequence[View]) -> View:
    """Numbers of a step by the name of their curve."""
    nodes, episodes = step.columns.nodes, step.columns.episodes
    complete = _equal(episodes["status"], "finished") | _equal(episodes["status"], "truncated")
    ret = episodes["ret"].to_numpy()[complete]
    known = ~np.asarray(episodes["success"].is_null(), bool) & complete
    won = np.asarray(pc.fill_null(episodes["success"], False), bool)[known]
    prompts, cached = (nodes[name].to_numpy().sum() for name in ("prompt_tokens", "cached_tokens"))
    found: View = {
        "step": step.number,
        "groups": len(groups),
        "success": _mean(won),
        "return": _mean(ret),
        "groups that teach": _mean(np.asarray([not (group["flat"] or group["singleton"]) for group in groups])),
        "branches a group": _mean(np.asarray([group["forks"] for group in groups])),
        "prompt from cache": float(cached / prompts) if prompts else None,
    }
    level, entropy = nodes["level"].to_numpy(), nodes["mean_entropy"].to_numpy()
    roles = nodes["role"]
    for name in sorted(pc.unique(roles).to_pylist()):
        mine = _equal(roles, name)
        label = f"{name} (level {int(level[mine].min())})"
        found[f"entropy of {label}"] = _mean(entropy[mine])
        found[f"size of credit of {label}"] = _mean(np.abs(step.credit[mine]))
        found[f"log-prob difference of {label}"] = _mean(step.difference[mine])
    return found


def _logged(record: View) -> View:
    """Numbers of a step that its metrics alone know, by the name of their curve."""
    unique = record.get("hier/sharing/unique_share")
    found = {"padding among rows": _padding(record), "tokens trained over unique": 1 / unique if unique else None}
    return {name: value for name, value in found.items() if value is not None}


def _numbers(record: Mapping[str, Any]) -> View:
    return {name: value for name, value in record.items() if isinstance(value, int | float) and isfinite(value)}


def _padding(record: View) -> float | None:
    padding, trained = record.get("hier/rows/padding"), record.get("hier/rows/trained")
    return padding / (padding + trained) if padding is not None and trained else None


def _mean(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(known.mean()) if known.size else None


def _bools(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(column, bool)


def _equal(column: pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(column, text), bool)

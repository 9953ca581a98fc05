"""The overview: what deserves a look, a line a group, and curves over the steps. All of it from light columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verl_hier.viewer.steps import Step

View = dict[str, Any]
LONGEST_TITLE = 160
MOST_PLACES = 50
"""Places that an alarm links; it counts all of them."""
_FLAT = 1e-9
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


def overview(steps: Sequence[Step]) -> View:
    """What the first page shows.

    Returns:
        `groups` (a mapping each, see `_groups`), `steps` (a mapping of numbers each, see `_curves`), and `alarms`: of
        each its `name`, what it `says`, how `many` there are, and up to `MOST_PLACES` `places` (group numbers).
    """
    groups: list[View] = []
    curves: list[View] = []
    for step in steps:
        found = _groups(step)
        curves.append(_curves(step, found))
        groups += found
    return {"groups": groups, "steps": curves, "alarms": _alarms(groups)}


def _alarms(groups: Sequence[View]) -> list[View]:
    found = []
    for name, says, count in ALARMS:
        places = [number for number, group in enumerate(groups) if count(group)]
        if places:
            worst = sorted(places, key=lambda number: (-count(groups[number]), number))[:MOST_PLACES]
            many = sum(int(count(groups[number])) for number in places)
            found.append({"name": name, "says": says, "many": many, "groups": len(places), "places": worst})
    return found


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


def _groups(step: Step) -> list[View]:
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
        **{name: total(of_node, values) for name, values in _marks(step, of_node).items()},
        **_returns(of_episode, ret, compared, len(tasks)),
    }
    found = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for group in found:
        group["step"] = step.number
        group["singleton"] = int(group["trained"] == 1)
        group["flat"] = int(group["trained"] > 1 and group["spread"] <= _FLAT)
    return found


def _marks(step: Step, of_node: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """(M,) each: what is counted in the turns of a group."""
    nodes = step.columns.nodes
    tokens = nodes["n_action"].to_numpy()
    trained = _bools(nodes["trained"]) & _learning(step, of_node)
    stop = pc.fill_null(nodes["stop_reason"], "")
    return {
        "tokens": tokens,
        "invalid": ~_bools(nodes["valid"]),
        "without_credit": trained & (np.nan_to_num(step.credit) == 0) & ~np.isnan(step.credit),
        "cut": _equal(stop, "length") | _equal(stop, "aborted"),
        "stale": (step.started < step.number)[of_node],
    }


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
    return found


def _mean(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(known.mean()) if known.size else None


def _bools(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(column, bool)


def _equal(column: pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(column, text), bool)

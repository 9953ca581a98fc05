"""The tables of what `tree_engine.py` and `tree_steps.py` measure, for their own output and for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ENGINES = ("stock", "packed", "tree")
"""verl's own, which pads rows to one length; ours with the rows packed but not shared; ours."""
HEAD = ("rows", "unique tokens", "visible pairs", "update", "log-probs", "peak memory", "rows packed, not shared")
PARTS = ("step", "update_actor", "old_log_prob")
"""What `tree_steps.py` times, by verl's names."""


def cells(record: Mapping[str, Any]) -> list[str]:
    """A row of the table: stock, tree and the ratio of each measure, and the measures of packed rows."""
    stock, packed, tree = (record[kind] for kind in ENGINES)
    found = [record["shape"], f"{record['unique']:.3f}", f"{record['visible']:.3f}"]
    for name, unit in (("update_s", "s"), ("log_prob_s", "s"), ("peak_mib", "MiB")):
        digits = 0 if unit == "MiB" else 2
        found.append(f"{stock[name]:.{digits}f} → {tree[name]:.{digits}f} {unit} ({tree[name] / stock[name]:.2f})")
    return [*found, f"{packed['update_s']:.2f} s, {packed['log_prob_s']:.2f} s, {packed['peak_mib']:.0f} MiB"]


def table(measured: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the table, and a sentence on how it was measured."""
    about = measured["about"]
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for record in measured["shapes"]:
        yield f"| {' | '.join(cells(record))} |"
    times = "once" if about["times"] == 1 else f"{about['times']} times, medians"
    busy = ", while other work ran on the machine" if about["busy"] else ""
    yield ""
    yield (
        f"Measured {times} on {about['date']} on one thread of an {about['machine']}{busy}; verl {about['verl']}, "
        f"torch {about['torch']}."
    )


def steps_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the table of whole steps, and a sentence on how they were measured."""
    about = measured["about"]
    yield "| recipe | unique tokens | visible pairs | step | of which update | of which log-probs |"
    yield f"|{'---|' * 6}"
    for record in measured["recipes"]:
        found = [f"`{record['recipe']}`", f"{record['unique']:.3f}", f"{record['visible']:.3f}"]
        for part in PARTS:
            stock, tree = record["stock"][part], record["tree"][part]
            found.append(f"{stock:.2f} → {tree:.2f} s ({tree / stock:.2f})")
        yield f"| {' | '.join(found)} |"
    yield ""
    yield (
        f"Medians of steps 2 to {about['steps']} of {about['runs']} run(s) with either engine, measured on "
        f"{about['date']} on {about['machine']}; verl {about['verl']}, torch {about['torch']}."
    )

"""Run fixture files: one adapter a method turns a case into a turn table, the plugin does the rest.

A file holds `{method, source, note, cases: [{input, output}]}`, or is one of `loops.LOOPS`, which go by its name and
ask a composed recipe. Floats are compared with rtol 2e-4, since the recorded
values come from float32 code.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from verl_hier.errors import FileError, HierError, first_line
from verl_hier.graph.bounded_reading import read_json

if TYPE_CHECKING:
    from tests.conformance.loops import Loop
    from verl_hier.recipe.composed import ComposedRecipe

RTOL = 2e-4
ATOL = 2e-5
CASE_S, LOOP_S, CASE_BYTES = 2, 30, 8 * 2**30
"""Processor time of a case, and address space beside that of the process; the recorded ones take milliseconds."""
CASES = Path(__file__).with_name("cases")
"""The recorded cases of this checkout."""

Case = Mapping[str, Any]
Outputs = Mapping[str, Any]
Adapter = Callable[[Case], Outputs]


@dataclass(frozen=True)
class Result:
    """One case, or one file that could not be run case by case.

    Attributes:
        file: name of the fixture file.
        method: its `method`.
        case: number of the case, -1 for the whole file.
        status: `passed` or `failed`.
        detail: which output differs and by how much.
    """

    file: str
    method: str
    case: int
    status: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether it passed."""
        return self.status == "passed"

    def __str__(self) -> str:
        case = f"case {self.case}" if self.case >= 0 else "file"
        return f"{self.status:<8}{self.file} {case}{': ' + self.detail if self.detail else ''}"


def run_folder(path: str | Path = CASES) -> list[Result]:
    """Every `*.json` of a folder, by default of the cases that come with the package, in the order of the names.

    Raises:
        HierError: when the folder has no fixture, or a file is not one.
    """
    folder = Path(path)
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise HierError(f"{folder} has no fixture files (*.json); name the folder of the conformance fixtures.")
    return [result for file in files for result in run_file(file)]


def run_file(path: str | Path) -> list[Result]:
    """The cases of one fixture file.

    Raises:
        HierError: when the file is not a fixture.
    """
    file = Path(path)
    try:
        data = read_json(file)
        if (loops := find_loops(file.stem)) and not (isinstance(data, Mapping) and "cases" in data):
            return _run_loops(file, data, loops)
        method, cases = str(data["method"]), list(data["cases"])
    except (FileError, KeyError, TypeError) as error:
        raise HierError(f"{file} is not a conformance fixture: {first_line(error)}.") from error
    run = find_adapter(method)
    if run is None:
        return [Result(file.name, method, -1, "failed", f"no adapter knows the method {method!r}")]
    return [_run_case(file.name, method, number, case, run) for number, case in enumerate(cases)]


def find_loops(stem: str) -> tuple[Loop, ...]:
    """What asks recipes about the cases of the file of this name; nothing where there is none."""
    from tests.conformance.loops import LOOPS  # it composes recipes

    return LOOPS.get(stem, ())


def _run_loops(file: Path, data: Any, loops: Sequence[Loop]) -> list[Result]:
    """The cases of a whole training loop, once for each recipe that they ask."""
    from tests.conformance.loops import at_node, cases_of

    results = []
    for loop in loops:
        recipe = at_node(loop.recipe)
        results += [run_loop(file.name, number, case, loop, recipe) for number, case in enumerate(cases_of(data))]
    return results


def run_loop(file: str, number: int, case: Case, loop: Loop, recipe: ComposedRecipe) -> Result:
    """One case of a whole training loop, asked of a composed recipe."""
    try:
        with bounded(LOOP_S):
            computed = loop.run(recipe, case)
        problem = compare(computed, loop.expected(case))
    except Exception as error:  # a crash of one case must not hide the others
        problem = f"{type(error).__name__}: {error}"
    name = f"{loop.recipe}, {case['case']}" if "case" in case else loop.recipe
    return Result(file, loop.recipe, number, "failed" if problem else "passed", f"{name}: {problem}" if problem else "")


def find_adapter(method: str) -> Adapter | None:
    """The function that computes the outputs of a method's case; None when there is none."""
    from tests.conformance.adapters import ADAPTERS  # the parts of the built-in plugins

    return ADAPTERS.get(method)


def _run_case(file: str, method: str, number: int, case: Case, run: Adapter) -> Result:
    try:
        with bounded():
            computed = run(case["input"])
        outputs = case["output"] if isinstance(case["output"], Mapping) else {"out": case["output"]}
        problems = []
        for name, expected in outputs.items():
            if name not in computed:
                problems.append(f"{name}: not computed")
            elif (difference := compare(computed[name], expected)) is not None:
                problems.append(f"{name}: {difference}")
    except Exception as error:  # a crash of one case must not hide the others
        return Result(file, method, number, "failed", f"{type(error).__name__}: {error}")
    return Result(file, method, number, "failed" if problems else "passed", "; ".join(problems))


@contextmanager
def bounded(seconds: float = CASE_S, more: int = CASE_BYTES) -> Iterator[None]:
    """Bound what a case may cost: a stranger's may have circles, or ask for arrays of a thousand million numbers.

    Args:
        seconds: processor time. It is looked at as often, and an import that is under way then goes on.
        more: bytes of address space beside those that the process has.

    Raises:
        TimeoutError: when it takes longer.
        MemoryError: when it needs more.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        while frame and "importlib._bootstrap" not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is None:
            raise TimeoutError(f"it takes more than {seconds:.0f} s of processor time")

    before, known = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGVTALRM, ring)
    limit = min([psutil.Process().memory_info().vms + more, *(each for each in before if each >= 0)])
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
        yield
    except MemoryError as error:
        raise MemoryError(f"it needs more than {more >> 30} GiB") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, known)
        resource.setrlimit(resource.RLIMIT_AS, before)


def compare(computed: Any, expected: Any, rtol: float = RTOL, atol: float = ATOL) -> str | None:
    """None when equal up to tolerance, else one phrase about the largest difference. Recurses into mappings."""
    if isinstance(expected, Mapping):
        if set(map(str, computed)) != set(expected):
            return f"keys differ ({len(computed)} computed, {len(expected)} expected)"
        by_name = {str(key): value for key, value in computed.items()}
        for key, value in expected.items():
            if (difference := compare(by_name[key], value, rtol, atol)) is not None:
                return f"[{key}] {difference}"
        return None
    if isinstance(expected, list) and _ragged(expected):
        if len(computed) != len(expected):
            return f"{len(computed)} entries, expected {len(expected)}"
        for place, (have_item, want_item) in enumerate(zip(computed, expected, strict=True)):
            if (difference := compare(have_item, want_item, rtol, atol)) is not None:
                return f"[{place}] {difference}"
        return None
    want, have = np.asarray(expected), np.asarray(computed)
    if want.shape != have.shape:
        return f"shape {have.shape}, expected {want.shape}"
    if want.dtype.kind not in "biuf":
        return None if (want == have).all() else "values differ"
    want, have = want.astype(np.float64), have.astype(np.float64)
    close = np.isclose(have, want, rtol=rtol, atol=atol)
    if close.all():
        return None
    worst = np.unravel_index(int(np.argmax(np.where(close, 0, np.abs(have - want)))), want.shape)
    where = f" at {[int(i) for i in worst]}" if worst else ""
    return f"{int((~close).sum())} of {want.size} differ{where}: computed {have[worst]:.6g}, expected {want[worst]:.6g}"


def _ragged(values: list[Any]) -> bool:
    """Whether nested lists do not make an array of one type."""
    if any(isinstance(value, list | dict) for value in values):
        try:
            return np.asarray(values).dtype.kind not in "biuf"
        except ValueError:
            return True
    return len({str if isinstance(value, str) else value is None for value in values}) > 1

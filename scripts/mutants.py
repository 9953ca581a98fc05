#!/usr/bin/env python
"""Change the code of a room at random places, one at a time, and see whether the room's own tests notice.

    python scripts/mutants.py [--seed N] [--count N] [--rooms graph credit]   # continues where it stopped
    python scripts/mutants.py --list [--rooms graph]                          # what would be tried, and what is known

A room is a folder of verl_hier/, and its tests are those of tests/unit/ROOM. Each change is tried in a copy of the
working tree: first on the tests that execute the changed lines, in a fork of a process that has imported the room
already; what survives there, and what runs at import, in a process of its own. It is caught when a test fails, timed
out when the tests take many times their time, and equivalent when tests/equivalent_mutants.json says why nobody could
notice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fixtures.mutant_runs import IMPORTS, SLOW, changed_file, limit_processor_time, verdict_of, wait_for  # noqa: E402
from tests.fixtures.mutations import Mutant, mutants_of_room, sample  # noqa: E402

ROOMS = ("graph", "credit", "rollout", "training", "recipe", "environments")
EQUIVALENT = ROOT / "tests/equivalent_mutants.json"
FOLDER = ROOT / "runs/mutants"
WANTED = 0.95
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.fixtures.mutant_runs"]


def main() -> int:
    options = _options()
    FOLDER.mkdir(parents=True, exist_ok=True)
    reasons: dict[str, str] = json.loads(EQUIVALENT.read_text())
    per_room = -(-options.count // len(options.rooms))
    samples = {room: sample(mutants_of_room(ROOT, room), per_room, options.seed) for room in options.rooms}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for room, mutants in samples.items():
            left = [each for each in mutants if each.key not in reasons and not _known(room, each)]
            if left and not options.list:
                if not (tree := Path(folder) / "tree").exists():
                    copy_tree(tree)
                print(f"{room}: {len(left)} of {len(mutants)} to try", flush=True)
                Room(room, tree).try_all(left)
    return _report(samples, reasons)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="in all; every room gets the same share")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS, metavar="ROOM")
    parser.add_argument("--list", action="store_true", help="try nothing")
    return parser.parse_args()


def copy_tree(tree: Path) -> None:
    """What git knows of the working tree, with what is not committed, where changes disturb nobody."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(tree)], check=True)
    for name in _git("ls-files", "--modified", "--others", "--exclude-standard"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        else:
            (tree / name).unlink(missing_ok=True)


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[
        :-1
    ]


class Room:
    """The tests of a room in a copy of the tree: which lines each executes, and what they say about changes."""

    def __init__(self, name: str, tree: Path) -> None:
        self.name = name
        self.tree = tree
        self.tests = f"tests/unit/{name}"
        self.environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'plugins'}", "OMP_NUM_THREADS": "1"}
        self.seconds, self.tests_of = self._executed()
        self.useful: set[str] = set()

    def _executed(self) -> tuple[dict[str, float], dict[str, dict[int, set[str]]]]:
        """Seconds of each test, and who executes each line: tests by name, "" for what no test calls itself."""
        kept = FOLDER / f"{self.name}.json"
        code, files = _digests(self.name)
        stored = json.loads(kept.read_text()) if kept.is_file() else {}
        if stored.get("code") != code:
            stored = {"code": code, "files": {}, "seconds": {}, "useless": [], "lines": {}}
        changed = [file for file, digest in files.items() if stored["files"].get(file) != digest]
        if changed or stored["files"].keys() - files.keys():
            _forget(stored, {*changed} | (stored["files"].keys() - files.keys()))
            tests = [file for file in changed if Path(file).name.startswith("test_")]
            if tests:
                self._measure(stored, tests if len(tests) < len(files) else [self.tests])
            kept.write_text(json.dumps({**stored, "files": files}))
        for useless in stored["useless"]:
            print(f"  left out, as it fails without a change: {useless}")
        seconds = {test: seconds for test, seconds in stored["seconds"].items() if test not in stored["useless"]}
        names = ["", *stored["seconds"]]
        tests_of = {
            path: {int(line): {names[place + 1] for place in places} for line, places in lines.items()}
            for path, lines in stored["lines"].items()
        }
        return seconds, {
            path: {line: who & {"", *seconds} for line, who in lines.items()} for path, lines in tests_of.items()
        }

    def _measure(self, stored: dict[str, Any], tests: list[str]) -> None:
        """Add what these files of tests take, execute, and say of the code as it is."""
        seconds, data = self.tree / "seconds.json", self.tree / ".coverage"
        config = self.tree / "coverage.ini"
        # Processes that tests start say which lines they execute, too; see `pytest_runtest_protocol` of the plugin.
        config.write_text(f"[run]\nsource = verl_hier/{self.name}\nrelative_files = true\npatch = subprocess\n")
        measure = [f"--cov-config={config}", "--cov", "--cov-context=test", "--cov-report="]
        command = [*PYTEST, *tests, *measure, f"--seconds-of-tests={seconds}"]
        done = subprocess.run(command, cwd=self.tree, env=self.environment, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"The tests of {self.name} do not run:\n{done.stdout[-3000:]}")
        stored["useless"] += re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        stored["seconds"].update(json.loads(seconds.read_text()))
        names = {name: place for place, name in enumerate(stored["seconds"])}
        for path, lines in _lines_by_test(data, names).items():
            known = stored["lines"].setdefault(path, {})
            for line, places in lines.items():
                known[f"{line}"] = sorted({*known.get(f"{line}", []), *places})

    def try_all(self, mutants: list[Mutant]) -> None:
        """Try each change and write down what became of it."""
        text = {path: (ROOT / path).read_text("utf-8") for path in {mutant.path for mutant in mutants}}
        alone: list[Mutant] = []
        jobs = []
        for mutant in mutants:
            who = self._who(mutant)
            if not who and not self.tests_of.get(mutant.path):
                self._write(mutant, {"status": "survived", "by": "no test executes the module"})
            elif mutant.at_import or not who - {""}:
                alone.append(mutant)
            else:
                jobs.append(self._job(mutant, text[mutant.path]))
        mutant_of = {mutant.key: mutant for mutant in mutants}
        for verdict in self._forked(jobs):
            mutant = mutant_of[verdict["key"]]
            self._leave_out(verdict.pop("useless"))
            if verdict["status"] == "survived" and "" in self._who(mutant):
                # What was computed while the tests were collected may have hidden it.
                alone.append(mutant)
            else:
                self._write(mutant, verdict)
        for mutant in alone:
            self._write(mutant, self._in_a_process(mutant, text[mutant.path]))

    def _who(self, mutant: Mutant) -> set[str]:
        lines = self.tests_of.get(mutant.path, {})
        return set().union(*(lines.get(line, set()) for line in mutant.lines))

    def _leave_out(self, useless: list[str]) -> None:
        """Take no more notice of tests that fail without a change, now and in later runs."""
        kept = FOLDER / f"{self.name}.json"
        for test in useless:
            if self.seconds.pop(test, None) is not None:
                print(f"  left out, as it fails without a change: {test}")
                stored = json.loads(kept.read_text())
                kept.write_text(json.dumps({**stored, "useless": [*stored["useless"], test]}))

    def _job(self, mutant: Mutant, text: str) -> dict[str, Any]:
        tests = self._in_order(self._who(mutant))
        seconds = [(test, self.seconds[test]) for test in tests]
        return {**self._changed(mutant, text, tests), "key": mutant.key, "tests": seconds}

    def _in_order(self, tests: Iterable[str]) -> list[str]:
        """Those that say something, the quickest first."""
        return sorted({*tests} & self.seconds.keys(), key=lambda test: self.seconds[test])

    def _changed(self, mutant: Mutant, text: str, tests: Iterable[str]) -> dict[str, Any]:
        path = str(self.tree / mutant.path)
        return {
            "path": path,
            "text": mutant.apply(text),
            "seconds": IMPORTS + 20 + 5 * sum(self.seconds[test] for test in tests),
        }

    def _forked(self, jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        if not jobs:
            return
        file, verdicts = self.tree / "jobs.json", self.tree / "verdicts.jsonl"
        file.write_text(json.dumps(jobs))
        verdicts.write_text("")
        command = [*PYTEST, self.tests, f"--jobs={file}", f"--verdicts={verdicts}"]
        with open(FOLDER / f"{self.name}.log", "w") as log, open(verdicts) as lines:
            process = subprocess.Popen(command, cwd=self.tree, env=self.environment, stdout=log, stderr=log)
            ended = False
            while not ended:
                try:
                    process.wait(1)
                    ended = True
                except subprocess.TimeoutExpired:
                    pass
                yield from (json.loads(line) for line in lines)
        if process.returncode:
            sys.exit(f"pytest ended with {process.returncode}: see {log.name}")

    def _in_a_process(self, mutant: Mutant, text: str) -> dict[str, str]:
        """What the tests say in a process that imports the changed module: those of the line, or else of the module."""
        who = self._who(mutant)
        # Of a process that was killed nobody knows which lines it executed.
        everybody = mutant.at_import or "" in who or not who
        of_module = set().union(*self.tests_of.get(mutant.path, {}).values())
        tests = self._in_order((of_module or {*self.seconds}) if everybody else who)
        if not who:
            # Processes without the variables of this one, such as those of environments, do not say what they execute.
            tests += self._in_order({*self.seconds} - of_module)
        elif mutant.at_import:
            # A number that a class is given when it is defined is read where no line of the module runs.
            tests += [test for test in self._in_order({*self.seconds} - of_module) if self.seconds[test] < 0.2]
        job = self._changed(mutant, text, tests)
        with changed_file(Path(job["path"]), job["text"]):
            verdict, failed = self._process(tests, job["seconds"])
        if verdict["status"] == "timed out" and self._process(tests, job["seconds"])[0] == verdict:
            return SLOW
        if failed and failed not in self.useful:
            again, _ = self._process([failed], job["seconds"])
            if again["status"] != "survived":
                self._leave_out([failed])
                return self._in_a_process(mutant, text)
            self.useful.add(failed)
        return verdict

    def _process(self, tests: list[str], seconds: float) -> tuple[dict[str, str], str]:
        """What the tests say in a process of their own, and the test that fails."""
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [*PYTEST, "-x", *tests],
                **{"cwd": self.tree, "env": self.environment, "stdout": output, "stderr": output},
                **{"start_new_session": True, "preexec_fn": lambda: limit_processor_time(seconds)},
            )
            ended = wait_for(process.pid, seconds)
            output.seek(0)
            failures = [line for line in output.read().splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
        last = failures[-1][:300] if failures and ended else ""
        named = [test for test in tests if last.startswith((f"FAILED {test}", f"ERROR {test}"))]
        return verdict_of(ended, last), max(named, key=len, default="")

    def _write(self, mutant: Mutant, verdict: dict[str, Any]) -> None:
        record = {**verdict, "key": mutant.key, "module": _module(mutant), "tests": _state(self.name)}
        with open(FOLDER / "verdicts.jsonl", "a") as verdicts:
            verdicts.write(json.dumps(record) + "\n")
        print(f"  {verdict['status']:10}{mutant.key}  {verdict.get('by', '')}", flush=True)


def _forget(stored: dict[str, Any], files: set[str]) -> None:
    """Take out what was measured of tests in these files; the places of the others stay."""
    gone = {place for place, test in enumerate(stored["seconds"]) if test.partition("::")[0] in files}
    left = {place: test for place, test in enumerate(stored["seconds"]) if place not in gone}
    moved = {-1: -1, **{place: number for number, place in enumerate(left)}}
    stored["seconds"] = {test: stored["seconds"][test] for test in left.values()}
    stored["useless"] = [test for test in stored["useless"] if test in stored["seconds"]]
    for lines in stored["lines"].values():
        for line, places in lines.items():
            lines[line] = [moved[place] for place in places if place in moved]


def _lines_by_test(data: Path, names: dict[str, int]) -> dict[str, dict[int, list[int]]]:
    """Per module and line the places of the tests that execute it, -1 for none of them."""
    from coverage import CoverageData

    measured = CoverageData(str(data))
    measured.read()
    return {
        Path(path).as_posix(): {
            line: sorted({names.get(context.rpartition("|")[0], -1) for context in contexts})
            for line, contexts in measured.contexts_by_lineno(path).items()
        }
        for path in measured.measured_files()
    }


def _digests(room: str) -> tuple[str, dict[str, str]]:
    """Of the room with what its tests share, and of each file of tests: what was measured of others stays true."""
    own = ROOT / f"tests/unit/{room}"
    files = {file: not file.name.startswith("test_") for file in sorted(own.rglob("*.py"))}
    shared = [*sorted((ROOT / "tests/fixtures").rglob("*.py")), *(file for file, common in files.items() if common)]
    shared = [file for file in shared if file.stem not in ("mutant_runs", "mutations")]
    tests = {file.relative_to(ROOT).as_posix(): _digest([file]) for file, common in files.items() if not common}
    return _digest([*sorted((ROOT / "verl_hier" / room).rglob("*.py")), *shared]), tests


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(ROOT)}".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _state(room: str) -> str:
    """A digest of everything that may change what the tests of a room notice."""
    return hashlib.sha256(json.dumps(_digests(room)).encode()).hexdigest()[:16]


def _module(mutant: Mutant) -> str:
    return hashlib.sha256((ROOT / mutant.path).read_bytes()).hexdigest()[:16]


def _verdicts() -> dict[str, dict[str, Any]]:
    file = FOLDER / "verdicts.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return {record["key"]: record for record in map(json.loads, lines)}


def _known(room: str, mutant: Mutant) -> bool:
    """Whether the last verdict still holds: one that is caught stays so while its module does, for tests only come."""
    last = _verdicts().get(mutant.key)
    if last is None or last["module"] != _module(mutant):
        return False
    return last["status"] != "survived" or last["tests"] == _state(room)


def _report(samples: dict[str, list[Mutant]], reasons: dict[str, str]) -> int:
    verdicts = _verdicts()
    total = dict.fromkeys(("caught", "timed out", "equivalent", "survived", "not tried"), 0)
    survivors = []
    print(f"{'room':14}" + "".join(f"{status:>12}" for status in total))
    for room, mutants in samples.items():
        counts = dict.fromkeys(total, 0)
        for mutant in mutants:
            known = verdicts.get(mutant.key, {"status": "not tried"})
            status = "equivalent" if mutant.key in reasons else known["status"]
            counts[status] += 1
            survivors += [mutant.key] if status == "survived" else []
        print(f"{room:14}" + "".join(f"{count:12}" for count in counts.values()))
        total = {status: total[status] + counts[status] for status in total}
    noticed = total["caught"] + total["timed out"]
    share = noticed / max(noticed + total["survived"], 1)
    print(f"{'':14}" + "".join(f"{count:12}" for count in total.values()))
    print(f"{share:.1%} of those that are not equivalent were caught", *survivors, sep="\n  ")
    return int(share < WANTED)


if __name__ == "__main__":
    sys.exit(main())

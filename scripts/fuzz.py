"""What strangers may send, by the thousand: files to commands, outputs to workers, texts to readers and scorers.

    python scripts/fuzz.py files --count 500             # hostile files through all commands that read one, in rounds
    python scripts/fuzz.py files --count 1 --changed 500 # one round, with at least 500 files for each command
    python scripts/fuzz.py outputs --minutes 60          # hostile outputs over all workers, one target a worker
    python scripts/fuzz.py outputs --worker react --count 200000
    python scripts/fuzz.py parsers --count 2000          # hostile texts to each reader and scorer, and long ones
    python scripts/fuzz.py gateway --count 10000         # hostile requests in three dialects, broken off or not

Every other rollout of `outputs` has a byte-pair tokenizer, which raises on halves of characters as those of models do;
in the others a text is one token, so that long ones cost nothing.

What broke something is kept in `fuzz/TARGET/` (`--corpus`), and tried first the next time; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fixtures import hostile_commands, hostile_files, hostile_gateway, hostile_outputs, hostile_parsers
from tests.fixtures.hostile_rollouts import roll, roll_in_byte_pairs, workers

ATTACK = 500
"""Requests to one gateway."""


@dataclass
class Tally:
    """How many were tried, and what broke."""

    tried: int = 0
    broke: int = 0


def fuzz_outputs(name: str, corpus: Path, seed: int, goes_on: Callable[[int], bool], tally: Tally) -> None:
    """Play one worker with hostile outputs; a text that breaks it is kept."""
    chance = random.Random(f"{name}-{seed}")
    kept = sorted((corpus / name).glob("*.txt")) if (corpus / name).is_dir() else []
    known = iter([file.read_text(encoding="utf-8", errors="surrogatepass") for file in kept])
    tried, ways = 0, cycle((roll_in_byte_pairs, roll))
    while goes_on(tried):
        said: list[str] = []

        def answer(prompt: str, sampling: object, said: list[str] = said) -> str:
            said.append(next(known, None) or hostile_outputs.hostile(chance))
            return said[-1]

        try:
            graph = next(ways)(name, answer, n=20)
            graph.check()
            lost = [episode.error for episode in graph.episodes if episode.status not in ("finished", "truncated")]
            problem = f"lost: {lost[0]}" if lost else None
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        tried += len(said)
        tally.tried += len(said)
        if problem:
            tally.broke += 1
            print(f"{name}: {problem}")
            keep(corpus / name, said)


def fuzz_parsers(corpus: Path, seed: int, count: int, tally: Tally) -> None:
    """Give each reader and scorer hostile texts, which must not raise, and long ones, which must take linear time."""
    logging.disable()
    for name, call in hostile_parsers.targets().items():
        chance, folder = random.Random(f"{name}-{seed}"), corpus / name.replace(":", "-").replace(" ", "-")
        broke, started = tally.broke, time.monotonic()
        for _ in range(count):
            text = hostile_parsers.hostile(chance)
            problem = hostile_parsers.problem(call, text)
            if problem:
                tally.broke += 1
                print(f"{name}: {problem:.200}")
                keep(folder, [text])
        slow = hostile_parsers.slow(call, hostile_parsers.long_texts(chance, count // 20))
        tally.tried, tally.broke = tally.tried + count, tally.broke + len(slow)
        for begin, piece, end in slow:
            print(f"{name}: {piece!r} by the thousand, between {begin!r:.60} and {end!r:.60}, is worse than linear")
        took = time.monotonic() - started
        print(f"{name}: {count} texts, {tally.broke - broke} broke something, {took:.0f} s", flush=True)


def fuzz_gateway(seed: int, count: int, tally: Tally) -> None:
    """Send hostile requests to gateways, of which each lives for some hundreds; a request is known by its number."""
    longest = 0.0
    for begin in range(0, count, ATTACK):
        found = hostile_gateway.attacked(min(ATTACK, count - begin), seed + begin)
        tally.tried, tally.broke = tally.tried + sum(found.statuses.values()), tally.broke + len(found.problems)
        longest = max(longest, found.longest_s)
        for problem in found.problems:
            print(problem)
        statuses = ", ".join(f"{number} of status {status}" for status, number in sorted(found.statuses.items()))
        print(f"gateway: {statuses}; longest callback {1000 * found.longest_s:.0f} ms", flush=True)
    print(f"gateway: the longest callback took {1000 * longest:.0f} ms of processor time")


def keep(folder: Path, texts: list[str]) -> None:
    """Write texts that broke a target, under the hash of their content."""
    folder.mkdir(parents=True, exist_ok=True)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        (folder / f"{hashlib.sha256(data).hexdigest()[:16]}.txt").write_bytes(data)


def fuzz_files(
    corpus: Path,
    seed: int,
    goes_on: Callable[[int], bool],
    tally: Tally,
    only: Sequence[str] | None,
    changed: int,
) -> None:
    """Send hostile files to the commands that read them, in turn; a file that breaks one is kept."""
    with tempfile.TemporaryDirectory() as models:
        targets = hostile_commands.targets(Path(models))
        targets = {name: targets[name] for name in only or targets}
        number = 0
        while goes_on(tally.tried):
            for name, target in targets.items():
                with tempfile.TemporaryDirectory() as made:
                    files = target.files(Path(made), random.Random(f"{seed}-{number}-{name}"), changed)
                    kept = sorted((corpus / "files" / name).glob("*")) if number == 0 else []
                    _send(name, target, chain(kept, files), Path(made), corpus / "files" / name, tally)
            number += 1


def _send(
    name: str, target: hostile_commands.Target, files: Iterable[Path], made: Path, corpus: Path, tally: Tally
) -> None:
    """All files to one command."""
    tried, broke, started = tally.tried, tally.broke, time.monotonic()
    for file in files:
        tally.tried += 1
        problem = target.problem(file, made)
        if problem:
            tally.broke += 1
            print(f"{name} {file.name}: {problem}")
            if file.is_file() and made in file.parents:
                corpus.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, corpus / f"{hostile_files.checksum(file):08x}-{file.name}")
    took = time.monotonic() - started
    print(f"{name}: {tally.tried - tried} files, {tally.broke - broke} broke something, {took:.0f} s", flush=True)


def main() -> int:
    """Fuzz what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=("files", "outputs", "parsers", "gateway"))
    parser.add_argument("--worker", action="append", help="only this worker; may be repeated")
    parser.add_argument("--command", action="append", help="only this command of `files`; may be repeated")
    parser.add_argument(
        "--changed",
        type=int,
        default=20,
        help="files changed at random for each command in a round of `files`, besides those that are always the same",
    )
    parser.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--count", type=int, help="how many, each worker its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=Path("fuzz"))
    given = parser.parse_args()
    given.corpus = given.corpus.resolve()
    names = given.worker or workers()
    shares = len(names) if given.target == "outputs" else 1
    tally, started = Tally(), time.monotonic()

    def limits(number: int) -> Callable[[int], bool]:
        until = started + 60 * (given.minutes or 1) * (number + 1) / shares
        return lambda tried: tried < given.count if given.count else time.monotonic() < until

    if given.target == "parsers":
        fuzz_parsers(given.corpus / "parsers", given.seed, given.count or 2000, tally)
    elif given.target == "gateway":
        fuzz_gateway(given.seed, given.count or 10_000, tally)
    elif given.target == "files":
        fuzz_files(given.corpus, given.seed, limits(0), tally, given.command, given.changed)
    else:
        for number, name in enumerate(names):
            before = tally.tried
            fuzz_outputs(name, given.corpus / "outputs", given.seed, limits(number), tally)
            print(f"{name}: {tally.tried - before} outputs")
    print(f"{tally.tried} tried, {tally.broke} broke something, {time.monotonic() - started:.0f} s")
    return int(tally.broke > 0)


if __name__ == "__main__":
    sys.exit(main())

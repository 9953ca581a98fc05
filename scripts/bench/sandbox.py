"""What a call of the sandbox costs.

Usage: python scripts/bench/sandbox.py [--calls 300]
Prints the median of the wall time of all calls, the lowest tenth, and the machine's load. A call waits for three
processes in turn, so on a busy machine it takes as much longer as they wait for a core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from verl_hier.local_sandbox.local import run_python

WARM_UP = 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    calls = parser.parse_args().calls
    for _ in range(WARM_UP):
        outcome = run_python("print(6 * 7)")
        assert outcome.stdout == "42\n", outcome
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        run_python("print(6 * 7)")
        times.append((time.perf_counter() - start) * 1e3)
    tenth = statistics.quantiles(times, n=10)[0]
    print(f"layers: {', '.join(outcome.layers)}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{calls} calls: wall {statistics.median(times):.1f} ms (median), {tenth:.1f} ms (lowest tenth)")


if __name__ == "__main__":
    main()

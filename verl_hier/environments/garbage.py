"""How often a rollout worker, or a process of asynchronous environments, looks for cyclic garbage.

Python's collector visits every element of every list that it looks at, and a rollout is lists of tokens and log-probs.
With its defaults a quarter of what a turn costs at 512 episodes was the collector's, and a look at the modules of a
process alone held its event loop for more than 50 ms.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (10_000, 10, 5)
"""Containers made since the last look at the youngest; such looks for one at the next generation, and those for one at
all: one for each half a million containers that stay, which are those of a few hundred tasks."""


def collect_rarely() -> None:
    """Leave what exists by now, which is modules, out of later collections, and make them rarer in this process."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)

"""How far the start of a run has come, read from what verl prints, and how long the rest of it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from verl_hier.ops.progress import duration

PHASES = (
    (b"Started a local Ray instance", "Ray runs", 0.40),
    (b"train and validate dataloader initialized", "the tasks are made", 0.70),
    (b"actor and ref model engine initialized", "the trainer has its model", 0.87),
    (b"all initialize finished, ready to fit", "the rollout servers have theirs", 1.0),
)
"""What verl's log says at the end of a phase, what a person is told, and the share of the start that is then over (of
a run of SmolLM2-135M on two busy cores, 107 s)."""


class StartUp:
    """Takes the lines of the log as they come, and tells of each phase that is over."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._begun, self._next = now, now(), 0

    def take(self, lines: Iterable[bytes]) -> Iterator[str]:
        """A sentence for each phase that these lines end, with the time left as the phases before it lead to expect."""
        for line in lines:
            found = [place for place, (says, _, _) in enumerate(PHASES) if place >= self._next and says in line]
            if not found:
                continue
            self._next = found[0] + 1
            _, told, share = PHASES[found[0]]
            spent = self._now() - self._begun
            left = spent * (1 - share) / share
            yield f"  {told} after {duration(spent)}; " + (
                f"about {duration(left)} to the first step" if left else "the first step begins"
            )

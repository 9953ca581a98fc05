"""The collector of a process with many episodes leaves the modules alone and runs rarely."""

from __future__ import annotations

import gc

from verl_hier.environments.garbage import collect_rarely


def test_what_exists_is_left_out_and_cycles_made_later_are_still_found():
    before = gc.get_threshold()
    seen: list[int] = []

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            seen.append(1)

    try:
        collect_rarely()
        assert gc.get_freeze_count() > 0 and gc.isenabled()
        assert all(after >= old for after, old in zip(gc.get_threshold()[:2], before, strict=False))
        for _ in range(gc.get_threshold()[0] + 1):
            Cycle()
        assert seen, "garbage is collected without being asked to"
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

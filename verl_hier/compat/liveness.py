"""Rollout workers and storage that have died are noticed while the trainer waits for the tasks that they hold.

verl waits until the queue says that the tasks of a step are finished; those of a process that has died are under way
for ever. What else a run can lose raises an error where it is called, or is left to `compat/keeper.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
from transfer_queue import interface

from verl_hier.errors import RolloutError
from verl_hier.served.rollout_server import RESUME_HINT

LOOK_S = 2.0
"""Seconds between two looks; the trainer polls its queue many times a second."""


class Liveness:
    """Whether actors are alive.

    Args:
        actors: their handles.
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        self._asked = {actor.__ray_ready__.remote(): actor for actor in actors}
        self._next = 0.0

    def check(self) -> None:
        """Look at all of them, if the last time was long ago; one that is busy answers later.

        Raises:
            RolloutError: when one has died.
        """
        now = time.monotonic()
        if now < self._next or not self._asked:
            return
        self._next = now + LOOK_S
        for answer in ray.wait([*self._asked], num_returns=len(self._asked), timeout=0)[0]:
            actor = self._asked.pop(answer)
            try:
                ray.get(answer)
            except ActorDiedError as error:
                raise lost_actor(error) from error
            except ActorUnavailableError:
                pass  # Its node cannot be reached for the moment.
            self._asked[actor.__ray_ready__.remote()] = actor


def storage_units() -> list[Any]:
    """The actors in which TransferQueue keeps the rows, as handles; none for another storage than its own."""
    return list((interface._TQ_STORAGE or {}).get("SimpleStorage", {}).values())


def lost_actor(error: RayActorError) -> RolloutError:
    """A sentence on an actor that has died: its class, process and machine, which Ray says in its message alone."""
    said = dict(re.findall(r"\b(class_name|pid|ip): (\S+)", str(error)))
    place = ", ".join(f"{name} {said[name]}" for name in ("pid", "ip") if name in said)
    name = f"{said.get('class_name', 'a process of the run')}{place and f' ({place})'}"
    return RolloutError(f"{name} is gone, perhaps for want of memory; {RESUME_HINT}.")

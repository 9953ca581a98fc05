"""The interface of workers: who takes the next turn, with what context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import CancelledError

from verl_hier.errors import HierError, RolloutError, raised
from verl_hier.rollout.end_reason import EndIgnored, EndReason, EpisodeOver
from verl_hier.rollout.episode_state import EpisodeState
from verl_hier.rollout.episode_view import EpisodeView


class Worker(ABC):
    """Decides who takes the next turn and what the agent sees: one coroutine for each episode.

    The coroutine must be a pure function of what `episode` returns (its random numbers come from `episode.rng`): an
    episode is forked, and a stored one replayed, by running the coroutine again on the recorded answers.
    """

    @abstractmethod
    async def run(self, episode: EpisodeView) -> None:
        """Play one episode: `await episode.reset()`, then `episode.generate(...)` and `episode.act(...)` in turns.

        Returning ends the episode. `episode.generate` ends it from inside when a limit is reached.
        """


async def play(worker: Worker, state: EpisodeState) -> None:
    """Run a worker through its episode and write the end into the record.

    Raises:
        RolloutError: when the worker itself is broken.
    """
    try:
        await worker.run(EpisodeView(state))
        if state.told_to_end:
            raise EndIgnored
        done = state.finished_by_worker or (state.last_result is not None and state.last_result.done)
        state.end("finished" if done else "truncated", None if done else EndReason.WORKER_STOPPED)
    except EpisodeOver as over:
        if not state.over:
            state.end("truncated", over.reason)
    except EndIgnored:
        state.paused.set()
        raise RolloutError(
            f"worker {type(worker).__name__} caught EpisodeOver, which ends an episode at its limits; it must let the "
            "exception pass, or raise it again; this is a fault of the worker plugin named by `hier.worker.name`."
        ) from None
    except (HierError, CancelledError):
        state.paused.set()
        raise
    except Exception as error:
        state.paused.set()
        raise RolloutError(
            f"worker {type(worker).__name__} raised {raised(error)}; "
            "this is a fault of the worker plugin named by `hier.worker.name`."
        ) from error

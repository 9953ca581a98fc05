"""Why episodes end."""

from __future__ import annotations

from enum import Enum


class EndReason(str, Enum):
    """Reasons that the rollout itself gives, as they are stored in `EpisodeRecord.error`.

    Workers (`EpisodeOver`) and samplers (`Episode.stop`, `prune`, `discard`) may give others, as any string.
    """

    MAX_TURNS = "max_turns"
    """Truncated: the episode had `hier.rollout.max_turns` turns."""
    CONTEXT_TOKENS = "context_tokens"
    """Truncated: the prompt of the next turn leaves no room in the context."""
    EMPTY_ACTION = "empty_action"
    """Truncated: the policy generated no token."""
    WORKER_STOPPED = "worker_stopped"
    """Truncated: the worker returned although the environment had not ended the task."""
    BUDGET = "budget"
    """Pruned: `hier.rollout.budget` was spent."""
    IDLE = "idle"
    """Pruned: a fork that ended before its first turn of its own."""
    NOT_KEPT = "not_kept"
    """Pruned: more leaves were complete than the sampler keeps."""
    NOT_CHOSEN = "not_chosen"
    """Pruned or truncated: another candidate was chosen to continue."""
    LEFT_UNFINISHED = "carried_over"
    """Pruned: a later trainer step continues it."""
    SAMPLER_FINISHED = "sampler_finished"
    """Pruned: it was still running when the sampler returned."""


class EndIgnored(BaseException):
    """Raised inside a worker that goes on after `EpisodeOver`; no `except Exception` of the worker stops it."""


class EpisodeOver(Exception):
    """Raised inside a worker to end its episode as truncated. A worker may raise it; it must not swallow it.

    Args:
        reason: stored in `EpisodeRecord.error`.
    """

    def __init__(self, reason: EndReason | str) -> None:
        self.reason = reason.value if isinstance(reason, EndReason) else reason
        super().__init__(self.reason)

"""One thing that was found out about a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fails"]


@dataclass(frozen=True)
class Finding:
    """
    Attributes:
        about: what was looked at.
        verdict: `ok`; `note` for what runs and deserves a thought; `fails` for what no rollout survives.
        sentence: what was found, and what to do.
    """

    about: str
    verdict: Verdict
    sentence: str

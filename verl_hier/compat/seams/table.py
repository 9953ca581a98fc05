"""Every symbol and behaviour of verl that verl-hier depends on, as data; `verl-hier doctor` verifies them one by one.

A new version of verl breaks here first, and each entry says why it is needed and when it can go. A seam is checked by
reading signatures and source, without a GPU, Ray or a model. Each module of this package holds the seams of one part
of verl.
"""

from __future__ import annotations

from verl_hier.compat.seams.critic import CRITIC
from verl_hier.compat.seams.engine import ENGINE
from verl_hier.compat.seams.package import PACKAGE
from verl_hier.compat.seams.rollout import ROLLOUT
from verl_hier.compat.seams.runtime_cpu import CPU
from verl_hier.compat.seams.seam import Seam, verify
from verl_hier.compat.seams.trainer import TRAINERS
from verl_hier.compat.seams.vllm import VLLM

SEAMS: tuple[Seam, ...] = (*PACKAGE, *TRAINERS, *CRITIC, *ROLLOUT, *CPU, *ENGINE, *VLLM)

__all__ = ["SEAMS", "Seam", "verify"]

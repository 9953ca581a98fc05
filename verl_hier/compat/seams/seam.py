"""What a seam is: one symbol or behaviour of verl that verl-hier depends on; `table` collects them."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hier.compat.seams.inspection import Check, SeamBroken, exists, reads, spells, takes, together

FILES = "https://github.com/verl-project/verl/blob/v0.9.1/verl/"
TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_NEVER = "stays: this is the interface that we build on"


@dataclass(frozen=True)
class Seam:
    """One thing of verl that we depend on.

    Attributes:
        name: short and unique.
        target: `module:attribute` in verl (or a package that verl brings).
        why: what of ours needs it.
        link: where it is defined, or the issue about it.
        removal: when the seam can go.
        check: raises `SeamBroken` when the installed verl differs.
        since: first version of verl it was verified on.
        until: first version that is known to differ; empty when none is.
    """

    name: str
    target: str
    why: str
    link: str
    removal: str
    check: Check
    since: str = "0.9.1"
    until: str = ""


def verify(seam: Seam) -> str:
    """What is broken, as a phrase; empty when the seam holds."""
    try:
        seam.check()
    except SeamBroken as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _file(target: str) -> str:
    module = target.partition(":")[0].split(".")
    return f"{FILES}{'/'.join(module[1:])}.py" if module[0] == "verl" else module[0]


def seam(name: str, target: str, why: str, *checks: Check, removal: str = _NEVER, link: str = "") -> Seam:
    """A seam whose target must be importable; the other arguments are those of `Seam`."""
    return Seam(name, target, why, link or _file(target), removal, together(exists(target), *checks))


def unimported(name: str, target: str, why: str, *checks: Check, removal: str = _NEVER) -> Seam:
    """A seam in a module that cannot be imported where vLLM is not installed."""
    return Seam(name, target, why, _file(target), removal, together(spells(target), *checks))


def override(method: str, why: str, *parameters: str, says: tuple[str, ...] = ()) -> Seam:
    """A method of verl's trainer that ours overrides, with its parameters and what its source says."""
    target = f"{TRAINER}.{method}"
    return seam(f"trainer.{method}", target, why, takes(target, *parameters), reads(target, *says))

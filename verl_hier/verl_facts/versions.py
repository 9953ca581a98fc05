"""Which verl this package was verified against, read from package metadata: nothing here imports verl."""

from __future__ import annotations

from importlib import metadata

from packaging.specifiers import SpecifierSet

from verl_hier.errors import HierError

# The same range as in pyproject.toml. Every seam of compat/seams.py was verified on 0.9.1; verl renames things between
# minor versions (0.9.0 alone: TaskRunner became TaskRunnerV1, create_rl_sampler went away), so 0.10 is refused.
RANGE = ">=0.9.1,<0.10"
TESTED = SpecifierSet(RANGE)

SHOWN = ("verl", "torch", "transformers", "ray", "TransferQueue", "tensordict", "hydra-core", "pluggy", "numpy")


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, None when it is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def verl_problem() -> str:
    """What is wrong with the installed verl, as a sentence; empty when it is in the tested range."""
    version = installed("verl")
    if version is None:
        return f"verl is not installed; `pip install 'verl{RANGE}'` brings a version that verl-hier was tested with."
    if not TESTED.contains(version, prereleases=True):
        return (
            f"verl {version} is outside the range that verl-hier was tested with ({RANGE}); "
            f"`pip install 'verl{RANGE}'`, or upgrade verl-hier."
        )
    return ""


def require_supported() -> None:
    """Refuse to go on with a verl that nobody tested.

    Raises:
        HierError: naming the installed version, the tested range and the command that mends it.
    """
    problem = verl_problem()
    if problem:
        raise HierError(problem)

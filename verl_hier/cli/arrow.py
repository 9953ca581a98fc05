"""Arrow without pandas, for commands whose start would take as long as their work."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _Hidden(importlib.abc.MetaPathFinder):
    """Lets pandas look as if it was not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)
        return None


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, which it does for its first array and which takes a third of a second.

    pyarrow looks for pandas once in a process. Everybody else can import it, but pyarrow's `to_pandas` refuses from
    then on; so a process that uses pyarrow already, and is not the command's own, stays as it is.
    """
    if "pyarrow" in sys.modules:
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        import numpy as np
        import pyarrow as pa

        pa.array(np.zeros(1)).to_numpy()
    finally:
        sys.meta_path.remove(hidden)

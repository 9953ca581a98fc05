"""Where stored rollouts are, by what a user names: a run, its store, a step of it, or graph files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import HierError
from verl_hier.graph.bounded_reading import read_json
from verl_hier.graph.places import place
from verl_hier.graph.steps import is_step

RECORD = "run.json"
"""The file in the folder of a run that says what ran."""
STORE = "graphs"
QUICKSTART = "training"
"""The folder of the run below that of a quickstart."""


@dataclass(frozen=True)
class Stored:
    """Stored rollouts, and the run that made them.

    Attributes:
        graphs: what `read_graphs` takes.
        run: folder of the run; None for rollouts that stand alone.
    """

    graphs: Path
    run: Path | None = None

    @classmethod
    def at(cls, path: str | Path) -> Stored:
        """The rollouts that a path names.

        Raises:
            HierError: for a run that stored none.
        """
        named = place(path)
        for folder in (named, named / QUICKSTART):
            if (folder / RECORD).is_file():
                found = cls(folder / STORE, folder)
                store = found.recipe().get("store")
                if not found.graphs.is_dir() and isinstance(store, Mapping) and isinstance(store.get("path"), str):
                    found = cls(place(store["path"]), folder)
                if not found.graphs.is_dir():
                    raise HierError(
                        f"{folder} holds no rollouts, because its recipe has hier.store.path: null; a run that is "
                        "trained with `hier.store.path=graphs` stores them there."
                    )
                return found
        above = named.parent.parent if is_step(named) else named.parent
        return cls(named, above if (above / RECORD).is_file() else None)

    def record(self) -> dict[str, Any]:
        """What `run.json` says; empty for rollouts that stand alone.

        Raises:
            HierError: for a damaged file.
        """
        if self.run is None:
            return {}
        found = read_json(self.run / RECORD)
        if not isinstance(found, dict) or not isinstance(found.get("recipe"), dict):
            raise HierError(f"{self.run / RECORD} does not say what ran: it has no mapping `recipe`.")
        return found

    def recipe(self) -> dict[str, Any]:
        """The `hier` block of the run's recipe; empty for rollouts that stand alone.

        Raises:
            HierError: for a damaged file.
        """
        block = self.record().get("recipe", {}).get("hier", {})
        if not isinstance(block, dict):
            raise HierError(f"{self.run}/{RECORD}: `hier` of its recipe is not a mapping.")
        return block

    def plugins(self) -> dict[str, bool] | None:
        """The plugins of the run, by name; None for rollouts that stand alone.

        Raises:
            HierError: for a damaged file.
        """
        if self.run is None:
            return None
        found = self.recipe().get("plugins")
        if not isinstance(found, dict):
            raise HierError(f"{self.run}/{RECORD}: `hier.plugins` of its recipe is not a mapping.")
        return {str(name): bool(on) for name, on in found.items()}

"""A copy of a model that follows it slowly, beside it on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch


class SlowCopy:
    """Each rank's part of a model's parameters, which moves towards the model's own.

    Values are exchanged in place, so that whatever holds the parameters, such as FSDP and an optimiser, goes on with
    them.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        """
        Args:
            module: the model, as it is at the beginning.
        """
        self._module = module
        self._held = [part.detach().clone() for part in self._parts()]

    @torch.no_grad()
    def exchange(self) -> None:
        """Let the model have the values of the copy, and the copy those of the model; a second call undoes it."""
        for part, held in zip(self._parts(), self._held, strict=True):
            of_model = part.detach().clone()
            part.copy_(held)
            held.copy_(of_model)

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Move by this share of the way to the model."""
        for part, held in zip(self._parts(), self._held, strict=True):
            held.lerp_(part.to(held), rate)

    def save(self, folder: Path) -> None:
        """Write this rank's part into a checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self._held, folder / self._name())

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Read this rank's part from a checkpoint."""
        for held, part in zip(self._held, torch.load(folder / self._name(), weights_only=True), strict=True):
            held.copy_(part)

    def _name(self) -> str:
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return f"slow_copy_world_size_{size}_rank_{rank}.pt"

    def _parts(self) -> Iterator[torch.Tensor]:
        for parameter in self._module.parameters():
            yield parameter.to_local() if hasattr(parameter, "to_local") else parameter.data

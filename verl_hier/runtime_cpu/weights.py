"""Weights on their way from a training engine to a rollout server."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl.workers.rollout.utils import ensure_async_iterator


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as raw bytes, so that Ray hands it over without copying and numpy need not know bfloat16."""

    data: np.ndarray
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def pack(cls, tensor: torch.Tensor) -> "PackedTensor":
        # A copy: the sender reuses its buffers as soon as it is asked for the next tensor.
        plain = tensor.detach().to("cpu").clone().contiguous()
        return cls(plain.reshape(-1).view(torch.uint8).numpy(), plain.dtype, tuple(plain.shape))

    def unpack(self) -> torch.Tensor:
        """A copy: Ray's arrays are read-only."""
        return torch.from_numpy(self.data.copy()).view(self.dtype).reshape(self.shape)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


WeightMessage = dict[str, PackedTensor]


async def pack_in_parts(weights: Any, part_bytes: int) -> AsyncIterator[tuple[WeightMessage, bool]]:
    """Drain `weights`, an iterator or async iterator of (name, tensor), into messages of about `part_bytes`.

    Yields:
        (message, is_last); always at least one message, so that the receiver learns of the end.
    """
    message: WeightMessage = {}
    size = 0
    async for name, tensor in ensure_async_iterator(weights):
        packed = PackedTensor.pack(tensor)
        if message and size + packed.nbytes > part_bytes:
            yield message, False
            message, size = {}, 0
        message[name] = packed
        size += packed.nbytes
    yield message, True


class WeightLoader:
    """Copies named weights into a model and insists that an update is complete."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._targets = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
        self._tied = _groups_of_shared_storage(model)
        self._required = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._loaded: set[str] = set()

    @torch.no_grad()
    def load(self, message: WeightMessage) -> None:
        """Copy one part of an update.

        Raises:
            ValueError: For a name or a shape that the model does not have.
        """
        for name, packed in message.items():
            target = self._targets.get(name)
            if target is None:
                raise ValueError(f"The weight update has a tensor {name!r} that the served model does not have.")
            if tuple(target.shape) != packed.shape:
                raise ValueError(
                    f"The weight update has {name!r} with shape {packed.shape}, the served model {tuple(target.shape)}."
                )
            target.copy_(packed.unpack())
            self._loaded.update(self._tied.get(name, (name,)))

    def finish(self) -> None:
        """End an update.

        Raises:
            ValueError: If parameters are missing: half-updated weights would sample from a policy that never existed.
        """
        missing = sorted(self._required - self._loaded)
        self._loaded = set()
        if missing:
            shown = ", ".join(missing[:5])
            raise ValueError(f"The weight update lacks {len(missing)} parameter(s) of the served model: {shown} …")


def _groups_of_shared_storage(model: torch.nn.Module) -> dict[str, Iterable[str]]:
    """Names of tied parameters, each mapped to all names of its group."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(parameter.data_ptr(), []).append(name)
    return {name: names for names in groups.values() if len(names) > 1 for name in names}

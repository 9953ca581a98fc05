"""LoRA adapters on a served model: each request is answered with its own, and none is merged into the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

PARTS = ("lora_A", "lora_B")
"""How a tensor's name ends after that of its linear layer: the map into the low rank, and the map out of it."""


@dataclass(frozen=True)
class _LowRank:
    """What an adapter adds to a layer: scale · B A x, with A [rank, in] and B [out, rank]."""

    into: torch.Tensor
    out: torch.Tensor
    scale: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # As peft: in the type of the adapter, whatever that of the model is.
        low = torch.nn.functional.linear(x.to(self.into.dtype), self.into)
        return torch.nn.functional.linear(low, self.out) * self.scale


class Adapters:
    """The adapters of one model, by name, on its linear layers.

    Args:
        model: the served model; hooks on those of its layers that an adapter has are all that it gets.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._loaded: dict[str, dict[str, _LowRank]] = {}
        self._hooked: set[str] = set()
        self._rows: dict[str, list[int]] = {}
        self._whole: str | None = None

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    @property
    def names(self) -> list[str]:
        return sorted(self._loaded)

    def load(self, name: str, tensors: Mapping[str, torch.Tensor], scale: float) -> None:
        """Put an adapter in the place of the one of that name.

        Args:
            name: of the adapter.
            tensors: by the name of the layer, a dot, and one of `PARTS`.
            scale: of what it adds.

        Raises:
            ValueError: for a layer that the model does not have, a part that is missing, or a shape that does not fit.
        """
        layers: dict[str, dict[str, torch.Tensor]] = {}
        for tensor, value in tensors.items():
            layer, _, part = tensor.rpartition(".")
            if part not in PARTS:
                raise ValueError(f"An adapter of linear layers has {' and '.join(PARTS)}, and no {tensor!r}.")
            layers.setdefault(layer, {})[part] = value
        made = {layer: self._made(layer, parts, scale) for layer, parts in layers.items()}
        for layer in made.keys() - self._hooked:
            self._model.get_submodule(layer).register_forward_hook(self._hook(layer))
            self._hooked.add(layer)
        self._loaded[name] = made

    def _made(self, layer: str, parts: Mapping[str, torch.Tensor], scale: float) -> _LowRank:
        module = dict(self._model.named_modules()).get(layer)
        if not isinstance(module, torch.nn.Linear):
            raise ValueError(
                f"The adapter has a layer {layer!r}, which the served model does not have as a linear one."
            )
        if set(parts) != set(PARTS):
            raise ValueError(f"The adapter lacks a part of {layer!r}: it has {', '.join(parts)} alone.")
        into, out = (parts[part] for part in PARTS)
        shapes = (*into.shape[1:], *out.shape[:1])
        if shapes != (module.in_features, module.out_features) or into.shape[0] != out.shape[1]:
            raise ValueError(
                f"The adapter of {layer!r} has the shapes {tuple(into.shape)} and {tuple(out.shape)}, and the layer of "
                f"the served model is {module.in_features} to {module.out_features}."
            )
        return _LowRank(into, out, scale)

    def _hook(self, layer: str) -> Callable[..., torch.Tensor]:
        def add(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            (x,) = arguments
            if self._whole is not None:
                own = self._loaded[self._whole].get(layer)
                return output if own is None else (output + own(x)).to(output.dtype)
            for name, rows in self._rows.items():
                own = self._loaded[name].get(layer)
                if own is not None:
                    output[rows] = (output[rows] + own(x[rows])).to(output.dtype)
            return output

        return add

    @contextmanager
    def used(self, names: Sequence[str | None]) -> Iterator[None]:
        """Within it, each row of a pass has the adapter of this name, or none."""
        if len(set(names)) == 1:
            self._whole = names[0]
        else:
            for row, name in enumerate(names):
                if name is not None:
                    self._rows.setdefault(name, []).append(row)
        try:
            yield
        finally:
            self._whole, self._rows = None, {}

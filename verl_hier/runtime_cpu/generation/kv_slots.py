"""Keys and values of all running sequences in two preallocated tensors, written in place."""

from typing import Any

import torch
from transformers.cache_utils import Cache

_MIN_SLOTS = 8
_MIN_POSITIONS = 128


class KVSlots:
    """Storage of shape [layer, slot, position, kv_head, head_dim], one tensor for keys and one for values.

    A running sequence owns one slot. A forward pass works on a contiguous range of slots and reads views of them:
    nothing is concatenated or gathered. The last position of a slot is never read; padding is written there.
    The storage is as wide as its longest sequence, so `fits` is asked before a sequence is admitted.
    """

    def __init__(self, layers: int, heads: int, key_dim: int, value_dim: int, dtype: torch.dtype) -> None:
        self._shape = (layers, heads, key_dim, value_dim)
        self.dtype = dtype
        self.max_bytes = 2**31
        self.slots = 0
        self.positions = 0
        self.keys = torch.empty(0)
        self.values = torch.empty(0)
        self.release()

    @property
    def bytes_per_token(self) -> int:
        layers, heads, key_dim, value_dim = self._shape
        return layers * heads * (key_dim + value_dim) * self.dtype.itemsize

    @torch.inference_mode()
    def release(self) -> None:
        """Give the memory back; everything that was stored is lost."""
        layers, heads, key_dim, value_dim = self._shape
        self.slots, self.positions = 0, 0
        self.keys = torch.zeros(layers, 0, 0, heads, key_dim, dtype=self.dtype)
        self.values = torch.zeros(layers, 0, 0, heads, value_dim, dtype=self.dtype)

    def fits(self, slots: int, positions: int) -> bool:
        """Whether `slots` sequences of up to `positions` tokens stay within `max_bytes`."""
        return slots * _aligned(positions) * self.bytes_per_token <= self.max_bytes

    def reserve(self, slots: int, positions: int) -> None:
        """Make room for `slots` sequences of up to `positions` tokens, keeping what such a range holds now.

        Room is doubled so that growing is rare; if that would exceed the limit, it is made to measure.
        """
        if slots <= self.slots and positions < self.positions:
            return
        new_slots = _doubled(self.slots, slots, _MIN_SLOTS)
        new_positions = _aligned(_doubled(self.positions, positions, _MIN_POSITIONS))
        if new_slots * new_positions * self.bytes_per_token > self.max_bytes:
            new_slots, new_positions = slots, _aligned(positions)
        self.keys = _resized(self.keys, new_slots, new_positions)
        self.values = _resized(self.values, new_slots, new_positions)
        self.slots, self.positions = new_slots, new_positions

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot into another."""
        self.keys[:, target, :length] = self.keys[:, source, :length]
        self.values[:, target, :length] = self.values[:, source, :length]

    def read(self, slot: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of keys and values, each [layer, stop - start, kv_head, head_dim]."""
        return self.keys[:, slot, start:stop].clone(), self.values[:, slot, start:stop].clone()

    def write(self, slot: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values of shape [layer, n, kv_head, head_dim] from position `start` on."""
        stop = start + keys.shape[1]
        self.keys[:, slot, start:stop] = keys
        self.values[:, slot, start:stop] = values


def _resized(old: torch.Tensor, slots: int, positions: int) -> torch.Tensor:
    new = torch.zeros(old.shape[0], slots, positions, *old.shape[3:], dtype=old.dtype)
    kept = slice(None), slice(min(slots, old.shape[1])), slice(min(positions, old.shape[2]))
    new[kept] = old[kept]
    return new


def _aligned(positions: int) -> int:
    """Room for `positions` tokens and the padding position, as a multiple of 16.

    With it each slot starts at a 64-byte boundary: a matrix product may round differently for another alignment.
    """
    return -(-(positions + 1) // 16) * 16


def _doubled(current: int, needed: int, minimum: int) -> int:
    size = max(current, minimum)
    while size < needed:
        size *= 2
    return size


class SlotCache(Cache):
    """The `past_key_values` of one forward pass: writes new keys and values into slots, returns views of them.

    Args:
        slots: The storage.
        first: First slot of the batch; row b of the batch is slot first + b.
        rows: Number of sequences in the batch.
        length: Positions 0 .. length - 1 are visible to the attention (a mask hides what a row has not reached).
        positions: [rows, new] int64, where each new token is stored; padding goes to the last position of its slot.
    """

    def __init__(self, slots: KVSlots, first: int, rows: int, length: int, positions: torch.Tensor) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._range = slice(first, first + rows)
        self._length = length
        offsets = torch.arange(first, first + rows).unsqueeze(1) * slots.positions
        self._flat = (offsets + positions).reshape(-1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [rows, kv_head, new, head_dim]; return views [rows, kv_head, length, head_dim]."""
        return (
            self._store(self._slots.keys[layer_idx], key_states),
            self._store(self._slots.values[layer_idx], value_states),
        )

    def _store(self, storage: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        heads, dim = storage.shape[-2:]
        # [rows, head, new, dim] -> [rows * new, head * dim]
        new = states.transpose(1, 2).reshape(-1, heads * dim)
        storage.view(-1, heads * dim).index_copy_(0, self._flat, new)
        return storage[self._range, : self._length].transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Only asked by models that were not given positions; every call here gives them."""
        return self._length

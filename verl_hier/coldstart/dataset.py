"""Demonstrations for verl's SFT trainer: rows that are tokens already, with a loss weight for each token.

Named by `data.custom_cls`; verl's loss (`verl/workers/utils/losses.py`, `sft_loss`) multiplies log-probs by what it
calls a mask and divides by its sum, so weights between 0 and 1 are a weighted mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from verl_hier.coldstart.rows import read_rows
from verl_hier.errors import RecipeError


class DemonstrationDataset(Dataset):
    """Rows of `write_demonstrations`, in an order drawn from `data.order_seed`: verl's sampler has a fixed seed."""

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        if config.get("pad_mode", "no_padding") != "no_padding":
            raise RecipeError("data.pad_mode: demonstrations need `no_padding`.")
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._rows = list(read_rows(files))
        longest = max(len(row["input_ids"]) for row in self._rows)
        if longest > config.get("max_length", longest):
            raise RecipeError(f"data.max_length: the longest demonstration has {longest} tokens.")
        generator = torch.Generator().manual_seed(int(config.get("order_seed", 0)))
        order = torch.randperm(len(self._rows), generator=generator).tolist()
        if max_samples > 0:
            order = order[:max_samples]
        self._rows = [self._rows[i] for i in order]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """input_ids, position_ids [t], int64; loss_mask [t], float32."""
        row = self._rows[index]
        input_ids = torch.tensor(row["input_ids"], dtype=torch.long)
        return {
            "input_ids": input_ids,
            "position_ids": torch.arange(len(input_ids)),
            "loss_mask": torch.tensor(row["weights"], dtype=torch.float32),
        }

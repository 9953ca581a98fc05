"""What our trainers draw tasks from: those that an environment makes, and the numbered rows of other data sets."""

from __future__ import annotations

import json
from typing import Any

import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset

from verl_hier.errors import RecipeError
from verl_hier.recipe.parts import resolve
from verl_hier.recipe.schema import HierConfig

TASK_FIELDS = ("raw_prompt", "hier_task", "index", "data_source")
"""Columns of an item that differ from task to task."""


class TaskDataset(Dataset):
    """Tasks of `hier.environment`, made on the driver when the trainer starts.

    verl builds it through `data.custom_cls`; `data.hier` carries the recipe's block (verl/trainer/ppo/utils.py,
    `create_rl_dataset`). Each item has `hier_task` (JSON) and the columns that verl's trainer reads.
    """

    def __init__(
        self,
        data_files: str | list[str],
        tokenizer: Any,
        config: DictConfig,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        splits = [data_files] if isinstance(data_files, str) else list(data_files)
        hier = HierConfig.of(config)
        part = resolve(hier).environment
        if part.spec.tasks is None:
            raise RecipeError(
                f"data.custom_cls: environment {part.spec.name!r} makes no tasks of its own; "
                "remove data.custom_cls and name parquet files in data.train_files."
            )
        self._tasks = [task for split in splits for task in part.spec.tasks(part.options, split)]
        if max_samples > 0:
            self._tasks = self._tasks[:max_samples]
        if not self._tasks:
            raise RecipeError(f"hier.environment: {part.spec.name!r} has no tasks in split {splits}.")
        self._source = part.spec.name

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The tasks, as the environment made them. Not to be changed."""
        return self._tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        task = self._tasks[index]
        return {
            "raw_prompt": [{"role": "user", "content": str(task.get("instruction", ""))}],
            "hier_task": json.dumps(task),
            "index": index,
            "data_source": str(task.get("data_source", self._source)),
            "reward_model": {"style": "environment", "ground_truth": ""},
            # verl's collate function wants one tensor a row.
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }


class NumberedRows(Dataset):
    """A data set whose rows are known by their place in it, which is their `index`.

    verl's own rows have `extra_info.index` there, which names no row: public data sets have UUIDs, texts, numbers that
    begin anew in each file, or nothing in it (verl/utils/dataset/rl_dataset.py, `RLHFDataset.__getitem__`). The column
    `extra_info`, which reward functions read, stays as it is. Everything else is the data set's own.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    @classmethod
    def of(cls, rows: Any) -> Any:
        """A data set with numbered rows; one whose rows are numbered is returned as it is."""
        return rows if isinstance(rows, TaskDataset | NumberedRows) else cls(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._rows[index], "index": index}

    def __getattr__(self, name: str) -> Any:
        # Rows are fetched one by one, also from a data set that could hand over several; a copy has no rows yet.
        if name in ("__getitems__", "_rows"):
            raise AttributeError(name)
        return getattr(self._rows, name)

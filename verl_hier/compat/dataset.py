"""verl's data set for tasks that an environment makes: `data.train_files` and `data.val_files` name its splits."""

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

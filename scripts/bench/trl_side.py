"""Steps of TRL's `GRPOTrainer` on the work of `against_trl.py`, in the environment that has TRL.

It prints a line of JSON for each of its batches but the first, which warms up: the seconds of the batch, in which the
answers are generated and the policy is updated twice, and those of each update.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

UPDATES = 2


class Clock(TrainerCallback):  # type: ignore[misc]
    """Notes when each optimiser step ends."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended.append(time.perf_counter())


def reward(completions: list[Any], **_: Any) -> list[float]:
    """The sum of an answer's character codes modulo 7, as in the toy task of the tests."""
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [float(sum(map(ord, text)) % 7) for text in texts]


def main() -> None:
    """`trl_side.py MODEL TASKS FOLDER PROMPTS ANSWERS TOKENS BATCHES MICRO THREADS`."""
    model, tasks, folder = sys.argv[1:4]
    prompts, answers, tokens, batches, micro, threads = map(int, sys.argv[4:])
    torch.set_num_threads(threads)
    rows = prompts * answers // UPDATES
    options = GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=10**6, seed=0,
        learning_rate=1e-6, beta=0.0, temperature=1.0, num_generations=answers, max_completion_length=tokens,
        per_device_train_batch_size=micro, gradient_accumulation_steps=rows // micro,
        steps_per_generation=UPDATES * rows // micro, max_steps=UPDATES * batches, gradient_checkpointing=False,
        generation_kwargs={"min_new_tokens": tokens}, disable_tqdm=True,
    )  # fmt: skip
    clock = Clock()
    told = [{"prompt": json.loads(line)} for line in Path(tasks).read_text().splitlines()]
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=reward, args=options, train_dataset=Dataset.from_list(told), callbacks=[clock],
    ).train()  # fmt: skip
    for batch in range(1, batches):
        first, last = UPDATES * batch, UPDATES * batch + UPDATES - 1
        # A batch is generated before its first update; what is between two updates belongs to the later one.
        print(
            json.dumps(
                {"step": clock.ended[last] - clock.ended[first - 1], "second": clock.ended[last] - clock.ended[first]}
            )
        )


if __name__ == "__main__":
    main()

"""Probes of a recipe in verl's trainer: their questions go through the actor's log-prob call, in one batch a step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from numpy.typing import NDArray
from tensordict import TensorDict
from verl.workers.utils.padding import response_from_nested

from verl_hier.compat.extension import TrainerExtension
from verl_hier.compat.updates import ranks_of
from verl_hier.errors import CreditError
from verl_hier.host.part import Part
from verl_hier.training.probes import Asked, Contexts, Question
from verl_hier.training.step import TrainingStep

PROBES = "hier_probes"
"""Partition of TransferQueue in which the questions stand while they are answered."""


class Probes(TrainerExtension):
    """The probes of `hier.probes`."""

    def before_credit(self, batch: Any, step: TrainingStep, metrics: dict[str, Any]) -> Sequence[Asked]:
        """Ask the probes of the recipe about the step, in one batch.

        Raises:
            CreditError: when a probe cannot ask, or a question is longer than the actor's micro-batches.
        """
        probes: Mapping[str, Part] = self.trainer.probes
        contexts = contexts_of(self.trainer, batch, step)
        built = {name: part.spec.factory(part.options) for name, part in probes.items()}
        questions = {name: list(probe.ask(contexts)) for name, probe in built.items()}
        flat = [question for asked in questions.values() for question in asked]
        answers = self._log_probs(flat) if flat else []
        found = []
        for name, part in probes.items():
            count = len(questions[name])
            found.append(Asked(name, part.spec.provides, built[name], questions[name], answers[:count]))
            answers = answers[count:]
        return found

    def _log_probs(self, questions: Sequence[Question]) -> list[NDArray[Any]]:
        """Log-probs of the tokens that each question counts, from verl's `compute_log_prob` of the actor."""
        self._require_room(questions)
        # Each rank gets equally many rows.
        ranks = ranks_of(self.trainer.actor_rollout_wg)
        padded = [*questions, *([questions[0]] * (-len(questions) % ranks))]
        fields = fields_of(padded)
        keys = [f"{number:08d}_0_0" for number in range(len(padded))]
        try:
            meta = tq.kv_batch_put(keys=keys, partition_id=PROBES, fields=fields)
            temperature = self.trainer.config.actor_rollout_ref.rollout.temperature
            meta.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
            self.trainer.actor_rollout_wg.compute_log_prob(meta)
            data = tq.kv_batch_get(keys=keys, partition_id=PROBES, select_fields=["log_probs", "response_mask"])
        finally:
            tq.kv_clear(keys=keys, partition_id=PROBES)
        return answers_of(questions, data["log_probs"], data["response_mask"])

    def _require_room(self, questions: Sequence[Question]) -> None:
        """verl puts a row into one micro-batch, and stops where it is longer than that."""
        rollout = self.trainer.config.actor_rollout_ref.rollout
        longest = max(len(question.context) + len(question.text) for question in questions)
        room = int(rollout.log_prob_max_token_len_per_gpu)
        if rollout.log_prob_use_dynamic_bsz and longest > room:
            raise CreditError(
                f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu: a question of hier.probes has {longest} "
                f"tokens with its context, more than {room}; set it to more."
            )


def contexts_of(trainer: Any, batch: Any, step: TrainingStep) -> Contexts:
    """The tokens in front of each turn of a step, as the rows of a padded batch have them."""
    names = ["input_ids", "hier_task", "reward_model", "extra_info"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    ledger = step.ledger
    sequences: list[NDArray[Any]] = [np.zeros(0, np.int64)] * len(ledger.lengths)
    tasks: list[Mapping[str, Any]] = [{}] * len(ledger.light.uids)
    group = np.asarray(ledger.table["episodes.group"], np.int64)[ledger.episode]
    records = {name: list(data[name]) for name in names[1:] if name in data}
    for place, row in enumerate(data["input_ids"].unbind()):
        number = step.places(batch.keys[place : place + 1])[0]
        if number < 0:
            continue
        sequences[number] = row.numpy()
        known = {name: values[place] for name, values in records.items()}
        tasks[group[number]] = json.loads(known["hier_task"]) if "hier_task" in known else known
    return Contexts(ledger, sequences, tasks, trainer.tokenizer)


def fields_of(questions: Sequence[Question]) -> TensorDict:
    """The rows of a batch whose prompts are the contexts and whose responses are the texts."""
    prompts = [torch.as_tensor(question.context, dtype=torch.int64) for question in questions]
    responses = [torch.as_tensor(question.text, dtype=torch.int64) for question in questions]
    sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    masks = [torch.ones_like(response) for response in responses]
    rows = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": sequences,
        "position_ids": [torch.arange(len(sequence)) for sequence in sequences],
        "response_mask": masks,
        "loss_mask": masks,
    }
    nested = {name: torch.nested.as_nested_tensor(parts, layout=torch.jagged) for name, parts in rows.items()}
    return TensorDict(nested, batch_size=len(questions))


def answers_of(questions: Sequence[Question], log_probs: torch.Tensor, mask: torch.Tensor) -> list[NDArray[Any]]:
    """The log-probs that each question counts, from verl's output of the rows of `fields_of`; further rows are padding.

    Args:
        questions: of the first rows.
        log_probs: nested, one for each token of a row, in front of which it stands.
        mask: nested, one for each token of a text.
    """
    rows = response_from_nested(log_probs, mask).unbind()
    return [
        row.float().numpy()[question.counted or slice(None)] for row, question in zip(rows, questions, strict=False)
    ]

"""The answers to probes: what verl's engine says of their rows is what the model says of each text by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from verl.utils import tensordict_utils as tu

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.engines_alone import build_engine, process_group
from verl_hier.beside.probes import answers_of, fields_of
from verl_hier.training.probes import Question

CONTEXTS = ([1, 2, 3], [1, 2, 3, 4, 5], [9], [1, 2, 3])
TEXTS = ([7, 8], [7, 8, 9], [5], [3, 2, 1, 4])


@pytest.mark.parametrize("tree", [False, True], ids=["stock", "tree"])
def test_answers_are_log_probs_of_the_texts(tree: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = write_byte_model(tmp_path / "model")
    questions = [
        Question(turn, np.array(context), np.array(text), slice(1, None) if len(text) > 2 else None)
        for turn, (context, text) in enumerate(zip(CONTEXTS, TEXTS, strict=True))
    ]
    with process_group(tmp_path / "store"):
        engine = build_engine(folder, tree)
        batch = fields_of(questions)
        request = {
            "temperature": 1.0,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": 16,
            "use_remove_padding": False,
        }
        tu.assign_non_tensor(batch, use_fused_kernels=False, calculate_entropy=False, **request)
        with engine.eval_mode():
            found = engine.infer_batch(batch.clone(), loss_function=None)["model_output"]["log_probs"]
    answers = answers_of(questions, found, batch["response_mask"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for question, answer in zip(questions, answers, strict=True):
        tokens = torch.tensor([[*question.context.tolist(), *question.text.tolist()]])
        with torch.no_grad():
            logits = model(tokens).logits[0].log_softmax(-1)
        start = len(question.context)
        alone = [logits[start + i - 1, token].item() for i, token in enumerate(question.text.tolist())]
        np.testing.assert_allclose(answer, np.array(alone)[question.counted or slice(None)], rtol=1e-4, atol=1e-5)

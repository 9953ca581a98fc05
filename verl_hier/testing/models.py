"""A model, a tokenizer and a task made on the spot, for runs that only need to run: no hub, no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_byte_model(folder: Path, *, hidden: int = 64, layers: int = 2, positions: int = 512, seed: int = 0) -> Path:
    """A random Qwen2 with a byte-level tokenizer and a chat template, as a Hugging Face folder.

    Args:
        folder: made if missing.
        hidden: width; four attention heads share it.
        layers: number of layers.
        positions: longest sequence.
        seed: seed of the weights.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _byte_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    core = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def write_toy_task(folder: Path, tasks: int = 16) -> list[str]:
    """A data set and a reward function for stock verl; returns the overrides that name them.

    The reward is the sum of the answer's character codes modulo 7, which varies within a group from the first step.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"say {chr(97 + i % 26)}"}],
            "reward_model": {"style": "rule", "ground_truth": chr(97 + i % 26)},
            "extra_info": {"index": i},
        }
        for i in range(tasks)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "tasks.parquet")
    (folder / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
        "    return sum(map(ord, solution_str)) % 7 / 7\n"
    )
    return [
        f"data.train_files={folder}/tasks.parquet",
        f"data.val_files={folder}/tasks.parquet",
        f"reward.custom_reward_function.path={folder}/reward.py",
        "reward.custom_reward_function.name=compute_score",
    ]

"""A small decoder and a word-level tokenizer for the language of one environment, as a normal Hugging Face folder.

One token stands for one entity (`fridge 1`), so an action is a handful of tokens and a model of 200k parameters can
learn the language in a minute. The model is a Llama: `AutoTokenizer` forces a byte-level tokenizer on a Qwen2 folder,
whatever the folder says, and leaves a Llama folder alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.coldstart.expert_policy import SUB_DONE
from verl_hier.coldstart.vocabulary import PATTERN, TAG, split_words

PAD, ACT, END, UNKNOWN = "<pad>", "<act>", "<end>", "<unk>"
SPECIAL = (PAD, ACT, END, UNKNOWN)
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }} "
    "{% if m['role'] == 'assistant' %}<end> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<act>{% endif %}"
)


@dataclass(frozen=True)
class TinyShape:
    """Shape of the model; the defaults give about 200k parameters with a vocabulary of 200 words.

    Attributes:
        hidden: width.
        layers: number of layers.
        heads: attention heads.
        intermediate: width of the feed-forward part.
        head_dim: width of a head; None divides `hidden` by `heads`. vLLM on a CPU needs 32, 64, …
        positions: longest context.
        spread: standard deviation of the random weights. The usual 0.02 is made for wide models; at a width of 96 it
            halved what 450 steps of supervised training reach (0.13 against 0.07 nats a word of the policy).
    """

    hidden: int = 96
    layers: int = 2
    heads: int = 4
    intermediate: int = 192
    head_dim: int | None = None
    positions: int = 1024
    spread: float = 0.08


def build_tiny(
    path: str | Path, vocabulary_texts: Iterable[str], seed: int = 0, shape: TinyShape | None = None
) -> Path:
    """Write a model with random weights and its tokenizer to a folder that transformers loads offline.

    Args:
        path: the folder; made if missing.
        vocabulary_texts: texts that together contain every word, see `vocabulary.collect_texts`.
        seed: seed of the weights.
        shape: size of the model.

    Returns:
        The folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    shape = shape or TinyShape()
    tokenizer = build_tokenizer(vocabulary_texts, shape.positions)
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        intermediate_size=shape.intermediate,
        head_dim=shape.head_dim or shape.hidden // shape.heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        initializer_range=shape.spread,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    # One file of less than a megabyte.
    disable_progress_bar()
    model.save_pretrained(folder)
    return folder


def build_tokenizer(vocabulary_texts: Iterable[str], positions: int = 1024) -> Any:
    """A word-level tokenizer over the words of the texts; numbered entities are complete up to their highest number.

    `<end>` ends a turn, `<act>` begins one, `<sub_done>` says that the executor reached its subgoal. Tags in the texts
    (`<think>`, `</think>`) become tokens too.
    """
    from tokenizers import (  # type: ignore[import-untyped]
        AddedToken,
        Regex,
        Tokenizer,
        models,
        normalizers,
        pre_tokenizers,
    )
    from transformers import PreTrainedTokenizerFast

    words = list(dict.fromkeys([*SPECIAL, SUB_DONE, *_complete(vocabulary_texts)]))
    tags = [word for word in words if TAG.fullmatch(word) and word not in SPECIAL]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    inner.normalizer = normalizers.Lowercase()
    # Whatever is no word (commas, full stops) is dropped: the pattern is inverted and its delimiters removed.
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="removed", invert=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(ACT, normalized=False, special=True)], special_tokens=True)
    # Not special, so that no decoder drops it.
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _complete(texts: Iterable[str]) -> list[str]:
    """Sorted words; where `shelf 2` occurs, so does `shelf 1`, and `shelf` alone."""
    words = {word for text in texts for word in split_words(text)}
    for word in list(words):
        name, _, number = word.partition(" ")
        if number.isdigit():
            words.update((name, *(f"{name} {i}" for i in range(1, int(number) + 1))))
    return sorted(words)

"""A tokenizer as models have them: byte pairs, by the package `tokenizers`.

It raises on half a surrogate pair, which toy tokenizers take like any other character.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from verl_hier.testing.rollout import WordTokenizer

_SPECIAL = ("<pad>", "<end>", "<act>")
_CORPUS = (
    "the agent goes left, then right; <action>go left</action>",
    "you are at 3, the goal is at 10",
    "def f(x): x",
)
"""Its merges matter to nobody, as long as it has some."""


@lru_cache(maxsize=1)
def _trained() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(  # type: ignore[call-arg]  # the stub of the package knows no keyword
        vocab_size=400, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(_CORPUS, trainer)
    return made


class BytePairTokenizer(WordTokenizer):
    """Byte pairs that are trained on the spot; every text without halves comes back as it was."""

    def __init__(self) -> None:
        super().__init__()
        self._made = _trained()

    def get_vocab(self) -> dict[str, int]:
        """Token to id."""
        return dict(self._made.get_vocab())

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text.

        Raises:
            TypeError: for half a surrogate pair, as tokenizers of models do.
        """
        return list(self._made.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of ids."""
        return str(self._made.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """Id of one token."""
        found: int | None = self._made.token_to_id(tokens)
        return found

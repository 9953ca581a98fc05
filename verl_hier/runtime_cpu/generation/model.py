"""The transformers model behind the generation engine: loading, what it must offer, its forward pass on slots."""

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from verl_hier.runtime_cpu.generation.adapters import Adapters
from verl_hier.runtime_cpu.generation.attention import use_slots_attention
from verl_hier.runtime_cpu.generation.kv_slots import KVSlots, SlotCache

logger = logging.getLogger(__name__)

_REQUIRED_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache")

# Largest difference in logits between the slot path and a plain forward pass that the check at start accepts,
# relative to the spread of the logits. Rounding gives 1e-6 in float32 and 1e-2 in bfloat16.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}


class UnsupportedModelError(ValueError):
    """The model cannot be served by the rollout server 'transformers'."""


def load_model(path: str, config: Any, dtype: torch.dtype, trust_remote_code: bool = False) -> PreTrainedModel:
    """Load a causal language model with SDPA attention in evaluation mode."""
    model = AutoModelForCausalLM.from_pretrained(
        path, config=config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=trust_remote_code
    )
    return model.eval().requires_grad_(False)


def unsupported(config: Any, model_class: Any) -> str | None:
    """Why the server cannot have an architecture, as far as its config and class say; None where they say nothing.

    Args:
        config: of the model.
        model_class: which transformers makes of it.
    """
    name, other = model_class.__name__, "Choose another actor_rollout_ref.model.path."
    if getattr(config, "is_encoder_decoder", False):
        return f"{name} is an encoder-decoder; the rollout server 'transformers' serves decoders. {other}"
    missing = [a for a in _REQUIRED_ARGUMENTS if a not in inspect.signature(model_class.forward).parameters]
    if missing:
        return (
            f"{name}.forward does not take {', '.join(missing)}, which batches of sequences of different lengths "
            f"need; the rollout server 'transformers' cannot serve it. {other}"
        )
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        return (
            f"{name} has layers of the kinds {', '.join(sorted(kinds))}; the rollout server 'transformers' keeps "
            f"one full-attention cache a layer. {other}"
        )
    if not getattr(model_class, "_supports_sdpa", True):
        return f"{name} has no SDPA attention, with which the rollout server 'transformers' loads models. {other}"
    return None


class SlotModel:
    """A causal language model that reads and writes `KVSlots`.

    Raises:
        UnsupportedModelError: If the model is not a decoder with one full-attention cache of equal shape in each layer,
            or if its logits through the slots differ from those of a plain forward pass.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.adapters = Adapters(model)
        self.dtype = model.dtype
        self._check_interface()
        use_slots_attention(model)
        self._crops_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.slots = self._make_slots()
        self._check_equality()

    @torch.inference_mode()
    def forward(
        self,
        first: int,
        tokens: list[list[int]],
        starts: list[int],
        all_logits: bool = False,
        adapters: Sequence[str | None] = (None,),
    ) -> torch.Tensor:
        """Compute the keys and values of new tokens, and logits.

        Args:
            first: Row b of the batch is slot first + b.
            tokens: The new tokens of each row, at least one each; rows may differ in length.
            starts: How many tokens of each row are in its slot already; the slots must have room (`KVSlots.reserve`).
            all_logits: Return the logits of every new token; only for a single row.
            adapters: The adapter of each row, or one for all.

        Returns:
            [rows, vocabulary], those of each row's last token; with `all_logits` [new, vocabulary].
        """
        rows, width = len(tokens), max(map(len, tokens))
        ends = [start + len(new) for start, new in zip(starts, tokens, strict=True)]
        length = max(ends)
        if width == 1:
            input_ids = torch.tensor(tokens)
            position_ids = write_at = torch.tensor(starts).unsqueeze(1)
        else:
            # Padding is on the left, so that the last column holds every row's last token.
            input_ids = torch.tensor([[0] * (width - len(new)) + new for new in tokens])
            columns = torch.arange(-width, 0) + torch.tensor(ends).unsqueeze(1)
            is_padding = columns < torch.tensor(starts).unsqueeze(1)
            position_ids = columns.masked_fill(is_padding, 0)
            write_at = columns.masked_fill(is_padding, self.slots.positions - 1)
        options: dict[str, Any] = {}
        if self._crops_logits and not all_logits:
            options["logits_to_keep"] = 1
        with self.adapters.used(adapters):
            output = self.model(
                input_ids=input_ids,
                attention_mask=self._mask(position_ids, length),
                position_ids=position_ids,
                past_key_values=SlotCache(self.slots, first, rows, length, write_at),
                use_cache=True,
                **options,
            )
        logits: torch.Tensor = output.logits
        return logits[0] if all_logits else logits[:, -1]

    def _mask(self, position_ids: torch.Tensor, length: int) -> torch.Tensor:
        """Additive mask [rows, 1, new, length]: a token at position p sees positions 0 .. p of its own slot."""
        hidden = torch.arange(length) > position_ids.unsqueeze(-1)
        mask = torch.zeros(hidden.shape, dtype=self.dtype)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min).unsqueeze(1)

    def _check_interface(self) -> None:
        why = unsupported(self.model.config, type(self.model))
        if why:
            raise UnsupportedModelError(why)

    @torch.inference_mode()
    def _make_slots(self) -> KVSlots:
        """Learn the shape of the cache from a forward pass of one token."""
        cache = DynamicCache()
        self.model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
        shapes = {(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1]) for layer in cache.layers}
        if len(shapes) != 1:
            raise UnsupportedModelError(
                f"The layers of {type(self.model).__name__} have caches of different shapes ({sorted(shapes)}: heads, "
                "key and value size), which the rollout server 'transformers' cannot store in one tensor."
            )
        heads, key_dim, value_dim = shapes.pop()
        return KVSlots(len(cache.layers), heads, key_dim, value_dim, cache.layers[0].keys.dtype)

    @torch.inference_mode()
    def _check_equality(self) -> None:
        """Serve two sequences in pieces and compare with a plain forward pass.

        This catches what no list of model types can: positions that are counted from the mask, attention that ignores
        a mask, states that live outside of the cache.
        """
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        tokens = torch.randint(0, vocabulary, (9,), generator=torch.Generator().manual_seed(0)).tolist()
        plain = self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        self.slots.reserve(2, len(tokens))
        self.forward(0, [tokens[2:9], tokens[:4]], [0, 0])
        served = self.forward(0, [tokens[:8], tokens[4:8]], [0, 4])
        served = self.forward(0, [tokens[8:], tokens[8:]], [8, 8])
        spread = float(plain.max() - plain.min()) + 1e-12
        error = float((served - plain).abs().max()) / spread
        if error > _TOLERANCE.get(self.dtype, 5e-2):
            raise UnsupportedModelError(
                f"The logits of {type(self.model).__name__} depend on how a sequence is cut and batched (relative "
                f"difference {error:.1e}); the rollout server 'transformers' cannot serve it. "
                "Choose another actor_rollout_ref.model.path."
            )
        self.slots.release()

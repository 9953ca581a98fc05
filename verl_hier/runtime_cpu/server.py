"""The rollout server: one async Ray actor that owns a model and answers verl's token-in-token-out requests."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.utils import get_max_position_embeddings

from verl_hier.chat.end_ids import end_ids
from verl_hier.runtime_cpu.generation.engine import GenerationEngine
from verl_hier.runtime_cpu.generation.model import SlotModel, load_model
from verl_hier.runtime_cpu.generation.request import Request, SamplingParams, derive_seed, draws
from verl_hier.runtime_cpu.options import DEFAULT_ADAPTER, ServerOptions
from verl_hier.runtime_cpu.weights import WeightLoader, WeightMessage

logger = logging.getLogger(__name__)


class TransformersServer:
    """Continuous batching over a transformers model inside one asyncio loop.

    Requests arrive as coroutines and wait for a future; one task computes steps while there is work, and yields to the
    loop between two steps, so that requests join, leave and are aborted there. A request that arrives while the server
    sleeps, is paused by `abort_all_requests` or receives weights waits until it may run.
    """

    def __init__(self, config: RolloutConfig, model_config: DictConfig | HFModelConfig, replica_rank: int) -> None:
        self.config: RolloutConfig = omega_conf_to_dataclass(config)
        self.model_config: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.options = ServerOptions.from_rollout_config(self.config)
        self.replica_rank = replica_rank
        self.global_steps: int | None = None
        torch.set_num_threads(self.options.num_threads)

        limit = get_max_position_embeddings(self.model_config.hf_config)
        self.max_model_len = min(self.config.max_model_len or limit, limit)
        model = load_model(
            self.model_config.local_path,
            self.model_config.hf_config,
            PrecisionType.to_dtype(self.config.dtype),
            self.model_config.trust_remote_code,
        )
        slot_model = SlotModel(model)
        slot_model.slots.max_bytes = int(self.options.kv_cache_gib * 2**30)
        tokenizer = self.model_config.tokenizer
        vocabulary = model.get_input_embeddings().weight.shape[0]
        self.engine = GenerationEngine(
            slot_model,
            max_sequences=self.config.max_num_seqs,
            max_batched_tokens=self.config.max_num_batched_tokens,
            prefix_capacity=self.options.prefix_capacity(self.config, slot_model.slots.bytes_per_token),
            vocab_limit=min(vocabulary, len(tokenizer)) if tokenizer is not None else vocabulary,
            tokenizer=tokenizer,
            deterministic=self.options.deterministic,
            on_finish=self._deliver,
        )
        named = self.model_config
        self._eos_ids = end_ids(named.generation_config, named.hf_config, named.tokenizer)
        self._weights = WeightLoader(model)
        self._adapters = slot_model.adapters
        self._arriving: WeightMessage = {}
        self._futures: dict[str, asyncio.Future[Request]] = {}
        # One stream of seeds for requests that bring none; replicas must not repeat each other.
        self._seeds = torch.Generator().manual_seed(self.config.seed + 7919 * replica_rank)
        self._repeats: Counter[tuple[str | None, tuple[int, ...]]] = Counter()
        self._asleep = False
        self._updating = False
        self._gate_closed = False
        self._rejecting = False
        self._open = asyncio.Event()
        self._open.set()
        self._task: asyncio.Task[None] | None = None

    # Generation

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        adapter: str = DEFAULT_ADAPTER,
    ) -> TokenOutput:
        """Continue `prompt_ids` with an adapter; see docs/cpu_runtime.md for the sampling parameters.

        Raises:
            ValueError: For images, video or audio, an unknown sampling parameter, a prompt that fills the context, or
                an adapter that was never sent.
        """
        if image_data or video_data or audio_data:
            raise ValueError(
                "The rollout server 'transformers' serves text; images, video and audio need "
                "actor_rollout_ref.rollout.name=vllm or sglang."
            )
        prompt = [int(token) for token in prompt_ids]
        params = self._parse(prompt, sampling_params)
        while not self._open.is_set():
            if self._rejecting:
                return self._aborted_output()
            await self._open.wait()
        if adapter not in self._adapters and adapter != DEFAULT_ADAPTER:
            known = ", ".join(self._adapters.names) or "none"
            raise ValueError(f"The rollout server 'transformers' has no adapter {adapter!r}; it was sent {known}.")
        future: asyncio.Future[Request] = asyncio.get_running_loop().create_future()
        key = self._unique_key(request_id)
        with_adapter = adapter if adapter in self._adapters else None
        self.engine.add(self._make_request(key, prompt, params, with_adapter))
        self._futures[key] = future
        self._ensure_running()
        try:
            return self._to_output(await future)
        except asyncio.CancelledError:
            # Nobody waits any more: free the slot.
            self.engine.abort({key})
            raise

    def _parse(self, prompt: list[int], raw: Mapping[str, Any]) -> SamplingParams:
        room = self.max_model_len - len(prompt)
        if not prompt or room < 1:
            raise ValueError(
                f"A prompt of {len(prompt)} tokens cannot be continued: it must have at least one token and leave room "
                f"for one within the context of {self.max_model_len} (actor_rollout_ref.rollout.max_model_len, at most "
                "the model's max_position_embeddings)."
            )
        wanted = raw.get("max_tokens", raw.get("max_new_tokens"))
        if wanted is None:
            # verl's own servers use the same rule: a turn may not outgrow the tensors of the batch.
            budget = self.config.prompt_length + self.config.response_length - len(prompt)
            wanted = min(self.config.response_length, budget)
        defaults = {
            "repetition_penalty": self.config.repetition_penalty,
            "ignore_eos": self.config.ignore_eos,
        }
        return SamplingParams.parse(raw, max_tokens=max(1, min(int(wanted), room)), defaults=defaults)

    def _make_request(self, key: str, prompt: list[int], params: SamplingParams, adapter: str | None) -> Request:
        if params.seed is not None:
            seed = params.seed
        elif self.options.deterministic:
            # A group asks the same prompt several times and wants different answers: the how-manieth request for this
            # prompt since the last weights is part of the seed.
            asked = adapter, tuple(prompt)
            occurrence = self._repeats[asked]
            self._repeats[asked] += 1
            seed = derive_seed(self.config.seed, self.global_steps, prompt, occurrence)
        else:
            seed = int(torch.randint(2**62, (1,), generator=self._seeds))
        stop_ids = params.stop_token_ids if params.ignore_eos else params.stop_token_ids | self._eos_ids
        return Request(key, len(prompt), list(prompt), params, stop_ids, draws(seed), adapter)

    def _unique_key(self, request_id: str) -> str:
        """Under `full_determinism` verl sends the same request id for each turn; a turn may follow an aborted one."""
        key, attempt = request_id, 0
        while key in self._futures:
            attempt += 1
            key = f"{request_id}#{attempt}"
        return key

    def _ensure_running(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        # Requests of one batch arrive one by one; those that are already on their way join the first step.
        await asyncio.sleep(self.options.gather_seconds)
        try:
            while self.engine.has_work and self._may_compute():
                self.engine.step()
                await asyncio.sleep(0)
        except Exception as error:
            # Without this the callers would wait forever.
            logger.exception("The generation engine failed")
            self._fail_all(RuntimeError(f"The generation engine failed: {error!r}"))

    def _fail_all(self, error: Exception) -> None:
        futures, self._futures = list(self._futures.values()), {}
        for future in futures:
            if not future.done():
                future.set_exception(error)
        self.engine.drop_caches()
        self.engine.abort()

    def _may_compute(self) -> bool:
        return not (self._asleep or self._updating)

    def _deliver(self, request: Request) -> None:
        future = self._futures.pop(request.request_id, None)
        if future is not None and not future.done():
            future.set_result(request)

    def _to_output(self, request: Request) -> TokenOutput:
        extra: dict[str, Any] = {
            "global_steps": self.global_steps,
            "num_cached_tokens": request.cached_tokens or 0,
            "finish_reason": request.finish_reason,
            "matched_stop": request.matched_stop,
        }
        if request.params.logprobs:
            extra["top_logprobs"] = request.top_logprobs
        if request.prompt_logprobs is not None:
            extra["prompt_ids"], extra["prompt_logprobs"] = request.prompt_logprobs
            extra["prompt_token_logprobs"] = request.prompt_token_logprobs
        return TokenOutput(
            token_ids=request.output,
            log_probs=request.log_probs if request.params.logprobs is not None else None,
            stop_reason="aborted" if request.finish_reason == "abort" else "completed",
            num_preempted=request.preempted,
            extra_fields=extra,
        )

    def _aborted_output(self) -> TokenOutput:
        extra = {"global_steps": self.global_steps, "num_cached_tokens": 0, "finish_reason": "abort"}
        return TokenOutput(token_ids=[], log_probs=[], stop_reason="aborted", num_preempted=0, extra_fields=extra)

    # Control, as verl's trainers, replicas and checkpoint managers call it

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """End all requests with their partial output, and hold (or, with `reject_request`, refuse) later ones."""
        self._gate_closed = True
        self._rejecting = reject_request
        self._refresh_gate()
        request_ids = self.engine.abort()
        if reset_prefix_cache:
            self.engine.forget_prefixes()
        return {"aborted_count": len(request_ids), "request_ids": request_ids}

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = False) -> dict[str, Any]:
        """End one request with its partial output."""
        aborted = self.engine.abort({request_id})
        if reset_prefix_cache:
            self.engine.forget_prefixes()
        if not aborted:
            return {"aborted": False, "request_id": request_id, "error": f"Request {request_id} is not running"}
        return {"aborted": True, "request_id": request_id}

    async def resume_generation(self) -> None:
        """Let requests in again after `abort_all_requests`."""
        self._gate_closed = False
        self._rejecting = False
        self._refresh_gate()

    async def sleep(self) -> None:
        """Free keys and values; weights stay, because main memory is not what a CPU run is short of."""
        if self.config.free_cache_engine:
            self.engine.drop_caches()
            self._asleep = True
            self._refresh_gate()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Undo `sleep`; verl wakes "weights" first, when new ones are still to come, and "kv_cache" afterwards."""
        if tags is None or "kv_cache" in tags:
            self._asleep = False
            self._refresh_gate()

    async def clear_kv_cache(self) -> None:
        """Forget every key and value (the weights have changed); running requests compute theirs again."""
        self.engine.drop_caches()

    async def release_kv_cache(self) -> None:
        """Free keys and values for the time of a weight update, see `CheckpointEngineManager.update_weights`."""
        self.engine.drop_caches()

    async def resume_kv_cache(self) -> None:
        """Keys and values are allocated when they are needed."""

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps
        self._repeats.clear()

    async def receive_weights(self, message: WeightMessage, last: bool) -> None:
        """Take one part of a weight update; nothing is generated between the first part and the last."""
        self._updating = True
        self._weights.load(message)
        if last:
            self._weights.finish()
            self.engine.drop_caches()
            self._updating = False
            self._refresh_gate()

    async def receive_adapter(self, name: str, scale: float, message: WeightMessage, last: bool) -> None:
        """Take one part of an adapter, which requests can name once its last part is here."""
        self._updating = True
        self._arriving |= message
        if last:
            tensors, self._arriving = self._arriving, {}
            self._adapters.load(name, {tensor: packed.unpack() for tensor, packed in tensors.items()}, scale)
            self.engine.drop_caches()
            self._updating = False
            self._refresh_gate()

    async def statistics(self) -> dict[str, Any]:
        """Counters since the start, and what is in memory now."""
        return {
            **self.engine.counters.as_dict(),
            "running": len(self.engine.running),
            "waiting": len(self.engine.waiting),
            "prefix_cache_tokens": self.engine.cached_tokens,
            "replica_rank": self.replica_rank,
        }

    async def get_rollout_config(self) -> RolloutConfig:
        return self.config

    async def start_profile(self, **kwargs: Any) -> None:
        """There is no engine process with a profiler of its own."""

    async def stop_profile(self) -> None:
        """There is no engine process with a profiler of its own."""

    def _refresh_gate(self) -> None:
        if self._gate_closed or self._asleep:
            self._open.clear()
            if self._rejecting:
                # Wake those that wait, so that they are refused now.
                self._open.set()
                self._open.clear()
            return
        self._open.set()
        if self.engine.has_work:
            self._ensure_running()

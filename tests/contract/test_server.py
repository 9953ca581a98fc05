"""The rollout server without Ray: requests, control calls and weight updates in one asyncio loop."""

import asyncio
from collections.abc import Awaitable

import pytest
import torch

from tests.fixtures.cpu_server import rollout_config
from tests.fixtures.small_models import plain_log_probs
from verl_hier.runtime_cpu.options import ServerOptions
from verl_hier.runtime_cpu.server import TransformersServer
from verl_hier.runtime_cpu.weights import PackedTensor, pack_in_parts

PROMPT = list(range(65, 95))


def ask(server: TransformersServer, name: str = "x", prompt: list[int] = PROMPT, **params: object) -> Awaitable:
    params.setdefault("logprobs", True)
    return server.generate(request_id=name, prompt_ids=prompt, sampling_params=params)


def test_an_answer_as_verl_reads_it(serve):
    async def body(server):
        output = await ask(server, max_tokens=7, seed=1, ignore_eos=True)
        assert len(output.token_ids) == 7 == len(output.log_probs)
        assert output.stop_reason == "completed"
        assert output.extra_fields["global_steps"] == 3
        assert output.extra_fields["finish_reason"] == "length"
        assert output.extra_fields["num_cached_tokens"] == 0
        assert "top_logprobs" not in output.extra_fields
        again = await ask(server, max_tokens=7, seed=1, ignore_eos=True)
        assert again.token_ids == output.token_ids
        assert again.extra_fields["num_cached_tokens"] == len(PROMPT)
        expected = plain_log_probs(server.engine.model.model, PROMPT + output.token_ids)[len(PROMPT) - 1 :]
        chosen = expected.gather(1, torch.tensor(output.token_ids).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(torch.tensor(output.log_probs), chosen, atol=1e-5, rtol=0)

    serve(body)


def test_without_logprobs_there_are_none_and_with_a_number_the_best_ones(serve):
    async def body(server):
        assert (await ask(server, logprobs=False)).log_probs is None
        output = await ask(server, logprobs=3, max_tokens=4, ignore_eos=True)
        assert [len(position) for position in output.extra_fields["top_logprobs"]] == [3] * 4
        token, value = output.extra_fields["top_logprobs"][0][0]
        assert isinstance(token, int) and isinstance(value, float)

    serve(body)


def test_stop_string_and_end_of_sequence(serve, toy):
    async def body(server):
        free = await ask(server, seed=4, max_tokens=20, ignore_eos=True)
        text = server.model_config.tokenizer.decode(free.token_ids[5:8])
        output = await ask(server, seed=4, max_tokens=20, ignore_eos=True, stop=[text])
        assert output.token_ids == free.token_ids[:8]
        assert output.extra_fields["matched_stop"] == text
        eos = server.model_config.tokenizer.eos_token_id
        ended = await ask(server, seed=4, max_tokens=20, stop_token_ids=[free.token_ids[2]])
        assert ended.token_ids == free.token_ids[:3]
        assert eos in server._eos_ids

    serve(body)


def test_default_length_is_what_verl_leaves_room_for(serve):
    async def body(server):
        assert len((await ask(server, ignore_eos=True)).token_ids) == 24
        long = [70] * 80
        assert len((await ask(server, prompt=long, ignore_eos=True)).token_ids) == 64 + 24 - 80

    serve(body)


def test_deterministic_mode_without_a_seed_repeats_itself_with_each_version_of_the_weights(serve):
    async def body(server):
        async def group(companions: int) -> list:
            await server.set_global_steps(4)
            crowd = [ask(server, f"c{i}", prompt=[i, i + 1], max_tokens=5 + i) for i in range(companions)]
            outputs = await asyncio.gather(*(ask(server, f"g{i}") for i in range(4)), *crowd)
            return [(o.token_ids, o.log_probs) for o in outputs[:4]]

        crowded, alone = await group(6), await group(0)
        assert crowded == alone
        assert len({tuple(tokens) for tokens, _ in alone}) == 4, "the members of a group must differ"
        await server.set_global_steps(5)
        assert (await ask(server)).token_ids not in [tokens for tokens, _ in alone]

    serve(body, options={"deterministic": True})


def test_without_a_seed_samples_differ(serve):
    async def body(server):
        outputs = await asyncio.gather(*(ask(server, str(i), ignore_eos=True) for i in range(8)))
        assert len({tuple(o.token_ids) for o in outputs}) == 8

    serve(body)


def test_abort_all_returns_partial_outputs_and_holds_later_requests(serve):
    async def body(server):
        running = [asyncio.create_task(ask(server, str(i), max_tokens=400, ignore_eos=True)) for i in range(3)]
        while server.engine.counters.decode_steps < 3:
            await asyncio.sleep(0)
        answer = await server.abort_all_requests()
        assert answer["aborted_count"] == 3 and sorted(answer["request_ids"]) == ["0", "1", "2"]
        for task in running:
            output = await task
            assert output.stop_reason == "aborted"
            assert 0 < len(output.token_ids) < 400 and len(output.log_probs) == len(output.token_ids)
        late = asyncio.create_task(ask(server, "late", max_tokens=3, ignore_eos=True))
        await asyncio.sleep(0.05)
        assert not late.done()
        await server.resume_generation()
        assert (await late).stop_reason == "completed"

    serve(body)


def test_a_server_that_leaves_rotation_refuses(serve):
    async def body(server):
        await server.abort_all_requests()
        parked = asyncio.create_task(ask(server, "parked"))
        await asyncio.sleep(0.01)
        await server.abort_all_requests(reject_request=True)
        for output in (await parked, await ask(server, "late")):
            assert (output.stop_reason, output.token_ids) == ("aborted", [])
        await server.resume_generation()
        assert (await ask(server, "back", max_tokens=2, ignore_eos=True)).stop_reason == "completed"

    serve(body)


def test_abort_one(serve):
    async def body(server):
        tasks = {i: asyncio.create_task(ask(server, i, max_tokens=40, ignore_eos=True)) for i in ("a", "b")}
        while not server.engine.running:
            await asyncio.sleep(0)
        assert (await server.abort_request("a"))["aborted"]
        assert (await tasks["a"]).stop_reason == "aborted"
        assert len((await tasks["b"]).token_ids) == 40
        assert not (await server.abort_request("nobody"))["aborted"]

    serve(body)


def test_a_request_nobody_waits_for_leaves_its_slot(serve):
    async def body(server):
        task = asyncio.create_task(ask(server, "x", max_tokens=400, ignore_eos=True))
        while not server.engine.running:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.engine.has_work and not server._futures

    serve(body)


def test_sleep_frees_memory_and_waking_continues(serve):
    async def body(server):
        task = asyncio.create_task(ask(server, "x", max_tokens=30, ignore_eos=True, seed=5))
        while server.engine.counters.decode_steps < 3:
            await asyncio.sleep(0)
        await server.sleep()
        assert server.engine.model.slots.keys.numel() == 0
        await server.wake_up(tags=["weights"])
        await asyncio.sleep(0.02)
        assert not task.done()
        await server.wake_up(tags=["kv_cache"])
        slept = await task
        assert slept.num_preempted == 1
        assert slept.token_ids == (await ask(server, "y", max_tokens=30, ignore_eos=True, seed=5)).token_ids

    serve(body, free_cache_engine=True)


def test_weights_in_parts_change_the_model_and_empty_the_cache(serve):
    async def body(server):
        model = server.engine.model.model
        before = await ask(server, max_tokens=10, temperature=0.0, ignore_eos=True)
        torch.manual_seed(5)
        new = {name: torch.randn_like(value) * 0.3 for name, value in model.state_dict().items()}
        new["lm_head.weight"] = new["model.embed_tokens.weight"]
        parts = [part async for part in pack_in_parts(iter(new.items()), part_bytes=20_000)]
        assert len(parts) > 2 and [last for _, last in parts].count(True) == 1
        task = None
        for message, last in parts:
            await server.receive_weights(message, last)
            if task is None:
                task = asyncio.create_task(ask(server, "y", max_tokens=10, temperature=0.0, ignore_eos=True))
                await asyncio.sleep(0.02)
                assert not task.done(), "nothing may be generated with half of the weights"
        after = await task
        assert after.token_ids != before.token_ids and after.extra_fields["num_cached_tokens"] == 0
        log_probs = plain_log_probs(model, PROMPT + after.token_ids)[len(PROMPT) - 1 :]
        assert log_probs.argmax(dim=-1).tolist() == after.token_ids
        for name, value in model.state_dict().items():
            assert torch.equal(value, new[name]), name

    serve(body)


def test_a_weight_update_must_be_complete_and_known(serve):
    async def body(server):
        state = server.engine.model.model.state_dict()
        partial = {k: PackedTensor.pack(v) for k, v in list(state.items())[:3]}
        with pytest.raises(ValueError, match="lacks"):
            await server.receive_weights(partial, True)
        with pytest.raises(ValueError, match="does not have"):
            await server.receive_weights({"model.lora_A": PackedTensor.pack(torch.zeros(1))}, True)
        with pytest.raises(ValueError, match="shape"):
            await server.receive_weights({"model.norm.weight": PackedTensor.pack(torch.zeros(1))}, True)

    serve(body)


def test_tensors_survive_packing():
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.arange(12).reshape(3, 4).to(dtype).t()
        assert torch.equal(PackedTensor.pack(tensor).unpack(), tensor)
        assert PackedTensor.pack(torch.tensor(3.5).to(dtype)).unpack().shape == ()


def test_an_engine_failure_reaches_the_callers(serve):
    async def body(server):
        def fail() -> None:
            raise ArithmeticError("broken")

        server.engine.step = fail
        with pytest.raises(RuntimeError, match="broken"):
            await ask(server)
        del server.engine.step
        assert (await ask(server, max_tokens=2, ignore_eos=True)).stop_reason == "completed"

    serve(body)


def test_requests_that_cannot_be_served_are_refused(serve):
    async def body(server):
        with pytest.raises(ValueError, match="serves text"):
            await server.generate([1], {}, "x", image_data=["picture"])
        with pytest.raises(ValueError, match="max_model_len"):
            await ask(server, prompt=[1] * 512)
        with pytest.raises(ValueError, match="at least one token"):
            await ask(server, prompt=[])
        with pytest.raises(ValueError, match="best_of"):
            await ask(server, best_of=2)

    serve(body)


def test_statistics(serve):
    async def body(server):
        await asyncio.gather(*(ask(server, str(i), max_tokens=5, ignore_eos=True) for i in range(4)))
        figures = await server.statistics()
        assert figures["requests"] == 4 and figures["generated_tokens"] == 20
        assert figures["prompt_tokens"] == 4 * len(PROMPT)
        assert figures["cached_tokens"] + figures["prefill_tokens"] == figures["prompt_tokens"]
        assert figures["running"] == figures["waiting"] == 0 and figures["prefix_cache_tokens"] > 0

    serve(body)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"determinstic": True}}, "determinstic"),
        ({"options": {"num_threads": 0}}, "num_threads"),
        ({"tensor_model_parallel_size": 2}, "tensor_model_parallel_size=1"),
        ({"data_parallel_size": 2}, "data_parallel_size=1"),
        ({"quantization": "fp8"}, "quantization=null"),
    ],
)
def test_options_that_cannot_work_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        ServerOptions.from_rollout_config(rollout_config(**changes))


def test_prefix_cache_size():
    config = rollout_config()
    assert ServerOptions().prefix_capacity(config, bytes_per_token=1536) == 262_144
    assert ServerOptions().prefix_capacity(config, bytes_per_token=24 * 1024) == 512 * 1024**2 // (24 * 1024)
    assert ServerOptions(prefix_cache_tokens=5).prefix_capacity(config, 1) == 5
    assert ServerOptions().prefix_capacity(rollout_config(enable_prefix_caching=False), 1) == 0

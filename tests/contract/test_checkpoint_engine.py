"""A weight update over gloo, with threads for processes: a sender, two receivers, a trainer rank that only drains."""

import asyncio

import torch

from verl_hier.runtime_cpu.checkpoint_engine import GlooCheckpointEngine


def test_weights_arrive_whole_and_in_order():
    torch.manual_seed(0)
    weights = {f"layer.{i}": torch.randn(7, i + 1).to(torch.bfloat16 if i % 2 else torch.float32) for i in range(9)}
    drained = []

    def generate(record: list[str]):
        for name, tensor in weights.items():
            record.append(name)
            yield name, tensor

    async def receive(engine: GlooCheckpointEngine) -> dict[str, torch.Tensor]:
        return {name: tensor async for name, tensor in engine.receive_weights()}

    async def main() -> list:
        engines = [GlooCheckpointEngine(bucket_size=100, is_master=i == 0) for i in range(4)]
        for _ in range(2):  # a second update makes a new group
            metadata = [engine.prepare() for engine in engines]
            trainer, rollout = GlooCheckpointEngine.build_topology(2, 2, metadata)
            arguments = [
                {key: values[i] for key, values in part.items()} for part in (trainer, rollout) for i in range(2)
            ]
            await asyncio.gather(
                *(
                    asyncio.to_thread(engine.init_process_group, **kwargs)
                    for engine, kwargs in zip(engines, arguments, strict=True)
                )
            )
            _, _, first, second = await asyncio.gather(
                engines[0].send_weights(generate([])),
                engines[1].send_weights(generate(drained)),
                receive(engines[2]),
                receive(engines[3]),
            )
            for engine in engines:
                engine.finalize()
        return [first, second]

    for received in asyncio.run(asyncio.wait_for(main(), timeout=60)):
        assert list(received) == list(weights)
        assert all(torch.equal(received[name], tensor) for name, tensor in weights.items())
    assert drained == list(weights) * 2

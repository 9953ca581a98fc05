"""A tree of requests to the CPU rollout server computes each of its tokens once."""

import asyncio

from tests.unit.runtime_cpu.test_tree_sharing import MOST, unique


def test_through_the_server(serve):
    async def body(server):
        async def turn(prompt: list[int], n: int, max_tokens: int) -> list[list[int]]:
            params = {"max_tokens": max_tokens, "ignore_eos": True, "logprobs": True}
            outputs = await asyncio.gather(
                *(server.generate(prompt, dict(params), f"{id(prompt)}/{i}") for i in range(n))
            )
            return [prompt + output.token_ids for output in outputs]

        async def branch(tokens: list[int]) -> list[list[int]]:
            """Each branch goes on when it likes, while others are in the middle of theirs."""
            children = await turn([*tokens, 70, 71, 72], 3, 10)
            grandchildren = await asyncio.gather(*(turn([*child, 73], 2, 10) for child in children))
            return [leaf for leaves in grandchildren for leaf in leaves]

        trunk = await turn(list(range(65, 95)), 6, 20)
        leaves = [leaf for part in await asyncio.gather(*map(branch, trunk)) for leaf in part]
        figures = await server.statistics()
        assert len(leaves) == 6 * 3 * 2
        assert figures["prefill_tokens"] + figures["decode_tokens"] <= MOST * unique(leaves)
        assert figures["cached_tokens"] + figures["prefill_tokens"] == figures["prompt_tokens"]

    serve(body)

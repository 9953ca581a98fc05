"""`ServerPolicy` through verl's own clients and load balancer to the CPU server; only Ray's transport is left out."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import RayTaskError
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from tests.fixtures.small_models import plain_log_probs
from verl_hier.compat.servers.client import ResumingClient, SingleServerClient
from verl_hier.compat.servers.counters import ServerCounters
from verl_hier.errors import RolloutError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.host.servers import rollout_server
from verl_hier.rollout import Sampling
from verl_hier.served.rollout_server import ServerPolicy

HOST = PluginHost.load(DEFAULT_ENABLED)

PROMPT = list(range(65, 95))
TOKENS = [100, 3, 77, 12, 5]


class Handle:
    """Calls an object in this process as Ray calls an actor: `handle.method.remote(...)`, errors wrapped."""

    def __init__(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> SimpleNamespace:
        method = getattr(self._target, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = method(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
            except Exception as error:
                raise RayTaskError(name, traceback.format_exc(), error).as_instanceof_cause() from None

        return SimpleNamespace(remote=lambda *args, **kwargs: asyncio.ensure_future(call(*args, **kwargs)))


class Altered:
    """A server whose answers lack fields, as those of other engines do."""

    def __init__(self, server: object, *lacks: str) -> None:
        self._server = server
        self._lacks = lacks
        self.requests: list[dict[str, Any]] = []

    async def generate(self, **request: Any) -> Any:
        self.requests.append(request["sampling_params"])
        output = await self._server.generate(**request)
        for name in self._lacks:
            output.extra_fields.pop(name, None)
        return output


def policy(server: object, engine: str = "transformers", client: type = LLMServerClient) -> ServerPolicy:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": engine, "response_length": 24}}})
    balancer = Handle(GlobalRequestLoadBalancer({"one": Handle(server)}))
    return ServerPolicy(client(config=config, load_balancer_handle=balancer), rollout_server(HOST, engine))


Body = Callable[[Any], Awaitable[None]]


def expected(server: Any, top: int = 0) -> torch.Tensor:
    log_probs = plain_log_probs(server.engine.model.model, PROMPT + TOKENS)[len(PROMPT) - 1 :]
    return log_probs.topk(top, dim=-1) if top else log_probs.gather(1, torch.tensor(TOKENS).unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("client", [LLMServerClient, ResumingClient])
def test_scores_are_those_of_a_plain_forward_pass(serve, client):
    async def body(server):
        await server.set_global_steps(5)
        scored = await policy(server, client=client).score(PROMPT, TOKENS, "c", top=4)
        torch.testing.assert_close(torch.tensor(scored.logprobs), expected(server), atol=1e-5, rtol=0)
        best = expected(server, 4)
        assert [[token for token, _ in position] for position in scored.top] == best.indices.tolist()
        values = torch.tensor([[value for _, value in position] for position in scored.top])
        torch.testing.assert_close(values, best.values, atol=1e-5, rtol=0)
        alone = await policy(server, client=client).score(PROMPT, TOKENS, "c")
        assert alone.logprobs == pytest.approx(scored.logprobs, abs=1e-5)
        assert alone.top == [[]] * len(TOKENS) and alone.version == scored.version == (5, 5)

    serve(body)


def test_a_score_of_what_was_sampled_is_its_log_prob(serve):
    async def body(server):
        ours = policy(server)
        generation = await ours.generate(PROMPT, Sampling(max_tokens=8, seed=3), "c")
        before = server.engine.counters.prefill_tokens
        scored = await ours.score(PROMPT, generation.token_ids, "c")
        assert scored.logprobs == pytest.approx(generation.logprobs, abs=1e-5)
        # The prompt's last token is computed for its logits; what comes before it is in the cache.
        assert server.engine.counters.prefill_tokens - before == 1 + len(generation.token_ids)

    serve(body)


def test_an_engine_that_answers_as_verls_vllm_server_does(serve):
    """The K best only: a token that is not among them takes a second request."""

    async def body(server):
        stock = Altered(server, "prompt_token_logprobs")
        scored = await policy(stock, "vllm").score(PROMPT, TOKENS, "c", top=2)
        assert [p["prompt_logprobs"] for p in stock.requests] == [2, 0]
        assert all("prompt_logprobs_start" not in p and p["max_tokens"] == 1 for p in stock.requests)
        torch.testing.assert_close(torch.tensor(scored.logprobs), expected(server), atol=1e-5, rtol=0)
        stock.requests.clear()
        likely = [int(expected(server, 2).indices[0, 1])]
        assert (await policy(stock, "vllm").score(PROMPT, likely, "c", top=2)).logprobs == [
            pytest.approx(float(expected(server, 2).values[0, 1]), abs=1e-5)
        ]
        assert [p["prompt_logprobs"] for p in stock.requests] == [2]
        alone = await policy(stock, "vllm").score(PROMPT, TOKENS, "c")
        torch.testing.assert_close(torch.tensor(alone.logprobs), expected(server), atol=1e-5, rtol=0)

    serve(body)


def test_what_cannot_be_scored(serve):
    async def body(server):
        with pytest.raises(RolloutError, match=r"'trtllm' returned no log-probs of a prompt; use a server that does"):
            await policy(Altered(server, "prompt_logprobs"), "trtllm").score(PROMPT, TOKENS, "c")
        with pytest.raises(RolloutError, match=r"could not answer a request: ValueError.*max_position_embeddings"):
            await policy(server).score(PROMPT * 20, TOKENS, "c")
        with pytest.raises(ValueError, match="prompt must not be empty"):
            await policy(server).score([], TOKENS, "c")
        assert (await policy(server).score(PROMPT, [], "c")).logprobs == []

    serve(body)


def test_tokens_that_cannot_be_sampled_are_not_listed(serve):
    async def body(server):
        class Truncating(Altered):
            async def generate(self, **request: Any) -> Any:
                output = await super().generate(**request)
                output.extra_fields["top_logprobs"] = [[(1, -0.1), (2, -2.4), (3, -torch.inf)]]
                return output

        generation = await policy(Truncating(server), "vllm_topk").generate(
            PROMPT, Sampling(max_tokens=1, top_logprobs=3), "c"
        )
        assert generation.top_logprobs == [[(1, -0.1), (2, -2.4)]]

    serve(body)


def test_the_client_of_a_sole_server_has_no_balancer_and_the_same_answers(serve):
    async def body(server):
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "transformers"}}})
        sole = ServerPolicy(
            SingleServerClient(config=config, server=Handle(server)), rollout_server(HOST, "transformers")
        )
        sampling = Sampling(max_tokens=8, seed=3)
        answers = [await asked.generate(PROMPT, sampling, "c") for asked in (sole, policy(server))]
        assert answers[0].token_ids == answers[1].token_ids and answers[0].logprobs == answers[1].logprobs

    serve(body)


def test_an_answer_that_was_resumed_has_the_fields_of_all_its_parts(serve):
    """verl's asynchronous trainers abort requests for a weight update, and their client goes on with them."""

    async def body(server):
        ours = policy(server, client=ResumingClient)
        sampling = Sampling(max_tokens=24, seed=1, top_logprobs=3, stop=("never",))
        task = asyncio.create_task(ours.generate(PROMPT, sampling, "c"))
        while server.engine.counters.decode_steps < 5:
            await asyncio.sleep(0)
        await server.abort_all_requests(reset_prefix_cache=False)
        await server.resume_generation()
        generation = await task
        assert server.engine.counters.requests == 2
        assert len(generation.top_logprobs) == len(generation.token_ids) > 6
        table = plain_log_probs(server.engine.model.model, PROMPT + generation.token_ids)[len(PROMPT) - 1 :]
        ids = [[token for token, _ in position] for position in generation.top_logprobs]
        assert ids == table.topk(3, dim=-1).indices.tolist()
        assert generation.version == (3, 3)

    serve(body)


def test_counters_of_a_step(serve):
    async def body(server):
        ours = policy(server)
        counters = ServerCounters(lambda: [server.engine.counters.as_dict(), {"requests": 5, "name": "other"}])
        assert counters.metrics()["hier/server/requests"] == 0
        for conversation in "ab":
            generation = await ours.generate(PROMPT, Sampling(max_tokens=4, seed=1), conversation)
        metrics = counters.metrics()
        assert metrics["hier/server/requests"] == 2
        assert metrics["hier/server/prompt_tokens"] == 60 and metrics["hier/server/cached_tokens"] == 30
        assert metrics["hier/server/prefix_hit"] == 0.5
        length = len(generation.token_ids)
        assert metrics["hier/server/generated_tokens"] == 2 * length
        assert metrics["hier/server/decode_tokens"] == 2 * (length - 1)
        assert "hier/server/name" not in metrics

        await ours.generate(PROMPT, Sampling(max_tokens=1), "c")
        counters.look()
        await ours.generate(PROMPT, Sampling(max_tokens=1), "validation")
        counters.skip()
        assert counters.metrics()["hier/server/generated_tokens"] == 1

    serve(body)


def test_servers_that_do_not_count_add_nothing():
    assert ServerCounters(list).metrics() == {}

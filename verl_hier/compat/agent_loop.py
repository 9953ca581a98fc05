"""Our rollout inside verl's agent-loop worker: one task is one rollout graph, published as merged rows.

Stock pieces that are kept: the Ray actor, its tokenizer and server client, reward scoring, and the row format and
TransferQueue put of `_agent_loop_postprocess` (verl/trainer/ppo/v1/agent_loop_tq.py). Replaced: `_run_prompt`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import ray
import transfer_queue as tq
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from verl_hier.chat.tools import ToolCounts, task_of_row
from verl_hier.compat.data_set import parted, score_of
from verl_hier.compat.examples import example_of
from verl_hier.compat.queue import EXAMPLES, FAULTS, LIGHT, SECONDS, TRAIN
from verl_hier.compat.runner import runner_of
from verl_hier.compat.servers.named import NamedPolicies
from verl_hier.compat.servers.saved import SavedPolicies
from verl_hier.compat.tracing import Tracing
from verl_hier.compat.validation_success import accuracy
from verl_hier.environments.garbage import collect_rarely
from verl_hier.environments.pool import EnvironmentPool
from verl_hier.errors import HierError, raised
from verl_hier.graph import EpisodeRecord, RolloutGraph, Row, graph_rows
from verl_hier.graph.columnar.held import HeldRollouts, Written
from verl_hier.graph.columnar.light import light_of, pack
from verl_hier.graph.rows import leaf_row
from verl_hier.host.servers import loader_of
from verl_hier.rollout import Request, Sampling
from verl_hier.rollout.unfinished import UnfinishedEpisodes
from verl_hier.served.rollout_server import ServerPolicy
from verl_hier.training.refill import Group
from verl_hier.training.schedule import Phase
from verl_hier.training.sharing import Sharing

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Texts = Mapping[int, Mapping[str, str]]
"""Texts that a reward function of verl has returned beside numbers, by episode and name; verl votes by `pred`."""


async def _side_by_side(calls: Iterable[Awaitable[None]]) -> None:
    """Wait for all calls, also where one raises: none may go on when the task is said to be over."""
    for found in await asyncio.gather(*calls, return_exceptions=True):
        if found is not None:
            raise found


_StockWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__


class HierAgentLoopWorker(_StockWorker):  # type: ignore[misc]
    """Rolls out tasks with the recipe's worker, sampler and environment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        runner = runner_of(self.config, self.tokenizer, self.hf_model_type, self.tools)
        recipe = runner.recipe
        load = loader_of(recipe.host, self.config)
        beside = NamedPolicies(recipe, load, self.llm_client)
        self._runner = replace(runner, opens=SavedPolicies(load), beside=beside)
        self._hier, self._host, self._parts = recipe.hier, recipe.host, recipe.parts
        self._policy = ServerPolicy(self.llm_client, recipe.server)
        self._pool: EnvironmentPool | None = None
        self._slots = asyncio.Semaphore(self._hier.rollout.concurrent_tasks)
        self._unfinished = UnfinishedEpisodes(self._hier.rollout.carried_episodes)
        self._tokens = recipe.token_lists
        self._tracing, self._shows_examples = Tracing(), bool(self.config.trainer.log_val_generations)
        self._held, self._store_thread = HeldRollouts(), ThreadPoolExecutor(1, thread_name_prefix="store")
        collect_rarely()

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """Roll out one task and publish it; a fatal error reaches the trainer through the `FAULTS` partition."""
        uid, validate, launched = str(prompt["uid"]), bool(trajectory["validate"]), time.perf_counter()
        partition = "val" if validate else TRAIN
        await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": "running"})
        tag: dict[str, Any] = {"status": "failure"}
        texts: Texts = {}
        try:
            with self._tracing.of(trajectory):
                async with self._slots:
                    started = time.perf_counter()
                    phase = Phase.from_dict(json.loads(prompt.pop("hier_phase", "{}")))
                    graph = await self._roll_out(prompt, sampling_params, phase, trajectory["step"], validate)
                if self._parts.environment.spec.tasks is None:
                    texts = await self._score(graph, prompt)
                await self._tracing.tell(graph, self._redaction(validate))
            self._host.hook.hier_graph_finished(graph=graph, validate=validate)
            graph.seconds["rollout"] = time.perf_counter() - started
            rows = await self._publish(graph, phase, prompt, validate, texts)
            refill = None if validate else self._hier.refill
            group = {} if refill is None else {"group": asdict(Group.of(graph, rows, refill.score))}
            tag = {"status": "finished", **group}
        except Exception as error:
            text = str(error) if isinstance(error, HierError) else raised(error)
            logger.exception("task %s could not be rolled out", uid)
            await tq.async_kv_put(key=uid, partition_id=FAULTS, tag={"error": text})
        finally:
            tag[SECONDS] = time.perf_counter() - launched
            await tq.async_kv_put(key=uid, partition_id=partition, tag=tag)

    async def _roll_out(
        self, prompt: dict[str, Any], params: dict[str, Any], phase: Phase, step: int, validate: bool
    ) -> RolloutGraph:
        config = self.config.actor_rollout_ref.rollout
        if "hier_task" in prompt:
            task = json.loads(prompt["hier_task"])
        elif self._parts.environment.spec.in_worker:
            task = task_of_row(prompt)
        else:
            task = {"messages": list(prompt["raw_prompt"])}
        index = int(prompt["index"])
        told = json.loads(prompt.pop("hier_told", "{}"))
        # An episode that is continued has to hear what it heard before.
        name = f"{index} {json.dumps([task, told] if told else task, sort_keys=True, default=str)}"
        request = Request(
            task=task,
            identity={
                "uid": str(prompt["uid"]),
                "index": index,
                "data_source": str(prompt.get("data_source", "unknown")),
                "instruction": str(task.get("instruction", "")),
            },
            n=config.val_kwargs.n if validate else int(prompt.pop("hier_n", config.n)),
            step=int(step),
            levels=None if validate else phase.levels,
            validate=validate,
            sampling=Sampling(params["temperature"], params["top_p"], params["top_k"]),
            unfinished=() if validate else self._unfinished.take(name, int(step)),
            told=told,
        )
        if self._pool is None:
            self._pool = self._runner.pool(config.agent.num_workers)
        graph = await self._runner.roll_out(request, self._policy, self._pool, partial(self._lost, request))
        self._unfinished.keep(name, graph)
        graph.phase = Phase("validation").to_dict() if validate else phase.to_dict()
        return graph

    def _lost(self, request: Request, record: EpisodeRecord) -> None:
        self._host.hook.hier_episode_failed(task=dict(request.identity), episode=record.id, error=record.error or "")

    async def _score(self, graph: RolloutGraph, prompt: dict[str, Any]) -> Texts:
        """Let verl's reward function score each leaf by the row that ends with it (`AgentLoopWorker._compute_score`).

        Episodes that share a leaf share its score, and every complete episode has one, whatever learns in this step.

        Raises:
            RolloutError: when the score is no number.
        """
        texts: dict[int, Mapping[str, str]] = {}
        leaves: dict[int, list[EpisodeRecord]] = {}
        for episode in graph.complete():
            leaves.setdefault(episode.leaf, []).append(episode)
        lasts = [self._output(graph, leaf_row(graph, episodes[0].id)) for episodes in leaves.values()]
        for last in lasts:
            last.reward_score = None
        # A judge takes seconds for each.
        await _side_by_side(self._compute_score([last], kwargs={**prompt}) for last in lasts)
        for (leaf, episodes), last in zip(leaves.items(), lasts, strict=True):
            if last.reward_score is None:
                continue
            graph.nodes[leaf].reward += score_of(last.reward_score)
            numbers, words = parted(last.extra_fields.get("reward_extra_info", {}))
            for episode in episodes:
                episode.reward_info |= numbers
                texts[episode.id] = words
        for episode in graph.complete():
            episode.ret = sum(graph.nodes[i].reward for i in graph.path(episode.id))
        return texts

    async def _publish(
        self, graph: RolloutGraph, phase: Phase, prompt: dict[str, Any], validate: bool, texts: Texts | None = None
    ) -> int:
        """One put for each episode with rows, and one for the light part of the task; all else stays here until its
        step is stored.

        Returns:
            how many rows there are.
        """
        rule = "once" if validate else self._hier.guards.shared_prefix
        rows = graph_rows(graph, Phase("all").trains if validate else phase.trains, rule)
        store, uid = self._hier.store, str(prompt["uid"])
        light = pack(light_of([graph], [rows], self._tokens))
        tag = {"validate": validate, "rows": len(rows), "index": graph.task["index"]}
        if not validate:
            sharing = Sharing.of([np.asarray(row.prompt + row.response, np.int64) for row in rows])
            tag["sharing"] = astuple(sharing)
        await tq.async_kv_put(key=uid, partition_id=LIGHT, fields={"light": light}, tag=tag)
        if validate and self._shows_examples:
            await tq.async_kv_put(key=uid, partition_id=EXAMPLES, tag=example_of(graph, self._redaction(validate)))
        if store.path is not None and (store.validation or not validate):
            await self._in_store_thread(self._held.keep, graph, self._redaction(validate))
        sessions: dict[int, list[AgentLoopOutput]] = {}
        for row in rows:
            said = (texts or {}).get(row.episode, {})
            sessions.setdefault(row.episode, []).append(self._output(graph, row, validate, said))
        await _side_by_side(
            self._agent_loop_postprocess(outputs, validate, session_id=episode, **prompt)
            for episode, outputs in sessions.items()
        )
        return len(rows)

    def _redaction(self, validate: bool) -> Callable[[RolloutGraph], object] | None:
        """What the plugins do to a rollout before it is stored; None when they do nothing."""
        if not self._host.implements("hier_before_store"):
            return None
        return lambda graph: self._host.hook.hier_before_store(graph=graph, validate=validate)

    async def store_rollouts(self, store: str, step: int, tasks: Mapping[str, bool], writer: str) -> Written:
        """Write or forget rollouts that this worker holds; see `HeldRollouts.write`."""
        return await self._in_store_thread(self._held.write, store, step, tasks, writer)

    async def _in_store_thread(self, call: Callable[..., Result], *args: Any) -> Result:
        """A call that would hold up the event loop, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._store_thread, call, *args)

    def _output(
        self, graph: RolloutGraph, row: Row, validate: bool = False, texts: Mapping[str, str] | None = None
    ) -> AgentLoopOutput:
        record = graph.episodes[row.episode]
        versions = [graph.nodes[i].policy_version for i in row.nodes]
        tools = ToolCounts.of(graph, row.episode) if self._parts.environment.spec.in_worker else None
        by_verl = record.reward_info.keys() - self._runner.recipe.rewards.keys()
        decided = validate and self._parts.environment.spec.tasks is not None
        own = {} if by_verl else accuracy(graph, record, decided)
        return AgentLoopOutput(
            prompt_ids=row.prompt,
            response_ids=row.response,
            response_mask=row.mask,
            response_logprobs=row.logprobs,
            reward_score=record.ret,
            num_turns=graph.turns(row.episode) if tools is None else tools.num_turns,
            metrics=AgentLoopMetrics(),
            extra_fields={
                "reward_extra_info": {**own, **record.reward_info, **(texts or {})},
                "min_global_steps": min(low for low, _ in versions),
                "max_global_steps": max(high for _, high in versions),
                **({} if tools is None else {"tool_rewards": tools.rewards, "turn_scores": []}),
            },
        )


class HierAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with our workers; named by `actor_rollout_ref.rollout.agent.agent_loop_manager_class`."""

    agent_loop_workers: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(HierAgentLoopWorker)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """As verl's, which begins with the first worker each time: tasks that come one by one are dealt out in turn."""
        super().generate_sequences(prompts)
        workers = self.agent_loop_workers
        dealt = min(len(prompts), len(workers))
        self.agent_loop_workers = workers[dealt:] + workers[:dealt]

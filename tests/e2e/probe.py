"""Source of the distribution that the end-to-end tests install: a world of bytes, and probes into verl's training.

`probe_world` is a third-party plugin like any other. `probe_trainers` is loaded through verl's own
plugin door, `verl.plugins`, and registers a twin of
a stock trainer and one of ours that also write down what they train.
"""

PLUGIN = '''
"""A world that random bytes can win and break, a policy loss that writes gradients down, and a reward shaper."""

import os
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from verl_hier.environments.base import Environment, Step
from verl_hier.hookspecs import hookimpl
from verl_hier.host.manager import PluginHost
from verl_hier.rollout import Sampler, Worker
from verl_hier.host.specs import EnvironmentSpec, PolicyLossSpec, SamplerSpec, WorkerSpec, build_options


@dataclass(frozen=True)
class WorldOptions:
    """Options of `bytes`."""

    tasks: int = 8
    """Tasks of a split."""
    steps: int = 3
    """Actions until the end."""
    faults: bool = False
    """Raise, hang or kill the process, as the second action says."""


class World(Environment):
    """The reward is the share of even characters in the last action."""

    def __init__(self, options):
        self._options = options
        self._count = 0

    def reset(self, task, seed):
        self._count = 0
        return StepResult(f"{task['instruction']}?", anchor="0")

    def step(self, action):
        self._count += 1
        code = sum(map(ord, action)) % 16
        if self._options.faults and self._count == 2:
            if code == 1:
                raise RuntimeError("the world broke")
            if code == 2:
                time.sleep(600)
            if code == 3:
                os.kill(os.getpid(), 9)
        done = self._count >= self._options.steps
        even = sum(ord(c) % 2 == 0 for c in action) / max(len(action), 1)
        reward = even if done else 0.0
        return StepResult(f"{self._count}.", reward, done, anchor=str(self._count), info={"won": done and even > 0.5})


def tasks(options, split):
    return [{"instruction": f"{split}{i}", "data_source": "bytes"} for i in range(options.tasks)]


def make(options):
    return World(options)


def write_gradients(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
                    rollout_is_weights=None):
    """verl's vanilla loss; the gradient of every token goes to a file."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    folder = os.environ["PROBE_FOLDER"]
    number = len(os.listdir(folder))
    record = {"old": old_log_prob.detach().clone(), "mask": response_mask.detach().clone()}

    def keep(gradient):
        record["gradient"] = gradient.detach().clone()
        torch.save(record, os.path.join(folder, f"{number:04d}.pt"))

    if log_prob.requires_grad:
        torch.save(record, os.path.join(folder, f"{number:04d}.pt"))
        log_prob.register_hook(keep)
    return get_policy_loss_fn("vanilla")(
        old_log_prob=old_log_prob, log_prob=log_prob, advantages=advantages, response_mask=response_mask,
        loss_agg_mode=loss_agg_mode, config=config, rollout_is_weights=rollout_is_weights,
    )


@dataclass(frozen=True)
class RotationOptions:
    """Options of `rotation`."""

    samplers: list[dict[str, Any]] = field(default_factory=list)
    """`{name: …, option: value}` of each."""
    steps: int = 2
    """Trainer steps of each."""


class Rotation(Sampler):
    """Another sampler every few steps, so that one run of the trainer serves them all."""

    def __init__(self, options):
        self._options = options

    async def sample(self, rollout):
        number = (rollout.request.step - 1) // self._options.steps
        block = self._options.samplers[number % len(self._options.samplers)]
        spec = PluginHost.load({"builtin": True}).spec("sampler", block["name"])
        await spec.factory(build_options(spec, block)).sample(rollout)


@dataclass(frozen=True)
class TroupeOptions:
    """Options of `troupe`."""

    workers: list[dict[str, Any]] = field(default_factory=list)
    """`{name: …, option: value}` of each."""


class Troupe(Worker):
    """Another worker for each task, by the number in its instruction: one run of the trainer serves all."""

    def __init__(self, options):
        self._options = options

    async def run(self, episode):
        number = int("".join(c for c in episode.instruction if c.isdigit()))
        block = self._options.workers[number % len(self._options.workers)]
        spec = PluginHost.load({"builtin": True}).spec("worker", block["name"])
        await spec.factory(build_options(spec, block)).run(episode)


@hookimpl
def hier_workers():
    return [WorkerSpec("troupe", Troupe, TroupeOptions)]


@hookimpl
def hier_samplers():
    return [SamplerSpec("rotation", Rotation, RotationOptions, needs_fork=True, needs_top_logprobs=True)]


@hookimpl
def hier_environments():
    return [EnvironmentSpec("bytes", make, WorldOptions, summary="a world of bytes", tasks=tasks, can_fork=True)]


@hookimpl
def hier_policy_losses():
    return [PolicyLossSpec("write_gradients", write_gradients)]


@hookimpl
def hier_graph_finished(graph, validate):
    """Plans with more even characters are better, so that plans differ too."""
    for episode in graph.complete():
        plan = graph.nodes[graph.path(episode.id)[0]]
        if plan.level == 0 and plan.role == "planner":
            bonus = sum(ord(c) % 2 == 0 for c in plan.text) / 10
            episode.ret += bonus
'''

TRAINERS = '''
"""Stock `sync` and our `hier_sync`, rows in the order of their content, advantages written down."""

import os

import torch
import transfer_queue as tq
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer

from verl_hier.compat.trainer import HierSync


class Probe:
    def _balance_batch(self, batch, metrics, *args, **kwargs):
        names = ["index", "responses"]
        fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        content = [(int(i), r.tolist()) for i, r in zip(list(fields["index"]), fields["responses"].unbind())]
        batch.reorder(sorted(range(len(batch)), key=content.__getitem__))
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _update_actor(self, batch, metrics):
        names = ["responses", "response_mask", "advantages", "old_log_probs"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        record = {name: [row.clone() for row in data[name].unbind()] for name in names}
        torch.save(record, os.path.join(os.environ["PROBE_FOLDER"], f"step_{self.global_steps}.pt"))
        return super()._update_actor(batch, metrics)


@register_trainer("probe_sync")
class ProbeSync(Probe, PPOTrainerSync):
    def __init__(self, config):
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)


@register_trainer("probe_hier_sync")
class ProbeHierSync(Probe, HierSync):
    def _row_order(self, keys, records):
        return list(range(len(keys)))
'''

ENTRY = '''
"""Loaded by `import verl`; the trainers follow when verl's own are imported."""

from verl_hier.compat.import_hooks import when_imported


def register(module):
    import probe_trainers


when_imported("verl.trainer.ppo.v1", register)
'''

RECIPE = """
defaults: [ppo_trainer, hier/base, hier/method/{method}, hier/size/cpu, _self_]
hier:
  plugins: {{probe: true}}
  environment: {{name: bytes}}
  rollout: {{template: plain, max_tokens_per_turn: 6, environment_processes: 1}}
actor_rollout_ref:
  rollout:
    n: 4
    engine_kwargs: {{transformers: {{deterministic: true}}}}
  actor: {{ppo_mini_batch_size: 1, use_kl_loss: false, optim: {{lr: 1e-3}}}}
data: {{train_batch_size: 2, max_prompt_length: 64, max_response_length: 64, shuffle: false}}
trainer: {{experiment_name: {method}_bytes, save_freq: -1, test_freq: -1, logger: [console, file]}}
"""

RECIPES = {
    "himac_bytes.yaml": RECIPE.format(method="himac").replace(
        "  rollout: {template", "  worker: {subgoal_turns: 4}\n  sampler: {plans: 4}\n  rollout: {template", 1
    ),
    "grpo_bytes.yaml": RECIPE.format(method="grpo"),
}
"""Recipes of a user's own, found by `--config-dir`."""

"""Who reads each line of verl's own configuration in a run of verl-hier.

Most lines are read by verl, as in a run of stock verl. The others have a reader that a recipe may lack, because our
trainer, rollout worker, data set or estimator takes its place, or because the recipe does not switch it on. Whoever
sets such a line is told (`checks/unread.py`). Tests compare the table with verl's configuration, and what a reader says
of itself with verl's source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from verl_hier.recipe.checks.rule import needs_critic, needs_reference, value
from verl_hier.recipe.checks.world import makes_tasks
from verl_hier.recipe.composed import ComposedRecipe

VERL = "verl"
"""The reader of lines that verl reads as in a run without verl-hier."""
MODES = {"colocate_async": "hier_colocate_async", "separate_async": "hier_separate_async"}
LOSSES = ("sapo", "clip_cov", "kl_cov", "dro")
"""Policy losses of verl with settings of their own."""


@dataclass(frozen=True)
class Reader:
    """What reads some of verl's lines, where a recipe has it.

    Attributes:
        absent: `absent(recipe)`, why the recipe has no such reader and what to do instead, as the end of a sentence;
            empty where it has one.
        refused: whether its lines, without it, change what their author believes is trained, so that the recipe is
            refused. The other ones are noted.
        there: where a recipe has it, in words; empty where none has.
        sources: files and folders of verl that read the lines; no other file of verl that a run of ours uses does.
            None: not compared with verl's source, because a switch of verl decides.
    """

    absent: Callable[[ComposedRecipe], str]
    refused: bool = False
    there: str = ""
    sources: tuple[str, ...] | None = None


def _nobody(recipe: ComposedRecipe) -> str:
    return "nothing in the trainers of verl that a run uses reads it; remove it"


def _advantages(recipe: ComposedRecipe) -> str:
    spec = recipe.parts.estimator.spec
    if spec.native:
        return ""
    return (
        f"estimator {spec.name!r} computes the credit in the place of verl's advantages; remove the line and set the "
        "options of hier.estimator, or take hier.estimator.name: verl"
    )


def _reward(recipe: ComposedRecipe) -> str:
    spec = recipe.parts.environment.spec
    if spec.tasks is None:
        return ""
    return (
        f"environment {spec.name!r} gives the rewards, and verl's reward functions are never called; remove the line, "
        "or name a function of your own in hier.rewards"
    )


def _data_set(recipe: ComposedRecipe) -> str:
    if not makes_tasks(recipe.config):
        return ""
    return (
        f"environment {recipe.parts.environment.spec.name!r} makes the tasks in the place of verl's data set; remove "
        "the line (contexts are limited by hier.rollout.context_tokens)"
    )


def _tools(recipe: ComposedRecipe) -> str:
    spec = recipe.parts.environment.spec
    if spec.in_worker:
        return ""
    return (
        f"environment {spec.name!r} calls no tools of verl; take hier.environment.name: verl_tools (the group "
        "hier/environment: verl_tools), or remove the line (turns are limited by hier.rollout.max_turns)"
    )


def _agent_loop(recipe: ComposedRecipe) -> str:
    tools = value(recipe.config, "actor_rollout_ref.rollout.agent.default_agent_loop") == "tool_agent"
    if recipe.parts.environment.spec.in_worker and tools:
        return ""
    return (
        f"worker {recipe.parts.worker.spec.name!r} plays the episodes in the place of verl's agent loops; remove the "
        f"line{', or take hier/environment: verl_tools' if tools else ''}"
    )


def _kl_in_reward(recipe: ComposedRecipe) -> str:
    if recipe.config["algorithm"].get("use_kl_in_reward"):
        return ""
    return "algorithm.use_kl_in_reward is false; remove it"


def _kl_loss(recipe: ComposedRecipe) -> str:
    if recipe.config["actor_rollout_ref"]["actor"].get("use_kl_loss"):
        return ""
    return "actor_rollout_ref.actor.use_kl_loss is false; set it to true, or remove the line"


def _critic(recipe: ComposedRecipe) -> str:
    return (
        "" if needs_critic(recipe.config) else "the recipe has no critic; set critic.enable: true, or remove the line"
    )


def _reference(recipe: ComposedRecipe) -> str:
    if needs_reference(recipe.config):
        return ""
    return "the recipe has no reference policy; set actor_rollout_ref.actor.use_kl_loss: true, or remove the line"


def _mode(name: str) -> Callable[[ComposedRecipe], str]:
    def absent(recipe: ComposedRecipe) -> str:
        mode = value(recipe.config, "trainer.v1.trainer_mode")
        return "" if mode == MODES[name] else f"trainer.v1.trainer_mode is {mode}; remove it, or take {MODES[name]}"

    return absent


def _loss(name: str) -> Callable[[ComposedRecipe], str]:
    def absent(recipe: ComposedRecipe) -> str:
        line = "actor_rollout_ref.actor.policy_loss.loss_mode"
        mode = value(recipe.config, line)
        return "" if mode == name else f"{line} is {mode}, and only {name} reads it; remove it"

    return absent


def _samples(recipe: ComposedRecipe) -> str:
    ours = [name for name in ("refill", "launch_order") if getattr(recipe.hier, name) is not None]
    return f"hier.{ours[0]} takes the place of verl's replay buffer; remove one of them" if ours else ""


def _draws(recipe: ComposedRecipe) -> str:
    return "" if recipe.hier.refill is None else "hier.refill draws tasks one by one; remove it"


def _server(recipe: ComposedRecipe) -> str:
    server = recipe.server
    return f"the rollout server {server.name!r} does not read it; remove it" if server.opens else ""


_DATA = ("utils/dataset/rl_dataset.py",)
_LOOP = ("experimental/agent_loop/agent_loop.py", "trainer/ppo/v1/agent_loop_tq.py")
_REWARDS = (
    *("experimental/reward_loop", "trainer/ppo/reward.py", "workers/reward_manager", "utils/reward_score"),
    *("workers/config/reward.py", "trainer/ppo/v1/trainer_base.py", "trainer/ppo/utils.py"),
)
_ALGORITHMS = ("trainer/ppo/core_algos.py",)
_ADVANTAGES = (*_ALGORITHMS, "trainer/ppo/v1/trainer_base.py", "trainer/ppo/v1/utils.py", "trainer/ppo/utils.py")

_OWN_TASKS = "an environment without tasks of its own"
_FILES = "tasks from data files"
_TOOLS = "`hier.environment.name: verl_tools`"

READERS: Mapping[str, Reader] = {
    "nobody": Reader(_nobody, sources=()),
    "pf_ppo": Reader(_nobody, True, sources=()),
    "advantages": Reader(_advantages, True, "`hier.estimator.name: verl`", _ADVANTAGES),
    "reward": Reader(_reward, True, _OWN_TASKS, _REWARDS),
    "reward_settings": Reader(_reward, there=_OWN_TASKS),
    "data_set": Reader(_data_set, False, _FILES, (*_DATA, *_LOOP)),
    "data_filter": Reader(_data_set, True, _FILES, _DATA),
    "tools": Reader(_tools, True, _TOOLS, (*_DATA, *_LOOP)),
    "multi_turn": Reader(_tools, False, _TOOLS, ()),
    "agent_loop": Reader(_agent_loop, True, f"`tool_agent` with {_TOOLS}", _LOOP),
    "kl_in_reward": Reader(_kl_in_reward, there="`algorithm.use_kl_in_reward: true`"),
    "kl_loss": Reader(_kl_loss, there="`actor_rollout_ref.actor.use_kl_loss: true`"),
    "critic": Reader(_critic, there="a critic"),
    "reference": Reader(_reference, there="a reference policy"),
    **{mode: Reader(_mode(mode), there=f"`trainer.v1.trainer_mode: {ours}`") for mode, ours in MODES.items()},
    **{loss: Reader(_loss(loss), False, f"the policy loss `{loss}`", _ALGORITHMS) for loss in LOSSES},
    "samples": Reader(_samples, True, "neither `hier.refill` nor `hier.launch_order`"),
    "draws": Reader(_draws, there="no `hier.refill`"),
    "server": Reader(_server, there="vLLM or SGLang"),
}
"""Name to reader, but for verl itself."""


@cache
def table() -> Mapping[str, str]:
    """Every line of verl's configuration to the name of its reader."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    blocks = yaml.load(Path(__file__).with_suffix(".yaml").read_text(), loader)
    return {
        key if block == "." else f"{block}.{key}": reader
        for block, readers in blocks.items()
        for reader, keys in readers.items()
        for key in keys.split()
    }

"""Each rule of a check by itself, on a recipe with other values: the last value that passes, and the first that does
not."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from tests.unit.recipe.test_mutations import changed
from verl_hier.errors import RecipeError
from verl_hier.host.constraints import Range, Template
from verl_hier.recipe.check import _plain
from verl_hier.recipe.checks import choices, correction, lengths, losses, resources, tasks, updates
from verl_hier.recipe.checks.numbers import NUMBERS, Number, check_betas, check_numbers
from verl_hier.recipe.checks.rule import needs_critic, needs_reference, there, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.policies import PolicyOptions
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.training.options import LaunchOrderOptions, RefillOptions, ReplayOptions

ACTOR, ROLLOUT, DATA = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "data."
NO_LINE = object()


@cache
def base(name: str = "himac_alfworld") -> ComposedRecipe:
    return ComposedRecipe.of(_plain(changed(name, ())))


@cache
def _pickled(name: str) -> bytes:
    return pickle.dumps(base(name).config)


def recipe(lines: Mapping[str, Any], name: str = "himac_alfworld", **parts: Any) -> ComposedRecipe:
    """A recipe in which lines have other values, without a check of any: those of `hier` in its dataclasses."""
    found = base(name)
    config, hier = pickle.loads(_pickled(name)), found.hier
    for line, given in lines.items():
        if line.startswith("hier."):
            hier = _replaced(hier, line.split(".")[1:], given)
            continue
        *above, key = line.split(".")
        block = config
        for each in above:
            block = block.setdefault(each, {})
        if given is NO_LINE:
            block.pop(key, None)
        else:
            block[key] = given
    return replace(found, config=config, hier=hier, parts=replace(found.parts, **parts))


def _replaced(options: Any, path: list[str], given: Any) -> Any:
    if not path:
        return given
    assert is_dataclass(options)
    return replace(options, **{path[0]: _replaced(getattr(options, path[0]), path[1:], given)})  # type: ignore[type-var]


def options_of(kind: str, **given: Any) -> dict[str, Any]:
    part = getattr(base().parts, kind)
    return {kind: replace(part, options=replace(part.options, **given))}


def spec_of(kind: str, name: str = "himac_alfworld", **given: Any) -> dict[str, Any]:
    part = getattr(base(name).parts, kind)
    return {kind: replace(part, spec=replace(part.spec, **given))}


def passes(check: Callable[[ComposedRecipe], None], lines: Mapping[str, Any], **parts: Any) -> None:
    check(recipe(lines, **parts))


def refuses(check: Callable[[ComposedRecipe], None], words: str, lines: Mapping[str, Any], **parts: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        check(recipe(lines, **parts))
    assert words in str(caught.value), str(caught.value)
    return str(caught.value)


# Numbers: the values around each bound, for every line that has it

OPTIMISER = ("actor_rollout_ref.actor.optim.", "critic.optim.")
MODEL = ("actor_rollout_ref.model.", "critic.model.")
SAMPLED = (ROLLOUT, ROLLOUT + "val_kwargs.")


def each(blocks: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return tuple(block + name for block in blocks for name in names)


BOUNDS: tuple[tuple[tuple[str, ...], list[Any], list[Any]], ...] = (
    (
        (
            *each(("data.",), "train_batch_size", "max_prompt_length", "max_response_length"),
            *each(("trainer.",), "total_epochs", "nnodes", "n_gpus_per_node", "v1.separate_async.parameter_sync_step"),
            *each((ACTOR, "critic."), "ppo_mini_batch_size", "ppo_max_token_len_per_gpu", "ppo_epochs"),
            *each((ACTOR,), "ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size"),
            *each((ROLLOUT,), "prompt_length", "response_length"),
            *each((ROLLOUT,), "tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"),
            *each((ROLLOUT,), "agent.num_workers", "checkpoint_engine.update_weights_bucket_megabytes"),
            *each(SAMPLED, "n"),
            *("critic.forward_max_token_len_per_gpu", "reward.num_workers"),
            "transfer_queue.backend.SimpleStorage.num_data_storage_units",
        ),
        [1, 2],
        [0, -1, 1.5, 1.0, None, True, "1"],
    ),
    (
        (
            *each(("data.",), "gen_batch_size", "val_batch_size"),
            *each(("trainer.",), "total_training_steps", "max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep"),
            *each((ACTOR,), "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu"),
            *each((ROLLOUT,), "max_num_batched_tokens", "max_model_len", "max_num_seqs", "expert_parallel_size"),
            *each((ROLLOUT,), "log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu"),
            ROLLOUT + "log_prob_max_token_len_per_gpu",
            *("critic.ppo_micro_batch_size_per_gpu", "ray_kwargs.ray_init.num_cpus"),
        ),
        [1, 2, None],
        [0, -1, 1.5, True],
    ),
    ((*each(SAMPLED, "top_k"), "trainer.save_freq", "trainer.test_freq"), [0, 1, -1], [-2, 0.5, None]),
    (
        ("data.train_max_samples", "data.val_max_samples", ACTOR + "fsdp_config.fsdp_size"),
        [1, 2, -1],
        [0, -2, 1.5, None],
    ),
    (each(OPTIMISER, "lr_warmup_steps"), [0, 1, -1, None], [-2, 1.5]),
    (each(OPTIMISER, "total_training_steps"), [1, -1, None], [0, -2, 1.5]),
    (
        (
            *each((ROLLOUT,), "nnodes", "n_gpus_per_node"),
            *("data.dataloader_num_workers", "trainer.critic_warmup", "trainer.log_val_generations"),
            *each(MODEL, "lora.rank"),
        ),
        [0, 1],
        [-1, 0.5, None, True],
    ),
    ((*each(MODEL, "lora_rank"), "ray_kwargs.ray_init.num_gpus"), [0, 1, None], [-1, 0.5]),
    (
        (
            *each(OPTIMISER, "weight_decay"),
            *(ROLLOUT + "val_kwargs.temperature", ACTOR + "kl_loss_coef", "algorithm.kl_ctrl.kl_coef"),
        ),
        [0, 0.5, 7.0],
        [-1e-9, float("nan"), float("inf"), None, "0"],
    ),
    (
        (
            *each(OPTIMISER, "num_cycles"),
            *each((ACTOR,), "clip_ratio_high", "grad_clip"),
            *each((ROLLOUT,), "temperature", "repetition_penalty"),
            *each(MODEL, "lora_alpha", "lora.alpha"),
            *each(("critic.",), "cliprange_value", "grad_clip"),
            *each(("algorithm.kl_ctrl.",), "horizon", "target_kl"),
        ),
        [1e-9, 0.5, 7],
        [0, -1, None, float("inf")],
    ),
    ((*each(OPTIMISER, "clip_grad"), ACTOR + "loss_scale_factor"), [1e-9, 2, None], [0, -1]),
    ((*each(OPTIMISER, "min_lr_ratio"),), [0, 0.5, 1, None], [-1e-9, 1.0000001]),
    (
        (*each(OPTIMISER, "lr_warmup_steps_ratio"), *each(MODEL, "lora.dropout"), "algorithm.gamma", "algorithm.lam"),
        [0, 0.5, 1],
        [-1e-9, 1.0000001, None],
    ),
    (
        (
            *each(OPTIMISER, "lr"),
            *each(SAMPLED, "top_p"),
            *each((ACTOR,), "clip_ratio", "clip_ratio_low"),
            ROLLOUT + "gpu_memory_utilization",
        ),
        [1e-9, 0.5, 1],
        [0, -1, 1.0000001, None],
    ),
    ((ACTOR + "clip_ratio_c",), [1.0000001, 3], [1, 0.5, None]),
    ((ACTOR + "entropy_coeff",), [-5, 0, 0.001], [float("nan"), None, "0"]),
)


def test_every_number_has_its_bounds() -> None:
    listed = [line for lines, _, _ in BOUNDS for line in lines]
    assert sorted(listed) == sorted(NUMBERS)


@pytest.mark.parametrize(("lines", "good", "bad"), BOUNDS, ids=lambda given: str(given)[:40])
def test_numbers_are_held_up_to_their_bounds(lines: tuple[str, ...], good: list[Any], bad: list[Any]) -> None:
    for line in lines:
        assert [NUMBERS[line].holds(given) for given in (*good, *bad)] == [True] * len(good) + [False] * len(bad), line


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (Number(Range(1), whole=True, off=-1), "a whole number of at least 1, or -1"),
        (Number(Range(0, 1), null=True), "a number from 0 to 1, or null"),
        (Number(Range(0, open=True)), "a number above 0"),
        (Number(Range(0, 1, open=True)), "a number above 0 and at most 1"),
        (Number(Range(1), whole=True, null=True, off=0.5), "a whole number of at least 1, or 0.5, or null"),
    ],
)
def test_a_number_is_said_in_words(number: Number, words: str) -> None:
    assert str(number) == words


def test_lines_that_are_not_there_and_a_critic_that_is_not_built_are_not_looked_at() -> None:
    passes(check_numbers, {DATA + "train_batch_size": NO_LINE, "critic.optim.lr": -1, "critic.enable": False})
    refuses(check_numbers, "critic.optim.lr: expected", {"critic.optim.lr": -1, "critic.enable": True})
    said = refuses(check_numbers, "trainer.total_epochs", {"trainer.total_epochs": 0})
    assert said == "trainer.total_epochs: expected a whole number of at least 1, got 0."


@pytest.mark.parametrize("line", [block + "betas" for block in OPTIMISER])
def test_moments_are_two_numbers_below_1(line: str) -> None:
    for good in ([0, 0.999], (0.9, 0.95), None):
        passes(check_betas, {line: good})
    for bad in ([0.9], [0.9, 1], [-0.1, 0.5], [0.9, 0.9, 0.9], "0.9", [0.9, "0.9"], 0.9):
        refuses(check_betas, f"{line}: expected two numbers", {line: bad})


# Lengths

ROWS = {
    **{DATA + "max_prompt_length": 100, DATA + "max_response_length": 50, ROLLOUT + "prompt_length": 100},
    **{ROLLOUT + "response_length": 50, "hier.rollout.max_tokens_per_turn": 50, "hier.rollout.context_tokens": 150},
}


def test_turns_contexts_and_rows_have_room() -> None:
    check = lengths.check_lengths
    passes(check, ROWS)
    passes(check, {**ROWS, "hier.rollout.context_tokens": None})
    refuses(check, "a turn may take 51 tokens", {**ROWS, "hier.rollout.max_tokens_per_turn": 51})
    refuses(check, "151 tokens do not fit into", {**ROWS, "hier.rollout.context_tokens": 151})
    refuses(check, ROLLOUT + "prompt_length: it is 99", {**ROWS, ROLLOUT + "prompt_length": 99})
    refuses(check, ROLLOUT + "response_length: it is 51", {**ROWS, ROLLOUT + "response_length": 51})
    assert lengths.longest_row(recipe(ROWS)) == 150


@dataclass(frozen=True)
class Prompts:
    """Six words of a planner, four of an executor and its system message, three that no context begins with."""

    planner_system: str = "one two"
    planner_prompt: Annotated[str, Template()] = "three four five six"
    executor_system: str | None = None
    executor_prompt: Annotated[str, Template()] = "one two three four"
    later: Annotated[str, Template()] = "one"


def test_the_shortest_prompt_is_that_of_one_context() -> None:
    assert lengths.shortest_prompt(Prompts()) == 4
    assert lengths.shortest_prompt(Prompts(executor_system="x y z")) == 6
    assert lengths.shortest_prompt(Prompts(planner_system="", planner_prompt="x")) == 1

    @dataclass(frozen=True)
    class Nothing:
        text: str = "no prompt"

    assert lengths.shortest_prompt(Nothing()) == 1


def test_a_context_has_room_for_a_prompt_and_an_answer() -> None:
    worker = {"worker": replace(base().parts.worker, options=Prompts())}
    check = lengths.check_room
    passes(check, {**ROWS, "hier.rollout.context_tokens": 6, "hier.rollout.max_tokens_per_turn": 2}, **worker)
    refuses(check, "a turn of 1 token is the end", {**ROWS, "hier.rollout.max_tokens_per_turn": 1}, **worker)
    refuses(check, "hier.rollout.context_tokens: a context of 5", {**ROWS, "hier.rollout.context_tokens": 5}, **worker)
    rows = {**ROWS, "hier.rollout.context_tokens": None, DATA + "max_prompt_length": 4, DATA + "max_response_length": 2}
    passes(check, rows, **worker)
    refuses(check, "max_prompt_length: a context of 5", {**rows, DATA + "max_response_length": 1}, **worker)
    short = {**rows, DATA + "max_prompt_length": 3, DATA + "max_response_length": 9}
    refuses(check, "max_prompt_length: 3 tokens cannot hold the shortest prompt of hier.worker, 4", short, **worker)


def test_every_level_can_take_a_turn() -> None:
    passes(lengths.check_turns, {"hier.rollout.max_turns": 2})
    refuses(lengths.check_turns, "with 1 turn an episode ends", {"hier.rollout.max_turns": 1})


def test_a_budget_leaves_every_episode_a_turn() -> None:
    least = {"turns": 8, "tokens": 16, "leaves": 2}
    for name, amount in least.items():
        line = f"hier.rollout.budget.{name}"
        passes(lengths.check_budget, {line: amount})
        refuses(lengths.check_budget, f"{line}: {amount - 1} for the 8 episodes", {line: amount - 1})
    single = spec_of("estimator", needs_groups=False)
    passes(lengths.check_budget, {"hier.rollout.budget": BudgetOptions(leaves=1)}, **single)


@pytest.mark.parametrize(
    ("switch", "line"),
    [
        (ACTOR + "use_dynamic_bsz", ACTOR + "ppo_max_token_len_per_gpu"),
        (ROLLOUT + "log_prob_use_dynamic_bsz", ROLLOUT + "log_prob_max_token_len_per_gpu"),
        ("critic.use_dynamic_bsz", "critic.ppo_max_token_len_per_gpu"),
    ],
)
def test_a_micro_batch_holds_the_longest_row(switch: str, line: str) -> None:
    check, rows = lengths.check_micro_batches, {**ROWS, "critic.enable": True, switch: True}
    passes(check, {**rows, line: 150})
    refuses(check, f"{line}: a micro-batch must hold", {**rows, line: 149})
    refuses(check, "tokens, and holds 0", {**rows, line: None})
    passes(check, {**rows, switch: False, line: 149})
    passes(check, {**rows, line: 75, ACTOR + "ulysses_sequence_parallel_size": 2})
    refuses(check, "holds 148", {**rows, line: 74, ACTOR + "fsdp_config.ulysses_sequence_parallel_size": 2})
    if line.startswith("critic"):
        passes(check, {**rows, line: 149, "critic.enable": False})


def test_a_replay_fits_its_disk_budget() -> None:
    check, bytes_of_a_turn = lengths.check_replay_size, 150 * 4
    passes(check, ROWS)
    room = 1000 * bytes_of_a_turn / 2**30
    passes(check, {**ROWS, "hier.replay": ReplayOptions(transitions=1000, max_gib=room)})
    said = refuses(check, "keep at most 1000", {**ROWS, "hier.replay": ReplayOptions(transitions=1001, max_gib=room)})
    assert "1001 turns of up to 150 tokens take up to 0.0 GiB" in said
    large = ReplayOptions(transitions=2**30 // 100, max_gib=1.0)
    assert "take up to 6.0 GiB" in refuses(check, "hier.replay.transitions", {**ROWS, "hier.replay": large})


def test_a_server_holds_the_longest_row() -> None:
    check = lengths.check_server_lengths
    line, batched, whole = (
        ROLLOUT + name for name in ("max_model_len", "max_num_batched_tokens", "enable_chunked_prefill")
    )
    for good in (150, None):
        passes(check, {**ROWS, line: good, batched: good, whole: False})
    refuses(check, f"{line}: 149 tokens do not hold", {**ROWS, line: 149})
    refuses(check, f"{batched}: without enable_chunked_prefill", {**ROWS, line: None, batched: 149, whole: False})
    passes(check, {**ROWS, line: None, batched: 149, whole: True})


def test_devices_are_counted() -> None:
    given = {"trainer.nnodes": 2, "trainer.n_gpus_per_node": 4}
    assert lengths.devices(recipe(given)) == lengths.shards(recipe(given)) == lengths.data_parallel(recipe(given)) == 8
    for size, shards in ((-1, 8), (None, 8), (0, 8), (1, 1), (2, 2)):
        assert lengths.shards(recipe({**given, ACTOR + "fsdp_config.fsdp_size": size})) == shards
    for one, other, most in ((1, 2, 2), (2, 1, 2), (None, None, 1), (2, 4, 4)):
        sizes = {
            ACTOR + "ulysses_sequence_parallel_size": one,
            ACTOR + "fsdp_config.ulysses_sequence_parallel_size": other,
        }
        assert lengths.sequence_parallel(recipe(sizes)) == most
        assert lengths.data_parallel(recipe({**given, **sizes})) == 8 // most


# Processes

SEPARATE = {
    **{
        "trainer.v1.trainer_mode": "hier_separate_async",
        DATA + "train_batch_size": 8,
        ACTOR + "ppo_mini_batch_size": 4,
    },
    **{"trainer.v1.separate_async.parameter_sync_step": 2, ROLLOUT + "nnodes": 1, ROLLOUT + "n_gpus_per_node": 1},
    ROLLOUT + "checkpoint_engine.backend": "gloo",
}


def test_the_trainer_is_one_that_reads_the_block() -> None:
    for mode in ("hier_sync", "hier_colocate_async", "hier_separate_async"):
        passes(resources.check_mode, {"trainer.v1.trainer_mode": mode})
    said = refuses(resources.check_mode, "'sync' is not a trainer", {"trainer.v1.trainer_mode": "sync"})
    assert said.endswith("use hier_sync, hier_colocate_async or hier_separate_async.")
    refuses(resources.check_mode, "trainer.use_v1", {"trainer.use_v1": False})
    refuses(resources.check_mode, "agent_loop_manager_class", {ROLLOUT + "agent.agent_loop_manager_class": None})


def test_a_separate_rollout_has_nodes_and_whole_batches() -> None:
    check = resources.check_separate
    passes(check, SEPARATE)
    passes(
        check, {**SEPARATE, "trainer.v1.trainer_mode": "hier_sync", DATA + "train_batch_size": 7, ROLLOUT + "nnodes": 0}
    )
    for tasks_of_a_step in (2, 7, 9, 16):
        refuses(check, "must be this (2) times", {**SEPARATE, DATA + "train_batch_size": tasks_of_a_step})
    for line in (ROLLOUT + "nnodes", ROLLOUT + "n_gpus_per_node"):
        for bad in (0, None):
            refuses(check, f"{line}: hier_separate_async serves", {**SEPARATE, line: bad})
    refuses(check, "'naive' cannot reach", {**SEPARATE, ROLLOUT + "checkpoint_engine.backend": "naive"})


@pytest.mark.parametrize(
    ("device", "server", "good"),
    [
        ("cpu", "transformers", True),
        ("cpu", "vllm", True),
        ("cpu", "sglang", False),
        ("cpu", "vllm_topk", False),
        ("cuda", "vllm", True),
        ("cuda", "sglang", True),
        ("cuda", "transformers", False),
        ("npu", "transformers", False),
    ],
)
def test_a_server_runs_on_its_device(device: str, server: str, good: bool) -> None:
    lines = {"trainer.device": device, ROLLOUT + "name": server}
    if good:
        passes(resources.check_device, lines)
    else:
        refuses(resources.check_device, f"{ROLLOUT}name: the rollout server {server!r}", lines)


@pytest.mark.parametrize(
    "line",
    [
        *(ROLLOUT + f"{name}_parallel_size" for name in ("tensor_model", "data", "pipeline_model")),
        *(ACTOR + name for name in ("ulysses_sequence_parallel_size", "fsdp_config.fsdp_size")),
    ],
)
def test_parallel_processes_divide_the_devices(line: str) -> None:
    eight = {"trainer.nnodes": 2, "trainer.n_gpus_per_node": 4}
    for good in (1, 2, 4, 8):
        passes(resources.check_parallel, {**eight, line: good})
    for bad in (3, 5, 16):
        said = refuses(resources.check_parallel, f"{line}: {bad} processes share one copy", {**eight, line: bad})
        assert said.endswith("= 8.")


def test_the_sizes_of_a_server_are_multiplied() -> None:
    eight = {"trainer.nnodes": 2, "trainer.n_gpus_per_node": 4, ROLLOUT + "data_parallel_size": 4}
    passes(resources.check_parallel, {**eight, ROLLOUT + "tensor_model_parallel_size": 2})
    line = ROLLOUT + "tensor_model_parallel_size"
    refuses(resources.check_parallel, f"{line}: 16 processes", {**eight, line: 4})
    replicas = resources.plan_of(recipe({**eight, line: 1})).replicas
    assert replicas == 2 and resources.plan_of(recipe({**eight, line: 2})).replicas == 1


def test_a_checkpoint_to_resume_from_is_there(tmp_path: Path) -> None:
    check, named = resources.check_resume, {"trainer.resume_mode": "resume_path"}
    passes(check, {**named, "trainer.resume_from_path": str(tmp_path)})
    passes(check, {"trainer.resume_mode": "auto", "trainer.resume_from_path": "nowhere"})
    refuses(check, "name the folder of a checkpoint", {**named, "trainer.resume_from_path": None})
    (tmp_path / "file").touch()
    for missing in ("nowhere", str(tmp_path / "file")):
        refuses(check, "there is no checkpoint at", {**named, "trainer.resume_from_path": missing})


def test_variables_of_ray_are_texts() -> None:
    line, check = "ray_kwargs.ray_init.runtime_env.env_vars", resources.check_ray_variables
    for good in ({"A": "1"}, {}, None):
        passes(check, {line: good})
    refuses(check, f"{line}.A: Ray takes texts", {line: {"A": 1}})
    refuses(check, f"{line}.1: Ray takes texts", {line: {1: "A"}})
    refuses(check, f"{line}: expected a block", {line: ["A"]})


PROCESSES = {
    **{"trainer.nnodes": 1, "trainer.n_gpus_per_node": 2, ROLLOUT + "agent.num_workers": 3, "reward.num_workers": 4},
    **{"transfer_queue.backend.SimpleStorage.num_data_storage_units": 5, "hier.rollout.environment_processes": 6},
    **{"trainer.device": "cpu", "ray_kwargs.ray_init": {"address": "local", "num_cpus": 20, "num_gpus": 2}},
}


def test_processes_are_counted() -> None:
    plan = resources.plan_of(recipe(PROCESSES))
    assert (plan.ranks, plan.replicas, plan.agent_workers, plan.reward_workers, plan.storage_units) == (2, 2, 3, 4, 5)
    assert plan.environment_processes == 18 and plan.services == 3 + 4 + 5 + 2
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    bare = resources.plan_of(recipe({**PROCESSES, "reward.num_workers": None, units: None}))
    assert (bare.reward_workers, bare.storage_units, bare.services) == (0, 0, 5)
    for train, merge, replicas in (("full", False, 4), ("adapter", True, 4), ("adapter", False, 2)):
        policies = {"a": PolicyOptions(("executor",), train)}
        lines = {"hier.policies": policies, "actor_rollout_ref.model.lora_rank": 4 * (train == "adapter")}
        made = resources.plan_of(recipe({**PROCESSES, **lines, "actor_rollout_ref.model.lora": {"merge": merge}}))
        assert (made.ranks, made.replicas) == (2 if train == "adapter" else 4, replicas)
    mebi = 2**20
    assert resources.expected_bytes(plan, 1000, 3, 100) == {
        "trainer.n_gpus_per_node": 300 * mebi + (2 + 2 + 14) * 250 * mebi,
        "hier.rollout.environment_processes": 18 * 60 * mebi,
        "actor_rollout_ref.model.path": 1000 * (16 + 3 * 4),
        "critic.model.path": 1600,
    }
    found = resources.sizes_of(recipe({**PROCESSES, **ROWS}))
    assert (found.devices, found.data_parallel, found.longest_row, found.plan) == (2, 2, 150, plan)


def test_ray_has_as_many_slots_as_are_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check, block = resources.check_ray_slots, "ray_kwargs.ray_init"

    def with_ray(**ray: Any) -> dict[str, Any]:
        return {**PROCESSES, block: {"address": "local", **ray}}

    passes(check, PROCESSES)
    said = refuses(check, "reserve at least 20 logical CPUs", with_ray(num_cpus=19, num_gpus=2))
    assert "19 are offered" in said and "set it to 32 (" in said
    refuses(check, "asks for 2 slots and 1 are offered", with_ray(num_cpus=20, num_gpus=1))
    passes(check, with_ray(num_cpus=20))
    monkeypatch.setattr(resources.os, "cpu_count", lambda: 20)
    passes(check, with_ray())
    for there_are in (19, None):
        monkeypatch.setattr(resources.os, "cpu_count", lambda there_are=there_are: there_are)
        refuses(check, f"and {there_are or 1} are offered", with_ray())
    many = {**with_ray(num_cpus=32), "trainer.n_gpus_per_node": 10}
    assert "set it to 44 (" in refuses(check, "reserve at least 44", many)
    passes(check, {**with_ray(num_cpus=1), "trainer.device": "cuda"})
    passes(check, with_ray(address="auto"))
    for name in ("num_cpus", "num_gpus"):
        refuses(check, f"{block}.{name}: Ray takes no such number", with_ray(address="auto", **{name: 99}))


@pytest.mark.parametrize(
    ("limit", "used", "stat", "free"),
    [
        ("1000\n", "600\n", "anon 3\ninactive_file 100\n", 500),
        ("1000", "600", "anon 3\n", 400),
        ("1000", "1600", "inactive_file 0", 0),
        ("1000", "1600", "inactive_file 700", 100),
        ("max", "600", "inactive_file 100", None),
        ("1000", None, "inactive_file 100", None),
        ("1000", "many", "inactive_file 100", None),
    ],
)
def test_a_container_bounds_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str | None, stat: str, free: int | None
) -> None:
    for name, text in (("memory.max", limit), ("memory.current", used), ("memory.stat", stat)):
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(resources, "Path", lambda place: tmp_path / Path(place).name)
    assert resources._cgroup() == free
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(available=450))
    assert resources.available_bytes() == min(450, 450 if free is None else free)


# What a step does


def test_what_a_step_does_is_counted() -> None:
    given = {
        **{
            DATA + "train_batch_size": 8,
            ROLLOUT + "n": 4,
            "hier.rollout.max_turns": 5,
            "trainer.v1.trainer_mode": "hier_sync",
        },
        **{ACTOR + "ppo_mini_batch_size": 4, ACTOR + "ppo_epochs": 3},
    }
    independent = spec_of("sampler", episodes=None)
    step = updates.step_of(recipe(given, **independent))
    assert (step.tasks, step.episodes, step.rows, step.optimiser_steps, step.further) == (8, 4, (32, 160), (6, 6), 0)
    assert str(step) == "8 tasks x 4 episodes, 6 optimiser step(s) on 32 to 160 rows"

    def steps(lines: Mapping[str, Any]) -> tuple[int, int]:
        return updates.step_of(recipe({**given, **lines}, **independent)).optimiser_steps

    assert steps({"hier.update.epochs": 1}) == (2, 2) and steps({ACTOR + "ppo_epochs": None}) == (2, 2)
    assert steps({"hier.update.mini_batch.prompts": 8}) == (3, 3) and steps({"hier.update.mini_batch.prompts": 3}) == (
        6,
        6,
    )
    assert steps({"hier.update.mini_batch.prompts": 16}) == (3, 3), "one step at least"
    assert steps({"hier.update.mini_batch.steps": 5}) == (15, 15)
    assert steps({"hier.update.mini_batch.rows": 32}) == (3, 15) and steps({"hier.update.mini_batch.rows": 31}) == (
        6,
        18,
    )
    separate = {**SEPARATE, "hier.update.epochs": 1}
    assert steps(separate) == (2, 2) and steps({**separate, "hier.update.mini_batch.rows": 16}) == (2, 10)
    refill = {"hier.refill": RefillOptions(limit=2.5)}
    further = updates.step_of(recipe({**given, **refill}, **independent))
    assert further.further == 12 and str(further).endswith("; up to 12 further tasks in place of others")


def test_tasks_are_exchanged_where_a_step_waits_for_its_own() -> None:
    check, refill = (
        updates.check_refill,
        {"hier.refill": RefillOptions(limit=2), "trainer.v1.trainer_mode": "hier_sync"},
    )
    passes(check, refill)
    passes(check, {"trainer.v1.trainer_mode": "hier_colocate_async"})
    refuses(
        check,
        "under hier_colocate_async tasks are sampled ahead",
        {**refill, "trainer.v1.trainer_mode": "hier_colocate_async"},
    )
    for line in (
        *("trainer.v1.sampler.custom_sampler.name", "algorithm.filter_groups.enable"),
        "skip.rollout_tq.enable",
    ):
        refuses(check, f"{line}: ", {**refill, line: True})
    single = {**spec_of("sampler", episodes=None)}
    for n, std in ((2, 0.0), (1, None)):
        passes(check, {**refill, "hier.refill": RefillOptions(limit=2, std_above=std), ROLLOUT + "n": n}, **single)
    refuses(check, "hier.refill.std_above: a task has one episode", {**refill, ROLLOUT + "n": 1}, **single)


def test_tasks_come_in_their_turn_where_they_are_sampled_ahead() -> None:
    check, threshold = updates.check_launch_order, "trainer.v1.sampler.max_off_policy_threshold"
    order = {"hier.launch_order": LaunchOrderOptions(), "trainer.v1.sampler.max_off_policy_strategy": "drop"}
    passes(check, {"trainer.v1.trainer_mode": "hier_sync", threshold: 1})
    refuses(check, "under hier_sync a step trains the tasks that it", {**order, "trainer.v1.trainer_mode": "hier_sync"})
    for mode, ahead, late, least in (
        ("colocate_async", 1, 0, 2),
        ("separate_async", 1.5, 0, 3),
        ("separate_async", 2, 4, 7),
    ):
        given = {**order, "trainer.v1.trainer_mode": f"hier_{mode}", f"trainer.v1.{mode}.num_warmup_batches": ahead}
        given["hier.launch_order"] = LaunchOrderOptions(late)
        passes(check, {**given, threshold: least})
        passes(check, {**given, threshold: None})
        passes(check, {**given, threshold: 1, "trainer.v1.sampler.max_off_policy_strategy": "wait"})
        refuses(check, f"{threshold}: {least - 1} drops tasks before their turn", {**given, threshold: least - 1})
        for line in ("trainer.v1.sampler.custom_sampler.name", "skip.rollout_tq.enable"):
            refuses(check, f"{line}: ", {**given, threshold: None, line: True})


def test_rows_of_a_task_are_not_drawn_anew() -> None:
    check, line = updates.check_mini_batches, "hier.update.keep_tasks_together"
    passes(check, {line: True, ACTOR + "shuffle": False})
    passes(check, {line: False, ACTOR + "shuffle": True})
    refuses(check, f"{line}: ", {line: True, ACTOR + "shuffle": True})


# Words


def test_words_are_of_their_set() -> None:
    passes(choices.check_words, {"critic.strategy": "none", "critic.enable": False, ACTOR + "strategy": "fsdp2"})
    refuses(
        choices.check_words, "critic.strategy: 'none' is not one of", {"critic.strategy": "none", "critic.enable": True}
    )
    passes(choices.check_words, {DATA + "truncation": NO_LINE, ACTOR + "optim.warmup_style": None})
    said = refuses(choices.check_words, "data.truncation: 'lft'", {DATA + "truncation": "lft"})
    assert said == "data.truncation: 'lft' is not one of error, left, right, middle (did you mean 'left'?)."
    line = ACTOR + "checkpoint.save_contents"
    for good in (["model", "extra"], [], None):
        passes(choices.check_words, {line: good})
    refuses(choices.check_words, f"{line}: expected a list", {line: "model"})
    refuses(choices.check_words, f"{line}: 'weights' is not one of", {line: ["model", "weights"]})


def test_names_are_known() -> None:
    passes(choices.check_rollout_server, {ROLLOUT + "name": "vllm_topk"})
    passes(choices.check_rollout_server, {ROLLOUT + "name": "trtllm"})
    for bad in ("hf", None, ["vllm"]):
        refuses(choices.check_rollout_server, "there is no rollout server", {ROLLOUT + "name": bad})
    loss = ACTOR + "policy_loss.loss_mode"
    for good in ("vanilla", "hispo", NO_LINE):
        passes(choices.check_policy_loss, {loss: good})
    refuses(choices.check_policy_loss, "there is no policy loss 'mine'", {loss: "mine"})
    passes(choices.check_policy_loss, {loss: "mine", "actor_rollout_ref.model.external_lib": "mine"})
    for good in ("console", ["console", "tracking"]):
        passes(choices.check_loggers, {"trainer.logger": good})
    refuses(choices.check_loggers, "there is no logger 'x'", {"trainer.logger": ["console", "x"]})


def test_an_optimiser_is_in_its_module() -> None:
    check = choices.check_optimiser
    for block, enabled in ((ACTOR + "optim", False), ("critic.optim", True)):
        lines = {"critic.enable": enabled, f"{block}.optimizer": "AdamX", f"{block}.optimizer_impl": "torch.optim"}
        refuses(check, f"{block}.optimizer: torch.optim has no 'AdamX'", lines)
        passes(check, {**lines, f"{block}.optimizer_impl": "torch.optimx"})
        passes(check, {**lines, f"{block}.optimizer_impl": None})
        refuses(
            check, "the module 'nowhere.optim' is not installed", {**lines, f"{block}.optimizer_impl": "nowhere.optim"}
        )
    passes(check, {"critic.enable": False, "critic.optim.optimizer": "AdamX"})


# Rollout correction and losses

CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (None, ""),
        ({}, ""),
        ({"rollout_is": "token", "rollout_is_threshold": 2}, ""),
        ({"rollout_is": "sequence", "rollout_is_threshold": "0.5_2"}, ""),
        ({"rollout_is": "token", "rollout_is_threshold": "2_2"}, ""),
        ({"rollout_is": None, "rollout_is_threshold": -3}, ""),
        ({"rollout_is": "row"}, "rollout_is"),
        ({"rollout_is": "token", "rollout_is_threshold": 0}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": None}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": True}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "2_0.5"}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "1_2_3"}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "inf"}, "rollout_is_threshold"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}, ""),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": 2.0}, ""),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2.0"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k2, seq_max_k3", "rollout_rs_threshold": "2, 3"}, ""),
        ({"rollout_rs": "token_k2, seq_max_k3", "rollout_rs_threshold": 2}, ""),
        ({"rollout_rs": "token_k2, seq_max_k3, token_k1", "rollout_rs_threshold": "2, 3"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k2, token_k2", "rollout_rs_threshold": "2, 3"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": True}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": [2]}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "-1"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k2"}, "rollout_rs_threshold"),
        ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 1}, "rollout_rs"),
        ({"rollout_rs": " , ", "rollout_rs_threshold": 1}, "rollout_rs"),
        ({"rollout_rs": 3, "rollout_rs_threshold": 1}, "rollout_rs"),
        ({"rollout_rs_threshold": 1}, "rollout_rs_threshold"),
        ({"loss_type": "reinforce"}, ""),
        ({"loss_type": "ppo"}, "loss_type"),
    ],
)
def test_a_correction_is_what_verl_reads(settings: Any, line: str) -> None:
    if line:
        refuses(correction.check_correction, f"{CORRECTION}.{line}: ", {CORRECTION: settings})
    else:
        passes(correction.check_correction, {CORRECTION: settings})


def test_an_adapter_reaches_the_server_merged() -> None:
    check, model, mode = correction.check_adapter, "actor_rollout_ref.model.", "trainer.v1.trainer_mode"
    for lines in (
        {model + "lora_rank": 0, model + "lora": None},
        {model + "lora_rank": None, model + "lora": {"rank": 0}},
        {model + "lora_rank": 4, model + "lora": {"merge": True}},
        {model + "lora_rank": 4, model + "lora": None, ROLLOUT + "name": "vllm"},
        {model + "lora_rank": 1, model + "lora": None},
        {model + "lora_rank": 4, model + "lora": {"merge": True}, mode: "hier_separate_async"},
    ):
        passes(check, lines)
    for lines in (
        {model + "lora_rank": 1, model + "lora": None, mode: "hier_separate_async"},
        {model + "lora_rank": 0, model + "lora": {"rank": 1}, mode: "hier_separate_async"},
    ):
        refuses(check, "lora_rank: the rollout nodes of hier_separate_async are sent whole weights", lines)


LOSS, MEAN = ACTOR + "policy_loss.loss_mode", ACTOR + "loss_agg_mode"
BY, PREFIX = "hier.guards.weight_by", "hier.guards.shared_prefix"


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        *[({LOSS: "vanilla", BY: by, PREFIX: "once"}, "") for by in ("token", "row", "turn", "episode", "role")],
        ({LOSS: "vanilla", BY: "token", PREFIX: "first_owner"}, ""),
        ({LOSS: "bypass_mode", BY: "token", PREFIX: "once"}, ""),
        ({LOSS: "bypass_mode", BY: "turn", PREFIX: "once"}, f"{BY}: turn"),
        ({LOSS: "bypass_mode", BY: "token", PREFIX: "first_owner"}, f"{PREFIX}: first_owner"),
        ({LOSS: "bypass_mode", BY: "row", PREFIX: "once", MEAN: "token-mean"}, f"{BY}: row"),
        ({LOSS: "bypass_mode", BY: "row", PREFIX: "once", MEAN: "seq-mean-token-mean"}, ""),
        ({LOSS: "unheard_of", BY: "turn", PREFIX: "once"}, f"{BY}: turn"),
        ({LOSS: "geo_mean", BY: "row", PREFIX: "once", ACTOR + "use_dynamic_bsz": True}, ""),
        ({LOSS: "geo_mean", BY: "token", PREFIX: "once", ACTOR + "use_dynamic_bsz": True}, ""),
        ({LOSS: "geo_mean", BY: "episode", PREFIX: "once", ACTOR + "use_dynamic_bsz": True}, f"{ACTOR}use_dynamic_bsz"),
        ({LOSS: "geo_mean", BY: "episode", PREFIX: "once", ACTOR + "use_dynamic_bsz": False}, ""),
        ({LOSS: "geo_mean", BY: "turn", PREFIX: "once", ACTOR + "use_dynamic_bsz": False}, f"{BY}: turn"),
        ({LOSS: "geo_mean", BY: "row", PREFIX: "first_owner"}, f"{PREFIX}: first_owner"),
    ],
)
def test_loss_weights_are_honoured_or_refused(lines: dict[str, Any], line: str) -> None:
    even = {kind: spec_of(kind, weighs=None)[kind] for kind in ("estimator", "schedule")}
    if line:
        refuses(losses.check_loss_weights, f"{line}: ", lines, **even)
    else:
        passes(losses.check_loss_weights, lines, **even)


@pytest.mark.parametrize(
    ("mean", "unit"), [("token-mean", "token"), ("seq-mean-token-mean", "row (as this loss counts")]
)
def test_what_a_loss_counts_by_itself_is_offered(mean: str, unit: str) -> None:
    lines = {LOSS: "bypass_mode", BY: "turn", PREFIX: "once", MEAN: mean}
    refuses(losses.check_loss_weights, f"does not read loss weights; set it to {unit}", lines)


def test_parts_that_weigh_turns_need_a_loss_that_does() -> None:
    lines = {LOSS: "bypass_mode", BY: "token", PREFIX: "once"}
    for kind in ("estimator", "schedule"):
        weighs = {other: spec_of(other, weighs=None)[other] for other in ("estimator", "schedule")}
        for said, line in (("", ""), ("weight", f"hier.{kind}.weight: ")):
            weighs[kind] = spec_of(kind, weighs=lambda options, said=said: said)[kind]
            if line:
                refuses(losses.check_loss_weights, line, lines, **weighs)
                passes(losses.check_loss_weights, {**lines, LOSS: "vanilla"}, **weighs)
            else:
                passes(losses.check_loss_weights, lines, **weighs)


def test_the_scale_of_a_loss_is_the_same_in_every_micro_batch() -> None:
    check, line, mode = losses.check_loss_weights, ACTOR + "loss_scale_factor", "seq-mean-token-sum-norm"
    usual = {LOSS: "vanilla", BY: "turn", PREFIX: "once", MEAN: mode, line: None}
    refuses(check, f"{line}: with {ACTOR}loss_agg_mode: {mode}", usual)
    for other in ({line: 8}, {BY: "token"}, {MEAN: "seq-mean-token-sum"}):
        passes(check, {**usual, **other})


def test_dro_has_its_coefficient() -> None:
    loss, beta = ACTOR + "policy_loss.loss_mode", ACTOR + "policy_loss.dro_beta"
    for good in (1e-9, 1, 1e300):
        passes(losses.check_dro, {loss: "dro", beta: good})
    for bad in (0, -1, float("inf"), float("nan"), None, "1"):
        refuses(losses.check_dro, f"{beta}: the policy loss 'dro' needs", {loss: "dro", beta: bad})
    passes(losses.check_dro, {loss: "vanilla", beta: None})


# Tasks


def test_a_batch_is_no_larger_than_the_pool() -> None:
    check = tasks.check_batch
    pool = spec_of("environment", pool=lambda options, split: {"train": 8, "more": 2}[split])
    batch, most, files = (DATA + name for name in ("train_batch_size", "train_max_samples", "train_files"))
    usual = {batch: 8, most: -1, files: "train"}
    passes(check, usual, **pool)
    refuses(check, "has 8 in train; lower it", {**usual, batch: 9}, **pool)
    passes(check, {**usual, batch: 10, files: ["train", "more"]}, **pool)
    refuses(check, "has 10 in train, more", {**usual, batch: 11, files: ["train", "more"]}, **pool)
    for good in (8, None, 0):
        passes(check, {**usual, most: good}, **pool)
    for few in (7, 1):
        refuses(check, f"data.train_max_samples keeps {few};", {**usual, most: few}, **pool)
    passes(check, {**usual, batch: 99}, **spec_of("environment", pool=None))
    passes(check, {**usual, batch: 99, DATA + "custom_cls.name": None}, **pool)


def test_what_is_measured_is_not_trained() -> None:
    check, train, val = tasks.check_held_out, DATA + "train_files", DATA + "val_files"
    passes(check, {train: ["train"], val: ["val"]})
    refuses(check, "'train' is what data.val_files measures", {train: "train", val: ["val", "train"]})
    for split in ("val", "valid", "validation", "valid_seen", "valid_unseen", "dev", "test"):
        refuses(check, f"{split!r} is held out", {train: ["train", split], val: "other"})
    passes(check, {train: "val", val: "val", DATA + "custom_cls.name": None})


def test_splits_are_those_of_the_environment() -> None:
    check, line = tasks.check_splits, DATA + "train_files"
    for empty in ([], None, ""):
        refuses(check, f"{line}: it names nothing" if empty != "" else f"{line}: ", {line: empty})
    refuses(check, "has no split 'trian' (did you mean 'train'?)", {line: "trian"})
    passes(check, {line: "trian"}, **spec_of("environment", splits=None))
    passes(check, {line: "trian", DATA + "custom_cls.name": None})


# What verl builds


@pytest.mark.parametrize(
    ("enable", "estimator", "critic"),
    [(None, "gae", True), (None, "grpo", False), (True, "grpo", True), (False, "gae", False)],
)
def test_a_critic_is_built_where_verl_builds_one(enable: bool | None, estimator: str, critic: bool) -> None:
    assert needs_critic({"critic": {"enable": enable}, "algorithm": {"adv_estimator": estimator}}) == critic
    if enable is None:
        assert needs_critic({"critic": None, "algorithm": {"adv_estimator": estimator}}) == critic


@pytest.mark.parametrize(("in_reward", "in_loss"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_reference_is_built_where_verl_builds_one(in_reward: bool, in_loss: bool) -> None:
    config = {"algorithm": {"use_kl_in_reward": in_reward}, "actor_rollout_ref": {"actor": {"use_kl_loss": in_loss}}}
    assert needs_reference(config) == (in_reward or in_loss)


def test_values_are_found_at_their_lines() -> None:
    config = {"a": {"b": {"c": 3}, "none": None}, "d": 4}
    assert value(config, "a.b.c") == 3 and value(config, "d") == 4 and value(config, "a.none") is None
    assert value(config, "a.x.c") is value(config, "d.e") is value(config, "x") is None
    lines = {"a": True, "a.b": True, "a.none": True, "a.x": False, "d.e": False, "a.b.c.d": False, "x": False}
    assert {line: there(config, line) for line in lines} == lines


@pytest.mark.parametrize(
    ("recipe", "lines"),
    [
        ("himac_alfworld", []),
        ("archer_alfworld", ["hier.replay"]),
        ("istar_shop", ["hier.process_reward"]),
        ("hiper_alfworld", ["hier.value_heads"]),
        ("igpo_search", ["hier.probes"]),
        ("spear_alfworld", ["hier.self_imitation"]),
    ],
)
def test_what_stands_beside_the_actor_is_what_a_recipe_asks_for(recipe: str, lines: list[str]) -> None:
    assert [spec.line for spec in base(recipe).extensions] == lines

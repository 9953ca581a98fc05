"""Who reads verl's lines: the table is whole, and what it says is compared with verl's own source."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache

import pytest

from verl_hier.errors import RecipeError
from verl_hier.installed import package_folder
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.checks.keys import _leaves
from verl_hier.recipe.compose import compose, stock
from verl_hier.recipe.verl_lines import READERS, VERL, table

ELSEWHERE = {
    "trainer/ppo/ray_trainer.py": "the trainer before v1, which check refuses (trainer.use_v1)",
    "trainer/main_": "entry points that compose and start, and sanity checks of others",
    "trainer/sft_trainer": "supervised training",
    "trainer/config/": "the configuration itself",
    "workers/config/": "the dataclasses that hold the configuration",
    "experimental/fully_async_policy": "a trainer of its own",
    "experimental/one_step_off_policy": "a trainer of its own",
    "experimental/separation": "a trainer of its own",
    "experimental/agent_loop/tool_agent_loop.py": "an agent loop, in whose place a worker plays; chat/tools.py calls "
    "its methods with the settings of `multi_turn` for environments in the rollout worker",
    "experimental/agent_loop/single_turn_agent_loop.py": "an agent loop, in whose place a worker plays",
    "workers/rollout/hf_rollout.py": "a rollout in the trainer's process, which v1 has not",
    "workers/rollout/naive": "a rollout in the trainer's process, which v1 has not",
    "workers/rollout/schemas.py": "requests of SGLang's former multi-turn rollout, which nothing makes any more",
    "utils/dataset/multiturn_sft_dataset.py": "supervised training",
    "utils/dataset/sft_dataset.py": "supervised training",
    "utils/dataset/rm_dataset.py": "training of reward models",
    "model_merger": "a command",
    "utils/config.py": "validation of the configuration",
}
"""Files and folders of verl that no run of verl-hier reads its lines in, and why."""
OTHER_KEYS = {
    "actor_rollout_ref.rollout.agent.custom_async_server.path",
    "actor_rollout_ref.rollout.agent.custom_async_server.name",
    "data.tokenizer",
    "algorithm.pf_ppo.weight_pow",
    "reward.custom_reward_function.path",
    "reward.custom_reward_function.name",
    "reward.reward_manager.name",
    "reward.reward_manager.source",
    "reward.reward_manager.module.path",
    "reward.reward_manager.module.name",
    "reward.reward_model.enable",
    "reward_model.enable",
    "reward_model.reward_manager",
    "custom_reward_function.path",
    "custom_reward_function.name",
    "algorithm.gamma",
    "algorithm.lam",
    "actor_rollout_ref.rollout.multi_turn.enable",
    "actor_rollout_ref.rollout.multi_turn.format",
    "data.use_shm",
}
"""Lines whose last key is also the name of other things: they are looked for with the key above."""


@pytest.mark.parametrize("engine", ["dp", "megatron", "torchtitan", "veomni"])
def test_every_line_of_verl_has_a_reader(engine: str) -> None:
    """A line that a new version of verl brings fails here until somebody has looked who reads it. The blocks of another
    engine are read by that engine alone."""
    lines = {line for line, _ in _leaves(stock(engine), "") if not line.endswith("_target_")}
    own = ("actor_rollout_ref.actor.", "actor_rollout_ref.ref.", "critic.")
    unknown = {line for line in lines - table().keys() if engine == "dp" or not line.startswith(own)}
    assert not unknown, "say in verl_lines.yaml who reads them: " + ", ".join(sorted(unknown))
    if engine == "dp":
        assert not table().keys() - lines, "verl has no such lines any more"


def test_every_reader_is_known_and_used() -> None:
    assert {*table().values()} == {VERL, *READERS}


@pytest.mark.parametrize("name", sorted(name for name, reader in READERS.items() if reader.sources is not None))
def test_nothing_else_of_verl_reads_the_lines_of_a_reader(name: str) -> None:
    sources, stray = READERS[name].sources or (), []
    for line in [line for line, reader in table().items() if reader == name]:
        above, key = line.rsplit(".", 2)[-2:]
        places = _readers_below()[above, key] if line in OTHER_KEYS else _readers()[key]
        stray += [f"{line} in {place}" for place in places if not place.startswith((*sources, *ELSEWHERE))]
    assert not stray


@pytest.mark.parametrize("name", sorted(name for name, reader in READERS.items() if reader.sources))
def test_a_reader_does_read_its_lines(name: str) -> None:
    """Else the table would call a line read that nobody reads."""
    sources = READERS[name].sources or ()
    for line in [line for line, reader in table().items() if reader == name]:
        places = _readers()[line.rsplit(".", 1)[-1]]
        beside = ("experimental/agent_loop/tool_agent_loop.py",) if name == "tools" else ()
        assert any(place.startswith((*sources, *beside)) for place in places), line


CASES = [
    ("grpo_sokoban", "algorithm.gamma=0.9", "hier.estimator"),
    ("grpo_sokoban", "algorithm.lam=0.9", "hier.estimator"),
    ("grpo_sokoban", "algorithm.norm_adv_by_std_in_grpo=false", "hier.estimator"),
    ("grpo_sokoban", "algorithm.adv_estimator=rloo", "hier.estimator"),
    ("himac_alfworld", "algorithm.adv_estimator=reinforce_plus_plus", "hier.estimator"),
    ("grpo_sokoban", "algorithm.use_pf_ppo=true", "algorithm.use_pf_ppo"),
    ("grpo_search", "reward.custom_reward_function.path=setup.py", "hier.rewards"),
    ("grpo_search", "custom_reward_function.path=setup.py", "hier.rewards"),
    ("grpo_search", "reward.custom_reward_function.name=score", "hier.rewards"),
    ("grpo_search", "reward.reward_manager.name=dapo", "hier.rewards"),
    ("grpo_search", "reward.reward_model.enable=true", "hier.rewards"),
    ("grpo_search", "data.filter_overlong_prompts=true", "hier.rollout.context_tokens"),
    ("grpo_search", "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=2", "hier.rollout.max_turns"),
    ("grpo_search", "actor_rollout_ref.rollout.multi_turn.max_user_turns=2", "hier.rollout.max_turns"),
    ("grpo_search", "actor_rollout_ref.rollout.multi_turn.max_parallel_calls=2", "verl_tools"),
    ("grpo_search", "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent", "verl_tools"),
    ("grpo_search", "actor_rollout_ref.rollout.agent.agent_loop_config_path=x.yaml", "worker"),
    ("grpo_alfworld", "distillation.enabled=true", "teacher"),
]


@pytest.mark.parametrize(("recipe", "line", "names"), CASES, ids=[line for _, line, _ in CASES])
def test_a_line_that_changes_what_is_trained_is_refused(recipe: str, line: str, names: str) -> None:
    with pytest.raises(RecipeError) as refused:
        check_recipe(compose(recipe, [line]))
    assert str(refused.value).startswith(line.partition("=")[0]) and names in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        "critic.optim.lr=1e-4",
        "actor_rollout_ref.actor.kl_loss_coef=0.7",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        "actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.1",
        "trainer.balance_batch=false",
        "data.truncation=left",
        "algorithm.kl_ctrl.kl_coef=0.3",
        "trainer.v1.separate_async.parameter_sync_step=7",
    ],
)
def test_other_lines_without_effect_are_noted(line: str) -> None:
    off = ["actor_rollout_ref.actor.use_kl_loss=false"]
    before = check_recipe(compose("grpo_sokoban", off)).notes
    notes = [note for note in check_recipe(compose("grpo_sokoban", [*off, line])).notes if note not in before]
    assert len(notes) == 1 and notes[0].startswith(line.partition("=")[0])


def test_lines_that_are_read_pass_without_a_word() -> None:
    """Under verl's own estimator, data set and rewards."""
    lines = ["algorithm.gamma=0.9", "algorithm.adv_estimator=rloo", "data.filter_overlong_prompts=true"]
    files = ["data.train_files=x.parquet", "data.val_files=y.parquet", "actor_rollout_ref.rollout.n=2"]
    files += ["actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B"]
    report = check_recipe(compose("flat", [*files, *lines, "reward.custom_reward_function.path=setup.py"]))
    assert not [note for note in report.notes if note.startswith(("algorithm", "data", "reward"))]


def _plain(recipe: str) -> dict[str, object]:
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(compose(recipe), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): block for key, block in plain.items()}


@cache
def _trees() -> dict[str, ast.Module]:
    root = package_folder("verl")
    return {str(path.relative_to(root)): ast.parse(path.read_text()) for path in root.rglob("*.py")}


@cache
def _readers() -> dict[str, list[str]]:
    """Key to the places that read an attribute of this name, or have the key as a text."""
    found = defaultdict[str, list[str]](list)
    for file, tree in _trees().items():
        for node in ast.walk(tree):
            key = _key(node)
            if key:
                found[key].append(f"{file}:{node.lineno}")
    return found


@cache
def _readers_below() -> dict[tuple[str, str], list[str]]:
    """(block, key) to the places that read the key of an object of the block's name."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for file, tree in _trees().items():
        for node in ast.walk(tree):
            pair = _pair(node)
            if pair:
                found[pair].append(f"{file}:{node.lineno}")
    return found


def _key(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    # `config.get("key")`, `config["key"]`, `getattr(config, "key")`
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        return texts[0] if texts and name in ("get", "getattr", "pop", "select") else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value if isinstance(node.slice.value, str) else ""
    return ""


def _pair(node: ast.AST) -> tuple[str, str] | None:
    key = _key(node)
    holder = None
    if isinstance(node, ast.Attribute | ast.Subscript):
        holder = node.value
    elif isinstance(node, ast.Call):
        holder = node.func.value if isinstance(node.func, ast.Attribute) else (node.args[0] if node.args else None)
    above = _key(holder) if holder is not None else ""
    if not above and isinstance(holder, ast.Name):
        above = holder.id
    return (above, key) if key and above else None

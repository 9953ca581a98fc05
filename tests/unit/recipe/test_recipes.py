"""Every shipped recipe composes, passes our check and verl's own validation offline, and is short."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.tiers import quick
from verl_hier.errors import RecipeError
from verl_hier.recipe.catalogue import OWN_TASKS, SIZES, find, recipes
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.checks.machine import accelerator_memory_of
from verl_hier.recipe.compose import command, compose, overridden
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.pairs import folder, scales_of, tried
from verl_hier.recipe.verl_lines import VERL, table

ROOT = Path(__file__).parents[3]
RECIPES = recipes()
NAMES = [recipe.name for recipe in RECIPES]
METHODS = ("himac", "chain_of_agents", "gigpo", "grpo", "metaagentx")
BRANCHING = ("tree_grpo", "portool", "treeps_rag", "at_grpo", "anchored")
GPUS = ["size=node", "server=vllm"]
# Recipes that leave their data and model to the user, and what a user would add.
FILES = ("data.train_files=x.parquet", "data.val_files=y.parquet")
LEFT_OPEN = {
    "flat": (*FILES, "actor_rollout_ref.rollout.n=2"),
    "tree_grpo_verl_tools": (
        *FILES,
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={ROOT}/tests/fixtures/verl_tool_recipe.py",
    ),
}


def checked() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each recipe at one scale of its tasks, every second one at the other, and every combination of one recipe.

    `verl-hier check --all` goes through all combinations; a test among the long ones calls it.
    """
    yield from LEFT_OPEN.items()
    for number, recipe in enumerate(RECIPES):
        sizes = [size for size in recipe.sizes if size != "cluster"]
        if sizes:
            size = f"size={sizes[number % len(sizes)]}"
            # The last one has the largest model, and so the least room.
            yield recipe.name, [words for words in recipe.combinations() if words[0] == size][-1]
    yield from (("himac_alfworld", words) for words in find("himac_alfworld").combinations())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small local model with a tokenizer and a chat template, which the check looks at."""
    return write_byte_model(tmp_path_factory.mktemp("model"), hidden=96)


def test_the_promised_recipes_are_there() -> None:
    assert {"quickstart", *(f"{method}_alfworld" for method in (*METHODS, *BRANCHING))} <= set(NAMES)
    for method in (*METHODS, *BRANCHING):
        assert find(f"{method}_alfworld").sizes == ("cpu", "node", "cluster")


@pytest.mark.parametrize(
    ("name", "words"),
    quick(20, sorted(set(checked()))),
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_recipe_passes_every_check_offline(name: str, words: tuple[str, ...], model: Path) -> None:
    on_cpu = find(name).groups.get("size", "cpu") == "cpu" and not {"size=node", "size=cluster"} & set(words)
    report = check_recipe(compose(name, (*words, *([f"actor_rollout_ref.model.path={model}"] if on_cpu else ()))))
    assert report.trainer.startswith("hier_")
    assert {"vllm", "sglang"}.isdisjoint(sys.modules), "validation must not need the engines"
    assert dict(report.lines())["environment"]
    without_effect = [note for note in report.notes if table().get(note.partition(": ")[0], VERL) != VERL]
    assert not without_effect


@pytest.mark.long
def test_every_combination_that_a_recipe_offers_is_sound() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "verl_hier.cli.main", "check", "--all"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    combinations = sum(len(list(recipe.combinations())) for recipe in RECIPES)
    assert done.stdout.splitlines()[-1].startswith(f"{combinations} combinations in ")


def test_the_sizes_name_what_there_is() -> None:
    models = {name for size in SIZES.values() for name in size.models}
    servers = {name for size in SIZES.values() for name in size.servers}
    for kind, names in (("size", set(SIZES)), ("variant", set(SIZES)), ("model", models), ("server", servers)):
        assert {path.stem for path in folder().glob(f"hier/{kind}/*.yaml")} == names


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_short_and_says_what_it_is(name: str) -> None:
    recipe = find(name)
    assert recipe.summary.endswith(".") and len(recipe.summary) <= 120
    own = yaml.safe_load(recipe.text)
    defaults = own.pop("defaults")
    assert defaults[0] == "ppo_trainer" and defaults[1] == "hier/base" and defaults[-1] == "_self_"
    assert leaves(own) <= 17


def leaves(value: object) -> int:
    return sum(map(leaves, value.values())) if isinstance(value, dict) and value else 1


@pytest.mark.parametrize(
    "path", sorted(folder().glob("hier/**/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_group_is_global_and_used(path: Path) -> None:
    assert path.read_text().startswith("# @package _global_\n")
    kind, name = path.parent.name, path.stem
    if path == folder() / "hier" / "base.yaml":
        assert all("- hier/base\n" in recipe.text or " hier/base," in recipe.text for recipe in RECIPES)
    elif kind in ("method", "environment", "prompt"):
        used = [r for r in RECIPES if r.groups.get(kind) == name or f" hier/{kind}/{name}," in r.text]
        scales = {SIZES[size].variant for recipe in used for size in recipe.sizes}
        offered = {model for recipe in used for size in recipe.sizes for model in recipe.models(size)}
        scales |= {OWN_TASKS[model] for model in offered if model in OWN_TASKS}
        assert used and scales_of(path) <= scales, f"no recipe uses hier/{kind}/{name}"


@pytest.mark.parametrize("name", sorted({*NAMES} - {*tried()}))
def test_a_recipe_with_a_file_is_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "recipes.md").read_text()


@pytest.mark.slow
def test_verls_own_main_composes_the_same(tmp_path: Path) -> None:
    """`python -m verl.trainer.main_ppo --config-name RECIPE`: no search path, no flag of ours."""
    arguments = command("himac_alfworld", ["hier.sampler.select=random", "data.train_batch_size=4"])
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--cfg", "job"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    theirs = OmegaConf.create(done.stdout[done.stdout.index("model_engine:") :])
    ours = compose("himac_alfworld", ["hier.sampler.select=random", "data.train_batch_size=4"])
    assert theirs == ours
    assert ours.hier.sampler == {"name": "nested", "plans": 8, "select": "random"}


def test_a_recipe_of_the_users_own(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "# Mine.\ndefaults: [ppo_trainer, hier/base, hier/method: grpo, hier/environment: alfworld, "
        "hier/prompt: react, hier/size: cpu, hier/variant: '${hier/size}', _self_]\nhier: {recipe: {name: mine}}\n"
    )
    config = compose(str(file), [f"actor_rollout_ref.model.path={model}"])
    assert config.trainer.experiment_name == "mine_cpu_tiny_transformers"
    assert check_recipe(config).parts.estimator.spec.name == "grpo"
    with pytest.raises(RecipeError, match="is no shipped recipe, which verl's Hydra finds by its name"):
        command(str(file))


def test_a_mini_batch_that_does_not_divide_the_batch_is_noted(model: Path) -> None:
    overrides = (f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.actor.ppo_mini_batch_size=3")
    report = check_recipe(compose("grpo_alfworld", overrides))
    assert report.sizes.step.optimiser_steps == (2, 2) and "2 equal part(s)" in report.notes[0]


def test_groups_can_be_exchanged(model: Path) -> None:
    config = compose("himac_alfworld", ["hier/method=gigpo", "hier.worker.history=0"])
    assert (config.hier.estimator.name, config.hier.worker.name) == ("gigpo", "react")


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_a_recipe_goes_from_a_vllm_on_a_cpu_to_gpus(server: str) -> None:
    small = compose("arpo_alfworld", ["server=vllm_cpu"])
    assert (small.actor_rollout_ref.rollout.name, small.trainer.device) == ("vllm", "cpu")
    report = check_recipe(compose("arpo_alfworld", ("size=node", f"server={server}")))
    assert report.server == server and report.sizes.devices == 8 and report.memory is None


def test_the_check_counts_what_each_gpu_holds() -> None:
    model = check_recipe(compose("hiper_alfworld", ("size=node",))).model

    def held(*overrides: str) -> dict[str, int] | None:
        return accelerator_memory_of(ComposedRecipe.named("hiper_alfworld", ["size=node", *overrides]), model)

    billion = 1_500_000_000
    both = {"policy": 16 * billion // 8, "critic": 16 * billion // 8, "reference": 4 * billion // 8}
    assert held() == both == check_recipe(compose("hiper_alfworld", ("size=node",))).held
    assert held("actor_rollout_ref.actor.use_kl_loss=false") == {name: both[name] for name in ("policy", "critic")}
    assert held("actor_rollout_ref.actor.fsdp_config.fsdp_size=4") == {name: 2 * size for name, size in both.items()}
    adapter = held("actor_rollout_ref.model.lora_rank=16")
    assert adapter == {"policy": 4 * billion // 8, "critic": 16 * billion // 8}
    assert check_recipe(compose("hiper_alfworld")).held is None


def test_a_part_is_replaced_and_an_option_is_merged() -> None:
    config = compose("himac_alfworld", ["hier.schedule={name: joint}", "hier.sampler.plans=4"])
    assert config.hier.schedule == {"name": "joint"}
    assert config.hier.sampler == {"name": "nested", "plans": 4}
    assert overridden(["trainer.x=1", "+hier.y=2"]) == ["trainer.x=1", "+hier.y=2"]


def test_a_broken_file_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("defaults: [ppo_trainer\n")
    with pytest.raises(RecipeError, match="is not YAML"):
        compose(str(file))
    with pytest.raises(RecipeError, match="there is no recipe file"):
        compose(str(tmp_path / "nowhere.yaml"))


def test_composing_imports_neither_verl_nor_torch() -> None:
    code = (
        "import sys; from verl_hier.recipe.compose import compose; compose('quickstart'); "
        "assert not {'verl', 'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kl_and_sizes_are_those_of_the_papers() -> None:
    himac = compose("himac_alfworld", [*GPUS, "model=qwen2.5-7b-instruct"])
    assert himac.actor_rollout_ref.actor.use_kl_loss and himac.actor_rollout_ref.actor.kl_loss_coef == 0.01
    assert himac.actor_rollout_ref.rollout.n == 8 and himac.hier.sampler.plans == 8
    assert himac.data.max_prompt_length == 2048 and himac.hier.rollout.max_tokens_per_turn == 512
    metaagentx = compose("metaagentx_alfworld", [*GPUS, "model=qwen2.5-7b-instruct"])
    assert not metaagentx.actor_rollout_ref.actor.use_kl_loss and metaagentx.data.max_response_length == 8192
    assert metaagentx.actor_rollout_ref.rollout.n == 4 * 4
    gigpo = compose("gigpo_alfworld", GPUS)
    assert gigpo.hier.estimator.norm == "mean_std_norm" and gigpo.hier.estimator.format_penalty == 0.1
    assert gigpo.data.train_batch_size * gigpo.actor_rollout_ref.rollout.n == 128


# ---- names and choices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["hier.update.mini_batch={rows: 64}"], "8 tasks x 8 episodes, 1 to 40 optimiser step(s) on 64 to 2560 rows"),
        (["hier.update.mini_batch={prompts: 2}", "hier.update.epochs=2"], "8 optimiser step(s)"),
        (
            ["hier.refill.limit=2.5"],
            "2 optimiser step(s) on 64 to 2560 rows; up to 12 further tasks in place of others",
        ),
    ],
)
def test_the_check_says_what_a_step_does(model: Path, overrides: list[str], sentence: str) -> None:
    report = check_recipe(compose("grpo_alfworld", [f"actor_rollout_ref.model.path={model}", *overrides]))
    assert sentence in dict(report.lines())["a step"]

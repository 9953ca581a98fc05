"""`hier/size=cpu` composes with verl's own configuration and says what the CPU needs."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.fixture(scope="module")
def config() -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"hydra.searchpath=[file://{RECIPES}]", "+hier/size=cpu"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("trainer.device", "cpu"),
        ("trainer.n_gpus_per_node", 1),
        ("actor_rollout_ref.actor.strategy", "fsdp2"),
        ("actor_rollout_ref.ref.strategy", "fsdp2"),
        ("critic.strategy", "fsdp2"),
        ("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "fp32"),
        ("actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype", "fp32"),
        ("critic.fsdp.mixed_precision.param_dtype", "fp32"),
        ("actor_rollout_ref.model.override_config.attn_implementation", "sdpa"),
        ("critic.model.override_config.attn_implementation", "sdpa"),
        ("actor_rollout_ref.rollout.name", "transformers"),
        ("actor_rollout_ref.rollout.dtype", "float32"),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", 1),
        ("actor_rollout_ref.rollout.engine_kwargs.transformers.deterministic", False),
        ("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", True),
        ("critic.use_dynamic_bsz", True),
        ("reward.num_workers", 1),
        ("ray_kwargs.ray_init.address", "local"),
        ("ray_kwargs.ray_init.num_cpus", 32),
        ("ray_kwargs.ray_init.num_gpus", 8),
        ("ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM", "cpu"),
    ],
)
def test_values_at_their_places(config, path, value):
    assert OmegaConf.select(config, path, throw_on_missing=True) == value


def test_the_server_accepts_its_options(config):
    from verl_hier.runtime_cpu.options import ServerOptions

    assert ServerOptions.from_rollout_config(config.actor_rollout_ref.rollout).num_threads == 1


def test_only_the_new_blocks_are_unknown_to_verl(config):
    """A key that verl has renamed would be added in silence, and do nothing."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        stock = OmegaConf.to_container(compose("ppo_trainer"))
    ours = OmegaConf.to_container(OmegaConf.load(RECIPES / "hier" / "size" / "cpu.yaml"))

    def unknown(mine: dict, theirs: dict | None, prefix: str = "") -> list[str]:
        found = []
        for key in mine:
            if theirs is None or key not in theirs:
                found.append(f"{prefix}{key}")
            elif isinstance(mine[key], dict):
                found += unknown(mine[key], theirs[key], f"{prefix}{key}.")
        return found

    assert unknown(ours, stock) == [
        "actor_rollout_ref.model.override_config.attn_implementation",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision",
        "actor_rollout_ref.ref.fsdp_config.mixed_precision",
        "actor_rollout_ref.rollout.engine_kwargs.transformers",
        "critic.fsdp.mixed_precision",
        "critic.model.override_config.attn_implementation",
        "ray_kwargs.ray_init.address",
        "ray_kwargs.ray_init.num_gpus",
        "ray_kwargs.ray_init.include_dashboard",
        "ray_kwargs.ray_init.runtime_env.env_vars",
    ]

"""What we use of verl's package: its plugin loader, entry point, configuration, data sets and policy losses."""

from __future__ import annotations

from verl_hier.compat.seams.inspection import reads, takes
from verl_hier.compat.seams.seam import FILES, seam

PACKAGE = (
    seam(
        "plugin_loader",
        "verl:__version__",
        "verl.plugins entry points are imported by `import verl`, and what they raise is swallowed",
        reads("verl", '_entry_points(group="verl.plugins")', "except Exception as _e", "_ep.load()"),
        link=f"{FILES}__init__.py",
        removal="the swallowing: when verl reports plugins that fail, `compat.entry.FAILURE` can go",
    ),
    seam(
        "main_ppo",
        "verl.trainer.main_ppo:main",
        "`verl-hier train` runs verl's own entry point with a recipe as its primary config",
        reads("verl.trainer.main_ppo", '@hydra.main(config_path="config", config_name="ppo_trainer"'),
    ),
    seam(
        "task_runner",
        "verl.trainer.main_ppo:TaskRunnerV1",
        "builds the trainer from the registry and the manager from `agent_loop_manager_class`",
        reads(
            "verl.trainer.main_ppo",
            "get_trainer_cls(config.trainer.v1.trainer_mode)",
            'get("agent_loop_manager_class")',
            "agent_loop_manager_cls.create(",
        ),
    ),
    seam(
        "validate_config",
        "verl.utils.config:validate_config",
        "the recipe check runs verl's own validation offline",
        takes("verl.utils.config:validate_config", "config", "use_reference_policy", "use_critic"),
    ),
    seam(
        "omega_conf_to_dataclass",
        "verl.utils.config:omega_conf_to_dataclass",
        "the recipe check builds the dataclasses that verl's workers would build",
        takes("verl.utils.config:omega_conf_to_dataclass", "config", "dataclass_type"),
    ),
    seam(
        "need_critic",
        "verl.trainer.ppo.utils:need_critic",
        "the recipe check repeats this rule before verl is imported",
        reads("verl.trainer.ppo.utils:need_critic", "config.critic.enable is not None", "AdvantageEstimator.GAE"),
    ),
    seam(
        "need_reference_policy",
        "verl.trainer.ppo.utils:need_reference_policy",
        "the memory estimate counts the reference policy as verl does",
        reads("verl.trainer.ppo.utils:need_reference_policy", "use_kl_in_reward", "use_kl_loss"),
    ),
    seam(
        "reference_config",
        "verl.workers.engine_workers:ActorRolloutRefWorker",
        "the reference policy's block is renamed to an actor's before it is read; the check does the same",
        reads(
            "verl.workers.engine_workers:ActorRolloutRefWorker",
            'self.config.ref.pop("log_prob_micro_batch_size", None)',
            'self.config.ref.pop("log_prob_max_token_len_per_gpu", None)',
        ),
    ),
    seam(
        "custom_dataset",
        "verl.trainer.ppo.utils:create_rl_dataset",
        "tasks of an environment are a data set that `data.custom_cls` names, built from the data block alone",
        reads("verl.trainer.ppo.utils:create_rl_dataset", "get_dataset_class(data_config)", "config=data_config"),
    ),
    seam(
        "policy_loss_registry",
        "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY",
        "policy losses of plugins join verl's registry without overwriting one of its own",
        takes("verl.trainer.ppo.core_algos:register_policy_loss", "name"),
    ),
    seam(
        "loss_aggregation",
        "verl.trainer.ppo.core_algos:agg_loss",
        "policy losses of plugins are summed up as verl's own are",
        takes("verl.trainer.ppo.core_algos:agg_loss", "loss_mat", "loss_mask", "loss_agg_mode", "global_batch_size"),
    ),
)

"""Loaded by `import verl` in every process, through the entry-point group `verl.plugins`. Must stay light."""

from verl_hier.installed import failure_of


def _register() -> None:
    from wrapt import register_post_import_hook

    from verl_hier.compat.servers import vllm_cpu, vllm_topk
    from verl_hier.recipe.search_path import register

    register()
    vllm_cpu.activate()
    register_post_import_hook(vllm_topk.register_replica, "verl.workers.rollout.replica")
    register_post_import_hook(vllm_topk.register_adapter, "verl.workers.rollout.base")

    def trainers(module: object) -> None:
        from verl_hier.compat import trainer, tree_sync

        trainer.register()
        tree_sync.register()

    # verl's registries are slow to import (FSDP, transformers), and this runs in every process: our entries join a
    # registry when somebody imports it.
    register_post_import_hook(trainers, "verl.trainer.ppo.v1")


FAILURE = failure_of(_register)

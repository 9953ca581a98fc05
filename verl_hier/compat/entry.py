"""Loaded by `import verl` in every process, through the entry-point group `verl.plugins`. Must stay light.

verl swallows what this module raises (verl/__init__.py of 0.9.1 logs it at DEBUG), so failures are kept in `FAILURE`
and raised where they are seen: by `verl-hier doctor` and by the recipe check.
"""

import logging
import os

from verl_hier.recipe.engine import ENGINE_VARIABLE, TREE

logger = logging.getLogger(__name__)

FAILURE: BaseException | None = None


def _register() -> None:
    from wrapt import register_post_import_hook

    from verl_hier.compat.servers import vllm_cpu, vllm_topk
    from verl_hier.recipe.search_path import register
    from verl_hier.runtime_cpu import activate

    activate()
    register()
    vllm_cpu.activate()
    register_post_import_hook(vllm_topk.register_replica, "verl.workers.rollout.replica")
    register_post_import_hook(vllm_topk.register_adapter, "verl.workers.rollout.base")

    def trainers(module: object) -> None:
        from verl_hier.compat import trainer, tree_sync

        trainer.register()
        tree_sync.register()

    def tree_engine(module: object) -> None:
        from verl_hier.engines.fsdp import register_engines

        register_engines(TREE)

    # verl's registries are slow to import (FSDP, transformers), and this runs in every process: our entries join a
    # registry when somebody imports it.
    register_post_import_hook(trainers, "verl.trainer.ppo.v1")
    if os.environ.get(ENGINE_VARIABLE) == TREE:
        register_post_import_hook(tree_engine, "verl.workers.engine.fsdp.transformer_impl")


try:
    _register()
except Exception as error:
    FAILURE = error
    logger.exception("verl-hier could not register itself with verl; run `verl-hier doctor`")

"""Loaded by `import verl` in every process, through the entry-point group `verl.plugins`. Must stay light.

verl swallows what this module raises (verl/__init__.py of 0.9.1 logs it at DEBUG), so failures are kept in `FAILURE`
and raised where somebody sees them: by `verl-hier doctor` and by the recipe check.
"""

import logging

logger = logging.getLogger(__name__)

FAILURE: BaseException | None = None


def _register() -> None:
    from verl_hier.compat import searchpath
    from verl_hier.compat.import_hooks import when_imported
    from verl_hier.compat.servers import vllm_cpu, vllm_topk
    from verl_hier.runtime_cpu import activate

    activate()
    searchpath.register()
    vllm_cpu.activate()
    when_imported("verl.workers.rollout.replica", vllm_topk.register_replica)
    when_imported("verl.workers.rollout.base", vllm_topk.register_adapter)

    def trainers(module: object) -> None:
        from verl_hier.compat import trainer

        trainer.register()

    # The trainer registry is slow to import; ours join it when somebody imports it.
    when_imported("verl.trainer.ppo.v1", trainers)


try:
    _register()
except Exception as error:
    FAILURE = error
    logger.exception("verl-hier could not register itself with verl; run `verl-hier doctor`")

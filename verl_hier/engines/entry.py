"""Loaded by `import verl` in every process, through the entry-point group `verl.plugins`. Must stay light."""

import os

from verl_hier.installed import failure_of
from verl_hier.recipe.engine import ENGINE_VARIABLE, TREE


def _register() -> None:
    from wrapt import register_post_import_hook

    def tree_engine(module: object) -> None:
        from verl_hier.engines.fsdp import register_engines

        register_engines(TREE)

    register_post_import_hook(tree_engine, "verl.workers.engine.fsdp.transformer_impl")


FAILURE = failure_of(_register) if os.environ.get(ENGINE_VARIABLE) == TREE else None

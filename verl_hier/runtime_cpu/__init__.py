"""The CPU runtime: what stock verl lacks in order to train on a machine without an accelerator.

`activate()` is called at `import verl` in every process, so this module imports nothing heavy.
"""

from verl_hier.runtime_cpu.activation import activate, is_active, is_wanted

__all__ = ["activate", "is_active", "is_wanted"]

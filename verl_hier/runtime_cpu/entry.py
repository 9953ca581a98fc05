"""Loaded by `import verl` in every process, through the entry-point group `verl.plugins`. Must stay light."""

from verl_hier.installed import failure_of
from verl_hier.runtime_cpu.activation import activate

FAILURE = failure_of(activate)

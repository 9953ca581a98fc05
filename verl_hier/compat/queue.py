"""Partitions of TransferQueue that rollout workers and trainers share."""

FAULTS = "hier_faults"
"""Partition whose tags are the fatal errors of tasks."""

LIGHT = "hier_light"
"""Partition of the light parts of rollouts, each under the uid of its task; see `verl_hier.graph.columnar.light`. Tags
say whether it is of a validation (`validate`), how many `rows` it has, and the number of its task (`index`)."""

"""Partitions of TransferQueue that rollout workers and trainers share."""

FAULTS = "hier_faults"
"""Partition whose tags are the fatal errors of tasks."""

GRAPHS = "hier_graphs"
"""Partition of the rollout graphs that no trained row can carry: of validation, and of tasks without a trained row."""

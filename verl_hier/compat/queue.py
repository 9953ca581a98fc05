"""Names in TransferQueue that rollout workers and trainers share."""

FAULTS = "hier_faults"
"""Partition whose tags tell the trainer what rows cannot: fatal errors, and tasks without a trained row."""

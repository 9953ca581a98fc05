"""The rollout graph and its views: rows for verl, the turn table for estimators, files for people."""

from verl_hier.trajectory.table import EPISODE_COLUMNS, TURN_COLUMNS, TurnTable

__all__ = ["EPISODE_COLUMNS", "TURN_COLUMNS", "TurnTable"]

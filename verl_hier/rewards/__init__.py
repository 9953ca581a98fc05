"""Reward functions that a recipe can name in `hier.rewards`: format checks and a judge model."""

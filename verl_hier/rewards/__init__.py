"""Reward functions that a recipe can name in `hier.rewards`: format checks, answers, and a judge model."""

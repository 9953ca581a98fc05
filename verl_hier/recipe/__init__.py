"""Recipes: composing them, their schema, and the checks before a run."""

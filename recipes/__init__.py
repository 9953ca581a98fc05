"""Recipes: short Hydra files, composed from the groups below `hier/`."""

"""Rollout graphs in columns: Arrow tables instead of Python objects, for the turn table and for files."""

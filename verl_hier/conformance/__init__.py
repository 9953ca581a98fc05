"""Conformance: fixtures of the upstream implementations, run through the plugins that are registered for them."""

from verl_hier.conformance.runner import Result, run_file, run_folder
from verl_hier.conformance.tables import make_table

__all__ = ["Result", "make_table", "run_file", "run_folder"]

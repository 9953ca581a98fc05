"""Conformance: fixtures of the upstream implementations, run through the plugins that are registered for them."""

from verl_hier.testing.conformance.registry import builtin_estimators, credit_of
from verl_hier.testing.conformance.runner import Result, run_file, run_folder
from verl_hier.testing.conformance.tables import make_table

__all__ = ["Result", "builtin_estimators", "credit_of", "make_table", "run_file", "run_folder"]

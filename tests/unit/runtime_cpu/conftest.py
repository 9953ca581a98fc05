"""The engine on small models."""

from tests.fixtures.small_models import harness

__all__ = ["harness"]

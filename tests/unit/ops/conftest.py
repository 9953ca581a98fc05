"""A task that a random model can be trained on."""

from tests.fixtures.toy_task import toy

__all__ = ["toy"]

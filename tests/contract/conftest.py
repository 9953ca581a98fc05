"""Fixtures of the contract tests. Importing the server first settles verl's platform for all of them."""

from tests.fixtures.cpu_server import serve
from tests.fixtures.toy_task import toy

__all__ = ["serve", "toy"]

"""Temporary distributions, and no plugin host left over from another test."""

import pyarrow  # noqa: F401 - the process of the tests is no command's own, see verl_hier/cli/arrow.py

from tests.fixtures.host_fixtures import fresh_host, install

__all__ = ["fresh_host", "install"]

"""Temporary distributions, and no plugin host left over from another test."""

from tests.fixtures.host_fixtures import fresh_host, install

__all__ = ["fresh_host", "install"]

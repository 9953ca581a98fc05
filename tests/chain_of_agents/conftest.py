"""Coroutines as plain calls."""

import asyncio

import pytest


@pytest.fixture
def run():
    return asyncio.run

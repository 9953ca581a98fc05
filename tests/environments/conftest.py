"""Without the `alfworld` extra only the tests of the pool and the kit are collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("alfworld") and find_spec("textworld") else ["test_alfworld*.py"]

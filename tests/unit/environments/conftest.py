"""Without an environment's extra only the tests that need it are left out."""

from importlib.util import find_spec

NEEDS = {
    "test_alfworld*.py": ("alfworld", "textworld"),
    "test_textworld*.py": ("textworld",),
    "test_textarena*.py": ("textarena",),
}

collect_ignore_glob = [files for files, packages in NEEDS.items() if not all(map(find_spec, packages))]

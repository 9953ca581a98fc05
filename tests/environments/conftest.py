"""Without an environment's extra its tests are not collected; those of the pool and the kit always are."""

from importlib.util import find_spec

NEEDS = {"test_alfworld*.py": ("alfworld", "textworld"), "test_search*.py": ("bm25s",)}

collect_ignore_glob = [files for files, modules in NEEDS.items() if not all(map(find_spec, modules))]

"""Without an environment's extra only the tests that need it are left out."""

from importlib.util import find_spec

NEEDS = {
    "test_alfworld*.py": ("alfworld", "textworld"),
    "test_textworld.py": ("textworld",),
    "test_textworld_express.py": ("textworld_express", "py4j"),
    "test_scienceworld.py": ("scienceworld", "py4j"),
    "test_minigrid.py": ("minigrid",),
    "test_textarena*.py": ("textarena",),
    "test_retrieval.py": ("aiohttp", "bm25s"),
    "test_mcp.py": ("mcp", "aiohttp"),
    "test_openenv.py": ("aiohttp",),
    "test_gateway.py": ("aiohttp",),
}

collect_ignore_glob = [files for files, packages in NEEDS.items() if not all(map(find_spec, packages))]

"""Shop: a web shop in text, with a search bar, pages and options; a generated catalogue, or WebShop's own files.

Paper of the tasks and their reward: https://arxiv.org/abs/2207.01206. Doc page: docs/environments/shop.md.
"""

from verl_hier.environments.splits import SPLITS, pool
from verl_hier.hookspecs import hookimpl
from verl_hier.host.lazy import lazy
from verl_hier.host.specs import EnvironmentSpec
from verl_hier_plugins.environments.shop.options import ShopOptions

SPEC = EnvironmentSpec(
    "shop",
    lazy("verl_hier_plugins.environments.shop.environment:ShopEnvironment"),
    ShopOptions,
    tasks=lazy("verl_hier_plugins.environments.shop.tasks:tasks"),
    baselines=lazy("verl_hier_plugins.environments.shop.baselines:baselines"),
    fork="native",
    names_states=True,
    info=("won", "score"),
    says_won=True,
    splits=SPLITS,
    pool=pool,
    scoring=("reward", "win_reward", "invalid_penalty", "anchor"),
    summary="a web shop in text: search, pages, options, buy; a generated catalogue or WebShop's files",
    source="tasks, actions and reward as WebShop (arXiv 2207.01206) describes them; BM25 by bm25s",
    extra="search",
    modules=("bm25s",),
)


@hookimpl
def hier_environments() -> EnvironmentSpec:
    return SPEC

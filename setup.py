"""Package layout that TOML cannot say: `plugins/` and `recipes/` are installed under names of their own."""

from setuptools import find_packages, setup

PLUGINS = "verl_hier_plugins"
RECIPES = "verl_hier_recipes"

setup(
    packages=[
        *find_packages(include=["verl_hier", "verl_hier.*"]),
        PLUGINS,
        *(f"{PLUGINS}.{name}" for name in find_packages("plugins")),
        RECIPES,
    ],
    package_dir={PLUGINS: "plugins", RECIPES: "recipes"},
    package_data={"verl_hier": ["py.typed", "**/*.json"], PLUGINS: ["**/*.json"], RECIPES: ["**/*.yaml"]},
)

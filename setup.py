"""Package layout that TOML cannot say: four folders of this checkout hold importable packages."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["verl_hier", "verl_hier.*"]),
        *find_packages("plugins"),
        "verl_hier_recipes",
        "verl_hier_examples",
    ],
    package_dir={
        "verl_hier_plugins": "plugins/verl_hier_plugins",
        "verl_hier_recipes": "recipes",
        "verl_hier_examples": "examples/plugins",
    },
    package_data={
        "verl_hier": ["py.typed", "**/*.json", "**/*.yaml", "viewer/bundle/*", "viewer/example/**/*"],
        "verl_hier_plugins": ["py.typed", "**/*.json"],
        "verl_hier_recipes": ["**/*.yaml"],
        "verl_hier_examples": ["**/*.py", "**/*.toml", "**/*.md", "**/*.yaml"],
    },
    exclude_package_data={"verl_hier_examples": ["*/build/**"]},
)

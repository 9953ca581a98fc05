"""What `verl_hier.recipe.check` asks of a recipe, one module a topic. None of it starts a process or imports Ray.

A rule is a function with `@rule`, whose docstring begins with "Refuse"; `docs/checks.md` lists the docstrings.
"""

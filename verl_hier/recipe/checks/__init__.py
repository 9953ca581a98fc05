"""What `verl_hier.recipe.check` asks of a recipe, one module a topic. None of it starts a process or imports Ray."""

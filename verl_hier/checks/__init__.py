"""What `verl_hier.check` asks of a recipe, one module a topic. None of it starts a process or imports Ray."""

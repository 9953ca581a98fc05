"""The built-in plugins, one folder a method, worker, sampler, schedule or environment; found by their folder."""

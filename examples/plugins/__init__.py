"""Example plugins: installable packages that `verl-hier new` copies."""

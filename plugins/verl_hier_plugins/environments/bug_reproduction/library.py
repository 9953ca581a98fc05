"""All functions by name."""

from __future__ import annotations

from verl_hier_plugins.environments.bug_reproduction.numbers import ONE_NUMBER, TWO_NUMBERS
from verl_hier_plugins.environments.bug_reproduction.sequences import LISTS, TEXTS

TEMPLATES = {template.name: template for template in (*ONE_NUMBER, *TWO_NUMBERS, *LISTS, *TEXTS)}

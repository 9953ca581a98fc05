"""verl-hier: hierarchical, tree-shaped and multi-agent RL as plugins beside stock verl.

Importing this package is cheap and touches neither verl nor torch; every heavy part is imported where it is used.
"""

__version__ = "0.1.0"

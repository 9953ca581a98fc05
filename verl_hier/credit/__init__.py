"""Credit as pure array maths: group and segment kernels, tree kernels, token assignment. Imports numpy alone."""

from verl_hier.credit.credit import Credit

__all__ = ["Credit"]

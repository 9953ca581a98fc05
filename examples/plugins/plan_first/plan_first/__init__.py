"""A method of several parts: a planner above an executor, plans that are tried several times, credit by level.

The hooks of all parts are here, so that the package is one plugin.
"""

from plan_first.estimator import hier_estimators as hier_estimators
from plan_first.sampler import hier_samplers as hier_samplers
from plan_first.worker import hier_workers as hier_workers

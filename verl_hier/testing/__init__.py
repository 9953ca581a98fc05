"""Kits for authors of plugins: checks of all five kinds of parts, and scripted rollouts.

Everything that an author needs is imported from here:

- `check_estimator`: hold an estimator against everything that the trainer relies on.
- `make_table`, `random_table`, `permuted`: turn tables from a few columns, at random, and in another order.
- `credit_of`, `full_credit`, `builtin_estimators`: what built-in estimators give for a table.
- `check_environment`: play an environment and hold it against everything that rollouts rely on.
- `check_async_environment`: play many episodes of an asynchronous environment at once, cancel calls, cut connections.
- `check_worker`, `check_sampler`: play a worker or a sampler without a model, and hold it against the same.
- `check_sandbox`: hold a sandbox for model-written Python against its contract and its promises.
- `check_schedule`: hold a schedule against everything that the trainer relies on.
- `roll_out_scripted`, `replay_scripted`: a worker and a sampler with given answers instead of a model.
- `Line`, `PLAN_AND_WALK`: a small world and a worker of two roles for them.
- `ScriptedPolicy`, `WordTokenizer`, `CharacterTokenizer`, `BytePairTokenizer`: what scripted rollouts are made of.
"""

from verl_hier.credit.tables import make_table as make_table
from verl_hier.testing.async_environment import check_async_environment as check_async_environment
from verl_hier.testing.builtin import builtin_estimators as builtin_estimators
from verl_hier.testing.builtin import credit_of as credit_of
from verl_hier.testing.builtin import full_credit as full_credit
from verl_hier.testing.byte_pairs import BytePairTokenizer as BytePairTokenizer
from verl_hier.testing.environment import check_environment as check_environment
from verl_hier.testing.estimator import check_estimator as check_estimator
from verl_hier.testing.estimator import permuted as permuted
from verl_hier.testing.estimator import random_table as random_table
from verl_hier.testing.line import Line as Line
from verl_hier.testing.rollout import CharacterTokenizer as CharacterTokenizer
from verl_hier.testing.rollout import ScriptedPolicy as ScriptedPolicy
from verl_hier.testing.rollout import WordTokenizer as WordTokenizer
from verl_hier.testing.rollout import replay_scripted as replay_scripted
from verl_hier.testing.rollout import roll_out_scripted as roll_out_scripted
from verl_hier.testing.sampler import PLAN_AND_WALK as PLAN_AND_WALK
from verl_hier.testing.sampler import check_sampler as check_sampler
from verl_hier.testing.sandbox import check_sandbox as check_sandbox
from verl_hier.testing.schedule import check_schedule as check_schedule
from verl_hier.testing.worker import check_worker as check_worker

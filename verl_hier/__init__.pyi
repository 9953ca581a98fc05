from verl_hier.errors import HierError as HierError
from verl_hier.ops.evaluation import Evaluation as Evaluation
from verl_hier.ops.python import compose as compose
from verl_hier.ops.python import evaluate as evaluate
from verl_hier.ops.python import roll_out as roll_out
from verl_hier.ops.python import train as train
from verl_hier.ops.runs import Run as Run
from verl_hier.rollout.rewards import RatedEpisode as RatedEpisode
from verl_hier.rollout.rewards import RatedTurn as RatedTurn
from verl_hier.rollout.rewards import Reward as Reward

__version__: str

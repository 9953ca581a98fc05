"""A cold start for small models: a tiny model and its tokenizer, expert demonstrations, supervised training.

`collect_texts` → `build_tiny` → `write_demonstrations` → `run_sft` turns an environment with an expert into a policy
that wins often enough for reinforcement learning to have something to improve. See docs/environments.md.
"""

from verl_hier.coldstart.demonstrations import write_demonstrations
from verl_hier.coldstart.expert_policy import Noise
from verl_hier.coldstart.sft import run_sft
from verl_hier.coldstart.tiny import TinyShape, build_tiny
from verl_hier.coldstart.vocabulary import collect_texts

__all__ = ["Noise", "TinyShape", "build_tiny", "collect_texts", "run_sft", "write_demonstrations"]

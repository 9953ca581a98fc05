"""Episodes and who drives them: workers speak, samplers decide which episodes exist, the graph keeps what happened."""

from verl_hier.rollout.context import Context
from verl_hier.rollout.interfaces import Generation, Policy, Renderer, Sampler, Sampling, Worker

__all__ = ["Context", "Generation", "Policy", "Renderer", "Sampler", "Sampling", "Worker"]

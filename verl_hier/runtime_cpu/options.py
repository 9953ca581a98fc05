"""`actor_rollout_ref.rollout.engine_kwargs.transformers`: the server's own options."""

from dataclasses import dataclass, fields
from typing import Any

ROLLOUT_NAME = "transformers"
"""What recipes call the server."""
DEFAULT_ADAPTER = "default"
"""What peft calls the first adapter of a model, for which a request is that names none."""
# Default bound of the prefix cache. A token of a 200k-parameter model takes 1.5 KB, of a 0.5B model 24 KB.
_PREFIX_CACHE_BYTES = 512 * 1024**2
_PREFIX_CACHE_TOKENS = 262_144


@dataclass(frozen=True)
class ServerOptions:
    """Options of the rollout server."""

    deterministic: bool = False
    """A request's tokens depend on its seed, its prompt and the weights alone."""
    prefix_cache_tokens: int | None = None
    """Tokens kept in the prefix cache; None: as many as 512 MiB hold, at most 262144."""
    kv_cache_gib: float = 2.0
    """Memory for the keys and values of running requests; further requests wait."""
    num_threads: int = 1
    """Threads of one forward pass. One is best while other processes of the run need the cores."""
    gather_seconds: float = 0.001
    """How long an idle server waits for companions of a request that arrives."""

    @classmethod
    def from_rollout_config(cls, config: Any) -> "ServerOptions":
        """Read `config.engine_kwargs["transformers"]` and refuse what a one-process CPU server cannot do.

        Raises:
            ValueError: For an unknown option or a parallel layout.
        """
        given = dict((config.engine_kwargs or {}).get(ROLLOUT_NAME) or {})
        path = f"actor_rollout_ref.rollout.engine_kwargs.{ROLLOUT_NAME}"
        unknown = sorted(set(given) - {f.name for f in fields(cls)})
        if unknown:
            known = ", ".join(f.name for f in fields(cls))
            raise ValueError(f"{path} does not have the option(s) {', '.join(unknown)}; it has {known}.")
        for name in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
            if getattr(config, name) != 1:
                raise ValueError(
                    f"The rollout server '{ROLLOUT_NAME}' is one process; set actor_rollout_ref.rollout.{name}=1 "
                    "(more trainer ranks make more replicas)."
                )
        if getattr(config, "quantization", None):
            raise ValueError(
                f"The rollout server '{ROLLOUT_NAME}' does not quantise; set "
                "actor_rollout_ref.rollout.quantization=null."
            )
        options = cls(**given)
        if options.num_threads < 1:
            raise ValueError(f"{path}.num_threads must be at least 1, got {options.num_threads}.")
        return options

    def prefix_capacity(self, config: Any, bytes_per_token: int) -> int:
        """Tokens that the prefix cache may hold; 0 if it is switched off."""
        if not config.enable_prefix_caching:
            return 0
        if self.prefix_cache_tokens is not None:
            return self.prefix_cache_tokens
        return min(_PREFIX_CACHE_TOKENS, _PREFIX_CACHE_BYTES // bytes_per_token)

"""The options of the OpenEnv environment: which server, what an action is, and what the policy reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter

from verl_hier.host.constraints import Count, NonNegative


@dataclass(frozen=True)
class OpenenvOptions:
    """Options of the `openenv` environment."""

    url: str = "http://localhost:8000"
    """Address of the server."""
    headers_env: Mapping[str, str] = field(default_factory=dict)
    """Headers of each connection, by the environment variables that hold them: `{Authorization: MY_TOKEN}`."""
    instruction: str = "reach the goal"
    """What the policy is told to do, where no file of tasks says it."""
    data_path: str = ""
    """Tasks as JSONL with `instruction` and `reset`, the arguments of a reset; empty makes a task of each seed."""
    validation_path: str = ""
    """Tasks of the held-out splits; empty holds out a fifth of `data_path`."""
    pool: int = 400
    """Tasks in the training split; 0 means all of a file."""
    validation: int = 64
    """Tasks in each held-out split; 0 means all of a file."""
    action_field: str = ""
    """Field of an action that takes the policy's text; empty asks the server's schema. JSON is sent as it is."""
    show: str = ""
    """What the policy reads, with fields of the observation in braces: `{board} | {message}`; empty is all of it."""
    anchor_fields: tuple[str, ...] = ()
    """Fields of the observation that identify the state; empty takes the whole history for it."""
    won_above: float = 0.0
    """An episode is won when it has ended and its rewards sum up to more than this."""
    max_steps: Count = 30
    """Actions after which an episode is truncated."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of a turn that is no action."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url has to begin with http:// or https://, got {self.url!r}")
        if self.validation_path and not self.data_path:
            raise ValueError("validation_path needs data_path, the tasks of the training split")
        least = 0 if self.data_path else 1
        if self.pool < least or self.validation < least:
            raise ValueError(f"pool and validation must be at least {least}")
        for _, name, *_ in Formatter().parse(self.show):
            if name is not None and not name.isidentifier():
                raise ValueError(f"show has the field {name!r}; name fields of the observation")

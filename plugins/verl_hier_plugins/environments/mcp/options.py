"""The options of the MCP environment: which server, how it keeps episodes apart, and what counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from verl_hier.host.constraints import Count, NonNegative

ONE_SAMPLE = {"state": "argument", "state_key": "house", "hidden": ("furnish",)}
"""What one process of the sample server needs to keep the episodes apart."""


@dataclass(frozen=True)
class McpOptions:
    """Options of the `mcp` environment."""

    command: str = ""
    """Command line of a server that speaks over stdio; each session starts a process. Empty, and without `url`, is the
    sample server."""
    url: str = ""
    """Address of a server that speaks streamable HTTP, such as http://localhost:8000/mcp."""
    state: Literal["session", "argument", "none"] = "session"
    """What keeps episodes apart: a `session` each, an `argument` of each call that the policy does not see, or `none`,
    because the answer of a tool depends on the call alone."""
    state_key: str = ""
    """Name of that argument."""
    headers_env: Mapping[str, str] = field(default_factory=dict)
    """Headers of each request, by the environment variables that hold them: `{Authorization: MY_TOKEN}`."""
    secrets: tuple[str, ...] = ()
    """Environment variables that a server over stdio gets."""
    most_sessions: Count = 64
    """Sessions that a process has open at once."""
    hidden: tuple[str, ...] = ()
    """Tools that the policy does not see and cannot call."""
    one_sample: bool = False
    """The sample server as one process for all episodes: `state: argument`, `state_key: house`, `hidden: [furnish]`. It
    means nothing to a server of your own."""
    data_path: str = ""
    """Tasks as JSONL; empty generates tasks for the sample server."""
    validation_path: str = ""
    """Tasks of the held-out splits; empty holds out a fifth of `data_path`."""
    pool: int = 400
    """Tasks in the training split; 0 means all of a file."""
    validation: int = 64
    """Tasks in each held-out split; 0 means all of a file."""
    scorer: Literal["exact_match", "number", "number_or_words", "math_verify"] = "exact_match"
    """What compares an answer with the true ones of its task: `exact_match` of words, `number` (its last number),
    `number_or_words`, or `math_verify` (LaTeX; `pip install 'verl-hier[math]'`)."""
    actions: Literal["hermes", "plain"] = "hermes"
    """How calls are written: as JSON in `<tool_call>` tags, or in plain words, `find lamp`. With
    `hermes` plain words are understood where they are no sentence."""
    observation: Literal["full", "short"] = "full"
    """`full` begins with the tools and how to call them; `short` shows the answers alone."""
    most_calls: Count = 4
    """Calls of one turn that are made, one after the other; further ones are left out."""
    max_characters: Count = 4000
    """Characters of an answer that are shown."""
    max_steps: Count = 16
    """Turns after which an episode is truncated."""
    invalid_penalty: NonNegative = 0.02
    """Subtracted from the reward of a turn without a call, or with one that is an error."""
    repeat_destructive: bool = False
    """Whether an episode may be rebuilt that called a tool which the server calls destructive; it is called again."""

    def __post_init__(self) -> None:
        if self.one_sample and not self.command and not self.url:
            for name, value in ONE_SAMPLE.items():
                object.__setattr__(self, name, value)
        if self.command and self.url:
            raise ValueError("command starts a server and url names one that runs; leave one of them out")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url has to begin with http:// or https://, got {self.url!r}")
        if (self.state == "argument") != bool(self.state_key):
            raise ValueError("state: argument and state_key, the name of the argument, belong together")
        if (self.command or self.url) and not self.data_path:
            raise ValueError("a server of your own needs data_path, the tasks that are to be done with its tools")
        if self.validation_path and not self.data_path:
            raise ValueError("validation_path needs data_path, the tasks of the training split")
        if self.headers_env and not self.url:
            raise ValueError("headers_env are headers of requests to a url; a command gets its variables by `secrets`")
        least = 0 if self.data_path else 1
        if self.pool < least or self.validation < least:
            raise ValueError(f"pool and validation must be at least {least}")

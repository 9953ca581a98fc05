"""The options of the gateway: which agent, what it is given, how its result is scored, and its limits."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import Count, CountOrZero, Positive

MOST_CHARACTERS = 690_000
"""Of a request: the `info` of a step takes four mebibytes, in which JSON may write a character as six bytes."""
SCORERS = ("exact_match", "f1", "number", "number_or_words", "math_verify")


@dataclass(frozen=True)
class GatewayOptions:
    """Options of the `gateway` environment."""

    agent: str = ""
    """The agent as a function, `package.module:function` or `path/to/file.py:function`: it is called with the task and
    returns the result; it may be a coroutine. Empty, and without `command`, is a sample agent."""
    command: str = ""
    """The agent as a command line instead: the task comes on its standard input as JSON, its result is what it writes
    to its standard output."""
    sample: Literal["seeker", "lead"] = "seeker"
    """The sample agent, where neither `agent` nor `command` names one: a seeker looks into the rooms of a house itself,
    a lead sends helpers, each of which is a sub-agent with a conversation of its own."""
    python: str = ""
    """Interpreter that runs `agent`, such as one of another virtual environment with the agent's framework; empty is
    the one of the environment's process."""
    preload: bool = True
    """Whether one process imports the function of `agent` once and copies itself for each episode. Switch it off for a
    module that makes its client, or starts threads, when it is imported."""
    folder: str = ""
    """Folder in which the agent runs; empty is that of the run."""
    secrets: tuple[str, ...] = ()
    """Environment variables with keys that the agent is given; their values are masked in all that it says."""
    data_path: str = ""
    """Tasks as JSONL; empty generates tasks for a sample agent."""
    validation_path: str = ""
    """Tasks of the held-out splits; empty holds out a fifth of `data_path`."""
    pool: CountOrZero = 400
    """Tasks in the training split; 0 means all of a file."""
    validation: CountOrZero = 64
    """Tasks in each held-out split; 0 means all of a file."""
    hidden: tuple[str, ...] = ("answer", "answers", "goal", "data_source")
    """Fields of a task that the agent is not given."""
    scorer: str = "exact_match"
    """What scores the result of an agent by its task: `exact_match` and `f1` of words, `number` (the last number of the
    result), `number_or_words`, `math_verify` (LaTeX; `pip install 'verl-hier[math]'`), or `package.module:function`."""
    won_at: float = 1.0
    """Score from which on a task counts as won."""
    actions: Literal["hermes", "plain"] = "hermes"
    """How the tools of an agent are explained to the policy, and how it calls them: as JSON in `<tool_call>` tags, or
    in plain words, `look hall`. With `hermes` plain words are understood where they are no sentence."""
    reminders: tuple[str, ...] = ("system-reminder",)
    """Tags of texts that a program puts into messages that were sent already, or takes out of them; what stands in such
    a tag does not tell a message from what it was."""
    max_calls: Count = 256
    """Requests that are answered in one episode; with the next one it is truncated. `hier.rollout.max_turns` limits the
    turns of the policy, too."""
    max_idle: Count = 64
    """Requests in a row that may begin a context without saying anything new, such as those of a program that shortens
    its conversation for ever; with the next one the episode is truncated."""
    context_tokens: CountOrZero = 0
    """Tokens of a conversation, which the agent is told in AGENT_CONTEXT_TOKENS so that it shortens its conversations
    before the recipe's context is full; 0 tells it none. `${hier.rollout.context_tokens}` is
    the recipe's, where that has the line."""
    agent_s: Positive = 120.0
    """Seconds that an agent may take for itself in one episode; waiting for the policy does not count."""
    most_at_once: Count = 32
    """Requests of one episode that may wait side by side; a further one is held until one of them is answered."""
    request_characters: Count = 600_000
    """Characters of the messages and tools of one request, above which it is refused as too long; an agent that dies of
    it is truncated."""
    result_characters: Count = 20_000
    """Characters of a result that are read."""
    starts_at_once: Count = 4
    """Agents that one process starts at the same time."""
    crashes: Literal["score", "lose"] = "score"
    """What follows when an agent dies after it was answered: its result is scored as empty, because it may have died of
    what the policy said, or the episode is lost. Where a request was refused or left unanswered since the last answer,
    the episode is lost in any case."""
    repeatable: bool = True
    """Whether an agent may be run again on its recorded answers, which forks and recovery do; its effects repeat."""

    def __post_init__(self) -> None:
        if self.agent and self.command:
            raise ValueError("agent names a function and command starts a program; leave one of them out")
        if (self.agent or self.command or self.data_path) and self.sample != "seeker":
            raise ValueError("sample is for tasks that are generated; leave it out beside agent, command and data_path")
        if (self.agent or self.command) and not self.data_path:
            raise ValueError("an agent of your own needs data_path, the tasks that it is given")
        if self.agent and not all(self.agent.rpartition(":")[::2]):
            raise ValueError(f"agent is `package.module:function` or `path/to/file.py:function`, got {self.agent!r}")
        if self.python and self.command:
            raise ValueError("python runs the function of `agent`; write the interpreter of a command into it")
        if self.command:
            _check_command(self.command)
        if self.validation_path and not self.data_path:
            raise ValueError("validation_path needs data_path, the tasks of the training split")
        if self.scorer not in SCORERS and not all(self.scorer.partition(":")[::2]):
            raise ValueError(f"scorer is one of {', '.join(SCORERS)}, or package.module:function; got {self.scorer!r}")
        if self.scorer in SCORERS and not 0 < self.won_at <= 1:
            raise ValueError(
                f"won_at: the scorer {self.scorer} gives 0 to 1; name a score above 0, got {self.won_at:g}"
            )
        if self.request_characters > MOST_CHARACTERS:
            raise ValueError(f"request_characters must be at most {MOST_CHARACTERS}, got {self.request_characters}")
        if not self.data_path and min(self.pool, self.validation) < 1:
            raise ValueError("pool and validation must be at least 1 for generated tasks")


def _check_command(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"command is no command line ({error}): {command!r}") from error
    if not words:
        raise ValueError("command is empty")

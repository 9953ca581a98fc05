"""Secrets that an environment knows do not leave its process: they are masked in whatever it says.

A secret reaches a world so that it can show it to a server, and servers echo, exceptions quote, and logs tell. What is
masked is the secret itself and what it looks like in addresses and headers.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO
from urllib.parse import quote, quote_plus

from verl_hier.environments.base import StepResult

NAMES = "VERL_HIER_SECRETS"
"""Environment variable with the names of those that hold secrets, as a JSON list."""
MASKED = "[secret]"
SHORTEST = 8
"""Characters of a secret."""


class Mask:
    """Replaces secrets in texts, and in the texts of what JSON can say."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None

    @classmethod
    def of_process(cls) -> Mask:
        """Of the secrets that this process was given."""
        return cls.of_variables(json.loads(os.environ.get(NAMES, "[]")))

    @classmethod
    def of_variables(cls, names: Iterable[str]) -> Mask:
        """Of what is in the environment variables of these names."""
        return cls(os.environ[name] for name in names if os.environ.get(name))

    def __call__(self, said: Any) -> Any:
        """What was said, without secrets."""
        if self._pattern is None:
            return said
        if isinstance(said, str):
            return self.text(said)
        if isinstance(said, Mapping):
            return {self(key): self(value) for key, value in said.items()}
        if isinstance(said, list | tuple):
            return type(said)(map(self, said))
        return said

    def text(self, text: str) -> str:
        """A text without secrets."""
        return text if self._pattern is None else self._pattern.sub(MASKED, text)

    def step(self, step: StepResult) -> StepResult:
        """An answer of an environment without secrets."""
        return step if self._pattern is None else StepResult(**self(vars(step)))

    def cover_output(self) -> None:
        """Mask what this process writes to its output and its log from now on."""
        if self._pattern is not None:
            sys.stdout, sys.stderr = _Covered(sys.stdout, self), _Covered(sys.stderr, self)


class _Covered:
    """A text file that masks what is written to it."""

    def __init__(self, file: TextIO, mask: Mask) -> None:
        self._file = file
        self._mask = mask

    def write(self, text: str) -> int:
        return self._file.write(self._mask.text(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _forms(secret: str) -> set[str]:
    """What a secret looks like in texts, in JSON and in addresses, and alone in base64."""
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote_plus(secret), encoded}

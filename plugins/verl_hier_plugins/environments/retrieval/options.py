"""The options of the retrieval environment: those of `search`, and who is asked for documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.host.constraints import CountOrZero
from verl_hier_plugins.environments.search.options import SearchOptions


@dataclass(frozen=True)
class RetrievalOptions(SearchOptions):
    """Options of the `retrieval` environment."""

    url: str = ""
    """Address of a retriever in Search-R1's form, which `search` asks; empty searches the index of `search`."""
    web: Literal["", "retriever", "serper", "brave", "tavily"] = ""
    """Whom `web` asks: another `retriever`, or a service that searches the web."""
    web_url: str = ""
    """Address of what `web` asks; empty is the address of the service."""
    key_env: str = ""
    """Name of the environment variable that holds the key of the web search."""

    kept_answers: CountOrZero = 4096
    """Answers of a server that a process keeps, so that equal queries have equal answers and cost one call."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.url or self.web):
            raise ValueError("name a retriever in `url`, or whom `web` asks in `web`; for the index use `search`")
        if self.web == "retriever" and not self.web_url:
            raise ValueError("web: retriever needs the address of that retriever in web_url")
        if self.web_url and not self.web:
            raise ValueError("web_url needs `web`, which says what is at this address")
        if self.web in ("serper", "brave", "tavily") and not self.key_env:
            raise ValueError(f"web: {self.web} needs key_env, the name of the environment variable that holds your key")
        if self.web and not self.url and self.web_share:
            raise ValueError("`web` asks a server, so no document of the index can be on the web; set web_share to 0")
        for name in ("url", "web_url"):
            address = getattr(self, name)
            if address and not address.startswith(("http://", "https://")):
                raise ValueError(f"{name} has to begin with http:// or https://, got {address!r}")

"""The retrieval environment: a question, and documents from servers; see `search.episode` for all else."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from verl_hier.environments.asynchronous import AsyncEnvironment
from verl_hier.environments.base import StepResult
from verl_hier.errors import RecipeError
from verl_hier.http_clients import aiohttp_session
from verl_hier_plugins.environments.retrieval.client import RefusedQuery, RemoteCollection
from verl_hier_plugins.environments.retrieval.options import RetrievalOptions
from verl_hier_plugins.environments.search.corpus import Found, corpus_of
from verl_hier_plugins.environments.search.episode import Episode
from verl_hier_plugins.environments.search.files import file_tasks
from verl_hier_plugins.environments.search.tasks import tasks as search_tasks


class Searchable(Protocol):
    """A collection of documents."""

    async def search(self, query: str, k: int) -> Sequence[Found]:
        """At most `k` documents, best first."""


class RetrievalEnvironment(Episode, AsyncEnvironment):
    """One question; see `Episode`. It restores itself from its history and asks no server again."""

    def __init__(self, options: RetrievalOptions, remote: Mapping[str, RemoteCollection]) -> None:
        """
        Args:
            options: the options of the recipe.
            remote: the collections behind servers, by name.
        """
        super().__init__(options)
        self._remote = remote
        self._sources: Mapping[str, Searchable] = {}

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Start a question; asks no server. `seed` has no effect."""
        await self._open(task)
        return self.begin(task, tuple(self._sources))

    async def step(self, action: str) -> StepResult:
        """Search, or answer the question."""
        # A search that is not answered must not count, because it is made again.
        attempt = copy.copy(self)
        asked = attempt.take(action)
        if not isinstance(asked, StepResult):
            try:
                documents = await self._sources[asked.kind].search(asked.text, self._options.top_k)
                asked = _with_titles(attempt.see(asked, documents), documents)
            except RefusedQuery:
                asked = attempt.refuse()
        vars(self).update(vars(attempt))
        return asked

    async def fork(self) -> RetrievalEnvironment:
        """A copy that shares the connections; the two move on independently."""
        return copy.copy(self)

    async def restore(
        self, task: Mapping[str, Any], seed: int, actions: Sequence[str], steps: Sequence[StepResult]
    ) -> None:
        """Follow a history whose documents are known, because a search of the web may answer otherwise by now."""
        await self._open(task)
        self.begin(task, tuple(self._sources))
        for action, step in zip(actions, steps[1:], strict=True):
            asked = self.take(action)
            if isinstance(asked, StepResult):
                continue
            if "titles" not in step.info:
                self.refuse()
            else:
                names, titles = step.info["documents"], step.info["titles"]
                self.see(asked, [Found(name, title, "") for name, title in zip(names, titles, strict=True)])

    async def _open(self, task: Mapping[str, Any]) -> None:
        options = self._options
        assert isinstance(options, RetrievalOptions)
        self._sources = self._remote
        if not options.url:
            # Building the index takes long the first time.
            self._sources = {**await asyncio.to_thread(_index, options, task), **self._remote}


class _Indexed:
    """A collection of the index, as a remote one."""

    def __init__(self, search: Callable[[str, int], Sequence[Found]]) -> None:
        self._search = search

    async def search(self, query: str, k: int) -> Sequence[Found]:
        return await asyncio.to_thread(self._search, query, k)


def _index(options: RetrievalOptions, task: Mapping[str, Any]) -> dict[str, Searchable]:
    from verl_hier_plugins.environments.search.index import library

    return {name: _Indexed(collection.search) for name, collection in library(corpus_of(options, task)).items()}


def _with_titles(step: StepResult, documents: Sequence[Found]) -> StepResult:
    info = {**step.info, "titles": [document.title for document in documents]}
    return StepResult(**{**vars(step), "info": info})


@asynccontextmanager
async def service(options: RetrievalOptions) -> AsyncIterator[Callable[[], RetrievalEnvironment]]:
    """One HTTP client for all episodes of a process.

    Raises:
        RecipeError: when the variable of the key is not set.
    """
    key = os.environ.get(options.key_env, "") if options.key_env else ""
    if options.key_env and not key:
        raise RecipeError(f"hier.environment.key_env: the environment variable {options.key_env} is not set.")
    async with aiohttp_session() as client:
        remote = {}
        if options.url:
            remote["local"] = RemoteCollection(client, "retriever", options.url, "url", options.kept_answers)
        if options.web:
            line = "web_url" if options.web_url else "web"
            remote["web"] = RemoteCollection(client, options.web, options.web_url, line, options.kept_answers, key)
        yield lambda: RetrievalEnvironment(options, remote)


def tasks(options: RetrievalOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split; see `search.tasks`. With a retriever the questions of a file need no documents."""
    if options.url and not options.generated:
        return file_tasks(options, split, documents=False)
    return search_tasks(options, split)

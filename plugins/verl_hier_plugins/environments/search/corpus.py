"""The documents: of a generated world, of a JSONL file, or the contexts that come with questions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_hier.environments.splits import hash_number
from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.search.files import contexts, read_rows
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.world import build_world, write_document

COLLECTIONS = ("local", "web")
DOCUMENT_COLUMNS = ("title", "text", "collection")


@dataclass(frozen=True)
class Document:
    """A document of the corpus.

    Attributes:
        title: its name.
        text: its content.
        collection: `local` or `web`.
    """

    title: str
    text: str
    collection: str


@dataclass(frozen=True)
class Found:
    """A document that a search found.

    Attributes:
        name: its title; where titles may repeat, with the document's number.
        title: its title.
        text: its content.
    """

    name: str
    title: str
    text: str


@dataclass(frozen=True)
class GeneratedCorpus:
    """The corpus of a generated world; the fields are a task's `corpus` entry."""

    seed: int
    entities: int
    prose: bool
    web_share: float

    def documents(self) -> Iterator[Document]:
        """One document for each entity; titles are unique."""
        world = build_world(self.seed, self.entities)
        for name in world.kinds:
            yield Document(name, write_document(world, name, self.prose), place(name, self.web_share))


@dataclass(frozen=True)
class FileCorpus:
    """A corpus from files, by the options that name them."""

    corpus_path: str
    question_paths: tuple[str, ...]
    web_share: float
    index_path: str

    def documents(self) -> Iterator[Document]:
        """Documents in the order of the files; titles may repeat.

        Raises:
            RecipeError: for an unreadable file, an invalid document, or an empty corpus.
        """
        source = self._of_file() if self.corpus_path else self._of_contexts()
        empty = True
        for document in source:
            empty = False
            yield document
        if empty:
            option = "corpus_path" if self.corpus_path else "data_path"
            raise RecipeError(f"hier.environment.{option}: there are no documents in the file.")

    def _of_file(self) -> Iterator[Document]:
        for where, row in read_rows(self.corpus_path, "corpus_path", DOCUMENT_COLUMNS):
            title, text = row.get("title"), row.get("text")
            if not isinstance(title, str) or not isinstance(text, str) or not (title.strip() or text.strip()):
                raise RecipeError(
                    f"hier.environment.corpus_path: {where} is no document; a line needs the texts `title` and `text`."
                )
            collection = row.get("collection") or place(title, self.web_share)
            if collection not in COLLECTIONS:
                raise RecipeError(
                    f"hier.environment.corpus_path: {where} has the collection {collection!r}; it can be "
                    f"{' or '.join(COLLECTIONS)}."
                )
            yield Document(title, text, collection)

    def _of_contexts(self) -> Iterator[Document]:
        seen: set[bytes] = set()
        for path, option in zip(self.question_paths, ("data_path", "validation_path"), strict=False):
            for title, text in contexts(path, option):
                mark = hashlib.blake2b(f"{title}\n{text}".encode(), digest_size=12).digest()
                if mark not in seen:
                    seen.add(mark)
                    yield Document(title, text, place(title, self.web_share))


Corpus = GeneratedCorpus | FileCorpus


def corpus_of(options: SearchOptions, task: Mapping[str, Any] | None = None) -> Corpus:
    """The corpus of a task: the one that it names, otherwise that of the options."""
    if task is not None and "corpus" in task:
        return GeneratedCorpus(**task["corpus"])
    if options.generated:
        return GeneratedCorpus(options.seed, options.size, options.prose, options.web_share)
    paths = tuple(path for path in (options.data_path, options.validation_path) if path)
    return FileCorpus(options.corpus_path, paths, options.web_share, options.index_path)


def place(title: str, web_share: float) -> str:
    """The collection of a document, which depends on its title alone."""
    return "web" if hash_number(f"place-{title}", 4) < web_share * 2**32 else "local"

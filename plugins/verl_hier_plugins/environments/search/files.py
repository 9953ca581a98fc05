"""Questions and documents from files, checked row by row: Parquet, JSONL or JSON in the forms of `question_rows`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_hier.environments import question_rows
from verl_hier.environments.scoring import normalise
from verl_hier.environments.splits import held_out
from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import parquet_columns, parquet_rows, parse_json, read_json, text_lines
from verl_hier_plugins.environments.search.options import SearchOptions
from verl_hier_plugins.environments.search.questions import DATA_SOURCE

LARGEST_LIST = 2**32
"""Bytes of a JSON file that is one list; HotpotQA's has half a gigabyte."""
FORMATS = (".parquet", ".jsonl", ".json")
QUESTION_COLUMNS = ("id", "_id", "supporting_facts", "context", *question_rows.COLUMNS)


def read_rows(path: str, option: str, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a file, each with a description of its place for errors.

    Args:
        path: a Parquet file, a JSONL file, or a JSON file with one list.
        option: the option that names the file.
        columns: the columns to read from a Parquet file, if they exist.

    Raises:
        RecipeError: when the file cannot be read or a row is not an object.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise RecipeError(f"hier.environment.{option}: there is no file {file}.")
    if file.suffix not in FORMATS:
        raise RecipeError(f"hier.environment.{option}: {file.name} must end in {', '.join(FORMATS)}.")
    source, unit = {".parquet": (_parquet, "row"), ".jsonl": (_lines, "line"), ".json": (_list, "item")}[file.suffix]
    try:
        for number, row in source(file, columns):
            where = f"{unit} {number} of {file.name}"
            if not isinstance(row, dict):
                raise RecipeError(f"hier.environment.{option}: {where} is no object but {row!r:.60}.")
            yield where, row
    except FileError as error:
        raise RecipeError(f"hier.environment.{option}: {error}") from error


def _parquet(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    return enumerate(parquet_rows(file, [name for name in parquet_columns(file) if name in columns]))


def _lines(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    for number, line in text_lines(file):
        yield number, parse_json(line, f"line {number} of {file}", repair=True)


def _list(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    rows = read_json(file, LARGEST_LIST, repair=True)
    if not isinstance(rows, list):
        raise FileError(f"{file} must hold one list; write one object a line and call it .jsonl.")
    yield from enumerate(rows)


def file_tasks(options: SearchOptions, split: str, documents: bool = True) -> list[dict[str, Any]]:
    """The questions of a split as tasks, in the order of their file.

    Args:
        options: the options of the recipe.
        split: the split.
        documents: whether they need documents from files, too.

    Raises:
        RecipeError: for an invalid file or row, and for a split without questions.
    """
    option = "validation_path" if split != "train" and options.validation_path else "data_path"
    limit = options.pool if split == "train" else options.validation
    path = getattr(options, option)
    tasks: list[dict[str, Any]] = []
    for where, row in read_rows(path, option, QUESTION_COLUMNS):
        where = f"hier.environment.{option}: {where}"
        if documents and not options.corpus_path and row.get("context") is None:
            raise RecipeError(
                f"{where} has no `context`; name the documents to search in hier.environment.corpus_path."
            )
        question = _question(row, where)
        if options.validation_path or held_out(question) == split:
            tasks.append(_task(row, question, where, f"{split}-{len(tasks):05d}"))
        if len(tasks) == limit > 0:
            break
    if not tasks:
        raise RecipeError(f"hier.environment.{option}: {path} has no question for the split {split!r}.")
    return tasks


def contexts(path: str, option: str) -> Iterator[tuple[str, str]]:
    """Titles and texts of the paragraphs in the `context` of a file's questions."""
    for where, row in read_rows(path, option, QUESTION_COLUMNS):
        for title, sentences in _pairs(row.get("context"), "sentences", f"hier.environment.{option}: {where}"):
            text = sentences if isinstance(sentences, str) else "".join(map(str, sentences))
            yield str(title), " ".join(text.split())


def _task(row: Mapping[str, Any], question: str, where: str, name: str) -> dict[str, Any]:
    support = list(dict.fromkeys(str(title) for title, _ in _pairs(row.get("supporting_facts"), "sent_id", where)))
    return {
        "instruction": question,
        "question": question,
        "answers": _answers(row, where),
        **({"hops": len(support), "support": support} if support else {}),
        "data_source": DATA_SOURCE,
        "id": str(row.get("id") or row.get("_id") or name),
    }


def _question(row: Mapping[str, Any], where: str) -> str:
    question = question_rows.question_of(row)
    if not question:
        raise RecipeError(f"{where} has no text in `question`; it has {', '.join(row) or 'nothing'}.")
    return question


def _answers(row: Mapping[str, Any], where: str) -> list[str]:
    answers = question_rows.answers_of(row)
    if not answers or not all(map(normalise, answers)):
        raise RecipeError(
            f"{where} needs a text, or a list of texts, in `answer` or `golden_answers`, with more than punctuation "
            f"and articles; it has {answers or row.get('answer')!r:.60}."
        )
    return answers


def _pairs(value: Any, second: str, where: str) -> list[tuple[Any, Any]]:
    """HotpotQA's nested columns: a list of pairs as in its JSON, or two lists side by side as in its Parquet files."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        first, other = value.get("title"), value.get(second)
        if isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
            return list(zip(first, other, strict=True))
    elif isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return [(pair[0], pair[1]) for pair in value]
    raise RecipeError(f"{where} has a column that is neither pairs nor lists `title` and `{second}`: {value!r:.60}.")

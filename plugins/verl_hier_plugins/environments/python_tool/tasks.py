"""Task pools of `python_tool`: generated arithmetic, reasoning-gym's families, and question files."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from verl_hier.environments import question_rows
from verl_hier.environments.splits import SPLITS, Balance, draw_tasks, split_of
from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.bounded_reading import parquet_columns, parquet_rows
from verl_hier_plugins.environments.python_tool.arithmetic import draw, draw_last_digit, same_number, spell
from verl_hier_plugins.environments.python_tool.options import ARITHMETIC, GENERATED, PythonToolOptions

NAME = "python_tool"
FILE = "file"
LONGEST_ANSWER = 1000
"""Characters; longer answers are wrong without being read by a scorer."""

MORE = 0.05
"""How much more than by chance an answer of reasoning-gym may be right."""

FILES = {"train": ("train",), "val": ("val", "dev", "test"), "test": ("test",)}
"""How the file names of a split begin; the first beginning with matches is used."""


def tasks(options: PythonToolOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split, in a fixed order: `{instruction, data_source, id, family}` and what the verifier needs.

    That is the `answer` of generated families and of files, and `seed`, `index` and `difficulty` for reasoning-gym. A
    chain of questions is the first of them, with the others in `next`.
    """
    size = (options.pool if split == "train" else options.validation) * options.chain
    questions = _from_files(options, split, size) if options.data_path else _drawn(options, split, size)
    if options.chain == 1:
        return questions
    starts = range(0, len(questions) - options.chain + 1, options.chain)
    return [{**questions[start], "next": questions[start + 1 : start + options.chain]} for start in starts]


def _drawn(options: PythonToolOptions, split: str, size: int) -> list[dict[str, Any]]:
    """Questions of the families, which take turns chain by chain."""

    balances: defaultdict[str, Balance] = defaultdict(lambda: Balance(MORE))

    def make(number: int, there: int) -> tuple[str, dict[str, Any]] | None:
        family = options.families[there // options.chain % len(options.families)]
        if family in GENERATED:
            task = _generated(options, family, number)
        else:
            task = _gym_task(options, family, number)
            if split_of(f"{family}: {task['instruction']}") != split:
                return None
            if not balances[family].admits((str(entry_of(task)["answer"]),), there):
                return None
        return f"{family}: {task['instruction']}", task

    return draw_tasks(make, split, size, NAME)


def _generated(options: PythonToolOptions, family: str, number: int) -> dict[str, Any]:
    rng = random.Random(f"{family}-{options.seed}-{number}")
    text, value = (draw if family == ARITHMETIC else draw_last_digit)(rng, options.difficulty)
    question = f"What is {text}?" if family == ARITHMETIC else f"What is the last digit of {text}?"
    instruction = spell(text) if options.spelling == "words" else question
    return {
        "instruction": instruction,
        "data_source": NAME,
        "family": family,
        "expression": text,
        "answer": str(value),
    }


def _gym_task(options: PythonToolOptions, family: str, number: int) -> dict[str, Any]:
    where = {"family": family, "seed": options.seed, "index": number, "difficulty": options.difficulty}
    return {"instruction": entry_of(where)["question"], "data_source": NAME, **where}


# ---- verification ----------------------------------------------------------------------------------------------------


def score(task: Mapping[str, Any], answer: str) -> float:
    """The score of an answer, from 0 to 1: by reasoning-gym's scorer, as a number, or as the same words."""
    answer = answer.strip()
    if len(answer) > LONGEST_ANSWER or not _words(answer):
        return 0.0
    if "index" not in task:
        return float(same_number(answer, task["answer"]) or _words(answer) == _words(task["answer"]))
    entry = entry_of(task)
    try:
        found = float(_dataset(task["family"], task["seed"], task["difficulty"]).score_answer(answer, entry))
        if task["family"] == "number_format":
            # The scorer's tolerance can be larger than the distance of the numbers that are to be told apart.
            number, solution = float(answer.replace(",", "")), entry["metadata"]["solution"]
            found *= min(entry["metadata"]["candidates"], key=lambda one: abs(one - number)) == solution
    except Exception:
        # Some scorers raise an exception on answers that they cannot parse.
        return 0.0
    return min(max(found, 0.0), 1.0)


def _words(text: str) -> list[str]:
    return text.casefold().removesuffix(".").split()


def entry_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """Reasoning-gym's own record of a task: question, answer, metadata.

    Raises:
        RecipeError: when this version of reasoning-gym generates another question for the task.
    """
    entry: dict[str, Any] = _dataset(task["family"], task["seed"], task["difficulty"])[task["index"]]
    if task.get("instruction", entry["question"]) != entry["question"]:
        raise RecipeError(
            f"hier.environment.families: this version of reasoning-gym makes another question of task "
            f"{task.get('id', task['index'])} of {task['family']!r}; use the one that made the tasks."
        )
    return entry


@lru_cache(maxsize=256)
def _dataset(family: str, seed: int, difficulty: int) -> Any:
    """A family at a difficulty. reasoning-gym generates its tasks on access, so the large size costs nothing."""
    try:
        from reasoning_gym.factory import CURRICULA, DATASETS
    except ImportError as error:
        raise RecipeError(
            f"hier.environment.families: {family!r} needs reasoning-gym ({error}); "
            "pip install 'verl-hier[reasoning]', or use the family 'arithmetic'."
        ) from error
    dataset, config = DATASETS[family]
    chosen = {"seed": seed, "size": 10**6}
    if family not in CURRICULA:
        return dataset(config(**chosen))
    curriculum = CURRICULA[family]()
    curriculum.set_global_level(difficulty)
    return dataset(curriculum.generate_configuration(chosen))


# ---- files -----------------------------------------------------------------------------------------------------------


def _from_files(options: PythonToolOptions, split: str, size: int) -> list[dict[str, Any]]:
    """Rows of the split's files; a single file is divided by a hash of its questions."""
    if split not in SPLITS:
        raise RecipeError(f"hier.environment: {NAME} has no split {split!r}; it has {', '.join(SPLITS)}.")
    root = Path(options.data_path).expanduser()
    whole = root.is_file()
    files = [root] if whole else _files(root, split)
    found: list[dict[str, Any]] = []
    for question, full in _rows(files):
        answer = full.rpartition("####")[2].strip()
        if not _words(answer):
            raise RecipeError(_no_answer(question, root))
        if whole and split_of(question) != split:
            continue
        found.append(
            {
                "instruction": question,
                "data_source": NAME,
                "family": FILE,
                "answer": answer,
                "id": f"{split}-{len(found):05d}",
            }
        )
        if size and len(found) == size:
            break
    if not found:
        raise RecipeError(f"hier.environment.data_path: no question of the split {split!r} in {root}.")
    return found


def _no_answer(question: str, file: Path) -> str:
    return f"hier.environment.data_path: the question {question!r:.60} in {file} has no answer; leave it out."


def _files(root: Path, split: str) -> list[Path]:
    for beginning in FILES[split]:
        files = sorted(root.glob(f"{beginning}*.parquet"))
        if files:
            return files
    raise RecipeError(
        f"hier.environment.data_path: {root} is no Parquet file and holds none whose name begins with "
        f"{' or '.join(FILES[split])}."
    )


def _rows(files: list[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        try:
            names = parquet_columns(file)
            for number, row in enumerate(parquet_rows(file, [name for name in names if name in question_rows.COLUMNS])):
                question, answers = question_rows.question_of(row), question_rows.answers_of(row)
                if question and not answers and "answer" in names:
                    raise RecipeError(_no_answer(question, file))
                if not question or len(answers) != 1:
                    raise FileError(
                        f"row {number} of {file} needs a text in question and one in answer, or the columns of MATH, "
                        f"Search-R1 or verl; it has the columns {', '.join(names)} and {len(answers)} answers."
                    )
                yield question, answers[0]
        except FileError as error:
            raise RecipeError(f"hier.environment.data_path: {error}") from error

"""The cold start of a recipe: a small model and its tokenizer, demonstrations, supervised training."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from verl_hier.chat.tokenizer import load_tokenizer
from verl_hier.coldstart.demonstrations import write_demonstrations
from verl_hier.coldstart.distill import DATA, Distillation, ExpertTeacher, Student, Weights, distill, for_system
from verl_hier.coldstart.expert_policy import Noise, can_play
from verl_hier.coldstart.filters import Filters
from verl_hier.coldstart.sft import LOG_NAME, Progress, no_progress, run_sft
from verl_hier.coldstart.tiny import TinyShape, build_tiny
from verl_hier.coldstart.vocabulary import collect_texts
from verl_hier.coldstart.worker_texts import worker_texts
from verl_hier.errors import FileError, RecipeError
from verl_hier.graph.atomic_write import atomic_write
from verl_hier.graph.bounded_reading import parquet_metadata, read_json
from verl_hier.host.options import build_options
from verl_hier.host.part import Part
from verl_hier.recipe.checks.model import HUB_NAME
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout.plain_renderer import PlainRenderer

logger = logging.getLogger(__name__)

RECORD = "cold_start.json"
"""File in the folder of the model that says what it was made from."""
WORK, TINY, LOCK = "cold_start", "tiny", "lock"
FORMAT = 1


def build(*configs: Any, report: Callable[[str], None] = logger.info, progress: Progress = no_progress) -> Path:
    """Make the small model of a recipe, or find the one that an equal call made before or is making.

    Args:
        configs: composed recipes, such as `verl_hier.recipe.compose.compose` returns. One model learns the formats of
            the workers of all of them; the first says where the model goes and how it is trained.
        report: called with a sentence on each stage.
        progress: called with the optimiser step and its loss during the supervised training.

    Returns:
        The folder of the trained model, `actor_rollout_ref.model.path` of the first recipe. What it was made from lies
        in the folder `cold_start` beside it.

    Raises:
        RecipeError: when the recipe trains no small model, its environment has no expert or the expert cannot play its
            worker, or when the folder holds a model that no cold start has made.
        ColdStartError: when the supervised training fails.
    """
    recipes = [ComposedRecipe.of(config) for config in configs]
    model, key = model_folder(recipes[0]), key_of(recipes)
    if not _is_made(model, key):
        with _alone(work_folder(recipes[0]), report):
            if not _is_made(model, key):
                _make(recipes, key, report, progress)
                return model
    report(f"the model exists already: {model}")
    return model


def _is_made(model: Path, key: str) -> bool:
    """Whether a folder holds the model with this key.

    Raises:
        RecipeError: when it holds what no cold start has made.
    """
    known = read_record(model)
    # Another cold start may swap its model in between two looks, and the second then finds the record.
    if not known and model.exists() and not (known := read_record(model)):
        raise RecipeError(
            f"actor_rollout_ref.model.path: no cold start has made what is in {str(model)!r}; name another folder, or "
            "remove this one."
        )
    return known.get("key") == key


@contextmanager
def _alone(work: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder of a cold start against others, which wait until this one has ended or died."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another cold start is under way in {work}; this one waits for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(recipes: Sequence[ComposedRecipe], key: str, report: Callable[[str], None], progress: Progress) -> None:
    """Make the model of some recipes."""
    started, worked = time.monotonic(), _core_seconds()
    first, work = recipes[0], work_folder(recipes[0])
    settings = first.hier.coldstart
    tiny = random_model(recipes, work / TINY)
    tokenizer = load_tokenizer(tiny)
    report(f"1/3 a random model and its vocabulary of {len(tokenizer)} words: {tiny}")
    files = [
        demonstrate(recipe, tokenizer, work / f"demonstrations_{number}.parquet")
        for number, recipe in enumerate(recipes)
    ]
    rows = sum(parquet_metadata(file).num_rows for file in files)
    report(f"2/3 {rows} contexts of the environment's expert, as the worker has them: {work}")
    report(f"3/3 {settings.steps} steps of supervised training by verl's own trainer (its messages: {work / LOG_NAME})")
    trained = run_sft(
        tiny,
        [file.resolve() for file in files],
        work,
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=_seed(first),
        overrides=[f"data.max_length={_shape(first).positions}"],
        progress=progress,
    )
    record = {
        "key": key,
        "recipes": [recipe.hier.recipe.name for recipe in recipes],
        "settings": asdict(settings),
        "seed": _seed(first),
        "contexts": rows,
        "vocabulary": len(tokenizer),
        "seconds": round(time.monotonic() - started, 1),
        "core_seconds": round(_core_seconds() - worked, 1),
        "versions": {name: version(name) for name in ("verl", "torch", "transformers")},
    }
    put_model(trained, model_folder(first), record)


def put_model(trained: Path, model: Path, record: Mapping[str, Any]) -> None:
    """Move a trained model to its folder, in place of one that a cold start has made before.

    Whatever ends the process meanwhile, the folder holds a model with its record, or is not there.

    Args:
        trained: folder of the model, on the same disk.
        model: where it goes.
        record: what it was made from.
    """
    (trained / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    replaced = trained.with_name(f"replaced_{model.name}")
    if replaced.exists():
        shutil.rmtree(replaced)
    if model.exists():
        model.rename(replaced)
    trained.rename(model)
    shutil.rmtree(replaced, ignore_errors=True)


def _core_seconds() -> float:
    """What this process and those that it waited for have used of all cores."""
    return sum(os.times()[:4])


def read_record(model: Path) -> dict[str, Any]:
    """What a cold start has written about its model; empty for any other folder."""
    try:
        found = read_json(model / RECORD)
    except FileError:
        return {}
    return found if isinstance(found, dict) else {}


def model_folder(recipe: ComposedRecipe) -> Path:
    """Where the model of a recipe goes.

    Raises:
        RecipeError: when the recipe trains another model than a small one.
    """
    path = str(recipe.config["actor_rollout_ref"]["model"]["path"])
    if recipe.hier.recipe.model != "tiny":
        raise RecipeError(
            f"hier/model: {recipe.hier.recipe.name} trains {path}; a cold start makes the small model of "
            "`size=cpu model=tiny`. For other models see `verl-hier distill`."
        )
    if recipe.hier.rollout.template != "plain":
        raise RecipeError("hier.rollout.template: the small model of a cold start needs `plain`.")
    folder = Path(path).expanduser()
    if HUB_NAME.fullmatch(path) and not path.startswith(".") and not folder.exists():
        raise RecipeError(
            f"actor_rollout_ref.model.path: {path!r} looks like the name of a hub model; begin a folder with ./"
        )
    return folder


def work_folder(recipe: ComposedRecipe) -> Path:
    """Where the parts of the cold start of a recipe go, beside its model."""
    return model_folder(recipe).parent / WORK


def _seed(recipe: ComposedRecipe) -> int:
    """The seed of weights, demonstrations and the order of contexts."""
    return recipe.hier.seed or 0


def _shape(recipe: ComposedRecipe) -> TinyShape:
    """The shape of the model, long enough for the recipe's contexts."""
    settings = recipe.hier.coldstart
    return TinyShape(
        hidden=settings.hidden,
        layers=settings.layers,
        intermediate=2 * settings.hidden,
        head_dim=settings.head_dim,
        positions=max(TinyShape.positions, recipe.limits.context_tokens),
    )


def _environments(recipe: ComposedRecipe) -> list[Part]:
    """The environment with the options of each variant that is demonstrated."""
    spec, block = recipe.parts.environment.spec, recipe.hier.environment
    return [
        Part(spec, build_options(spec, {**block, **variant})) for variant in recipe.hier.coldstart.variants or ({},)
    ]


def _workers(recipe: ComposedRecipe) -> list[Part]:
    """The worker as the recipe has it, and with each of the further options that are demonstrated."""
    spec, block = recipe.parts.worker.spec, recipe.hier.worker
    further = [Part(spec, build_options(spec, {**block, **options})) for options in recipe.hier.coldstart.workers]
    return [recipe.parts.worker, *further]


def texts_of(recipe: ComposedRecipe, seed: int = 0, walks: int = 96) -> Iterator[str]:
    """What the tokenizer of a recipe's model has to know: the texts of its environment and of its worker."""
    settings = recipe.hier.coldstart
    for environment, worker in product(_environments(recipe), _workers(recipe)):
        yield from collect_texts(environment, [worker], walks, seed)
        system = recipe.system if worker.spec.is_transcribed(worker.options) else None
        if can_play(system or worker):
            yield from worker_texts(environment, worker, system, recipe.limits, seed, settings.remember)


def random_model(recipes: Sequence[ComposedRecipe], folder: Path) -> Path:
    """Write a random model and the tokenizer of some recipes to a folder."""
    texts = (text for recipe in recipes for text in texts_of(recipe, _seed(recipe)))
    return build_tiny(folder, texts, _seed(recipes[0]), _shape(recipes[0]))


def demonstrate(recipe: ComposedRecipe, tokenizer: Any, file: Path) -> Path:
    """Write the demonstrations of a recipe: contexts as its worker has them, token for token.

    The expert plays the worker itself where it can. For a worker that has `transcribe` it plays
    `hier.coldstart.system`, whose episodes are distilled; reports on them lie in a folder beside the file.

    Args:
        recipe: the recipe whose worker is to be trained.
        tokenizer: the model's tokenizer.
        file: the Parquet file to write.

    Returns:
        The file.

    Raises:
        RecipeError: see `build`.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    shown = list(product(_environments(recipe), _workers(recipe)))
    n = max(1, recipe.hier.coldstart.episodes // len(shown))
    parts = [
        (_by_distillation if worker.spec.is_transcribed(worker.options) else _by_expert)(
            recipe, environment, worker, tokenizer, file.with_suffix("") / str(number), n
        )
        for number, (environment, worker) in enumerate(shown)
    ]
    with atomic_write(file) as beside:
        parquet.write_table(pyarrow.concat_tables([parquet.read_table(part) for part in parts]), beside)
    return file


def _by_expert(recipe: ComposedRecipe, environment: Part, worker: Part, tokenizer: Any, path: Path, n: int) -> Path:
    """Demonstrations by the expert, who plays the recipe's worker itself."""
    settings, file = recipe.hier.coldstart, path.with_suffix(".parquet")
    noise = Noise(random_action=settings.random_action, skip_stage=settings.skip_stage)
    return write_demonstrations(environment, worker, tokenizer, file, n, noise, _seed(recipe), recipe.limits)


def _by_distillation(
    recipe: ComposedRecipe, environment: Part, worker: Part, tokenizer: Any, path: Path, n: int
) -> Path:
    """Demonstrations for a worker that has `transcribe`, from episodes of another one."""
    settings, limits = recipe.hier.coldstart, recipe.limits
    noise = Noise(random_action=settings.random_action, skip_stage=0.0)
    distill(
        Distillation(
            environment=environment,
            system=recipe.system,
            student=Student(worker, PlainRenderer(tokenizer), tokenizer, limits),
            teacher=lambda messages: ExpertTeacher(noise, settings.remember),
            n=n,
            filters=Filters(activations=1, calls=1),
            weights=Weights(invalid_action=Noise.random_weight, observation=Noise.observation_weight),
            seed=_seed(recipe),
            limits=for_system(limits),
        ),
        path,
    )
    return path / DATA


def key_of(recipes: Sequence[ComposedRecipe]) -> str:
    """A hash of everything that the model depends on."""

    def plain(part: Part) -> Any:
        scoring = getattr(part.spec, "scoring", ())
        return [part.spec.name, {name: value for name, value in asdict(part.options).items() if name not in scoring}]

    parts: list[Any] = []
    for recipe in recipes:
        parts += [[plain(part) for part in _environments(recipe)], [plain(part) for part in _workers(recipe)]]
        parts += [asdict(recipe.limits), asdict(recipe.hier.coldstart) | {"name": "", "variants": (), "workers": ()}]
    parts += [FORMAT, _seed(recipes[0])]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]

"""What has changed since a run was begun, asked before it goes on: its recipe, its seeds and the files of its data.

Differences that this command itself asks for are what the user wants. Others that change what is trained are refused,
unless they come from a newer verl-hier: then the run keeps what was recorded. The rest is noted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hier.errors import FileError, HierError, RecipeError
from verl_hier.graph.bounded_reading import read_json
from verl_hier.recipe.catalogue import CHOICES, Recipe
from verl_hier.recipe.compose import compose
from verl_hier.recipe.overrides import key_of

_SILENT = (
    *("trainer.resume_mode", "trainer.resume_from_path", "trainer.default_local_dir", "data.hier", "hier.recipe"),
    "hier.paper",
)
"""Lines that say where a run is, or repeat others, or change nothing."""
_MEASURES = (
    *("trainer.logger", "trainer.project_name", "trainer.experiment_name", "trainer.total_training_steps"),
    *("trainer.total_epochs", "trainer.save_freq", "trainer.test_freq", "trainer.val_before_train", "trainer.val_only"),
    *("trainer.log_val_generations", "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"),
    *("trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.default_hdfs_dir", "data.val_files"),
    *("data.val_batch_size", "data.validation_shuffle", "actor_rollout_ref.rollout.val_kwargs", "ray_kwargs"),
    *("global_profiler", "hier.store", "hier.coldstart", "hier.rollout.environment_processes"),
    *("actor_rollout_ref.actor.optim.total_training_steps", "critic.optim.total_training_steps"),
)
"""Lines that decide how long a run is and what it measures and keeps, and not what a step learns."""
_PARTS = (
    *("hier.environment", "hier.worker", "hier.sampler", "hier.estimator", "hier.schedule", "hier.rewards"),
    *("hier.probes", "hier.update", "hier.guards", "hier.refill", "hier.rollout", "hier.value_heads"),
    "hier.curriculum",
)
"""Blocks of recipes alone: a line that one of two versions does not have was not set there. A line of verl's that one
does not have is verl's newer option."""
_SHOWN = 6
"""Differences that a sentence names."""
_NOTHING = object()


@dataclass(frozen=True)
class Asked:
    """What commands asked for.

    Attributes:
        recorded: the overrides of the run's last command.
        given: those of this command.
        repeated: whether those of the last command hold too (`--resume`).
    """

    recorded: tuple[str, ...]
    given: tuple[str, ...]
    repeated: bool

    @property
    def named(self) -> tuple[str, ...]:
        """The lines that this command names."""
        return tuple(map(key_of, self.given))

    def lines(self, recipe: Recipe) -> tuple[str, ...]:
        """The lines that this command changes, those included that follow from the ones it names."""
        if not self.given:
            return ()
        groups = [key for key in self.named if "/" in key or key in CHOICES]
        reference = recipe.name if recipe.shipped else str(recipe.path)
        others = tuple(text for text in self.recorded if key_of(text) not in self.named)
        try:
            before, after = (_leaves(compose(reference, texts)) for texts in (self.recorded, (*others, *self.given)))
        except HierError:
            return self.named
        changed = {line for line in {*before, *after} if before.get(line, _NOTHING) != after.get(line, _NOTHING)}
        return (*(key for key in self.named if key not in groups), *sorted(changed))


@dataclass(frozen=True)
class Since:
    """How a run that goes on is related to its record.

    Attributes:
        kept: recorded values by line, which the run keeps although the recipe now has others, or none.
        left_out: lines that the recipe now has, and the run goes on without.
        notes: sentences for the user.
    """

    kept: Mapping[str, Any]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def keep(self, config: Any) -> None:
        """Change a composed recipe to what the run keeps."""
        from omegaconf import OmegaConf, open_dict

        for line in self.left_out:
            *above, key = line.split(".")
            blocks = [config]
            for name in above:
                blocks.append(blocks[-1][name])
            with open_dict(config):
                del blocks[-1][key]
                for block, name in zip(reversed(blocks[:-1]), reversed(above), strict=True):
                    if not block[name]:
                        del block[name]
        for line, held in self.kept.items():
            OmegaConf.update(config, line, held, force_add=True)


def since(folder: Path, recorded: Any, record_file: Path, recipe: Recipe, config: Any, asked: Asked) -> Since:
    """Compare a run with what it is about to go on with.

    Args:
        folder: the run's folder, for messages.
        recorded: its recorded recipe, an OmegaConf `DictConfig`.
        record_file: its `run.json`, which older runs do not have.
        recipe: the recipe as it is now.
        config: what that composes to, with the overrides of this command.
        asked: the overrides.

    Raises:
        RecipeError: naming the differences that change what is trained, and how to ask for them.
    """
    then, now = _leaves(recorded), _leaves(config)
    record = _record(record_file)
    # A line that follows from another one differs because that one does.
    derived = {line for line, text in _leaves(config, resolve=False).items() if isinstance(text, str) and "${" in text}
    wanted = asked.lines(recipe)
    origin = record.get("recipe_file")
    same_file = recipe.shipped if not isinstance(origin, str) else origin == fingerprint(recipe)
    refused, kept, left_out, notes = list[str](), dict[str, Any](), list[str](), list[str]()
    for line in sorted({*then, *now}):
        before, after = then.get(line, _NOTHING), now.get(line, _NOTHING)
        if before == after or line in derived or _below(line, _SILENT) or _below(line, wanted):
            continue
        told = f"{line}: {_shown(before)} then, {_shown(after)} now"
        both = before is not _NOTHING and after is not _NOTHING
        if _below(line, _MEASURES):
            notes += [told] if both else []
        elif same_file and asked.repeated:
            if both or _below(line, _PARTS):
                left_out += [line] if before is _NOTHING else []
                kept |= {} if before is _NOTHING else {line: before}
                notes.append(f"{line}: the recipe now says {_shown(after)}; the run keeps {_shown(before)}")
        elif both or (isinstance(origin, str) and None not in (before, after)):
            refused.append(told)
    for line, file in _changed(record.get("data"), config):
        told = f"{line}: {file} holds something else than then"
        if not _below(line, asked.named):
            (notes if _below(line, _MEASURES) else refused).append(told)
    if refused:
        more = f", and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        first = refused[0].partition(":")[0]
        raise RecipeError(
            f"{folder} was begun with something else than it would go on with: {'; '.join(refused[:_SHOWN])}{more}. "
            f"Undo it, or ask for it by naming the line in this command (`{first}=…`), or choose another --name."
        )
    return Since(kept, tuple(left_out), tuple(f"since the run was begun: {note}" for note in notes))


def fingerprint(recipe: Recipe) -> str:
    """What changes when a recipe file does; empty for a shipped one, which changes with verl-hier alone."""
    return "" if recipe.shipped else hashlib.sha256(recipe.text.encode()).hexdigest()


def data_files(config: Any) -> dict[str, dict[str, str]]:
    """SHA-256 of the files that a composed recipe trains or measures on or takes rewards from: line to path to hash."""
    found: dict[str, dict[str, str]] = {}
    for line, value in _leaves(config).items():
        if _below(
            line, ("data.train_files", "data.val_files", "hier.environment", "reward.custom_reward_function.path")
        ):
            for text in value if isinstance(value, list) else [value]:
                path = Path(text).expanduser() if isinstance(text, str) and 0 < len(text) < 4096 else None
                if path is not None and _is_file(path):
                    with path.open("rb") as file:
                        found.setdefault(line, {})[str(text)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _changed(known: Any, config: Any) -> Iterator[tuple[str, str]]:
    """The lines and files whose content is another one than the recorded."""
    if not isinstance(known, Mapping):
        return
    for line, files in data_files(config).items():
        recorded = known.get(line)
        for file, content in files.items():
            if isinstance(recorded, Mapping) and recorded.get(file, content) != content:
                yield line, file


def _record(file: Path) -> Mapping[str, Any]:
    try:
        found = read_json(file) if file.exists() else {}
    except FileError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _leaves(config: Any, resolve: bool = True) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    plain = OmegaConf.to_container(config, resolve=resolve) if isinstance(config, DictConfig) else config
    return dict(_below_block(plain, ""))


def _below_block(block: Any, line: str) -> Iterator[tuple[str, Any]]:
    if isinstance(block, Mapping) and block:
        for key, value in block.items():
            yield from _below_block(value, f"{line}.{key}" if line else str(key))
    else:
        yield line, block


def _below(line: str, blocks: Sequence[str]) -> bool:
    return any(line == block or line.startswith(f"{block}.") for block in blocks)


def _shown(value: object) -> str:
    text = "nothing" if value is _NOTHING else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"

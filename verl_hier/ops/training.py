"""Training in a folder of its own: from which checkpoint a run goes on, how its steps are told, and what it leaves.

`plan_run` decides and touches nothing; `start` trains, by verl's own entry point in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf.errors import MissingMandatoryValue

from verl_hier.compat.checkpoints import newest_whole
from verl_hier.compat.launch import Tail, in_use, launch, parse_metrics
from verl_hier.errors import MAKE_ROOM, HierError, RunEnded
from verl_hier.graph.bounded_reading import read_text
from verl_hier.ops.last_words import Cause, LastWords, line_of_code
from verl_hier.ops.progress import Progress
from verl_hier.ops.resumed import Asked, since
from verl_hier.ops.run_record import run_record
from verl_hier.ops.runs import RUNS, Run, write_whole
from verl_hier.ops.start_up import StartUp
from verl_hier.ops.stored import RECORD
from verl_hier.ops.surroundings import require_surroundings
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.cluster import joins_cluster
from verl_hier.recipe.compose import compose
from verl_hier.recipe.handover import hand_over
from verl_hier.recipe.overrides import hydra_value, key_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

Report = Callable[[str], None]
FEWEST_BYTES = 2**16
"""Free bytes below which a disk counts as full."""


@dataclass(frozen=True)
class Plan:
    """A run that is about to start.

    Attributes:
        run: its folder.
        recipe: a recipe's name, or the path of a YAML file.
        overrides: Hydra overrides, as on the command line.
        config: the composed config, in which the run's files lie in its folder.
        checkpoint: the one from which it goes on; None for a run that starts from the model.
        notes: what differs from the recorded run, where it goes on.
    """

    run: Run
    recipe: str
    overrides: tuple[str, ...]
    config: DictConfig
    checkpoint: Path | None
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The step of the checkpoint; 0 without one."""
        return int(self.checkpoint.name.rpartition("_")[2]) if self.checkpoint else 0

    @property
    def total(self) -> int | None:
        """The step after which the run ends; None when verl derives it from its epochs."""
        steps = self.config.trainer.total_training_steps
        return None if steps is None else int(steps)

    @property
    def continues(self) -> bool:
        """Whether the checkpoint is one of the run's own."""
        if self.checkpoint is None or not self.run.recipe_file.is_file():
            return False
        return self.checkpoint.resolve().parent == self.run.checkpoints.resolve()


def plan_run(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    resume: bool = False,
    folder: Path | None = None,
) -> Plan:
    """Decide on the folder of a run, and from which checkpoint it goes on.

    Args:
        recipe: a recipe's name, or the path of a YAML file.
        overrides: Hydra overrides. A run that is resumed keeps those of its last command, unless these replace them.
        name: name of the run's folder; None for the present time, or with `resume` for the newest run.
        resume: go on with a run; without a checkpoint of it this is an error. Where `name` is that of a run already,
            verl's own rule decides (`trainer.resume_mode`).
        folder: the run's folder, in place of `runs/<recipe>/<name>`.

    Raises:
        RecipeError: when the recipe does not compose.
        HierError: when the run cannot be resumed, or another process is training in its folder.
    """
    runs, asked = RUNS / find(recipe).name, tuple(overrides)
    if name is not None and (not name.strip(".") or Path(name).name != name):
        raise HierError(f"--name: {name!r} cannot be the name of a folder.")
    if resume:
        run = _run_to_resume(runs, name)
        given = {key_of(text) for text in overrides} | {"trainer.resume_mode"}
        overrides = [*(text for text in run.command[1:] if key_of(text) not in given), *overrides]
    else:
        run = Run(folder or runs / (name or time.strftime("%Y-%m-%d_%H-%M-%S")))
    if in_use(run.log):
        raise HierError(f"another process is training in {run.folder}; choose another --name.")
    config = compose(recipe, overrides)
    try:
        _place(run, config, {key_of(text) for text in overrides}, resume)
        plan = Plan(run, recipe, tuple(overrides), config, _checkpoint_of(config))
    except MissingMandatoryValue as error:
        from verl_hier.recipe.checks.keys import left_open

        raise left_open(str(error.full_key)) from error
    require_surroundings(config, run.folder)
    if resume and not plan.step:
        raise HierError(f"{run.folder} has no checkpoint to go on from; start it anew without --resume.")
    if plan.total is not None and plan.step >= plan.total:
        raise HierError(
            f"{plan.checkpoint} is the end of a run of {plan.total} steps; to go on from there add for instance "
            f"trainer.total_training_steps={2 * plan.total}."
        )
    return _compared(plan, asked, resume) if plan.continues else plan


def _compared(plan: Plan, given: tuple[str, ...], resume: bool) -> Plan:
    """The plan of a run that goes on, with what it keeps of its record.

    Raises:
        RecipeError: when it would go on with something else than it was begun with.
    """
    run, config = plan.run, plan.config
    asked = Asked(tuple(run.command[1:]), given, resume)
    changes = since(run.folder, run.recipe(), run.folder / RECORD, find(plan.recipe), config, asked)
    changes.keep(config)
    return replace(plan, notes=changes.notes)


def _run_to_resume(runs: Path, name: str | None) -> Run:
    known = Run.all_in(runs)
    chosen = [run for run in known if name in (None, run.folder.name)]
    if not chosen:
        names = ", ".join(run.folder.name for run in known) or "no runs"
        raise HierError(f"--resume: there is no run {name or ''} in {runs}, which holds {names}.".replace("  ", " "))
    return chosen[-1]


def _place(run: Run, config: DictConfig, given: set[str], resume: bool) -> None:
    """Put the files of a run into its folder, except for those that the user has put elsewhere.

    Args:
        run: its folder.
        config: the composed config; it is changed.
        given: the keys that the user has set.
        resume: whether a checkpoint has to be used.
    """
    from omegaconf import OmegaConf

    folder, loggers = run.folder.resolve(), config.trainer.logger
    loggers = [loggers] if isinstance(loggers, str) else list(loggers or ())
    places = {"trainer.default_local_dir": str(folder / "checkpoints")}
    # `get` also reads a value that is left open (`???`), which the check of the recipe refuses by its name.
    if config.hier.store.get("path") is not None:
        places["hier.store.path"] = str(run.graphs.resolve())
    if joins_cluster(config):
        # The processes of a cluster do not inherit the variables of this one.
        places |= {f"ray_kwargs.ray_init.runtime_env.env_vars.{name}": file for name, file in _files(run).items()}
    if resume and config.trainer.resume_mode == "disable":
        places["trainer.resume_mode"] = "auto"
    for key, text in places.items():
        if key not in given:
            OmegaConf.update(config, key, text, force_add=True)
    if "file" not in loggers:
        config.trainer.logger = [*loggers, "file"]


def _files(run: Run) -> dict[str, str]:
    """The variables that tell verl's loggers where to write."""
    return {
        "VERL_FILE_LOGGER_PATH": str(run.metrics_file.resolve()),
        "TENSORBOARD_DIR": str(run.folder.resolve() / "tensorboard"),
    }


def _checkpoint_of(config: DictConfig) -> Path | None:
    """The checkpoint from which verl would go on (`PPOTrainer._load_checkpoint`)."""
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        folder = Path(str(trainer.resume_from_path))
        if not folder.is_dir() or not re.fullmatch(r"global_step_\d+", folder.name):
            raise HierError(f"trainer.resume_from_path: {folder} is not the folder of a checkpoint, …/global_step_N.")
        return folder
    return None if trainer.resume_mode == "disable" else newest_whole(Path(trainer.default_local_dir))


def start(
    plan: Plan, report: Report, *, step: Callable[[Mapping[str, Any]], None] | None = None, verbose: bool = False
) -> Run:
    """Train, and keep the policy of the last step.

    Args:
        plan: what `plan_run` has decided.
        report: called with a line on what begins, and with a line for each step where there is no `step`.
        step: called with the metrics of each step.
        verbose: print all that verl prints, and tell nothing of the steps.

    Raises:
        RunEnded: when the run fails or is interrupted; the sentence says how to go on.
        OSError: when the folder cannot be written to.
    """
    report(_prepare(plan))
    for note in plan.notes:
        report(note)
    arguments = _arguments(plan)
    run, progress = plan.run, Progress(plan.total)
    steps = Tail(run.metrics_file)
    output = Tail(run.log, run.log.stat().st_size if run.log.exists() else 0)
    said, start_up = LastWords(), StartUp()

    def watch(process: object) -> bool:
        lines = output.lines()
        said.take(lines)
        if verbose:
            sys.stdout.buffer.writelines(lines)
        else:
            for sentence in start_up.take(lines):
                report(sentence)
        for record in parse_metrics(steps.lines()):
            if step is not None:
                step(record)
            elif not verbose:
                report(progress.line(record))
        sys.stdout.flush()
        return False

    report(f"verl starts; its output goes to {run.log}")
    try:
        code = launch(arguments, run.log, _variables(plan), watch, append=True)
    except KeyboardInterrupt:
        raise RunEnded(f"interrupted; {_cure(plan)}", 130) from None
    except SystemExit as signal:
        raise RunEnded(f"ended by a signal; {_cure(plan)}", int(signal.code or 1)) from None
    if code:
        cause = said.cause()
        why = f": {_told(cause, plan)}" if cause else f"; its messages are in {run.log}"
        if not cause and shutil.disk_usage(run.folder).free < FEWEST_BYTES:
            why = f": the disk of {run.folder} is full, so not even its messages were written; {MAKE_ROOM}"
        raise RunEnded(f"the run ended with exit code {code}{why} - {_cure(plan)}", code)
    run.save_policy()
    _write_report(run, report)
    return run


def _told(cause: Cause, plan: Plan) -> str:
    """What a run died of, with the recipe line that brought in a user's code, or the log of what is not ours."""
    line = line_of_code(plan.config, cause.file) if cause.file else None
    if line is not None and not cause.said.startswith(line):
        return f"{cause.said}, which {line} names"
    return cause.said if cause.ours or cause.file else f"{cause.said} (all of its messages: {plan.run.log})"


def _write_report(run: Run, report: Report) -> None:
    """Write the report; a run that ended well does not fail for it."""
    from verl_hier.ops.report import write_report

    try:
        write_report(run)
    except (HierError, OSError) as error:
        report(f"there is no report: {error}")


def _prepare(plan: Plan) -> str:
    """Make the folder, and say in a sentence what happens to it."""
    from omegaconf import OmegaConf

    run, continues, aside = plan.run, plan.continues, None
    if run.folder.exists() and not continues:
        numbers = (run.folder.with_name(f"{run.folder.name}.{number}") for number in range(1, 10_000))
        aside = run.folder.rename(next(path for path in numbers if not path.exists()))
    run.folder.mkdir(parents=True, exist_ok=True)
    lost = [record["step"] for record in run.metrics() if record["step"] > plan.step] if continues else []
    run.rewind(plan.step)
    write_whole(run.recipe_file, OmegaConf.to_yaml(plan.config, resolve=True))
    record = run_record(plan.recipe, plan.overrides, plan.config, run.metrics_file.resolve())
    write_whole(run.folder / RECORD, json.dumps(record, indent=1))
    known = read_text(run.command_file) if run.command_file.exists() else ""
    write_whole(run.command_file, f"{known}{shlex.join(['verl-hier', 'train', plan.recipe, *plan.overrides])}\n")
    if continues:
        again = f"; the {len(lost)} step(s) after it were not saved and are made again" if lost else ""
        return f"{run.folder} goes on from step {plan.step}{again}"
    moved = f"; the earlier one of this name, which is not resumed, is now {aside}" if aside else ""
    return f"a new run in {run.folder}{f', from {plan.checkpoint}' if plan.checkpoint else ''}{moved}"


def _arguments(plan: Plan) -> list[str]:
    """Arguments for `python -m` that run what was composed, with Hydra's own files in the run's folder too."""
    run = plan.run
    arguments = hand_over(plan.config, find(plan.recipe), plan.overrides, run.handed_over)
    if "hydra.run.dir" not in map(key_of, plan.overrides):
        arguments.append(f"hydra.run.dir={hydra_value(run.folder.resolve() / 'hydra')}")
    return arguments


def _variables(plan: Plan) -> dict[str, str]:
    """Environment variables of the run: the driver must know the platform before it imports verl."""
    variables = {"HYDRA_FULL_ERROR": "1", **_files(plan.run)}
    if plan.config.trainer.device == "cpu":
        # A thread for each process: rollout, training and environments share the cores.
        variables |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return variables


def _cure(plan: Plan) -> str:
    """How to go on with a run that has ended early."""
    run, save = plan.run, plan.config.trainer.save_freq
    if run.step and run.folder.parent != RUNS / find(plan.recipe).name:
        return f"its newest checkpoint is {run.checkpoint()}."
    if run.step:
        again = f"verl-hier train {shlex.quote(plan.recipe)} --name {shlex.quote(run.folder.name)} --resume"
        return f"`{again}` goes on from step {run.step}."
    if save > 0:
        return f"no checkpoint was written yet (trainer.save_freq={save}), so it has to start anew."
    return "it wrote no checkpoints; add trainer.save_freq=5 to be able to resume the next one."

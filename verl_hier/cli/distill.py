"""`distill`: episodes of a multi-agent system as supervised data for the recipe's own worker."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_hier.cli.check import Overrides, Reference
from verl_hier.cli.options import Seed, new_folder, share, weight, whole
from verl_hier.cli.output import line, table
from verl_hier.recipe.paths import DISTILLED

if TYPE_CHECKING:
    from verl_hier.coldstart.distill import Student, Teacher
    from verl_hier.host.part import Part
    from verl_hier.recipe.composed import ComposedRecipe
    from verl_hier.rollout import Limits
    from verl_hier.served.policy import Messages

EXPERT = "expert"


def distill(
    recipe: Reference,
    overrides: Overrides = None,
    out: Annotated[Path, new_folder("Folder of the data, the teacher's episodes and the report.")] = DISTILLED,
    system: Annotated[
        str,
        typer.Option(help="Whose episodes are distilled: the worker of a recipe, or a worker with its defaults."),
    ] = "planner_executor",
    teacher: Annotated[
        str,
        typer.Option(help="Plays it: the environment's `expert`, or the URL of an OpenAI-compatible endpoint."),
    ] = EXPERT,
    teacher_model: Annotated[str, typer.Option(help="The model's name at the endpoint.")] = "",
    model: Annotated[
        str | None,
        typer.Option(help="Folder or name of the tokenizer; omitted: the model of the recipe or of its cold start."),
    ] = None,
    n: Annotated[int, whole("Episodes to play.", "-n")] = 480,
    activations: Annotated[int, whole("Keep episodes with at least this many turns of agents.", least=0)] = 3,
    calls: Annotated[int, whole("Keep episodes with at least this many actions.", least=0)] = 2,
    upsample: Annotated[int, whole("Copies of episodes that reflect or go on after an invalid action.")] = 2,
    random_action: Annotated[float, share("Share of the expert's actions that are random.")] = 0.08,
    mistake_weight: Annotated[float, weight("Loss weight of actions that the environment refused.")] = 1.0,
    observation_weight: Annotated[float, weight("Loss weight of observations.")] = 0.0,
    temperature: Annotated[float, weight("Temperature of a served teacher.")] = 0.7,
    max_tokens: Annotated[int, whole("Tokens of one turn of a served teacher.")] = 1024,
    concurrency: Annotated[int, whole("Episodes of a served teacher in flight.")] = 8,
    seed: Seed = 0,
) -> None:
    """Distil a multi-agent system into one worker's data."""
    from verl_hier.coldstart.distill import DATA, Distillation, Weights
    from verl_hier.coldstart.distill import distill as run
    from verl_hier.coldstart.filters import Filters
    from verl_hier.recipe.composed import ComposedRecipe
    from verl_hier.rollout import Sampling
    from verl_hier.served.policy import for_messages

    served = teacher != EXPERT
    composed = ComposedRecipe.named(recipe, overrides or ())
    remember = composed.hier.coldstart.remember
    path = model or _tokenizer_of(composed)
    worker, limits = _system(system, composed)
    report = run(
        Distillation(
            environment=composed.parts.environment,
            system=worker,
            student=_student(composed, path),
            teacher=lambda messages: _teacher(teacher, teacher_model, messages, random_action, remember),
            n=n,
            filters=Filters(activations, calls, upsample),
            weights=Weights(invalid_action=mistake_weight, observation=observation_weight),
            seed=seed,
            limits=for_messages(limits, max_tokens if served else limits.max_tokens_per_turn),
            sampling=Sampling(temperature=temperature),
            concurrency=concurrency if served else 1,
        ),
        out,
    )
    table(report.lines())
    line(f"data: {out / DATA}")
    line(f"next: {shlex.join(['verl-hier', 'sft', str(out / DATA), '--model', path])}")


def _system(name: str, student: ComposedRecipe) -> tuple[Part, Limits]:
    """The worker that the teacher plays, and the limits of its episodes; another recipe has the student's size."""
    from verl_hier.coldstart.distill import for_system
    from verl_hier.host.options import build_options
    from verl_hier.host.part import Part
    from verl_hier.recipe.catalogue import SIZES
    from verl_hier.recipe.composed import ComposedRecipe

    if name == student.parts.worker.spec.name:
        return student.parts.worker, student.limits
    if name in student.host.specs("worker"):
        spec = student.host.spec("worker", name)
        return Part(spec, build_options(spec, {})), for_system(student.limits)
    size = student.hier.recipe.size
    system = ComposedRecipe.named(name, [f"size={size}"] if size in SIZES else ())
    return system.parts.worker, system.limits


def _teacher(name: str, model: str, messages: Messages, random_action: float, remember: bool) -> Teacher:
    from verl_hier.coldstart.distill import ExpertTeacher, ServedTeacher
    from verl_hier.coldstart.expert_policy import Noise
    from verl_hier.errors import HierError

    if name == EXPERT:
        return ExpertTeacher(Noise(random_action=random_action, skip_stage=0.0), remember)
    if not name.startswith(("http://", "https://")):
        raise HierError(f"--teacher {name}: give `{EXPERT}` or the URL of an endpoint, such as http://host:8000/v1.")
    if not model:
        raise HierError("--teacher-model is missing: the model's name at the endpoint.")
    return ServedTeacher(name, model, messages)


def _tokenizer_of(recipe: ComposedRecipe) -> str:
    """The recipe's model, or the random one of its cold start as long as there is no other."""
    from verl_hier.coldstart.build import TINY, work_folder

    path = str(recipe.config.actor_rollout_ref.model.path)
    plain = recipe.hier.rollout.template == "plain"
    return str(work_folder(recipe) / TINY) if plain and not Path(path).is_dir() else path


def _student(recipe: ComposedRecipe, path: str) -> Student:
    """The recipe's worker with the renderer, tokenizer and limits of its rollout."""
    from verl_hier.chat.tokenizer import load_renderer, load_tokenizer
    from verl_hier.coldstart.distill import Student

    template = recipe.hier.rollout.template
    tokenizer = load_tokenizer(path)
    renderer = load_renderer(path, tokenizer, template, recipe.config.data.get("apply_chat_template_kwargs"))
    return Student(recipe.parts.worker, renderer, tokenizer, recipe.limits)

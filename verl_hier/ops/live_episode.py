"""One episode, reported turn by turn while a person or a policy plays it through any worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verl_hier.coldstart.episodes import LocalEnvironment
from verl_hier.errors import RecipeError, RolloutError
from verl_hier.graph import RolloutGraph
from verl_hier.host.manager import PluginHost
from verl_hier.ops.players import LocalPlayer, Player
from verl_hier.ops.rollouts import Plan, play
from verl_hier.recipe.catalogue import Recipe, recipes
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.pairs import folder
from verl_hier.rollout import Generation, Request, Rollout, Sampler, Sampling, Scored
from verl_hier.rollout.rollout import Episode
from verl_hier.served.policy import Messages

Report = Callable[[str], None]
Ask = Callable[[str], str | None]
"""Shows a prompt and returns a line, None at the end of the input."""
PERSON = "you"
LISTS = "?"
"""What a person types for the list of possible actions."""


class LiveReport(Sampler):
    """One episode, with a report of every message that an agent reads and of every answer."""

    def __init__(self, report: Report, shows_answers: bool) -> None:
        """
        Args:
            report: called with each line.
            shows_answers: whether what the agents say is reported; a person has just typed it.
        """
        self._report = report
        self._shows_answers = shows_answers

    async def sample(self, rollout: Rollout) -> None:
        """See `Sampler.sample`."""
        episode = rollout.start()
        while await episode.ready():
            self._reads(episode)
            before, node = episode.last_node, await episode.step()
            if node is None or node is before:
                break
            if self._shows_answers:
                self._report(f"  says: {_indented(node.text)}")
            if node.extra:
                self._report(f"  noted: {', '.join(f'{key} {value}' for key, value in node.extra.items())}")
            if episode.last_result is not None and (node.reward or not node.valid):
                self._report(f"  reward {node.reward:g}{'' if node.valid else ', refused'}")
        self._ends(episode)

    def _reads(self, episode: Episode) -> None:
        request = episode.turn_request
        if request is None:
            return
        context = request.context
        name = context.role if context.agent == context.role else f"{context.role} {context.agent}"
        fresh = ", in a new context" if request.before is None and episode.next_turn else ""
        self._report(f"\nturn {episode.next_turn + 1}: {name} (level {context.level}{fresh})")
        for message in request.messages:
            self._report(f"  reads [{message.role}] {_indented(message.content)}")
        if request.stop:
            self._report(f"  its turn ends with {' or '.join(request.stop)}")

    def _ends(self, episode: Episode) -> None:
        record, last = episode.record, episode.last_result
        if last is not None and last.text:
            self._report(f"\nthe environment's last word: {_indented(last.text)}")
        outcome = {True: "solved", False: "not solved", None: "no outcome"}[record.success]
        why = f" ({record.error})" if record.error else ""
        self._report(f"\n{outcome}, return {record.ret:g}, {record.status}{why}")


class Person:
    """A policy that asks a person for each turn; see `rollout.Policy`."""

    def __init__(self, ask: Ask, report: Report, environment: LocalEnvironment, messages: Messages) -> None:
        self._ask = ask
        self._report = report
        self._environment = environment
        self._messages = messages

    async def generate(self, prompt: list[int], sampling: Sampling, conversation: str) -> Generation:
        """See `rollout.Policy.generate`. A line that ends with a backslash goes on; no answer ends the episode."""
        lines: list[str] = []
        while not lines or lines[-1].endswith("\\"):
            line = self._ask("  … " if lines else "  you: ")
            if line is None:
                return Generation([], [])
            if line.strip() == LISTS and not lines:
                possible = self._environment.last.admissible if self._environment.last is not None else ()
                self._report(f"  possible: {'; '.join(possible) or 'this environment does not list its actions'}")
                continue
            lines.append(line)
        text = "\n".join(line.removesuffix("\\") for line in lines)
        return Generation(self._messages.turn(text), [], "stop")

    async def score(
        self, prompt: list[int], tokens: list[int], conversation: str, top: int = 0, temperature: float = 1.0
    ) -> Scored:
        """See `rollout.Policy.score`."""
        raise RolloutError("hier.sampler.name: a person has no log-probs; use `independent`.")


def by_hand(recipe: ComposedRecipe, ask: Ask, report: Report) -> LocalPlayer:
    """A person as a player."""

    async def make(environment: LocalEnvironment, messages: Messages, request: Request) -> Person:
        return Person(ask, report, environment, messages)

    return LocalPlayer(PERSON, recipe, make)


async def play_live(
    recipe: ComposedRecipe, player: Player, task: int, report: Report, split: str | None = None, seed: int | None = None
) -> RolloutGraph:
    """Play one task and report it; closes the player.

    Args:
        recipe: the recipe.
        player: plays it.
        task: number of the task in its split.
        report: called with each line.
        split: split of the environment; None: the recipe's `data.val_files`.
        seed: root of the random numbers; None: `hier.seed`.

    Raises:
        RecipeError: when there is no such task.
    """
    plan = Plan(split=split, tasks=[task], n=1, seed=seed)
    try:
        graphs = await play(recipe, player, plan, sampler=LiveReport(report, player.name != PERSON))
    finally:
        await player.close()
    return graphs[0]


def recipe_for(
    environment: str, worker: str | None = None, overrides: Sequence[str] = (), plugins: Sequence[str] = ()
) -> ComposedRecipe:
    """A recipe with an environment and a worker: a shipped one where there is one, else one with all defaults.

    Args:
        environment: name of the environment, or of one of the choices of `hier/environment`.
        worker: name of the worker; None for that of the recipe, or `react`.
        overrides: Hydra overrides.
        plugins: plugins to load besides those of the recipe.

    Raises:
        PluginError: when there is no such environment or worker.
        RecipeError: when the options do not fit.
    """
    host = PluginHost.load({"builtin": True, **dict.fromkeys(plugins, True)})
    if worker is not None:
        host.spec("worker", worker)
    loaded = [f"hier.plugins.{name}=true" for name in plugins]
    candidates = [recipe for recipe in recipes() if recipe.groups.get("environment") == environment]
    fitting = [recipe for recipe in candidates if worker in (None, _worker_of(recipe))]
    if fitting:
        chosen = min(fitting, key=lambda recipe: recipe.groups.get("method") != "grpo")
        return ComposedRecipe.named(chosen.name, [*loaded, *overrides])
    if candidates:  # its tasks are configured, the worker has its defaults
        return ComposedRecipe.named(candidates[0].name, [*loaded, f"hier.worker={{name: {worker}}}", *overrides])
    host.spec("environment", environment)
    return _plain(environment, worker or "react", plugins, overrides)


def _plain(environment: str, worker: str, plugins: Sequence[str], overrides: Sequence[str]) -> ComposedRecipe:
    """A recipe of nothing but an environment and a worker, with the defaults of all else."""
    from omegaconf import OmegaConf

    if any(not text.startswith("hier.") for text in overrides):
        raise RecipeError(f"{environment} has no recipe of its own yet, so only options below `hier.` can be given.")
    base: dict[str, Any] = {
        "hier": {
            "plugins": {"builtin": True, **dict.fromkeys(plugins, True)},
            "environment": {"name": environment},
            "worker": {"name": worker},
            "sampler": {"name": "independent"},
            "estimator": {"name": "grpo"},
        },
        "data": {"train_files": "train", "val_files": "val"},
        "actor_rollout_ref": {
            "rollout": {
                **{"prompt_length": 4096, "response_length": 4096},
                "val_kwargs": {"temperature": 0, "top_p": 1.0, "top_k": -1, "n": 1},
            },
        },
    }
    return ComposedRecipe.of(OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides))))


def _worker_of(recipe: Recipe) -> str | None:
    """The worker of a shipped recipe, from the file of its method."""
    import yaml

    file = folder() / "hier" / "method" / f"{recipe.groups.get('method')}.yaml"
    block = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("hier") if file.is_file() else None
    name = ((block or {}).get("worker") or {}).get("name")
    return None if name is None else str(name)


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")

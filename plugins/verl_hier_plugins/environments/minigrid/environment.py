"""MiniGrid as a text environment: its worlds, what an agent in them sees, and their tasks."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator, Mapping
from typing import Any

from verl_hier.environments.base import StepResult
from verl_hier.environments.expert import Expert
from verl_hier.environments.gym_text import GymText, TextView, seeded_tasks
from verl_hier.errors import RecipeError, did_you_mean
from verl_hier_plugins.environments.minigrid.options import MinigridOptions

DATA_SOURCE = "minigrid"
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""What is said for MiniGrid's actions 0 to 5."""
FORWARD, PICK_UP, DROP, TOGGLE = 2, 3, 4, 5
NOT_SHOWN = ("unseen", "empty", "floor", "wall")
SIDES = {"forward": (0, -1), "left": (-1, 0), "right": (1, 0)}
"""Steps in the cells that an agent sees, which are turned so that it looks up."""


def make(level: str) -> Any:
    """A world of MiniGrid without gymnasium's wrappers, which check and limit what is checked and limited here.

    Raises:
        RecipeError: when there is none of that name.
    """
    import gymnasium
    import minigrid  # noqa: F401 - registers its worlds

    known = [name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
    if level not in known:
        raise RecipeError(f"hier.environment.levels: MiniGrid has no world {level!r}{did_you_mean(level, known)}.")
    try:
        return gymnasium.make(level, disable_env_checker=True).unwrapped
    except Exception as error:
        raise RecipeError(f"hier.environment.levels: {level} cannot be made here ({error}); choose another.") from error


class MinigridView(TextView):
    """What the agent sees, from where it stands: `you see a red ball 2 forward 1 left`."""

    def __init__(self, options: MinigridOptions) -> None:
        self._options = options

    def text(self, world: Any, observation: Mapping[str, Any], info: Mapping[str, Any]) -> str:
        """The things in sight, the nearest first, the walls, and what is carried."""
        parts = [f"you see {', '.join(seen) if (seen := list(things(observation['image']))) else 'nothing'}"]
        parts.append(f"wall {', '.join(walls(observation['image'])) or 'out of sight'}")
        if world.carrying is not None:
            parts.append(f"you carry a {world.carrying.color} {world.carrying.type}")
        return "; ".join(parts)

    def actions(self, world: Any) -> Mapping[str, int]:
        """Those that change something, as far as the cell ahead tells."""
        ahead = world.grid.get(*world.front_pos)
        possible = {
            FORWARD: ahead is None or ahead.can_overlap(),
            PICK_UP: world.carrying is None and ahead is not None and ahead.can_pickup(),
            DROP: world.carrying is not None and ahead is None,
            TOGGLE: ahead is not None and ahead.type in ("door", "box"),
        }
        return {said: number for number, said in enumerate(ACTIONS) if possible.get(number, True)}

    def anchor(self, world: Any) -> str:
        """The whole grid, the agent, and which parts of the mission are done; the number of steps is left out."""
        grid = world.grid
        hidden = [f"{cell.type} {cell.color} {contained(cell)}" for cell in grid.grid if contained(cell)]
        carried = world.carrying and f"{world.carrying.type} {world.carrying.color} {contained(world.carrying)}"
        place = (*map(int, world.agent_pos), int(world.agent_dir))
        done = list(parts_done(getattr(world, "instrs", None)))
        return f"{world.mission} {grid.encode().tobytes().hex()} {hidden} {place} {carried} {done}"

    def instruction(self, world: Any) -> str:
        """MiniGrid's mission."""
        return str(world.mission)

    def reward(self, world: Any, reward: float, won: bool) -> float:
        """See `MinigridOptions.reward`."""
        return float(won) if self._options.reward == "won" else reward


def contained(cell: Any) -> str:
    """What is in a box."""
    inside = getattr(cell, "contains", None)
    return "" if inside is None else f"{inside.type} {inside.color}"


def parts_done(instruction: Any) -> Iterator[bool]:
    """Of a BabyAI mission with several parts, which are done, from the first to the last."""
    for part in ("a", "b"):
        if hasattr(instruction, f"instr_{part}"):
            yield getattr(instruction, f"{part}_done", False) == "success"
            yield from parts_done(getattr(instruction, f"instr_{part}"))


def things(image: Any) -> Iterator[str]:
    """The things in an agent's view, an array of cells by column, row and (kind, colour, state), the nearest first."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    states = {number: name for name, number in STATE_TO_IDX.items()}
    columns, rows, _ = image.shape
    cells = [(rows - 1 - row, column - columns // 2) for column in range(columns) for row in range(rows)]
    for ahead, aside in sorted(cells, key=lambda cell: (cell[0] + abs(cell[1]), cell[1])):
        kind, colour, state = map(int, image[aside + columns // 2, rows - 1 - ahead])
        name = IDX_TO_OBJECT[kind]
        # The agent's own cell shows what it carries.
        if name in NOT_SHOWN or (ahead, aside) == (0, 0):
            continue
        words = [states[state]] if name == "door" else []
        words += [IDX_TO_COLOR[colour]] if name not in ("goal", "lava") else []
        where = [f"{ahead} forward"] if ahead else []
        where += [f"{abs(aside)} {'left' if aside < 0 else 'right'}"] if aside else []
        yield " ".join(("a", *words, name, *where))


def walls(image: Any) -> Iterator[str]:
    """How many steps away the nearest wall is straight ahead and on both sides, where it is in sight."""
    from minigrid.core.constants import OBJECT_TO_IDX

    columns, rows, _ = image.shape
    for name, (aside, along) in SIDES.items():
        column, row, steps = columns // 2, rows - 1, 0
        while 0 <= column < columns and 0 <= row < rows:
            if steps and image[column, row, 0] == OBJECT_TO_IDX["wall"]:
                yield f"{steps} {name}"
                break
            column, row, steps = column + aside, row + along, steps + 1


class MinigridEnvironment(GymText):
    """One world."""

    def __init__(self, options: MinigridOptions) -> None:
        super().__init__(lambda task: make(task["level"]), MinigridView(options), options)

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `GymText.reset`; MiniGrid prints the layouts that it discards."""
        with contextlib.redirect_stdout(io.StringIO()):
            return super().reset(task, seed)

    def expert(self, rng: random.Random, skip_stage: float = 0.0, remember: bool = True) -> Expert:
        """BabyAI's bot, which explores as it has to, so the arguments have no effect."""
        from verl_hier_plugins.environments.minigrid.expert import MinigridExpert

        if not hasattr(self.world, "instrs"):
            raise RecipeError("hier.environment.levels: only BabyAI's worlds have an expert; choose one of them.")
        return MinigridExpert(self)

    def vocabulary(self) -> list[str]:
        """The words of what is seen, and numbers."""
        from minigrid.core.constants import COLOR_NAMES, OBJECT_TO_IDX, STATE_TO_IDX

        numbers = (f"{number} {side}" for number in range(1, 8) for side in SIDES)
        words = " ".join((*COLOR_NAMES, *OBJECT_TO_IDX, *STATE_TO_IDX, "you see carry a nothing out of sight"))
        return [*words.split(), *ACTIONS, *numbers, *map(str, range(10))]


def tasks(options: MinigridOptions, split: str) -> list[dict[str, Any]]:
    """The tasks of a split: `{instruction, data_source, level, seed, id}`, the levels in turns."""
    levels = [{"level": level} for level in options.levels]
    return seeded_tasks(MinigridEnvironment(options), options, split, DATA_SOURCE, levels)

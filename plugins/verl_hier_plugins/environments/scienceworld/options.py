"""The options of ScienceWorld: the schema of `hier.environment` when its name is `scienceworld`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hier.environments.gym_text import GymOptions
from verl_hier.host.constraints import Count, Positive

Simplification = Literal[
    "easy", "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction"
]
VARIATIONS = {
    **{"boil": 30, "change-the-state-of-matter-of": 30, "chemistry-mix": 32, "chemistry-mix-paint-secondary-color": 36},
    **{"chemistry-mix-paint-tertiary-color": 36, "find-animal": 300, "find-living-thing": 300},
    **{"find-non-living-thing": 300, "find-plant": 300, "freeze": 30, "grow-fruit": 126, "grow-plant": 126},
    **{"identify-life-stages-1": 14, "identify-life-stages-2": 10, "inclined-plane-determine-angle": 168},
    **{"inclined-plane-friction-named-surfaces": 1386, "inclined-plane-friction-unnamed-surfaces": 162},
    **{"lifespan-longest-lived": 125, "lifespan-longest-lived-then-shortest-lived": 125},
    **{"lifespan-shortest-lived": 125, "measure-melting-point-known-substance": 436},
    **{"measure-melting-point-unknown-substance": 300, "melt": 30, "mendelian-genetics-known-plant": 120},
    **{"mendelian-genetics-unknown-plant": 480, "power-component": 20},
    **{"power-component-renewable-vs-nonrenewable-energy": 20, "test-conductivity": 900},
    **{"test-conductivity-of-unknown-substances": 600, "use-thermometer": 540},
}
"""The kinds of experiments, with their numbers of variations in scienceworld 1.2.3."""


@dataclass(frozen=True)
class ScienceworldOptions(GymOptions):
    """Options of the `scienceworld` environment."""

    experiments: tuple[str, ...] = ("find-living-thing", "find-non-living-thing")
    """Kinds of experiments, of which the tasks have equal shares as far as their variations go."""
    simplifications: tuple[Simplification, ...] = ("easy",)
    """What the world makes easier; `easy` is all of them, where an experiment allows it."""
    observation: Literal["full", "short"] = "full"
    """`full` gives the world's texts; `short` leaves out articles and the like, for small models."""
    describe: bool = True
    """Begin the first observation with the task; `{task}` gives it to prompts in any case."""
    list_actions: bool = False
    """List the possible actions, a hundred or more, which takes ten times as long as a step."""
    reward: Literal["score", "success"] = "score"
    """What is rewarded: what an action adds to the world's score, or only the end of a successful experiment."""
    win_reward: Positive = 1.0
    """Factor of the reward."""
    java_memory_mb: Count = 2000
    """The most memory of the Java machine of a process, in MB; its episodes share it, and each takes about 11."""

    def __post_init__(self) -> None:
        if not self.experiments:
            raise ValueError("experiments must name at least one kind of experiment")
        for name in self.experiments:
            if name not in VARIATIONS:
                raise ValueError(f"experiments: there is no {name!r}; there are {', '.join(VARIATIONS)}")
            if ("power-component" in name or "conductivity" in name) and "noElectricalAction" in self.simplifications:
                raise ValueError(f"simplifications: {name} needs electricity, so leave out noElectricalAction")
        if self.show_admissible and not self.list_actions:
            raise ValueError("show_admissible needs list_actions")

"""What a turn says, against outputs of the authors' own readers and rules (tests/fixtures/authors_cases).

Each case is a rollout of the worker and the options that the composed recipe names.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_hier.environments.base import Environment, StepResult
from verl_hier.graph import RolloutGraph
from verl_hier.host.specs import NoOptions
from verl_hier.recipe.catalogue import find
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout.rewards import rate
from verl_hier.testing import BytePairTokenizer
from verl_hier.testing.rollout import CharacterTokenizer, WordTokenizer, roll_out_scripted
from verl_hier_plugins.samplers.independent import Independent

CASES = Path(__file__).parents[2] / "fixtures" / "authors_cases"
RIGHT, LEFT = "<action>right</action>", "<action>left</action>"


class Stage(Environment):
    """Takes some actions, refuses others, and ends after so many steps."""

    def __init__(self, admissible: tuple[str, ...], steps: int, won: bool) -> None:
        self.played: list[str] = []
        self._admissible, self._steps, self._won = admissible, steps, won

    def reset(self, task: Any, seed: int) -> StepResult:
        return self._answer(True)

    def step(self, action: str) -> StepResult:
        self.played.append(action)
        return self._answer(action in self._admissible)

    def _answer(self, valid: bool) -> StepResult:
        done = len(self.played) == self._steps
        info = {"won": done and self._won, "overview": "hall"}
        return StepResult("hall", 0.0, done, valid=valid, admissible=self._admissible, info=info)


@cache
def at_node(recipe: str, *overrides: str) -> ComposedRecipe:
    words = next(words for words in find(recipe).combinations() if "size=node" in words)
    return ComposedRecipe.of(OmegaConf.to_container(compose(recipe, [*words, *overrides]), resolve=True))


def cases(name: str) -> list[dict[str, Any]]:
    return json.loads((CASES / f"{name}.json").read_text("utf-8"))


def play(
    recipe: ComposedRecipe,
    said: list[str],
    admissible: tuple[str, ...] = (),
    won: bool = False,
    tokenizer: WordTokenizer | None = None,
    calls: int | None = None,
) -> tuple[RolloutGraph, list[str], list[str]]:
    """The graph of one episode, the actions that the world was given, and the prompts of the turns."""
    tokenizer = tokenizer or BytePairTokenizer()
    turns, world = iter(said), Stage(admissible, calls or len(said), won)
    graph, policy = asyncio.run(
        roll_out_scripted(
            environment=lambda: world,
            worker=recipe.parts.worker.spec,
            options=recipe.parts.worker.options,
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            n=1,
            tokenizer=tokenizer,
        )
    )
    return graph, world.played, [tokenizer.decode(prompt) for prompt in policy.prompts]


def projected(recipe: ComposedRecipe, text: str) -> dict[str, Any]:
    graph, played, _ = play(recipe, [text])
    return {"action": played[0], "format": graph.nodes[0].extra["format"]}


@pytest.mark.parametrize("recipe", ["gigpo_alfworld", "hgpo_alfworld", "t2po_alfworld"])
@pytest.mark.parametrize("case", cases("alfworld_projection"), ids=lambda case: case["case"])
def test_a_turn_is_projected_as_verl_agent_does(recipe: str, case: dict[str, Any]) -> None:
    assert projected(at_node(recipe), case["text"]) == case["theirs"]


def ruled(recipe: ComposedRecipe, case: dict[str, Any]) -> list[list[float]]:
    graph, _, _ = play(recipe, case["turns"], tuple(case["admissible"]), case["won"])
    return [[node.extra[name] for name in ("tag", "tag_reward", "format")] for node in graph.nodes]


@pytest.mark.parametrize("case", cases("rlvmr_rules"), ids=lambda case: case["case"])
def test_rlvmr_rules_a_turn_as_its_authors_do(case: dict[str, Any]) -> None:
    assert ruled(at_node("rlvmr_alfworld"), case) == case["theirs"]


@pytest.mark.parametrize(
    ("said", "won", "ruled_as"),
    [
        # Both kinds of steps in one turn are none; an empty note is none; a plan is paid where the game is won.
        (["<explore>a</explore><planning>b</planning><action>right</action>"], False, [[-1, 0, 0]]),
        (["<explore> </explore><action>right</action>"], False, [[-1, 0, 0]]),
        (["<explore><b></b></explore><action>right</action>"], False, [[-1, 0, 0]]),
        (["<planning>a</planning><action>right</action>"], True, [[0, 1, 1]]),
        (["<monitor>a</monitor><action>right</action>"], True, [[-1, 0, 1]]),
        # An action that the world refused is known all the same.
        (["<explore>a</explore><action>jump</action>"] * 2, False, [[1, 1, 1], [1, 0, 1]]),
        # Nothing to correct, and nothing corrected.
        ([f"<monitor>a</monitor>{RIGHT}", f"<reflection>a</reflection>{LEFT}"], False, [[-1, 0, 1], [2, 0, 1]]),
        ([f"<monitor>a</monitor>{LEFT}", f"<reflection>a</reflection>{LEFT}"], False, [[-1, 0, 1], [2, 0, 1]]),
        (["<explore>好</explore><action>right</action>"], False, [[-1, 0, 0]]),
    ],
)  # fmt: skip
def test_rlvmr_rules_other_turns_by_the_same_lines(said: list[str], won: bool, ruled_as: list[list[int]]) -> None:
    assert ruled(at_node("rlvmr_alfworld"), {"turns": said, "admissible": ["right"], "won": won}) == ruled_as


def test_of_several_actions_rlvmr_plays_none() -> None:
    two = "<explore>b</explore><action>jump</action><action>right</action>"
    assert play(at_node("rlvmr_alfworld"), [two], ("right",))[1] == [""]


TAKEN_UP = "<switch>SWITCH</switch><subgoal>begin</subgoal><action>look</action>"
MASKS = ("action", "subgoal", "switch")


def read_by_hiper(recipe: ComposedRecipe, case: dict[str, Any]) -> dict[str, Any]:
    """What the second turn of an episode says, its masks as one 0 or 1 for each character."""
    text = case["text"]
    graph, played, _ = play(recipe, [TAKEN_UP, text], tokenizer=CharacterTokenizer())
    first, turn = graph.nodes
    covered = {tag: ["0"] * (len(text) + 1) for tag in MASKS}
    for tag in MASKS:
        for start, stop in turn.masks[tag]:
            covered[tag][start:stop] = "1" * (stop - start)
    said = {"action": played[1], "format": turn.extra["format"], "starts_segment": turn.segment > first.segment}
    return said | {f"{tag}_chars": "".join(covered[tag][: len(text)]) for tag in MASKS}


@pytest.mark.parametrize("case", cases("hiper_reading"), ids=lambda case: case["case"])
@pytest.mark.parametrize("recipe", ["hiper_alfworld", "hiper_shop"])
def test_hiper_reads_a_turn_as_its_authors_do(recipe: str, case: dict[str, Any]) -> None:
    assert read_by_hiper(at_node(recipe), case) == case["theirs"]


def test_of_several_switches_the_first_counts() -> None:
    kept = "<switch>KEEP</switch><switch>SWITCH</switch><subgoal>a</subgoal><action>Go To Bed 1</action>"
    said = read_by_hiper(at_node("hiper_alfworld"), {"text": kept})
    assert (said["starts_segment"], said["action"], said["format"]) == (False, "go to bed 1", 1)


def test_a_turn_without_an_action_is_all_action_and_plays_its_end() -> None:
    text = "<switch>KEEP</switch><subgoal>a</subgoal>What Shall I Do Now In This House"
    said = read_by_hiper(at_node("hiper_alfworld"), {"text": text})
    assert said["action"] == text.lower()[-30:] and said["format"] == 0 and set(said["action_chars"]) == {"1"}


def test_the_prompt_has_the_subgoal_of_the_turn_before() -> None:
    kept = "<switch>KEEP</switch><subgoal>another</subgoal><action>look</action>"
    _, _, prompts = play(at_node("hiper_alfworld"), [TAKEN_UP, kept, kept], ("look",))
    assert "Your subgoal: begin" in prompts[1] and "Your subgoal: another" in prompts[2]
    assert "KEEP</switch><subgoal>" not in prompts[2]


@pytest.mark.parametrize(
    ("recipe", "kind", "line"),
    [
        ("gigpo_alfworld", "alfworld_projection", "hier.worker.reading=last"),
        ("rlvmr_alfworld", "rlvmr_rules", "hier.worker.rules=accepted"),
        ("hiper_alfworld", "hiper_reading", "hier.worker.reading=last"),
    ],
)
def test_a_recipe_without_its_line_fails_a_case(recipe: str, kind: str, line: str) -> None:
    reader = {
        "alfworld_projection": lambda recipe, case: projected(recipe, case["text"]),
        "rlvmr_rules": ruled,
        "hiper_reading": read_by_hiper,
    }[kind]
    other = at_node(recipe, line)
    assert any(reader(other, case) != case["theirs"] for case in cases(kind))


@pytest.mark.parametrize("recipe", ["gigpo_alfworld", "hgpo_alfworld", "t2po_alfworld", "rlvmr_alfworld"])
def test_the_window_quotes_actions_alone(recipe: str) -> None:
    said = ["<think>secret</think><planning>secret</planning><action>look</action>"] * 2
    _, _, prompts = play(at_node(recipe), said, ("look",))
    assert "look" in prompts[1] and "secret" not in prompts[1]
    assert "Your last steps" in prompts[1]


class Library(Environment):
    """Finds nothing, and ends with an answer."""

    def reset(self, task: Any, seed: int) -> StepResult:
        return StepResult("")

    def step(self, action: str) -> StepResult:
        return StepResult("nothing", done=action.startswith("<answer>"))


def rated(recipe: ComposedRecipe, case: dict[str, Any]) -> dict[str, float]:
    """The terms of the reward of an episode of planner and executors, and their sum."""
    turns = iter(text for _, text in case["turns"])
    task = {"instruction": "which city?", "answers": ["Paris"]}
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=Library,
            worker=recipe.parts.worker.spec,
            options=recipe.parts.worker.options,
            sampler=Independent(NoOptions()),
            answer=lambda prompt, sampling: next(turns),
            n=1,
            task=task,
            tokenizer=BytePairTokenizer(),
        )
    )
    assert [(node.role, node.text) for node in graph.nodes] == [tuple(turn) for turn in case["turns"]]
    asyncio.run(rate(graph, task, recipe.rewards))
    (episode,) = graph.episodes
    told = {name: recipe.rewards[name].weight * number for name, number in episode.reward_info.items()}
    return {"format": episode.ret - sum(told.values()), **told, "total": episode.ret}


# The planner's half of the same rule: its thoughts are missing, or one is not closed.
PLANNERS = [
    {
        "turns": [
            ["planner", f"{thought}<executor>find</executor>"],
            ["executor", "<think>x</think><search>q</search>"],
            ["executor", "<refine>Paris</refine><result>Paris</result>"],
            ["planner", "<answer>Paris</answer>"],
        ],
        "case": f"planner {thought}",
        "theirs": {"format": 1.0, "notes": 0.5, "answer": 3.0, "total": 4.5},
    }
    for thought in ("", "<think>x")
]


@pytest.mark.parametrize("case", [*cases("coda_reward"), *PLANNERS], ids=lambda case: case["case"])
def test_coda_rewards_an_episode_as_its_authors_do(case: dict[str, Any]) -> None:
    assert rated(at_node("coda_search"), case) == pytest.approx(case["theirs"])


@pytest.mark.parametrize(
    "line",
    [
        "~hier.worker.sound_tags",
        "~hier.worker.agents.executor.sound_tags",
        "hier.worker.planner_format=0",
        "hier.worker.executor_format=0",
        "~hier.rewards.notes",
        "~hier.rewards.answer",
        "hier.rewards.notes.options.pattern='<(?:refine|result)>([^<]*)'",
    ],
)
def test_coda_without_one_of_its_lines_fails_a_case(line: str) -> None:
    recipe = at_node("coda_search", line)
    assert any(rated(recipe, case) != pytest.approx(case["theirs"]) for case in [*cases("coda_reward"), *PLANNERS])


@pytest.mark.parametrize("steps", [2, 4])
def test_roles_that_read_together_hear_nothing_of_their_own_step(steps: int) -> None:
    recipe = at_node("at_grpo_team_math")
    said = [f"[{role} {step}]" for step in range(steps) for role in ("solver", "checker")]
    graph, _, prompts = play(recipe, said, calls=steps)
    for place, (node, prompt) in enumerate(zip(graph.nodes, prompts, strict=True)):
        heard = [text for text in said if text in prompt]
        assert heard == said[: 2 * node.segment] == said[: 2 * (place // 2)]
    in_turn = at_node("at_grpo_team_math", "hier.worker.topology.reads=in_turn")
    assert said[0] in play(in_turn, said, calls=steps)[2][1]


def test_branpo_takes_the_rollouts_log_probs_as_its_script_does() -> None:
    config = at_node("branpo_search").config
    assert config["algorithm"]["rollout_correction"]["bypass_mode"] is True

"""The kit for workers passes on every built-in one and refuses each broken one with its sentence."""

from __future__ import annotations

import random
import re
import time
import warnings
from typing import Any

import pytest

from tests.fixtures.asked_line import AskedLine
from tests.fixtures.duel import Duel
from tests.fixtures.quiz import Quiz
from tests.fixtures.tiers import spread
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import WorkerSpec
from verl_hier.rollout import Sampling, Worker
from verl_hier.testing import check_worker
from verl_hier.testing.line import Line
from verl_hier.testing.scene import Answer

SPECS: dict[str, Any] = PluginHost.load({"builtin": True}).specs("worker")


def pick(*texts: str) -> Answer:
    """One of the texts, by the seed of the request."""
    return lambda prompt, sampling: random.Random(sampling.seed).choice(texts)


def delegates(prompt: str, sampling: Sampling) -> str:
    """The planner delegates or answers; an agent walks or reports."""
    planner = prompt.startswith("task: do it") and "|" not in prompt.split("<act>")[0]
    return pick("<executor>walk</executor>", "<answer>gold</answer>")(prompt, sampling) if planner else "right"


WORKS = pick("right", "right", "<result>right</result>")
CHAIN = pick(
    "<think>a</think>", "<plan>b</plan>", "<action>right</action>", "<reflection>good</reflection>",
    "<suggested_answer>c</suggested_answer>", "<double_check>score 4</double_check>", "<answer>d</answer>",
)  # fmt: skip
SOLVER, VERIFIER = {"prompt": "solve: {instruction}"}, {"prompt": "verify: {said}"}
TEAM = pick("right", "yes approve", "<helper>go</helper><helper>run</helper>", "<answer>left</answer>")
POSED = pick(
    "<question>where is the goal</question>", "<score>7</score>", "<answer>left</answer>", "right", "<score>3</score>"
)
CASES: list[tuple[str, dict[str, Any], Answer | None]] = [
    ("agent_flow", {}, None),
    ("agent_flow", {"verifier": False, "answer_action": "answer {content}", "action_tag": "action"}, None),
    ("chain_of_agents", {"on_violation": "penalise", "think": "optional"}, CHAIN),
    ("chain_of_agents", {"turns": "call", "on_violation": "penalise", "think": "optional"}, CHAIN),
    ("delegation", {}, delegates),
    ("delegation", {"refine": True, "planner_format": 0.1, "executor_format": 0.2}, delegates),
    ("delegation", {"retry_prompt": "again", "executor_format": 0.2, "format_by": "turn"}, delegates),
    ("delegation", {"alone": ["executor"], "alone_when": "always", "answer_action": "{content}"}, WORKS),
    ("designer_executor", {}, pick("solver", "solver ; solver", "right")),
    ("dual_loop", {}, None),
    ("dual_loop", {"router": "refiner", "empty_plan_penalty": 0.1}, pick("right", "strategic", "")),
    ("gateway", {}, None),
    ("gateway", {"agents": {"walker": {}, "checker": {"level": 1, "begins": "checker"}}}, None),
    ("planner_executor", {}, pick("one ; two", "right", "<sub_done>")),
    ("planner_executor", {"action_tag": "action", "plan_penalty": 0.1}, pick("<action>right</action>", "a\nb")),
    ("proposer_solver_judge", {}, POSED),
    ("proposer_solver_judge", {"questions": "task", "evaluator": True, "reward": "comas", "rounds": 2}, POSED),
    (
        "proposer_solver_judge",
        {"answers_by": "match", "tool": "right", "reward": "zero_sum", "verify_prompt": "{question} {evidence}"},
        POSED,
    ),
    ("react", {}, None),
    ("react", {"history": 2, "action_tag": "action"}, pick("<action>right</action>")),
    ("rlvmr", {}, None),
    ("self_play", {}, None),
    ("self_play", {"memory": False, "invalid": "loses", "action_tag": "move"}, pick("<move>left</move>", "right")),
    ("self_play", {"seats": {"a": {}, "b": {"by": "random"}}}, None),
    ("single_turn", {}, None),
    ("memory", {"piece_words": 1}, pick("add right", "right", "noop", "delete 1")),
    ("skills", {"conclude": 1.0}, pick("right", "<skill>walk to the goal</skill>")),
    (
        "skills",
        {"conclude": 1.0, "conclude_from": "each", "read": "asked", "select": "words", "readers": ["concluder"]},
        pick("right", "right", "<search_skills>goal</search_skills>", "<skill>walk to the goal</skill>"),
    ),
    ("skill_functions", {}, pick("<python>def f(): pass</python>", "<python>f()</python>", "right")),
    ("team", {"topology": {"each": "step"}}, None),
    ("tool_agent", {}, None),
    (
        "team",
        {
            "roles": {"solver": SOLVER, "verifier": VERIFIER},
            "answer_from": "solver",
            "topology": {"kind": "verifier_loop", "rounds": 2},
        },
        TEAM,
    ),
    (
        "team",
        {
            "roles": {"lead": {}, "helper": {"action": "{content}", "message_tag": "result", "turns": 2}},
            "topology": {"kind": "lead", "retry_prompt": "again"},
        },
        TEAM,
    ),
    ("switch_keep", {"history": 1}, pick("<switch>SWITCH</switch><subgoal>a</subgoal><action>right</action>")),
]


WORLDS = {"self_play": Duel, "skill_functions": Quiz}
"""Of workers that need a world of their own."""
TASKS = {"proposer_solver_judge": {"instruction": "do it", "answer": "left"}}
"""Of workers that read more of a task than its instruction."""


@pytest.mark.parametrize(
    ("name", "options", "answer"), spread(12, CASES), ids=[f"{name}-{options}"[:50] for name, options, _ in CASES]
)
def test_every_builtin_passes(name: str, options: dict[str, Any], answer: Answer | None) -> None:
    spec = SPECS[name]
    world = {"environment": AskedLine if spec.needs_info else WORLDS.get(name, Line), "task": TASKS.get(name)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_worker(spec, build_options(spec, options), answer=answer, **world)


def test_no_builtin_is_left_out() -> None:
    assert {name for name, _, _ in CASES} == set(SPECS)


class Acts(Worker):
    """A sound worker; the broken ones change one thing."""

    count = 0

    async def run(self, episode):
        step = await episode.reset()
        context = episode.context("agent").observe(step.text)
        while not (step.done or step.truncated):
            turn = await episode.generate(context)
            self.note(episode, turn)
            step = await episode.act(self.read(turn.text))
            context.observe(self.show(episode, step))

    def note(self, episode, turn):
        pass

    def read(self, text):
        return text

    def show(self, episode, step):
        return step.text


def test_a_sound_worker_passes() -> None:
    check_worker(WorkerSpec("mine", lambda options: Acts(), roles={"agent": 0}))


class Reviewed(Acts):
    """A critic looks at each draft before it is taken."""

    def __init__(self, named: bool) -> None:
        self._named = named

    async def run(self, episode):
        step = await episode.reset()
        drafter, critic = episode.context("drafter").observe(step.text), episode.context("critic")
        while not (step.done or step.truncated):
            draft = await episode.generate(drafter)
            await episode.generate(critic.observe(draft.text))
            step = await episode.act(draft.text, turn=draft if self._named else None)
            drafter.observe(step.text)


def approves(prompt: str, sampling: Sampling) -> str:
    return "fine" if prompt.removesuffix("<act>").endswith("right") else "right"


@pytest.mark.parametrize("answer", [None, approves])
def test_a_role_that_is_paid_for_the_actions_of_another_one_is_named(answer: Answer | None) -> None:
    roles = {"drafter": 0, "critic": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_worker(WorkerSpec("mine", lambda options: Reviewed(True), roles=roles), answer=answer)
    sentence = (
        r"worker 'mine' gives the role 'critic' the reward and validity of actions that it never wrote; 'right', "
        r"for instance, stands in a turn of 'drafter'"
    )
    with pytest.warns(UserWarning, match=sentence):
        check_worker(WorkerSpec("mine", lambda options: Reviewed(False), roles=roles), answer=answer)


class Counting(Acts):
    def show(self, episode, step):
        Counting.count += 1
        return f"{step.text} {Counting.count}"


class Global(Acts):
    def show(self, episode, step):
        return f"{step.text} {random.random()}"


class Clock(Acts):
    def show(self, episode, step):
        return f"{step.text} {time.perf_counter_ns()}"


class Own(Acts):
    """Draws from its own generator, as it should."""

    def show(self, episode, step):
        return f"{step.text} {episode.rng.random()}"


class Pays(Acts):
    def note(self, episode, turn):
        turn.node.reward += 0.5


class Opens(Acts):
    def read(self, text):
        return re.fullmatch(r"(right|left)", text.strip())[1]


class Formats(Acts):
    def show(self, episode, step):
        return ("seen: " + step.text).format(observation=step.text)


class Slow(Acts):
    """Looks for an end from each of a million beginnings."""

    def read(self, text):
        for _ in re.finditer("<action>", text):
            if sum(text.count(end) for end in ("</action>", "</answer>", "</search>", "</think>")) > 5:
                break
        return text[:5]


class Numbers(Acts):
    def read(self, text):
        return len(text)


class Spins(Acts):
    async def run(self, episode):
        step = await episode.reset()
        await episode.generate(episode.context("agent").observe(step.text))
        while not step.done:
            step = await episode.act("wait")


class Hangs(Acts):
    async def run(self, episode):
        await episode.reset()
        while True:
            pass


class Idle(Acts):
    async def run(self, episode):
        await episode.reset()


class ActsOn(Acts):
    async def run(self, episode):
        await super().run(episode)
        await episode.act("right")


class Stubborn(Acts):
    async def run(self, episode):
        try:
            await super().run(episode)
        except Exception:
            return


class Paints(Acts):
    def note(self, episode, turn):
        turn.mark(colour=1)


class Forgets(Acts):
    """Judges the turns that it likes."""

    def note(self, episode, turn):
        if "right" in turn.text:
            turn.mark(judge=1.0)


class Late(Acts):
    """Marks its first turn anew when the episode is over."""

    async def run(self, episode):
        self.first = None
        try:
            await super().run(episode)
        finally:
            if self.first is not None:
                self.first.mark(colour=self.turns)

    def note(self, episode, turn):
        self.first = self.first or turn
        self.turns = getattr(self, "turns", 0) + 1


class Misspells(Acts):
    async def run(self, episode):
        await episode.reset()
        episode.context("agnet")


AGENT = {"agent": 0}


def test_random_numbers_of_the_episode_are_allowed() -> None:
    check_worker(WorkerSpec("mine", lambda options: Own(), roles=AGENT))


@pytest.mark.parametrize(
    ("make", "changes", "sentence"),
    [
        (Acts, {"roles": {}}, "declares no roles"),
        (Acts, {"roles": {"agent": -1}}, "puts the role 'agent' on level -1"),
        (Acts, {"roles": {"agent": 0, "critic": 1}}, "declares the role 'critic', which has never taken a turn"),
        (Acts, {"provides": ("colour",)}, "declares the column 'colour' in `provides`, and no turn of these plays"),
        (
            Forgets,
            {"provides": ("judge",)},
            "leaves a turn of the role 'agent' without the column 'judge', .*comas, mae",
        ),
        (Paints, {}, "notes 'colour' on turns and does not declare it in `provides`"),
        (dict, {}, "has a factory that makes no Worker but a dict"),
        (Misspells, {}, r", in an ordinary episode, breaks: PluginError: .*'agnet' \(did you mean 'agent'\?\)"),
        (Idle, {}, "takes no turn in an ordinary episode"),
        (Counting, {}, r", played again .* breaks: RolloutError: the replay reaches turn \d+ .* another prompt"),
        (Global, {}, r", played again .* breaks: RolloutError: the replay reaches turn \d+ .* another prompt"),
        (Clock, {}, r", played again .* breaks: RolloutError: the replay reaches turn \d+ .* another prompt"),
        (Pays, {}, r"changes turns of the past when an episode is forked \(reward of turn \d"),
        (Late, {"provides": ("colour",)}, r"changes turns of the past when an episode is forked \(extra of turn 0"),
        (Opens, {}, r", (with Limits|answered with).* breaks: RolloutError: worker Opens raised TypeError"),
        (Formats, {}, ", told braces by the world, breaks: RolloutError: worker Formats raised"),
        (Slow, {}, r"takes \d+ s to read a turn of a million characters|, answered with .*does not come to an end"),
        (Numbers, {}, "gives the environment an action that is no text but a int|, in an ordinary episode, breaks"),
        (Spins, {}, "acts more than 500 times in one episode without coming to an end"),
        (Hangs, {}, ", in an ordinary episode, does not come to an end"),
        (ActsOn, {}, "acts although the environment has ended the episode"),
        (Stubborn, {}, r", with Limits\(max_turns=1.* breaks: RolloutError: worker Stubborn caught EpisodeOver"),
    ],
)
@pytest.mark.slow
def test_each_broken_worker_is_refused(make: Any, changes: dict[str, Any], sentence: str) -> None:
    spec = WorkerSpec("mine", lambda options: make(), **{"roles": AGENT, **changes})
    with pytest.raises(AssertionError, match=f"^worker 'mine' ?({sentence})"):
        check_worker(spec, patience=0.5 if make in (Hangs, Slow) else 60.0)

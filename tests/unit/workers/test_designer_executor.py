"""MetaAgent-X: who speaks in which context, M x N executions, rewards, and the fixture through the real path."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections import Counter
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from tests.conformance.runner import CASES
from tests.fixtures.corridor import Corridor
from verl_hier.credit.estimate import estimate
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table, graph_rows
from verl_hier.graph.columnar.light import light_of
from verl_hier.graph.storage import json_schema
from verl_hier.host.options import build_options
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import Limits
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, roll_out_scripted
from verl_hier.training.metrics import rollout_metrics
from verl_hier_plugins.estimators.metaagent_x import MetaAgentXOptions, hier_estimators
from verl_hier_plugins.samplers.designs import Designs, DesignsOptions, hier_samplers
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.schedules.stagewise import Stagewise, StagewiseOptions
from verl_hier_plugins.workers.designer_executor import hier_workers
from verl_hier_plugins.workers.designer_executor.design import Role
from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions, RoleOptions
from verl_hier_plugins.workers.designer_executor.script import Limits as ScriptLimits
from verl_hier_plugins.workers.designer_executor.script import read
from verl_hier_plugins.workers.designer_executor.worker import GRAMMAR

ROLES = {"walker": RoleOptions(), "critic": RoleOptions(tools=())}
WIDE = Limits(max_turns=60, max_tokens_per_turn=20_000, context_tokens=100_000)


def cast(**options):
    """The worker and its options, as arguments of a scripted rollout."""
    defaults = {
        "roles": ROLES,
        "tools": ("right", "left"),
        "executor_prompt": "you are {role} | {order} | {observation} ",
        "observation_prompt": " {observation} ",
        "delivery_tag": None,
        "delivery_reward": 0.0,
        "final_reward": 0.0,
    }
    return {"worker": hier_workers(), "options": DesignerExecutorOptions(**defaults | options)}


class Played:
    """One rolled out task."""

    def __init__(self, graph, policy):
        self.graph = graph
        self.prompts = [policy.tokenizer.decode(graph.prompt(node.id)) for node in graph.nodes]

    def spoken(self, episode=0):
        """(agent, segment) of the executors' turns of an episode."""
        nodes = [self.graph.nodes[i] for i in self.graph.path(episode)]
        return [(node.agent, node.segment) for node in nodes if node.level]

    def rows(self):
        """Turns of each row."""
        return [len(row.nodes) for row in graph_rows(self.graph, lambda node: True)]


@pytest.fixture
def play(run):
    """`play(design, answer, …)`: what the designer says, and what executors say; each a text or a function."""

    def play(design, answer="right", n=1, sampler=None, environment=Corridor, limits=WIDE, task=None, **options):
        def speak(prompt, sampling):
            said = design if prompt.startswith("design") else answer
            return said(prompt, sampling) if callable(said) else said

        return Played(
            *run(
                roll_out_scripted(
                    environment=environment,
                    **cast(**options),
                    sampler=sampler or Independent(NoOptions()),
                    answer=speak,
                    task=task,
                    n=n,
                    limits=limits,
                    tokenizer=CharacterTokenizer(),
                )
            )
        )

    return play


# ---- who says what, in which context ---------------------------------------------------------------------------------


def test_the_mini_form_is_a_call_a_part_in_contexts_of_their_own(play):
    played = play("walker go there ; critic ; walker", turns=2)
    nodes = played.graph.nodes
    assert [(n.role, n.agent, n.level) for n in nodes[:2]] == [("designer", "designer", 0), ("executor", "walker", 1)]
    assert played.spoken() == [("walker", 0), ("walker", 0), ("critic", 1), ("walker", 2)]
    assert [node.plan for node in nodes] == [-1, 0, 0, 0, 0]
    assert played.rows() == [1, 2, 1, 1]
    # What the critic says moves nothing.
    assert [node.reward for node in nodes] == [0, 0, 0, 0, 1] and played.graph.counts["environment_calls"] == 3
    assert played.prompts[1] == "you are walker | go there | at 0 <act>"
    assert played.prompts[3] == "you are critic |  | at 2 <act>"


@pytest.mark.parametrize("context, rows", [("own", [1, 1, 1, 1]), ("kept", [1, 1, 2]), ("shared", [1, 3])])
def test_contexts_are_what_the_script_says(play, context, rows):
    script = f"""
a = Role("go", tools=["act"], context="{context}", turns=1)
b = Role("talk", context="{context}")
a ; b ; a
"""
    played = play(script)
    assert played.spoken() == [("a", 0), ("b", 1), ("a", 2)]
    assert sorted(played.rows()) == rows
    assert ("you are b" in played.prompts[3]) == (context == "shared")
    trained = Counter(t for row in graph_rows(played.graph, lambda n: n.agent == "b") for t in row.turn_index if t >= 0)
    mask = [m for row in graph_rows(played.graph, lambda n: n.agent == "b") for m in row.mask]
    # In a shared row the other roles' tokens are context; only b's own are trained.
    assert sum(mask) == len(played.graph.nodes[2].action) and trained[2] == sum(mask)


def test_words_reach_those_who_are_told_them(play):
    said = {"critic": "mind\nthe gap"}
    played = play(
        'first = critic("look")\nwalker(f"{first}!", critic)',
        lambda prompt, sampling: next((v for k, v in said.items() if f"you are {k}" in prompt), "right"),
    )
    assert played.prompts[2].startswith("you are walker | mind\nthe gap!\nmind\nthe gap | at 0")


def test_loops_conditions_and_breaks(play):
    script = """
for i in range(4):
    walker
    verdict = critic(f"round {i}")
    if "ok" in verdict:
        break
    elif "never" in verdict: stop
    else:
        critic("again")
critic("end")
"""
    played = play(
        script,
        lambda prompt, s: "right" if "walker" in prompt else "OK" if "round 1" in prompt else "no",
        turns=1,
        environment=lambda: Corridor(9),
    )
    assert [agent for agent, _ in played.spoken()] == ["walker", "critic", "critic", "walker", "critic", "critic"]
    assert played.prompts[-1].startswith("you are critic | end")
    assert played.graph.nodes[0].extra == {"design_valid": 1, "design_steps": 13}


def test_stop_and_the_world_end_the_script(play):
    assert play('if "x" not in critic:\n    walker\n    stop\nwalker', turns=1).spoken() == [("walker", 0)]
    played = play("walker ; walker ; critic")
    assert played.spoken() == [("walker", 0)] * 3 and played.graph.episodes[0].status == "finished"


def test_the_done_word_ends_a_call_and_moves_nothing(play):
    played = play("walker ; walker", "<sub_done>")
    assert played.spoken() == [("walker", 0), ("walker", 1)]
    assert "environment_calls" not in played.graph.counts


def test_the_script_may_stand_in_a_tag_or_a_fence(play):
    fenced = "Two roles will do.\n```python\ncritic()\nwalker('go')\n```\nGood luck."
    assert play(fenced).spoken()[:2] == [("critic", 0), ("walker", 1)]
    assert play(f"x <design>{fenced}</design> y", design_tag="design").spoken()[0] == ("critic", 0)
    for text in ("<design>walker", "walker"):
        assert play(text, design_tag="design").graph.nodes[0].extra["failure"] == "design_missing"


def test_the_scripts_on_the_page_are_sound():
    page = (Path(__file__).parents[3] / "docs/methods/metaagent_x.md").read_text(encoding="utf-8")
    picture, language = (
        page.split(start)[1].split(end)[0]
        for start, end in (("in this picture is", "where the"), ("It is a part of Python:", "| | |"))
    )
    scripts = [
        textwrap.dedent(part) for text in (picture, language) for part in text.strip("\n").split("\n\n") if part.strip()
    ]
    roles = {name: Role(name) for name in ("find", "heat", "put", "finder", "doer")}
    assert [read(script, ScriptLimits(roles=roles, tools=("look",))).steps for script in scripts] == [3, 3, 7]


def test_the_grammar_that_designers_are_told_is_a_sound_script():
    script = "\n".join(GRAMMAR.splitlines()[:-1])
    design = read(script, ScriptLimits(roles={"OTHER": Role("OTHER")}))
    assert design.steps == 6 and set(design.roles) == {"NAME", "OTHER"}


def test_the_designer_can_be_told_everything(play):
    prompt = "design {roles} / {catalogue} / {tools} / {grammar}"
    roles = {"walker": RoleOptions(brief="Walk."), "critic": RoleOptions(brief="Judge.", tools=())}
    played = play("walker", designer_prompt=prompt, roles=roles, designer_system="design! ")
    assert (
        "walker, critic / walker: Walk. (tools: act)\ncritic: Judge. (tools: none) / act, right, left / "
        in (played.prompts[0])
    )
    assert "for i in range(3):" in played.prompts[0]


# ---- tools -----------------------------------------------------------------------------------------------------------


def test_a_tool_in_the_wrong_role_is_refused_counted_and_costs(play):
    played = play("a = Role('go', tools=['left'])\na", turns=2, tool_penalty=0.25, refusal_prompt=" no: {refusal}")
    turns = played.graph.nodes[1:]
    assert [(n.valid, n.reward, n.extra["failure"]) for n in turns] == [(False, -0.25, "tool_in_wrong_role")] * 2
    assert "environment_calls" not in played.graph.counts
    assert " no: a has no tool 'right'" in played.prompts[2]
    assert rollout_metrics(light_of([played.graph]))["hier/failures/tool_in_wrong_role"] == 2


def test_a_tool_is_the_first_word_of_an_action(play):
    played = play("a = Role('go', tools=['right'])\na", turns=1, environment=lambda: Corridor(1))
    assert played.graph.episodes[0].ret == 1.0 and played.graph.nodes[1].valid


@pytest.mark.parametrize(
    "said, failure",
    [
        ("<action>jump</action>", "unknown_tool"),
        ("<action> </action>", "no_action"),
        ("<action>right", "no_action"),
        ("<delivery>right", "no_action"),
        ("<delivery><action>left</action>", "unclosed_delivery"),
        ("<action>" + "right " * 1000 + "</action>", "action_too_long"),
        ("<delivery>" + "right " * 1000 + "</delivery>", "action_too_long"),
    ],
)
def test_what_executors_do_wrong_has_a_name(play, said, failure):
    played = play(
        "a = Role('go', tools=['right', 'left'])\na", said, turns=1, action_tag="action", delivery_tag="delivery"
    )
    assert played.graph.nodes[1].extra["failure"] == failure and not played.graph.nodes[1].valid


def test_a_role_without_tools_that_acts(play):
    played = play("critic", "<action>right</action>", action_tag="action")
    assert played.graph.nodes[1].extra["failure"] == "tool_in_wrong_role"
    assert "environment_calls" not in played.graph.counts


# ---- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said, options, world, delivered, valid",
    [
        ("<delivery>right</delivery>", {}, 1.0, 1, 0),
        ("<delivery>boxed</delivery>", {}, -0.1, 1, 1),
        ("right", {}, 1.0, 0, 0),
        ("<delivery>right</delivery>", {"final_pattern": None}, 1.0, 1, 1),
        ("<delivery>left</delivery>", {"final_pattern": None}, -0.1, 1, 0),
        ("<delivery>boxed</delivery>", {"delivery_acts": False}, 0.0, 1, 1),
        ("right", {"delivery_tag": None}, 1.0, 1, 0),
        ("left", {"delivery_tag": None, "turns": 1}, -0.1, 0, 0),
    ],
)
def test_an_execution_earns_correctness_delivery_and_format(play, said, options, world, delivered, valid):
    paper = {"delivery_tag": "delivery", "delivery_reward": 0.4, "final_reward": 0.3, "final_pattern": "boxed"}
    graph = play("walker", said, environment=lambda: Corridor(1), **paper | options).graph
    assert graph.nodes[-1].extra == {"delivered": delivered, "final_valid": valid}
    assert graph.episodes[0].ret == pytest.approx(world + 0.4 * delivered + 0.3 * valid)


def test_an_execution_that_a_limit_cuts_earns_nothing_extra(play):
    limits = dataclasses.replace(WIDE, max_turns=3)
    played = play("walker", environment=lambda: Corridor(9), limits=limits, final_reward=0.4)
    assert played.graph.episodes[0].ret == 0 and played.graph.episodes[0].error == "max_turns"


# ---- M designs x N executions ----------------------------------------------------------------------------------------


def designs_by_seed(prompt, sampling):
    return ("walker", "import os", "walker ; walker")[(sampling.seed or 0) % 3]


@pytest.mark.parametrize("failed", ["drop", "keep"])
def test_designs_are_executed_several_times_and_failed_ones_kept_or_dropped(play, failed):
    graph = play(
        designs_by_seed,
        lambda prompt, sampling: "right" if (sampling.seed or 0) % 3 else "left",
        n=18,
        turns=4,
        design_penalty=0.5,
        design_reward=0.1,
        sampler=Designs(DesignsOptions(designs=6, executions=3, failed=failed)),
    ).graph
    spoken = [node for node in graph.nodes if node.level == 0]
    bad = {node.id for node in spoken if not node.valid}
    good = {node.id for node in spoken} - bad
    assert len(spoken) == 6 and bad and len(good) > 1
    assert (
        graph.counts["failed_designs"] == rollout_metrics(light_of([graph]))["hier/failures/design_import"] == len(bad)
    )
    executions = Counter(graph.path(episode.id)[0] for episode in graph.complete())
    assert executions == dict.fromkeys(good, 3) | (dict.fromkeys(bad, 3) if failed == "keep" else {})
    assert len({(e.decision["design"], e.decision["execution"]) for e in graph.episodes}) == len(graph.episodes)
    for episode in graph.complete():
        first = graph.nodes[graph.path(episode.id)[0]]
        assert episode.trained and episode.decision["design"] == first.decision["design"]
        assert first.reward == (0.1 if first.valid else -0.5)
    assert graph.short == (failed == "drop")
    table = build_table([graph])
    designs = np.flatnonzero(table["level"] == 0)
    assert table["design_valid"][designs].tolist() == [float(i in good) for i in sorted(executions)]
    # A design's credit is the mean of its executions, compared with the other designs.
    scores = [np.mean([e.ret for e in graph.complete() if graph.path(e.id)[0] == i]) for i in sorted(executions)]
    expected = (np.array(scores) - np.mean(scores)) / (np.std(scores, ddof=1) + 1e-6)
    assert estimate(hier_estimators(), table, MetaAgentXOptions()).values[designs] == pytest.approx(expected)


def test_executions_of_a_failed_design_have_votes_among_the_executions(play):
    """Of three designs, one cannot be executed: its executions count as returns of 0, one vote each."""
    graph = play(
        designs_by_seed,
        lambda prompt, sampling: "right" if (sampling.seed or 0) % 3 else "left",
        n=18,
        turns=4,
        sampler=Designs(DesignsOptions(designs=6, executions=3)),
    ).graph
    table = build_table([graph])
    calls = np.flatnonzero(table["level"] == 1)
    failed = 3 * graph.counts["failed_designs"]
    assert failed and len(calls)
    scores = np.append(table["return"][calls], np.zeros(failed))
    for mode, votes in (("count", scores), ("ignore", scores[: len(calls)])):
        options = MetaAgentXOptions(executor_group="question", failed_designs=mode)
        expected = (table["return"][calls] - votes.mean()) / (votes.std(ddof=1) + 1e-6)
        assert estimate(hier_estimators(), table, options).values[calls] == pytest.approx(expected), mode


def test_a_design_that_calls_nobody_in_the_end_has_failed(play):
    graph = play(
        'if "x" in critic: walker',
        n=4,
        sampler=Designs(DesignsOptions(designs=2, executions=2, failed="drop")),
        design_reward=0.1,
        design_penalty=0.5,
    ).graph
    assert [(n.extra["failure"], n.extra["design_valid"], n.reward) for n in graph.nodes] == [
        ("design_empty", 0, -0.5)
    ] * 2
    assert not list(graph.complete()) and graph.counts["failed_designs"] == 2


def test_a_design_that_was_cut_is_not_run(play, monkeypatch):
    generate = ScriptedPolicy.generate

    async def cut(self, *args):
        made = await generate(self, *args)
        assert made.token_ids[-1] == self.tokenizer.eos_token_id
        return dataclasses.replace(made, token_ids=made.token_ids[:-1], logprobs=made.logprobs[:-1])

    monkeypatch.setattr(ScriptedPolicy, "generate", cut)
    graph = play("walker ; walker").graph
    assert [node.extra["failure"] for node in graph.nodes] == ["design_cut"]


def test_a_lost_world_is_not_a_failed_design(play):
    graph = play(
        "walker",
        n=4,
        environment=lambda: Corridor(3, break_at=1),
        sampler=Designs(DesignsOptions(designs=2, executions=2)),
    ).graph
    assert [e.status for e in graph.episodes] == ["failed"] * 4 and "failed_designs" not in graph.counts


def test_n_is_designs_times_executions():
    spec = hier_samplers()
    options = build_options(spec, {"designs": 4, "executions": 4})
    assert spec.episodes(options, 16) == 16
    with pytest.raises(RecipeError, match=r"rollout\.n: 4 designs x 4 executions are 16 episodes a task, got 8"):
        spec.episodes(options, 8)


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_stages_reach_the_graph_and_its_schema(play, mode):
    """What a stage says is stored with the graph; hard stages leave rows of one level."""
    graph = play("walker ; critic", turns=1).graph
    phase = Stagewise(StagewiseOptions(mode=mode)).phase(1)
    graph.phase = phase.to_dict()
    jsonschema.Draft202012Validator(json_schema()).validate(graph.to_dict())
    levels = {graph.nodes[t].level for row in graph_rows(graph, phase.trains) for t in row.turn_index if t >= 0}
    assert levels == ({1} if mode == "hard" else {0, 1})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"roles": {"designer": {}}}, "cannot be the name of a role"),
        ({"roles": {"a": {"tools": ["fly"]}}}, "'fly' is not among `tools`"),
        ({"roles": {"a": {"turns": 99}}}, "from 1 to `turns`"),
        ({"roles": {}, "define_roles": False}, "no design could call a role"),
        ({"turns": 0}, "turns: must be at least 1"),
        ({"done_word": ""}, "done_word must not be empty"),
        ({"final_pattern": "("}, "no regular expression"),
    ],
)
def test_recipes_that_make_no_sense(options, message):
    from verl_hier_plugins.workers.designer_executor import hier_workers

    spec = hier_workers()
    with pytest.raises(RecipeError, match=re.escape(message)):
        build_options(spec, options)


def test_plans_for_demonstrations_are_sound_designs(play):
    goals = ("walker east", "find apple")
    for options in ({}, {"design_tag": "design"}, {"roles": {}}):
        plan = DesignerExecutorOptions(**{"roles": ROLES} | options).write_plan(goals)
        calls = play(plan, turns=1, **options).prompts[1:]
        assert len(calls) == 2 and "find apple | at 1" in calls[1]


# ---- the fixture through worker, sampler, table and estimator --------------------------------------------------------


class Exam(Environment):
    """Work as long as you like, then answer; `correct` earns 1."""

    def reset(self, task, seed):
        return StepResult("?")

    def step(self, action):
        return StepResult("!", float("correct" in action), action.startswith("answer"))


LAST = {
    0.0: "<sub_done>",
    0.4: "<delivery>answer</delivery>",
    0.8: "<delivery>answer boxed</delivery>",
    1.8: "<delivery>answer boxed correct</delivery>",
}


class Candidates:
    """Speaks for the designer and the executors of one problem, so that the rows and rewards of a case arise.

    An execution of r rows works r - 1 times and then says what earns its reward: 1 for a correct answer, 0.4 for
    handing it in, 0.4 for a box around it.
    """

    def __init__(self, case, problem):
        self.rows = Counter()
        self.reward = {}
        for p, design, role, execution, reward in self.table(case):
            if (p, role) == (problem, 1):
                self.rows[design, execution] += 1
                self.reward[design, execution] = reward
        self.designs = 0
        self.started = Counter()

    @staticmethod
    def table(case):
        return zip(*(case[name] for name in ("problem", "design", "role", "execution", "reward")), strict=True)

    def design(self, prompt, sampling):
        self.designs += 1
        return f"solver number {self.designs - 1}"

    def execute(self, prompt, sampling):
        design = int(re.search(r"number (\d+)", prompt)[1])
        worked = re.findall(r"work (\d+)", prompt)
        if not worked:
            self.started[design] += 1
        execution = int(worked[0]) if worked else self.started[design] - 1
        if len(worked) + 1 < self.rows[design, execution]:
            return f"work {execution}"
        return LAST[self.reward[design, execution]] + f" from {execution}"


@pytest.mark.parametrize("number", [0, 1])
def test_the_fixture_passes_through_the_real_path(play, number):
    recorded = json.loads((CASES / "metaagentx.json").read_text())["cases"][number]
    case, expected = recorded["input"], recorded["output"]["grpo_adv"]
    designs, executions = case["design_sample_num"], case["execute_sample_num"]
    graphs = []
    for problem in sorted(set(case["problem"])):
        script = Candidates(case, problem)
        graphs.append(
            play(
                script.design,
                script.execute,
                n=designs * executions,
                sampler=Designs(DesignsOptions(designs=designs, executions=executions)),
                environment=Exam,
                task={"instruction": f"problem {problem}"},
                roles={"solver": RoleOptions()},
                delivery_tag="delivery",
                delivery_reward=0.4,
                final_reward=0.4,
                final_pattern="boxed",
            ).graph
        )
    table = build_table(graphs)
    options = MetaAgentXOptions(executor_group=case["executor_group_mode"], executions=executions)
    credit = estimate(hier_estimators(), table, options).values
    ours = {}
    turn = 0
    for problem, graph in enumerate(graphs):
        for node in sorted({i for e in graph.complete() for i in graph.path(e.id)}):
            found = graph.nodes[node]
            design = graph.nodes[found.plan if found.level else node].decision["design"]
            execution = int(re.search(r"(\d+)$", found.text)[1]) if found.level else -1
            ours.setdefault((problem, design, found.level, execution), []).append((table["return"][turn], credit[turn]))
            turn += 1
    assert turn == len(table) == len(expected)
    for row, (problem, design, role, execution, reward) in enumerate(Candidates.table(case)):
        ret, advantage = ours[problem, design, role, execution].pop()
        assert ret == pytest.approx(reward)
        assert advantage == pytest.approx(expected[row], rel=2e-4, abs=2e-5), (problem, design, role, execution)
    assert not any(ours.values())

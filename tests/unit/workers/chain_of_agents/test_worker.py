"""The worker: who speaks, which tokens are whose, what reaches the world, and what a broken grammar costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from verl_hier.credit.estimate import estimate
from verl_hier.environments.base import Environment, StepResult
from verl_hier.errors import RecipeError
from verl_hier.graph import build_table, graph_rows
from verl_hier.graph.columnar.light import light_of
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import NoOptions
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.rollout import Limits, Sampler
from verl_hier.testing.rollout import WordTokenizer, roll_out_scripted
from verl_hier.training.metrics import rollout_metrics
from verl_hier_plugins.samplers.independent import Independent
from verl_hier_plugins.workers.chain_of_agents import LEVELS, WORKER
from verl_hier_plugins.workers.chain_of_agents.grammar import VIOLATIONS
from verl_hier_plugins.workers.chain_of_agents.worker import ChainOptions

from .test_grammar import PIECES


class Library(Environment):
    """Answers a search, wins on the answer `d`; anything else is invalid."""

    heard: list[str]

    def __init__(self) -> None:
        self.heard = []

    def reset(self, task, seed):
        return StepResult("who ?", anchor="0")

    def step(self, action):
        self.heard.append(action)
        verb, _, rest = action.partition(" ")
        won = rest == "d"
        if verb == "answer":
            return StepResult("", float(won), done=True, info={"won": won})
        known = verb == "search"
        return StepResult("c" if known else "what ?", 0.0 if known else -0.5, valid=known)


PAPER = ("<think>a</think>", "<web_search>b</web_search>", "<answer>d</answer>")
FREE = {"think": "optional", "grammar": {"start": ("tool",), "tool": ("tool", "answer")}}
SEARCH = {"tools": {"web_search": "search {content}", "shout": "{content}"}, "answer_action": "answer {content}"}


def script(*texts: str) -> Callable:
    """A policy that says these texts one after the other, then nothing but an end token."""
    left: Iterator[str] = iter(texts)
    return lambda prompt, sampling: next(left, "")


@pytest.fixture
def play(run):
    def play(answer, sampler=None, n=1, limits=None, **options):
        chosen = ChainOptions(**{**SEARCH, **options})
        made: list[Library] = []

        def world() -> Library:
            made.append(Library())
            return made[-1]

        graph, policy = run(
            roll_out_scripted(
                environment=world,
                worker=WORKER,
                options=chosen,
                sampler=sampler or Independent(NoOptions()),
                answer=answer,
                n=n,
                limits=limits or Limits(max_turns=40, context_tokens=4000),
            )
        )
        play.heard = [action for world in made for action in world.heard]
        play.policy = policy
        return graph

    return play


def failures(graph) -> dict[str, int]:
    return Counter(node.extra["failure"] for node in graph.nodes if "failure" in node.extra)


@pytest.mark.parametrize(
    "turns, said",
    [("agent", PAPER), ("call", ("".join(PAPER[:2]), PAPER[2])), ("agent", ("".join(PAPER[:2]), PAPER[2]))],
)
def test_everything_but_the_observation_is_trained(play, turns, said):
    """The example of the paper's format, token by token."""
    graph = play(script(*said), turns=turns, **FREE)
    (row,) = graph_rows(graph, lambda node: True)
    spoken = {}
    tokenizer = play.policy.tokenizer
    text = [tokenizer.decode([token]) for token in row.response]
    wanted = (
        "<think> a </think> <web_search> b </web_search> <observation> c </observation> <answer> d </answer>".split()
    )
    assert [word for word in text if word != "<end>"] == wanted
    inside = False
    for word, trained in zip(text, row.mask, strict=True):
        inside = inside or word == "<observation>"
        assert trained == (not inside), word
        inside = inside and word != "</observation>"
    assert play.heard == ["search b", "answer d"]
    assert graph.episodes[0].status == "finished" and graph.episodes[0].success
    # The masks say whose token each trained token is.
    table = build_table([graph])
    for role in ("think", "tool", "answer", "plan"):
        spoken[role] = [
            tokenizer.decode([token])
            for token, mine in zip(
                [t for node in graph.nodes for t in node.action], table[f"tokens.{role}"], strict=True
            )
            if mine
        ]
    assert [word for word in spoken["think"] if word != "<end>"] == ["<think>", "a", "</think>"]
    assert [word for word in spoken["tool"] if word != "<end>"] == ["<web_search>", "b", "</web_search>"]
    assert [word for word in spoken["answer"] if word != "<end>"] == ["<answer>", "d", "</answer>"]
    assert not spoken["plan"]
    assert sum(map(len, spoken.values())) == sum(row.mask)


def thinking(*parts: str) -> list[str]:
    return [text for part in parts for text in ("<think>hm</think>", part)]


FULL = thinking(
    "<plan>one</plan>",
    "<web_search>x</web_search>",
    "<reflection>poor</reflection>",
    "<plan>two</plan>",
    "<web_search>y</web_search>",
    "<suggested_answer>d</suggested_answer>",
    "<double_check>score 4</double_check>",
    "<answer>d</answer>",
)


def test_roles_agents_levels_plans_and_segments(play):
    graph = play(script(*FULL))
    assert graph.episodes[0].success and not failures(graph)
    spoken = graph.nodes[1::2]
    assert [n.role for n in spoken] == [
        "plan", "tool", "reflection", "plan", "tool", "suggested_answer", "double_check", "answer"
    ]  # fmt: skip
    assert [n.agent for n in spoken][:2] == ["plan", "web_search"]
    assert all(n.role == "think" for n in graph.nodes[::2])
    assert all(n.level == LEVELS[n.role] for n in graph.nodes)
    first, second = spoken[0].id, spoken[3].id
    assert [n.plan for n in graph.nodes] == [-1, -1, *[first] * 6, *[second] * 8]
    assert [n.segment for n in graph.nodes] == [0] * 8 + [1] * 8
    assert all(n.valid for n in graph.nodes)


def test_credit_may_go_to_one_agent(play):
    """The estimator of the same name, on the table of the worker's graph."""
    answers = iter([*FULL[:-1], "<answer>d</answer>", *FULL[:-1], "<answer>no</answer>"])
    graph = play(lambda prompt, sampling: next(answers), sampler=Sequential(), n=2)
    assert [e.ret for e in graph.episodes] == [1.0, 0.0]
    spec = PluginHost.load({"builtin": True}).spec("estimator", "chain_of_agents")
    table = build_table([graph])
    credit = estimate(spec, table, build_options(spec, {"mask": "plan"})).values
    roles = [graph.nodes[i].role for i in range(len(graph.nodes)) for _ in graph.nodes[i].action]
    assert {role for role, value in zip(roles, credit, strict=True) if value} == {"plan"}


class Sequential(Sampler):
    async def sample(self, rollout):
        for _ in range(rollout.n):
            await rollout.start().run()


class Bush(Sampler):
    """One chain, then a fork after each of its turns."""

    async def sample(self, rollout):
        trunk = await rollout.start().run()
        for shared in range(len(trunk.path)):
            await (await trunk.fork(after=shared)).run()


def test_forks_anywhere_say_the_same_and_pay_once(play):
    def answer(prompt, sampling):
        """The next part of the chain, by what was said so far; the last one is wrong."""
        said = sum(prompt.count(f"</{tag}>") for tag in ("think", "plan", "web_search"))
        return (*FULL[:4], "<think>hm</think>", "<answer>d</answer>")[said]

    graph = play(answer, sampler=Bush(), on_violation="penalise", violation_penalty=0.25)
    assert len({tuple(graph.nodes[i].text for i in graph.path(e.id)) for e in graph.episodes}) == 1
    assert [round(e.ret, 6) for e in graph.episodes] == [0.75] * 7
    assert failures(graph) == {"grammar_transition": sum(n.role == "answer" for n in graph.nodes)}


class Crumbs(Sampler):
    """One token at a time."""

    async def sample(self, rollout):
        episode = rollout.start()
        while not episode.over:
            await episode.step(tokens=1)


def test_a_turn_in_pieces_has_one_speaker(play):
    following = {"?": "<think>", "<think>": "a", "a": "</think>", "</think>": "<web_search>", "<web_search>": "b"}
    following |= {
        "b": "</web_search>",
        "</observation>": "<answer>",
        "<answer>": "d",
        "d": "</answer>",
        "<act>": "<think>",
    }
    graph = play(lambda prompt, sampling: following[prompt.split()[-1]], sampler=Crumbs(), **FREE)
    assert [n.role for n in graph.nodes] == ["think"] * 3 + ["tool"] * 3 + ["answer"] * 3
    assert [n.partial for n in graph.nodes] == [True, True, False] * 3
    assert all(n.masks[n.role] == [[0, 1]] for n in graph.nodes)
    assert graph.episodes[0].success


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said, name",
    [
        (("<think>a",), "unclosed"),
        (("words",), "stray_text"),
        (("",), "no_agent"),
        (("<think>a</think>", "<plan>p</plan>", "<think>b</think>", "<answer>d</answer>"), "transition"),
        (("<plan>p</plan>",), "no_think"),
        (("<think>a <plan>p</plan></think>",), "nested"),
        (("<think>a</think><observation>won</observation>",), "forged_observation"),
        (("<think>a</think><plan>p</plan>", "<think>b</think><web_search>x</web_search><think>c</think>"), "talked_on"),
        ((f"<think>{'a ' * 60}</think>",), "too_long"),
    ],
)
def test_a_violation_ends_the_episode_by_name(play, said, name):
    graph = play(script(*said), longest_content=100, violation_penalty=1.0)
    (episode,) = graph.episodes
    assert (episode.status, episode.error) == ("truncated", f"grammar: {name}")
    assert failures(graph) == {f"grammar_{name}": 1}
    last = graph.nodes[-1]
    assert not last.valid and last.reward == -1.0
    assert last.truncated and episode.ret == -1.0
    assert play.heard == []


@pytest.mark.parametrize("on_violation", ["end", "penalise"])
@pytest.mark.parametrize("turns, said", [("call", "<think>a</think><plan>p</plan>"), ("agent", "<")])
def test_nothing_goes_on_behind_the_end_of_the_message(play, on_violation, turns, said):
    graph = play(script(said), turns=turns, on_violation=on_violation)
    assert len(graph.nodes) == 1 and graph.episodes[0].error == "grammar: stopped"
    assert failures(graph) == {"grammar_stopped": 1}


def test_a_violation_may_only_cost(play):
    said = thinking("<plan>p</plan>", "<plan>q</plan>", "<web_search>b</web_search>", "<answer>d</answer>")
    graph = play(script(*said), on_violation="penalise", violation_penalty=0.25)
    assert graph.episodes[0].status == "finished" and graph.episodes[0].ret == 1.0 - 2 * 0.25
    assert failures(graph) == {"grammar_transition": 2}
    assert play.heard == ["search b", "answer d"]


def test_a_world_that_refuses_is_no_violation(play):
    graph = play(script(*thinking("<plan>p</plan>", "<shout>b</shout>")), limits=Limits(max_turns=4))
    assert play.heard == ["b"]
    assert [n.valid for n in graph.nodes] == [True, True, True, False]
    assert not failures(graph)
    assert graph.episodes[0].error == "max_turns"


def test_the_answer_ends_even_where_the_world_wants_none(play):
    said = thinking("<plan>p</plan>", "<suggested_answer>d</suggested_answer>", "<double_check>4</double_check>")
    graph = play(script(*said, *thinking("<answer>d</answer>")), answer_action=None)
    assert (graph.episodes[0].status, graph.episodes[0].error) == ("truncated", "worker_stopped")
    assert play.heard == []


@pytest.mark.parametrize("turns", ["agent", "call"])
@pytest.mark.parametrize("on_violation", ["end", "penalise"])
@pytest.mark.parametrize("think", ["required", "optional"])
def test_hostile_policies_never_break_a_run(play, turns, on_violation, think):
    """Whatever is said: complete episodes, named and counted violations, masks within their turns."""
    rng = random.Random(f"{turns}-{on_violation}-{think}")
    parts = [*PIECES, "<web_search>b</web_search>", "<think>a</think>", "<plan>p</plan>", "<shout>{0}</shout>"] * 2

    def answer(prompt, sampling):
        if rng.random() < 0.01:
            return rng.choice(("<think>", "</think>", "a ")) * 20_000
        return "".join(rng.choices(parts, k=rng.randrange(6)))

    outputs = errors = 0
    for _ in range(60):
        graph = play(answer, n=4, turns=turns, on_violation=on_violation, think=think, limits=Limits(12, 200, 1500))
        assert {e.status for e in graph.episodes} <= {"finished", "truncated"}
        for node in graph.nodes:
            outputs += 1
            name = node.extra.get("failure")
            errors += name is not None
            assert (name is None) or (name.removeprefix("grammar_") in VIOLATIONS and not node.valid)
            assert node.role in LEVELS and node.role in (*LEVELS, node.agent)
            spans = [span for spans in node.masks.values() for span in spans]
            assert all(0 <= start < stop <= len(node.action) for start, stop in spans)
            assert sum(stop - start for start, stop in spans) <= len(node.action)
        counted = {k: v for k, v in rollout_metrics(light_of([graph])).items() if k.startswith("hier/failures/")}
        assert sum(counted.values()) == sum("failure" in node.extra for node in graph.nodes)
        if on_violation == "end":
            assert all(sum("failure" in graph.nodes[i].extra for i in graph.path(e.id)) <= 1 for e in graph.episodes)
    assert outputs >= 240 and errors > 120


def test_ten_megabytes_in_a_turn(play):
    """As a policy object might return it; a server is held to `max_tokens_per_turn`."""
    graph = play(lambda prompt, sampling: "<think>" + "a" * 10_000_000 + "</think>", limits=Limits(4, 100, 1000))
    assert graph.episodes[0].error == "grammar: too_long"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"tools": {}}, "no agent could act otherwise"),
        ({"tools": {"go": "{where}"}}, "may use {content} only"),
        ({"tools": {"plan": "{content}"}}, "is a tool and another agent"),
        ({"tools": {"a b": "{content}"}}, "cannot be the tag"),
        ({"violation_penalty": -1}, "must be at least 0"),
        ({"turns": "word"}, "is not one of"),
        ({"grammar": {"plan": "tool"}}, "expected"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(RecipeError, match=words):
        build_options(WORKER, options)


def test_a_server_that_cannot_stop_at_strings_is_refused():
    sglang = ["size=node", "server=sglang"]
    off = compose("chain_of_agents_alfworld", [*sglang, "actor_rollout_ref.rollout.skip_tokenizer_init=true"])
    with pytest.raises(RecipeError, match=r"skip_tokenizer_init: worker 'chain_of_agents'.*set it to false"):
        check_recipe(off)
    check_recipe(compose("chain_of_agents_alfworld", sglang))
    check_recipe(compose("grpo_alfworld", sglang))


def test_a_field_that_nobody_fills_is_named(play):
    with pytest.raises(RecipeError, match=r"hier.worker.prompt.*weather"):
        play(script(), prompt="{weather}")


def test_the_vocabulary_has_every_tag():
    told = " ".join(ChainOptions(**SEARCH).vocabulary())
    tokenizer = WordTokenizer()
    tokenizer.encode(told)
    for tag in ("think", "web_search", "shout", "observation", "answer"):
        assert {f"<{tag}>", f"</{tag}>"} <= set(tokenizer.get_vocab())

"""Search at test time through `eval`: served policies and models in this process, with the samplers that train."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fixtures.chat_endpoint import Endpoint
from tests.fixtures.code_blocks import blocks
from tests.fixtures.page_player import ROOT
from verl_hier.cli.main import app
from verl_hier.errors import HierError, RecipeError
from verl_hier.graph import read_graphs
from verl_hier.ops.abilities import require_abilities
from verl_hier.ops.evaluation import Evaluation, evaluate
from verl_hier.ops.rollouts import Plan
from verl_hier.ops.search import Search, said_in_words
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout.rewards import Reward
from verl_hier.viewer.steps import read_steps

SMALL = ("hier.rollout.environment_processes=1",)
TREE = "hier.sampler={name: tree_grpo}"


@pytest.fixture(scope="module")
def questions() -> ComposedRecipe:
    return ComposedRecipe.named("grpo_search", SMALL)


@pytest.fixture(scope="module")
def trees() -> ComposedRecipe:
    return ComposedRecipe.named("grpo_search", (TREE, *SMALL))


def _truths(recipe: ComposedRecipe) -> dict[str, str]:
    part = recipe.parts.environment
    return {task["question"]: task["answers"][0] for task in part.spec.tasks(part.options, "val")}


class Guesser(Endpoint):
    """A served policy that searches once and then answers: rightly in 45 % of its turns, else one of five names."""

    def __init__(self, recipe: ComposedRecipe) -> None:
        truths = _truths(recipe)

        def answer(request: dict[str, Any]) -> str:
            said = request["messages"]
            if sum(message["role"] == "assistant" for message in said) == 0:
                return "search lake"
            rng = random.Random(request["seed"])
            question = said[0]["content"].removeprefix("question: ").splitlines()[0]
            wrong = f"Nobody {rng.choice('abcde')}"
            return f"answer {truths[question] if rng.random() < 0.45 else wrong}"

        super().__init__(answer)


def _searched(policy: str, recipe: ComposedRecipe, search: Search | None, **plan: Any) -> tuple[Evaluation, Any]:
    return asyncio.run(evaluate(policy, recipe, Plan(temperature=1.0, **plan), "guesser", search=search))


def test_a_vote_over_a_tree_answers_what_one_episode_does_not(questions: ComposedRecipe, trees: ComposedRecipe) -> None:
    """The same policy on the same tasks: alone, with the most frequent answer, and with a choice by the truth."""
    pytest.importorskip("openai")
    with Guesser(questions) as served:
        alone, _ = _searched(served.url, questions, None, tasks=16, n=2)
        voted, graphs = _searched(served.url, trees, Search("vote"), tasks=16, n=8)
        best, _ = _searched(served.url, trees, Search("best"), tasks=16, n=8)
    assert alone.success is not None and alone.search is None
    assert voted.search is not None and best.search is not None
    assert [at.n for at in voted.search.curve] == [1, 2, 4, 8]
    one, two, _, eight = (at.outcome for at in voted.search.curve)
    assert one.mean == pytest.approx(voted.success.mean if voted.success else None)
    assert two.mean == pytest.approx(one.mean), "two votes agree, or one of them is drawn"
    assert abs(one.mean - alone.success.mean) < 0.2
    assert eight.low > alone.success.high, "a vote of eight is better than an episode, beyond both intervals"
    assert best.search.curve[-1].outcome.mean >= eight.mean
    assert best.search.upper_bound and not voted.search.upper_bound
    assert any(episode.source >= 0 for graph in graphs for episode in graph.episodes), "the sampler forks"


def test_the_curve_is_the_mean_over_all_subsets_of_the_leaves(questions: ComposedRecipe, trees: ComposedRecipe) -> None:
    pytest.importorskip("openai")
    with Guesser(questions) as served:
        result, graphs = _searched(served.url, trees, Search("vote"), tasks=3, n=6)
    assert result.search is not None
    expected = []
    for graph in graphs:
        paths = [graph.path(episode.id) for episode in graph.complete()]
        said = [graph.nodes[path[-1]].extra["final_answer"] for path in paths]
        won = {answer: float(episode.success) for answer, episode in zip(said, graph.complete(), strict=True)}
        chosen = []
        for drawn in combinations(range(len(said)), 4):
            votes = Counter(said[i] for i in drawn)
            chosen.append(fmean(won[a] for a, count in votes.items() if count == max(votes.values())))
        expected.append(fmean(chosen))
    at = result.search.curve[2]
    assert at.n == 4 and at.outcome.mean == pytest.approx(fmean(expected))
    last = result.search.curve[-1]
    assert last.calls == fmean(graph.counts["environment_calls"] for graph in graphs)
    chosen = [node.decision["choice"] for graph in graphs for node in graph.nodes if "choice" in node.decision]
    assert sum(choice["chosen"] for choice in chosen) == 3 and len(chosen) == 18


def test_a_verifier_is_asked_about_each_leaf_and_paid_for(questions: ComposedRecipe) -> None:
    """A judge that knows the truth makes the choice as good as `best`; one that names no number leaves it to chance."""
    pytest.importorskip("openai")
    truths = set(_truths(questions).values())

    def knows(request: dict[str, Any]) -> str:
        answer = request["messages"][0]["content"].rpartition("answer ")[2].partition("\n")[0]
        return f"Score: {10 if answer.strip() in truths else 0}"

    with Guesser(questions) as served, Endpoint(knows) as judge, Endpoint(lambda request: "well") as mute:
        best, _ = _searched(served.url, questions, Search("best"), tasks=6, n=4)
        good, _ = _searched(served.url, questions, Search("verifier", judge.url, "judge"), tasks=6, n=4)
        chance, _ = _searched(served.url, questions, Search("verifier", mute.url, "judge"), tasks=6, n=4)
    assert best.search is not None and good.search is not None and chance.search is not None
    outcomes = [[at.outcome.mean for at in result.search.curve] for result in (best, good, chance)]  # type: ignore[union-attr]
    assert outcomes[1] == pytest.approx(outcomes[0]) and outcomes[0][-1] > outcomes[0][0]
    assert outcomes[2] == pytest.approx([outcomes[0][0]] * 3)
    assert good.search.verifier_requests == 4.0 and len(judge.requests) == 24
    assert (good.search.verifier_silent, chance.search.verifier_silent) == (0.0, 1.0)
    assert good.ret.mean == pytest.approx(best.ret.mean), "what a verifier says is no reward"


def test_the_command_of_the_page_searches_with_a_model_in_this_process(
    byte_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "evaluation.md"
    commands = [command for block in blocks(page) if block.language == "bash" for command in block.commands]
    command = next(words[1:] for words in commands if words[:3] == ["verl-hier", "eval", "model"])
    (tmp_path / "model").symlink_to(byte_model)
    monkeypatch.chdir(tmp_path)
    small = [*SMALL, "hier.rollout.max_turns=2", "hier.rollout.max_tokens_per_turn=4"]
    ended = CliRunner().invoke(app, [*command, "--tasks", "2", *small])
    assert ended.exit_code == 0, ended.output
    assert "tree_grpo (trees 2, nodes 7, rounds 1, leaves 8)" in ended.stdout
    assert "tokens a task" in ended.stdout and ended.stdout.splitlines()[-1] == "rollouts: search.parquet"
    graphs = list(read_graphs(tmp_path / "search.parquet"))
    assert [sum(1 for _ in graph.complete()) for graph in graphs] == [16, 16]
    steps, notes = read_steps(tmp_path / "search.parquet")
    assert not notes and len(steps[0].uids()) == 2
    shown = CliRunner().invoke(app, ["view", "search.parquet", "--text"])
    assert shown.exit_code == 0 and "search" in shown.stdout
    sampler = "hier.sampler={name: tree_grpo, nodes: 7, leaves: 8}"
    asked = ["replay", "grpo_search", "search.parquet", sampler, "actor_rollout_ref.model.path=model", *small]
    again = CliRunner().invoke(app, asked)
    assert "2 rollouts, all the same" in again.stdout, again.output


def test_a_model_in_this_process_verifies_and_a_question_beyond_its_context_has_no_verdict(
    byte_model: Path, questions: ComposedRecipe
) -> None:
    """A random model of bytes names no number, and 512 positions are too few for the question: it is left to chance."""
    search = Search("verifier", str(byte_model))
    result, _ = asyncio.run(evaluate(byte_model, _of_one_turn(questions), Plan(tasks=1, n=2), search=search))
    assert result.search is not None and result.search.verifier_silent == 1.0 and result.search.verifier_requests == 2.0
    recipe = replace(questions, rewards={"format": Reward(lambda rated: float(rated.text.startswith("answer")))})
    named, _ = asyncio.run(
        evaluate(byte_model, _of_one_turn(recipe), Plan(tasks=1, n=2), search=Search("verifier", "format"))
    )
    assert named.search is not None and named.search.verifier == "format" and named.search.verifier_requests == 0.0


def _of_one_turn(recipe: ComposedRecipe) -> ComposedRecipe:
    """The recipe with episodes of one turn of four tokens."""
    rollout = replace(recipe.hier.rollout, max_turns=1, max_tokens_per_turn=4)
    return replace(recipe, hier=replace(recipe.hier, rollout=rollout))


def test_words_are_options_as_the_issue_writes_them(questions: ComposedRecipe) -> None:
    none = {"n": None, "sampler": None, "select": None, "verifier": ""}
    said, rest = said_in_words(none, ["sampler=tree_grpo", "n=16", "select=vote", "hier.seed=3"])
    assert said == {"n": 16, "sampler": "tree_grpo", "select": "vote", "verifier": ""} and rest == ["hier.seed=3"]
    with pytest.raises(RecipeError, match="n: given twice, as 4 and as 16"):
        said_in_words({**none, "n": 4}, ["n=16"])
    with pytest.raises(RecipeError, match="n: a whole number above 0 is needed, not '0'"):
        said_in_words(none, ["n=0"])


@pytest.mark.parametrize(
    ("policy", "recipe", "words", "sentence"),
    [
        ("model", "grpo_alfworld", ["select=vote", "n=4"], "environment 'alfworld' has no final answers to vote on"),
        ("model", "grpo_search", ["select=most", "n=4"], "there is no 'most'"),
        ("model", "grpo_search", ["sampler=tree_grpo"], "sampler: also say how one episode of each task is chosen"),
        ("model", "grpo_search", ["select=verifier"], "verifier: give the address of an endpoint, a model"),
        ("model", "grpo_search", ["select=verifier", "verifier=judge"], "'judge' is neither an address, nor a model"),
        ("model", "grpo_search", ["sampler=}{", "select=best"], "'}{' is no name of a sampler"),
        ("model", "grpo_search", ["sampler=tree", "select=best"], "no enabled plugin provides a sampler called 'tree'"),
        ("model", "grpo_search", ["select=best", "--temperature", "0"], "at 0 all episodes of a search are the same"),
        ("expert", "grpo_search", ["select=best"], "the expert plays a task once, by rule"),
        ("model", "grpo_search", ["sampler=treerpo", "select=best", "n=16"], "n must be 512; got 16"),
        (
            "http://x/v1",
            "grpo_search",
            ["sampler=latr", "select=best"],
            "'latr' needs the log-probs",
        ),
        (
            "http://x/v1",
            "grpo_search",
            ["sampler=arpo", "select=best"],
            "'arpo' needs the log-probs of what is sampled",
        ),
        ("http://x/v1", "grpo_search", ["sampler=treepo", "select=best"], "'treepo' needs turns that begin with given"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(policy: str, recipe: str, words: list[str], sentence: str) -> None:
    ended = CliRunner().invoke(app, ["eval", policy, recipe, *words])
    assert isinstance(ended.exception, HierError) and sentence in str(ended.exception)
    if policy.startswith("http"):
        assert "tree_grpo" in str(ended.exception) and "or play a model in this process" in str(ended.exception)


def test_figures_of_a_search_are_in_the_json(byte_model: Path) -> None:
    asked = ["eval", str(byte_model), "grpo_search", *SMALL, "hier.rollout.max_turns=1", "--tasks", "1", "--json"]
    ended = CliRunner().invoke(app, [*asked, "select=best", "n=2"])
    shown = json.loads(ended.stdout)["search"]
    assert shown["select"] == "best" and shown["upper_bound"] and [at["n"] for at in shown["curve"]] == [1, 2]
    assert CliRunner().invoke(app, [*asked, "-n", "1"]).stdout.count('"search": null') == 1


def _run_with_a_critic(folder: Path, recipe: ComposedRecipe, model: Path, heads: tuple[str, ...] = ()) -> Any:
    """A run as training leaves it, whose critic is saved under the names of verl's FSDP engine."""
    import torch
    from omegaconf import OmegaConf

    from verl_hier.engines.value_heads import load_heads

    torch.manual_seed(0)
    (folder / "recipe.yaml").write_text(OmegaConf.to_yaml(recipe.config, resolve=True))
    (folder / "model").symlink_to(model)
    place = folder / "checkpoints" / "global_step_3" / "critic"
    place.mkdir(parents=True)
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("3")
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, attn_implementation="sdpa")
    critic = load_heads(str(model), torch.float32, config, False, heads or ("LABEL_0",), spread=1.0).eval()
    critic.config.save_pretrained(place / "huggingface")
    torch.save(critic.state_dict(), place / "model_world_size_1_rank_0.pt")
    return critic


@pytest.mark.parametrize("head", ["", "first"])
def test_the_critic_of_a_run_chooses_by_its_value(byte_model: Path, tmp_path: Path, head: str) -> None:
    import torch

    one_turn = ["hier.rollout.max_turns=2", "hier.rollout.max_tokens_per_turn=4", *SMALL]
    recipe = ComposedRecipe.named("grpo_search", one_turn)
    critic = _run_with_a_critic(tmp_path, recipe, byte_model, (head,) if head else ())
    result, graphs = _searched(str(tmp_path), recipe, Search("value"), tasks=2, n=3)
    assert result.search is not None and not result.search.upper_bound
    for graph in graphs:
        for episode in graph.complete():
            node = graph.nodes[episode.leaf]
            read = graph.prompt(node.id) + ([] if head else node.action[:-1])
            value = float(critic(input_ids=torch.tensor([read])).logits[0, -1, 0])
            assert node.decision["choice"]["score"] == pytest.approx(value, abs=1e-5)
    scores = [[g.nodes[e.leaf].decision["choice"] for e in g.complete()] for g in graphs]
    assert all(max(each, key=lambda c: c["score"])["chosen"] for each in scores)
    assert len({choice["score"] for each in scores for choice in each}) > 3, "values differ"


def test_a_critic_whose_head_nobody_knows_is_refused(
    byte_model: Path, tmp_path: Path, questions: ComposedRecipe
) -> None:
    _run_with_a_critic(tmp_path, questions, byte_model, ("q1", "v1"))
    with pytest.raises(RecipeError, match=r"the first head of the critic in .* is 'q1', and no enabled plugin"):
        _searched(str(tmp_path), questions, Search("value"), tasks=1, n=2)


def test_a_model_has_no_critic(byte_model: Path, questions: ComposedRecipe) -> None:
    with pytest.raises(RecipeError, match="select=value: this policy has no critic"):
        _searched(str(byte_model), questions, Search("value"), tasks=1, n=2)


def test_a_sampler_that_forks_is_refused_in_a_world_that_does_not(trees: ComposedRecipe) -> None:
    world = trees.parts.environment
    rigid = replace(trees.parts, environment=replace(world, spec=replace(world.spec, fork="never")))
    with pytest.raises(RecipeError, match=r"needs a world that forks, which 'search' does not; .*independent"):
        require_abilities(replace(trees, parts=rigid), "model")

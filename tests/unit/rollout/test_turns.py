"""One turn after the other: how much room it has, what stands on its node, and what is asked of the policy."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from tests.fixtures.corridor import Corridor
from verl_hier.graph import RolloutGraph
from verl_hier.rollout import EndReason, EpisodeOver, Generation, Limits, Sampler, Scored, Worker
from verl_hier.rollout.budget import BudgetOptions
from verl_hier.rollout.context import ContextMessage
from verl_hier.rollout.entropy import EntropyOptions, entropies
from verl_hier.rollout.plain_renderer import PlainRenderer, completes
from verl_hier.rollout.policy import DEFAULT_POLICY, Policies, Sampling, saved, saved_in
from verl_hier.rollout.turns import text_of
from verl_hier.testing.rollout import CharacterTokenizer, ScriptedPolicy, WordTokenizer, roll_out_scripted


class Asked(ScriptedPolicy):
    """Remembers what it was asked; its answers come with the version 3 to 4 and their likeliest tokens."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.samplings: list[Sampling] = []
        self.scored: list[tuple[list[int], list[int], int]] = []

    async def generate(self, prompt, sampling, conversation) -> Generation:
        self.samplings.append(sampling)
        found = await super().generate(prompt, sampling, conversation)
        top = [[(token, -0.5), (7, -2.0)] for token in found.token_ids] if sampling.top_logprobs else []
        return replace(found, version=(3, 4), cached_tokens=2, top_logprobs=top)

    async def score(self, prompt, tokens, conversation, top=0, temperature=1.0) -> Scored:
        self.scored.append((list(prompt), list(tokens), top))
        return Scored([-3.0] * len(tokens), [[(token, -0.5)] * top for token in tokens], version=(7, 8))


class Body(Worker):
    """Plays a function."""

    def __init__(self, body) -> None:
        self._body = body

    async def run(self, episode) -> None:
        await self._body(episode)


class Sampled(Sampler):
    """Samples by a function."""

    def __init__(self, body) -> None:
        self._body = body

    async def sample(self, rollout) -> None:
        await self._body(rollout)


async def simple(episode) -> None:
    """One context that goes on, acts until the end."""
    step = await episode.reset()
    context = episode.context("agent")
    while not step.done:
        turn = await episode.generate(context.observe(step.text))
        step = await episode.act(turn.text)


async def one(rollout) -> None:
    await rollout.start().run()


def roll(sampler=one, worker=simple, answer="right", **options) -> tuple[RolloutGraph, Asked]:
    options = {"environment": Corridor, "policy": Asked, "n": 1, **options}
    said = answer if callable(answer) else lambda prompt, sampling: answer
    return asyncio.run(roll_out_scripted(worker=lambda: Body(worker), sampler=Sampled(sampler), answer=said, **options))


# Limits


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_an_episode_has_as_many_turns_as_it_may(turns):
    graph, _ = roll(limits=Limits(max_turns=turns))
    assert len(graph.nodes) == turns
    assert graph.episodes[0].status == ("finished" if turns == 3 else "truncated")
    assert graph.episodes[0].error == (None if turns == 3 else "max_turns")
    assert [node.truncated for node in graph.nodes] == [False] * (turns - 1) + [turns < 3]
    assert [node.done for node in graph.nodes] == [False] * (turns - 1) + [turns == 3]


@pytest.mark.parametrize(("room", "tokens"), [(0, []), (1, [1]), (2, [2]), (3, [2, 0])])
def test_a_turn_fills_the_context_to_its_last_token(room, tokens):
    """The prompt of the first turn has three tokens, an answer has two, and later prompts have three more."""
    graph, policy = roll(limits=Limits(context_tokens=3 + room))
    assert [len(node.action) for node in graph.nodes] == [count for count in tokens if count]
    assert graph.episodes[0].error == "context_tokens"
    if room:
        assert policy.samplings[0].max_tokens == room and graph.nodes[0].prompt_tokens == 3
        assert graph.nodes[0].stop_reason == ("length" if room == 1 else "completed")


def test_a_turn_has_the_smallest_of_its_limits():
    async def limited(episode):
        await episode.reset()
        context = episode.context("agent")
        for most in (None, 3, 9):
            await episode.generate(context.observe("x"), max_tokens=most)

    _, policy = roll(worker=limited, limits=Limits(max_tokens_per_turn=5))
    assert [sampling.max_tokens for sampling in policy.samplings] == [5, 3, 5]
    assert all(sampling.stop_tokens == () for sampling in policy.samplings)


def test_a_policy_that_says_nothing_ends_the_episode():
    class Silent(Asked):
        async def generate(self, prompt, sampling, conversation):
            return Generation([], [])

    graph, _ = roll(policy=Silent)
    assert graph.episodes[0].error == "empty_action" and not graph.nodes


# Forced tokens


def forced_turn(words, logprobs=None, tokens=None, **options):
    async def body(rollout):
        episode = rollout.start()
        episode.force(rollout.renderer._tokenizer.encode(words), logprobs)
        await episode.step(tokens=tokens)

    graph, policy = roll(body, answer=lambda prompt, sampling: "c d e", **options)
    return (graph.nodes[0] if graph.nodes else graph.episodes[0]), policy


def test_forced_tokens_are_scored_once_unless_their_logprobs_are_given():
    node, policy = forced_turn("a b")
    ((prompt, tokens, top),) = policy.scored
    assert prompt == node.observation and tokens == node.action[:2] and top == 0
    assert node.logprobs == [-3, -3, -1, -1, -1, -1] and node.decision["forced"] == 2
    assert node.policy_version == [3, 4] and node.prompt_tokens == len(node.observation)
    assert policy.prompts == [node.observation + node.action[:2]]
    node, policy = forced_turn("a b", [-0.25, -0.5])
    assert not policy.scored and node.logprobs == [-0.25, -0.5, -1, -1, -1, -1]
    node, policy = forced_turn("")
    assert not policy.scored and "forced" not in node.decision and len(policy.prompts) == 1


def test_forced_tokens_that_end_the_turn_are_all_of_it():
    node, policy = forced_turn("a <end>")
    assert not policy.prompts and node.action[1] == 1 and not node.partial and node.stop_reason is None
    assert node.prompt_tokens == 0 and node.policy_version == [7, 8] and node.logprobs == [-3, -3]
    node, _ = forced_turn("a <end>", [-0.25, -0.5])
    assert node.policy_version == [0, 0]


@pytest.mark.parametrize(("room", "asked"), [(1, None), (2, 0), (3, 1), (4, 2)])
def test_forced_tokens_leave_the_rest_of_the_room(room, asked):
    found, policy = forced_turn("a b", limits=Limits(context_tokens=3 + room))
    if asked is None:
        assert found.error == "context_tokens"
    elif asked == 0:
        assert not policy.samplings and len(found.action) == 2 and found.stop_reason == "length" and not found.partial
    else:
        assert policy.samplings[0].max_tokens == asked and len(found.action) == 2 + asked


@pytest.mark.parametrize(("limit", "length"), [(1, 3), (2, 3), (3, 3), (4, 4), (5, 5), (6, 6), (7, 6)])
def test_a_piece_is_longer_than_what_is_forced(limit, length):
    node, policy = forced_turn("a b", tokens=limit)
    assert len(node.action) == length and policy.samplings[0].max_tokens == max(limit, 3) - 2
    assert node.partial == (length < 6) and node.stop_reason == "completed"


# What stands on a node


def test_only_the_first_node_of_an_episode_has_its_decision():
    async def body(rollout):
        first = await rollout.start(why="begin").run(turns=2)
        fork = await first.fork(after=1, why="again")
        await fork.run()

    graph, _ = roll(body)
    whys = [node.decision.get("why") for node in graph.nodes]
    assert whys == ["begin", None, "again", None]
    assert [node.episode for node in graph.nodes] == [0, 0, 1, 1]
    assert all(node.decision["greedy"] is False and isinstance(node.decision["seed"], int) for node in graph.nodes)
    assert len({node.decision["seed"] for node in graph.nodes}) == 4
    assert [node.turn for node in graph.nodes] == [0, 1, 1, 2]
    assert [node.context for node in graph.nodes] == [-1, 0, 0, 2] == [node.parent for node in graph.nodes]
    assert [node.anchor for node in graph.nodes] == ["0", "1", "1", "2"]
    assert all(node.cached_tokens == 2 and node.policy_version == [3, 4] for node in graph.nodes)


def test_a_turn_is_trained_where_its_episode_and_its_policy_are():
    async def body(rollout):
        first = rollout.start()
        await first.step()
        first.trained = False
        await first.step()
        untrained = await first.fork(after=1, trained=False)
        await untrained.step()
        greedy = rollout.start(greedy=True)
        await greedy.step()

    graph, policy = roll(body)
    assert [node.trained for node in graph.nodes] == [True, False, False, True]
    assert [sampling.temperature for sampling in policy.samplings] == [1, 1, 1, 0]
    assert [node.decision["greedy"] for node in graph.nodes] == [False, False, False, True]
    assert (policy.samplings[3].top_p, policy.samplings[3].top_k) == (1.0, -1)


def test_pieces_and_forced_tokens_keep_their_own_numbers():
    async def body(rollout):
        rollout.top_logprobs = 1
        episode = rollout.start()
        episode.force(rollout.renderer._tokenizer.encode("a"))
        await episode.step(tokens=3)
        await episode.step(tokens=2)
        await episode.step()

    graph, _ = roll(body, answer=lambda prompt, sampling: "c d e f" if prompt.endswith("a") else "x y z")
    first, second, third = graph.nodes[:3]
    assert [node.partial for node in (first, second, third)] == [True, True, False]
    assert first.top[0] == [[first.action[0], 0.0]] and first.top[1] == [[first.action[1], -0.5]]
    assert [node.text for node in (first, second, third)] == ["a c d", " x y", " x y z"]
    assert [node.anchor for node in (first, second, third)] == ["0", None, None]
    assert [node.prompt_tokens for node in (first, second, third)] == [3, 6, 8]
    assert second.observation == [] and second.messages == [] and second.context == first.id
    assert [len(node.top) for node in (first, second, third)] == [3, 2, 4]


def test_top_logprobs_are_kept_only_where_somebody_wants_them():
    async def body(rollout):
        await rollout.start().run(turns=1)
        rollout.top_logprobs = 2
        await rollout.start().run(turns=1)

    graph, policy = roll(body)
    assert [sampling.top_logprobs for sampling in policy.samplings] == [0, 2]
    assert graph.nodes[0].top == [] and [len(position) for position in graph.nodes[1].top] == [2, 2]
    graph, policy = roll(entropy=EntropyOptions("top_k", 3))
    assert policy.samplings[0].top_logprobs == 3 and graph.nodes[0].top == []
    want = 0.5 * math.exp(-0.5) + 2 * math.exp(-2)
    assert graph.nodes[0].entropy == pytest.approx([want, want])
    graph, policy = roll(entropy=EntropyOptions("prefill", 2))
    assert policy.samplings[0].top_logprobs == 0 and policy.scored[0][1:] == (graph.nodes[0].action, 2)
    assert graph.nodes[0].entropy == pytest.approx([math.exp(-0.5)] * 2)
    graph, policy = roll()
    assert graph.nodes[0].entropy == [] and not policy.scored


def test_entropies_of_each_source():
    found = Generation([5, 6], [-1.0, -1.0], top_logprobs=[[(5, 0.0), (6, -1.0)], [(6, -1.0)]])

    def asked(options, generation):
        return asyncio.run(entropies(options, None, [1], generation, "c"))

    assert asked(EntropyOptions("top_k", 1), found) == [0.0, pytest.approx(math.exp(-1))]
    assert asked(EntropyOptions("sampled"), found) == []
    known = replace(found, entropy=[0.25, 0.5])
    for source in ("sampled", "top_k", "prefill"):
        assert asked(EntropyOptions(source), known) == [0.25, 0.5]
    assert EntropyOptions().k == 10


def test_logprobs_that_are_not_one_a_token_are_none():
    class Odd(Asked):
        async def generate(self, prompt, sampling, conversation):
            found = await super().generate(prompt, sampling, conversation)
            return replace(found, logprobs=found.logprobs[:1], counted_tokens=0)

    graph, _ = roll(policy=Odd)
    assert graph.nodes[0].logprobs == [] and graph.nodes[0].extra["counted_tokens"] == 0
    graph, _ = roll()
    assert "counted_tokens" not in graph.nodes[0].extra


@pytest.mark.parametrize(
    ("said", "cut", "whole"), [("completed", "length", "completed"), ("aborted", "aborted", "completed")]
)
def test_the_tokens_say_whether_a_turn_was_cut(said, cut, whole):
    class Says(Asked):
        async def generate(self, prompt, sampling, conversation):
            return replace(await super().generate(prompt, sampling, conversation), stop_reason=said)

    graph, _ = roll(policy=Says, limits=Limits(max_tokens_per_turn=1))
    assert {node.stop_reason for node in graph.nodes} == {cut}
    graph, _ = roll(policy=Says)
    assert {node.stop_reason for node in graph.nodes} == {whole}


def test_stop_tokens_of_a_context_end_its_turns():
    async def stopping(episode):
        await episode.reset()
        context = episode.context("agent")
        context.stop_tokens = tuple(episode._rollout.renderer._tokenizer.encode("stop"))
        turn = await episode.generate(context.observe("x"), max_tokens=2)
        assert turn.complete
        turn = await episode.generate(context.observe("x"), max_tokens=1)
        assert not turn.complete

    graph, policy = roll(worker=stopping, answer="go stop")
    assert policy.samplings[0].stop_tokens == (policy.tokenizer.encode("stop")[0],)
    assert [node.stop_reason for node in graph.nodes] == ["completed", "length"]


def test_half_a_character_is_left_to_what_follows():
    class Halves(WordTokenizer):
        def decode(self, token_ids, skip_special_tokens=False):
            return "".join({10: "a", 11: "�", 12: "b"}[each] for each in token_ids).replace("��", "é")

    renderer = PlainRenderer(Halves())
    assert text_of(renderer, [], [10, 11], True) == "a" and text_of(renderer, [], [10, 11], False) == "a�"
    assert text_of(renderer, [10, 11], [11, 12], False) == "éb" and text_of(renderer, [10], [12], True) == "b"


# Turns that are announced


def announced(limit=None, **options):
    async def talks(episode):
        await episode.reset()
        contexts = [episode.context(name).observe(f"say {name}") for name in ("a", "b", "c", "d")]
        episode.expect(dict.fromkeys(contexts, limit))
        for context in contexts:
            await episode.generate(context, max_tokens=limit)

    return roll(worker=talks, **options)


class Slow(Asked):
    """Notes how many requests are under way."""

    most = 0
    under_way = 0

    async def generate(self, prompt, sampling, conversation):
        Slow.under_way += 1
        Slow.most = max(Slow.most, Slow.under_way)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        Slow.under_way -= 1
        return await super().generate(prompt, sampling, conversation)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 4),
        ({"limits": Limits(max_turns=2)}, 2),
        ({"limits": Limits(max_turns=1)}, 1),
        ({"budget": BudgetOptions(turns=9)}, 1),
        ({"budget": BudgetOptions(leaves=9)}, 4),
        ({"limits": Limits(context_tokens=3)}, 0),
        ({"limits": Limits(context_tokens=4)}, 4),
    ],
)
def test_as_many_turns_are_generated_ahead_as_may_be_taken(options, most):
    Slow.most = Slow.under_way = 0
    graph, policy = announced(policy=Slow, **options)
    assert Slow.most == most and "unused_ahead" not in graph.counts
    assert len(policy.prompts) == len(graph.nodes)


def test_what_is_generated_ahead_is_what_would_be_generated():
    ahead, policy = announced(limit=3)
    assert [sampling.max_tokens for sampling in policy.samplings] == [3] * 4
    assert [node.decision["seed"] for node in ahead.nodes] == [sampling.seed for sampling in policy.samplings]
    assert [node.prompt_tokens for node in ahead.nodes] == [3] * 4


# The plain renderer


def test_a_stop_string_is_found_behind_all_that_a_token_may_hold():
    tokenizer = CharacterTokenizer()
    tokens = tokenizer.encode("xx</a>")
    assert completes(tokenizer, tokens, ("</a>",)) and not completes(tokenizer, tokens, ("</b>", ""))
    assert not completes(tokenizer, tokens, ()) and not completes(tokenizer, [], ("a",))
    assert not completes(tokenizer, tokenizer.encode("</a>x"), ("</a>",))
    assert completes(tokenizer, tokenizer.encode("y" * 40 + "a"), ("a",))
    assert not completes(tokenizer, tokenizer.encode("a" + "y" * 40), ("a",))
    assert completes(tokenizer, tokenizer.encode("</a></a>"), ("</a>",))


def test_only_the_end_of_the_tokens_is_decoded():
    """A token has at least one byte and a character at most four, so four tokens a character and a few more do."""
    decoded = []

    class Counted(CharacterTokenizer):
        def decode(self, token_ids, skip_special_tokens=False):
            decoded.append(len(token_ids))
            return super().decode(token_ids, skip_special_tokens)

    tokenizer = Counted()
    completes(tokenizer, tokenizer.encode("z" * 100), ("abc", "a"))
    assert decoded == [4 * 3 + 8, 4 * 3 + 7]


def test_a_plain_prompt_is_its_messages_and_a_cue():
    tokenizer = WordTokenizer()
    renderer = PlainRenderer(tokenizer)
    said = [{"role": "user", "content": "a b"}, {"role": "user", "content": "c"}]
    a, b, c = tokenizer.encode("a b c")
    assert renderer.render([9], [], said) == [9, a, b, c, 2]
    assert renderer.render([9], [], [{"role": "continued", "content": "c"}]) == [9, c]
    assert renderer.render([9], [], []) == [9, 2]
    mixed = [{"role": "continued", "content": "a"}, {"role": "user", "content": "c"}]
    assert renderer.render([], [], mixed) == [a, c, 2] and renderer.render([], [], mixed[::-1]) == [c, a]
    assert renderer.decode([0, a, 2, b, 1]) == "a b" and renderer.stop_tokens == ()
    assert renderer.ends([a, 1]) and renderer.ends([0]) and not renderer.ends([1, a]) and not renderer.ends([])
    assert renderer.ends([a, b], ("b",)) and not renderer.ends([a, 2])


# Policies by name


def test_policies_are_opened_by_name():
    assert saved("/models/a") == "saved:/models/a" and saved_in("saved:/models/a") == "/models/a"
    assert saved_in("default") is None
    trained, other = object(), object()
    policies = Policies({"default": trained}, {"other": other}.get)
    assert policies[DEFAULT_POLICY] is trained and policies["other"] is other
    assert list(policies) == [DEFAULT_POLICY] and len(policies) == 1
    with pytest.raises(KeyError):
        policies["nobody"]


def test_sampling_begins_with_what_the_recipe_does_not_change():
    assert Sampling() == Sampling(1.0, 1.0, -1, 512, None, (), 0, ())
    assert Limits() == Limits(30, 512, 4096, 32_000)
    assert Generation([], []).version == Scored([]).version == (0, 0) and Generation([], []).cached_tokens == 0


def test_the_end_of_an_episode_has_a_reason():
    assert EpisodeOver(EndReason.MAX_TURNS).reason == "max_turns"
    assert ContextMessage("user", "a").to_chat() == {"role": "user", "content": "a"}

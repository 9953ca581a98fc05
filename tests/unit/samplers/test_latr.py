"""LATR against a walk through the released loop, token by token, on a policy that depends on the tokens so far."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field

import pytest

from tests.fixtures.random_policy import WORDS, RandomPolicy, tokenizer
from verl_hier.errors import RecipeError
from verl_hier.host.manager import PluginHost
from verl_hier.host.options import build_options
from verl_hier.host.specs import NoOptions
from verl_hier.rollout import Generation, Limits
from verl_hier.testing.rollout import roll_out_scripted
from verl_hier_plugins.environments.prompt import PromptEnvironment
from verl_hier_plugins.samplers.latr import LATR, LATROptions, common_subsequence, mathematical, suffix_anywhere
from verl_hier_plugins.workers.react import React, ReactOptions

END = 1
SAID = (*WORDS, "3", "4")
LONGEST = 160


def two_likeliest(tokens, ids):
    """The first and second token after some tokens, with their probabilities; near repetitions are frequent."""
    chance = random.Random(f"{tokens[-3:]} {len(tokens) // 7}")
    first, second = chance.sample(ids, 2)
    if chance.random() < 0.02:
        first = END
    p = chance.uniform(0.3, 0.9)
    return (first, p), (second, min(1 - p, p) * chance.uniform(0.5, 1.0))


class Stepwise(RandomPolicy):
    """Greedy tokens do not depend on how the requests are cut."""

    async def generate(self, prompt, sampling, conversation) -> Generation:
        self.prompts.append((list(prompt), sampling.temperature))
        ids = [self.tokenizer.encode(word)[0] for word in SAID]
        said, logprobs, top = [], [], []
        while len(said) < sampling.max_tokens and (not said or said[-1] != END):
            best = two_likeliest([*prompt, *said], ids)
            drawn = random.Random(f"{sampling.seed} {len(said)}").random() if sampling.temperature else 0.0
            token, p = best[drawn > 0.7]
            said.append(token)
            logprobs.append(math.log(p))
            top.append([(token, math.log(p)) for token, p in best])
        return Generation(said, logprobs, "completed", top_logprobs=top if sampling.top_logprobs else [])


@dataclass(eq=False)
class Row:
    tokens: list[int]
    birth: int = 0
    parent: Row | None = None
    over: bool = False
    alive: bool = True
    children: list[Row] = field(default_factory=list)

    def discard(self):
        self.alive = False
        for child in self.children:
            child.discard()


def released(prompt, words, n, options):
    """Rows that are alive when the tree ends, in the order in which they were made, and the tokens by then."""
    signs = words.encode("3 4")
    ids = [words.encode(word)[0] for word in SAID]
    rows = [Row([])]
    for step in range(min(options.tree_tokens, LONGEST)):
        alive = [row for row in rows if row.alive]
        room, fresh = n - len(alive), []
        for row in alive:
            if row.over:
                continue
            (first, p), (second, q) = two_likeliest([*prompt, *row.tokens], ids)
            if q > options.least_probability and p - q < options.largest_gap and room:
                fork = Row([*row.tokens, second], step, row, second == END)
                row.children.append(fork)
                fresh.append(fork)
                room -= 1
            row.tokens.append(first)
            row.over = first == END
        rows += fresh
        for row in [row for row in rows if row.parent and row.alive and step + 1 - row.birth in options.lookahead]:
            length = step + 1 - row.birth
            a, b = row.tokens[row.birth :], row.parent.tokens[row.birth :]
            if row.over or row.parent.over or not row.alive or (options.keep_signs and b[0] in signs):
                continue
            suffix = max(suffix_of(a, b), suffix_of(b, a)) / length
            overlap = common_subsequence(a, b) / length
            if suffix > options.longest_suffix or overlap > options.largest_overlap:
                row.discard()
        alive = [row for row in rows if row.alive]
        share = options.full - options.full_decay * step / LONGEST
        full = all(row.over for row in alive) or len(alive) >= round(n * share)
        if full and not any(row.birth + options.lookahead[-1] >= step for row in alive):
            break
        if all(row.over for row in alive):
            break
    return alive


def suffix_of(tokens, text):
    """The longest end of `tokens` in `text`, by trying every length."""
    joined = ",".join(map(str, text)) + ","
    ends = ("".join(f"{token}," for token in tokens[-length:]) for length in range(1, len(tokens) + 1))
    return max((length for length, end in enumerate(ends, start=1) if f",{end}" in f",{joined}"), default=0)


def grow(options, n, start):
    words = tokenizer()
    return asyncio.run(
        roll_out_scripted(
            environment=lambda: PromptEnvironment(NoOptions()),
            worker=lambda: React(ReactOptions(prompt=f"task {start}")),
            task={"instruction": "do it", "messages": []},
            sampler=LATR(options),
            answer=lambda prompt, sampling: "",
            policy=Stepwise,
            tokenizer=words,
            n=n,
            limits=Limits(max_tokens_per_turn=LONGEST),
        )
    )


OPTIONS = [
    LATROptions(lookahead=(4, 8, 12), tree_tokens=100),
    LATROptions(lookahead=(4, 8, 12), tree_tokens=100, longest_suffix=0.5, largest_overlap=0.8),
    LATROptions(lookahead=(6,), tree_tokens=30, longest_suffix=1.0, largest_overlap=1.0),
    LATROptions(lookahead=(3, 9), tree_tokens=120, largest_overlap=0.7, full=0.8, full_decay=0.5, keep_signs=False),
]


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize("start", range(10))
@pytest.mark.parametrize("n", [4, 8])
def test_the_tree_is_the_released_one(options, start, n):
    graph, policy = grow(options, n, start)
    prompt = policy.prompts[0][0]
    expected = released(prompt, policy.tokenizer, n, options)
    found = [e for e in graph.episodes if e.status != "pruned" and e.decision["why"] in ("tree", "close")]
    texts = [[token for node in graph.path(e.id) for token in graph.nodes[node].action] for e in found]
    assert [text[: len(row.tokens)] for text, row in zip(texts, expected, strict=True)] == [r.tokens for r in expected]
    assert len(list(graph.complete())) == n
    if round(n * options.full) == n:  # otherwise the end of the tree is known only when a window has been generated
        going = {tuple(row.tokens) for row in expected if not row.over}
        sampled = {tuple(tokens[len(prompt) :]) for tokens, temperature in policy.prompts if temperature}
        assert {tokens for tokens in sampled if tokens} == going


def test_the_cases_prune_refill_and_test_the_last_forks():
    """What the comparison above covers: forks after a pruned one, and trees that go on when they are full."""
    pruned = refilled = 0
    for start in range(10):
        graph, _ = grow(OPTIONS[0], 8, start)
        forks = [e for e in graph.episodes if e.decision["why"] == "close"]
        pruned += sum(e.status == "pruned" for e in forks)
        refilled += len(forks) > 7
    assert pruned > 10 and refilled > 2


def test_branches_of_a_pruned_branch_go_with_it():
    for start in range(20):
        graph, _ = grow(OPTIONS[0], 8, start)
        for episode in graph.episodes:
            if episode.source >= 0 and graph.episodes[episode.source].status == "pruned":
                assert episode.status == "pruned"


@pytest.mark.parametrize("n, step, plain", [(8, 0, 0), (8, 100, 2), (8, 250, 4), (8, 400, 6), (10, 100, 2)])
def test_the_share_of_the_tree_falls_with_the_steps(n, step, plain):
    options = LATROptions(lookahead=(4,), least_probability=0.0, largest_gap=1.0, longest_suffix=1, largest_overlap=1)
    words = tokenizer()
    graph, _ = asyncio.run(
        roll_out_scripted(
            environment=lambda: PromptEnvironment(NoOptions()),
            worker=lambda: React(ReactOptions()),
            sampler=LATR(options),
            task={"instruction": "do it", "messages": []},
            answer=lambda prompt, sampling: "",
            policy=Stepwise,
            tokenizer=words,
            n=n,
            step=step,
            limits=Limits(max_tokens_per_turn=40),
        )
    )
    assert sum(e.decision["why"] == "plain" for e in graph.complete()) == plain


def test_an_end_is_found_anywhere_in_the_other_text():
    assert suffix_anywhere([1, 2, 3], [9, 2, 3]) == 2
    assert suffix_anywhere([1, 2, 3], [2, 3, 9, 9]) == 2
    assert suffix_anywhere([1, 2, 3], [3, 2, 1]) == 1
    assert suffix_anywhere([], [1]) == suffix_anywhere([1], []) == suffix_anywhere([1], [2]) == 0
    chance = random.Random(0)
    for _ in range(200):
        a, b = ([chance.randrange(3) for _ in range(chance.randrange(1, 12))] for _ in range(2))
        assert suffix_anywhere(a, b) == suffix_of(a, b)


def test_common_subsequences():
    assert common_subsequence([1, 2, 3, 4], [2, 9, 4, 3]) == 2 and common_subsequence([1], []) == 0


def test_digits_and_mathematical_signs():
    assert all(map(mathematical, ("3", " = ", "12", "\\", "()", " ")))
    assert not any(map(mathematical, ("x", "3x", ";")))


def test_options_that_make_no_sense_are_refused():
    spec = PluginHost.load({"builtin": True}).spec("sampler", "latr")
    for name in ("full", "full_decay", "least_probability", "largest_overlap"):
        with pytest.raises(RecipeError, match=rf"{name}.*from 0 to 1"):
            build_options(spec, {name: 2.0})
    for changes, word in (({"lookahead": ()}, "lookahead"), ({"lookahead": (8, 4)}, "lookahead")):
        with pytest.raises(ValueError, match=word):
            LATROptions(**changes)
    with pytest.raises(ValueError, match="shares"):
        LATROptions(shares={"x": 1.0})

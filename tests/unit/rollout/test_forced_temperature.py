"""Forced tokens have log-probs at the temperature of their turn, as sampled ones have."""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from verl_hier.errors import RecipeError, RolloutError
from verl_hier.host.manager import DEFAULT_ENABLED, PluginHost
from verl_hier.recipe.checks.parts import check_forced_tokens
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rollout import Generation, Rollout, Sampler, Scored
from verl_hier.served.rollout_server import scoring_params
from verl_hier.testing.rollout import ScriptedPolicy, WordTokenizer, roll_out_scripted
from verl_hier_plugins.workers.react import React, ReactOptions

SERVERS = PluginHost.load(DEFAULT_ENABLED).specs("rollout_server")
WORDS = ("right", "left", "<end>")


class Scored3(ScriptedPolicy):
    """Three words, whose logits depend on how many tokens stand before them."""

    def _logs(self, place: int, temperature: float) -> dict[int, float]:
        chance = random.Random(place)
        logits = {self.tokenizer.encode(word)[0]: chance.uniform(-2, 2) / (temperature or 1.0) for word in WORDS}
        whole = math.log(sum(map(math.exp, logits.values())))
        return {token: logit - whole for token, logit in logits.items()}

    async def generate(self, prompt, sampling, conversation) -> Generation:
        tokens = [*self.tokenizer.encode(random.Random(sampling.seed).choice(WORDS[:2])), 1]
        tokens = tokens[: sampling.max_tokens]
        logs = [self._logs(len(prompt) + at, sampling.temperature)[token] for at, token in enumerate(tokens)]
        return Generation(tokens, logs, "completed")

    async def score(self, prompt, tokens, conversation, top=0, temperature=1.0) -> Scored:
        return Scored([self._logs(len(prompt) + at, temperature)[token] for at, token in enumerate(tokens)])


class ForcedAgain(Sampler):
    """An episode, then one whose turns are forced to say the same, whole or in part."""

    def __init__(self, temperature: float, part: bool) -> None:
        self._temperature, self._part = temperature, part

    async def sample(self, rollout: Rollout) -> None:
        rollout.request.sampling.__dict__["temperature"] = self._temperature
        first = await rollout.start().run()
        again = rollout.start()
        for node in first.nodes:
            again.force(node.action[: 1 if self._part else None])
            await again.step()


@pytest.mark.parametrize("temperature", [0.0, 0.25, 0.5, 1.0, 1.6])
@pytest.mark.parametrize("part", [False, True])
def test_forced_tokens_are_as_likely_as_sampled_ones(temperature: float, part: bool) -> None:
    rolled = roll_out_scripted(
        worker=lambda: React(ReactOptions()), sampler=ForcedAgain(temperature, part), policy=Scored3,
        answer=lambda prompt, sampling: "", tokenizer=WordTokenizer(), seed=1,
    )  # fmt: skip
    graph, _ = asyncio.run(rolled)
    first, again = ([graph.nodes[number] for number in graph.path(episode.id)] for episode in graph.episodes)
    assert len(first) > 2 and (part or len(again) == len(first))
    for sampled, forced in zip(first[: 1 if part else None], again, strict=not part):
        given = forced.decision["forced"]
        assert given == (1 if part else len(sampled.action)) and forced.action[:given] == sampled.action[:given]
        assert forced.logprobs[:given] == pytest.approx(sampled.logprobs[:given])


@pytest.mark.parametrize("name", sorted(SERVERS))
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3])
def test_a_server_that_reads_at_temperature_1_alone_is_refused(name: str, temperature: float) -> None:
    server = SERVERS[name]
    config = compose("rollback_alfworld", (f"actor_rollout_ref.rollout.temperature={temperature}",))
    config.actor_rollout_ref.rollout.name = name
    recipe = ComposedRecipe.of(config)
    assert recipe.parts.sampler.spec.needs("needs_scores", recipe.parts.sampler.options)
    if temperature == 1.0 or server.scores_at_temperature:
        check_forced_tokens(recipe)
        assert scoring_params(server, 3, 0, temperature).get("prompt_logprobs_temperature", 1.0) == temperature
        return
    with pytest.raises(RecipeError, match=rf"rollout\.temperature: {temperature}: sampler 'rollback'"):
        check_forced_tokens(recipe)
    with pytest.raises(RolloutError, match=r"actor_rollout_ref\.rollout\.temperature"):
        scoring_params(server, 3, 0, temperature)

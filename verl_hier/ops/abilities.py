"""What a sampler needs of who plays, and whether it is there."""

from __future__ import annotations

from collections.abc import Iterator

from verl_hier.errors import RecipeError
from verl_hier.host.part import Part
from verl_hier.host.servers import opening_server
from verl_hier.host.specs import EnvironmentSpec, RolloutServerSpec
from verl_hier.ops.players import Source, is_endpoint
from verl_hier.recipe.composed import ComposedRecipe

ENDPOINT = RolloutServerSpec("an endpoint", logprobs=False, tokens=False)
"""What chat completions can do, which say words and nothing of how likely they are."""
NEEDS = (
    ("needs_logprobs", "logprobs", "the log-probs of what is sampled"),
    ("needs_tokens", "tokens", "turns that begin with given tokens or are sampled in pieces"),
    ("needs_top_logprobs", "top_logprobs", "the log-probs of the likeliest tokens"),
    ("needs_scores", "prompt_scores", "the log-probs of given tokens"),
)
"""What a sampler declares, the ability of a server that it asks for, and what that is."""


def require_abilities(recipe: ComposedRecipe, source: Source) -> None:
    """Refuse a sampler that needs what the policy's server, or the environment, cannot do.

    Raises:
        RecipeError: with the need, and the samplers that have none that is lacking.
    """
    sampler, environment = recipe.parts.sampler, recipe.parts.environment.spec
    served = isinstance(source, str) and is_endpoint(source)
    server = ENDPOINT if served else opening_server(recipe.host) or RolloutServerSpec("this process")
    lack = next(_lacking(sampler, server, environment), None)
    if lack is None:
        return
    able = [
        name
        for name, spec in sorted(recipe.host.specs("sampler").items())
        if not any(_lacking(Part(spec, spec.options()), server, environment))  # type: ignore[union-attr]
    ]
    elsewhere = "; or play a model in this process" if served else ""
    raise RecipeError(
        f"sampler: {sampler.spec.name!r} needs {lack}; samplers that need nothing that is lacking: "
        f"{', '.join(able)}{elsewhere}."
    )


def _lacking(sampler: Part, server: RolloutServerSpec, environment: EnvironmentSpec) -> Iterator[str]:
    if sampler.spec.needs_fork and environment.fork == "never":
        yield f"a world that forks, which {environment.name!r} does not"
    for need, ability, what in NEEDS:
        if sampler.spec.needs(need, sampler.options) and not getattr(server, ability):
            yield f"{what}, which {server.name} does not give"

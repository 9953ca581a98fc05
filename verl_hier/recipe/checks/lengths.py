"""Lengths and limits that contradict each other, or in which nobody can generate."""

from __future__ import annotations

from typing import Any

from verl_hier.errors import RecipeError
from verl_hier.recipe.checks.parts import episodes
from verl_hier.recipe.checks.prompts import templates
from verl_hier.recipe.checks.rule import needs_critic, rule, value
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.training.replay import TOKEN_BYTES

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
SHORTEST_TURN = 2
"""Tokens of a turn that says something: one, and the token that ends it."""


def longest_row(recipe: ComposedRecipe) -> int:
    """Tokens of the longest row: prompt and response."""
    return int(value(recipe.config, "data.max_prompt_length")) + int(value(recipe.config, "data.max_response_length"))


@rule
def check_lengths(recipe: ComposedRecipe) -> None:
    """Refuse token limits of turns and contexts that are longer than verl's rows."""
    turn, response = recipe.hier.rollout.max_tokens_per_turn, int(value(recipe.config, "data.max_response_length"))
    if turn > response:
        raise RecipeError(
            f"hier.rollout.max_tokens_per_turn: a turn may take {turn} tokens, but data.max_response_length is "
            f"{response}; lower the first or raise the second."
        )
    context, row = recipe.hier.rollout.context_tokens, longest_row(recipe)
    if context is not None and context > row:
        raise RecipeError(
            f"hier.rollout.context_tokens: {context} tokens do not fit into data.max_prompt_length + "
            f"data.max_response_length = {row}."
        )
    for ours, theirs in (("prompt_length", "max_prompt_length"), ("response_length", "max_response_length")):
        given, wanted = value(recipe.config, ROLLOUT + ours), value(recipe.config, f"data.{theirs}")
        if given != wanted:
            raise RecipeError(
                f"{ROLLOUT}{ours}: it is {given}, and data.{theirs} is {wanted}; remove it, so that verl takes the "
                "second for both."
            )


@rule
def check_room(recipe: ComposedRecipe) -> None:
    """Refuse limits in which nobody can generate: a turn of one token, a context that is shorter than any prompt."""
    turn = recipe.hier.rollout.max_tokens_per_turn
    if turn < SHORTEST_TURN:
        raise RecipeError(
            f"hier.rollout.max_tokens_per_turn: a turn of {turn} token is the end of it and nothing else; raise it to "
            f"at least {SHORTEST_TURN}."
        )
    shortest = shortest_prompt(recipe.parts.worker.options)
    context, row = recipe.hier.rollout.context_tokens, longest_row(recipe)
    line = "data.max_prompt_length" if context is None else "hier.rollout.context_tokens"
    if (context or row) < shortest + SHORTEST_TURN:
        raise RecipeError(
            f"{line}: a context of {context or row} tokens has no room for the shortest prompt of hier.worker, "
            f"{shortest} words, and an answer; raise it."
        )
    first = int(value(recipe.config, "data.max_prompt_length"))
    if first < shortest:
        raise RecipeError(
            f"data.max_prompt_length: {first} tokens cannot hold the shortest prompt of hier.worker, {shortest} "
            "words; raise it."
        )


def shortest_prompt(options: Any) -> int:
    """Words of the shortest beginning of a context, system message and prompt. A word is one token at least."""
    found = []
    for line, text, _ in templates(options, "hier.worker"):
        # `planner_prompt` goes with `planner_system`; prompts without one come later in a context.
        system = line.rpartition(".")[2].removesuffix("prompt") + "system"
        if hasattr(options, system):
            found.append(len(f"{getattr(options, system) or ''} {text}".split()))
    return min(found, default=1)


@rule
def check_turns(recipe: ComposedRecipe) -> None:
    """Refuse fewer turns an episode than the worker has levels: those below the first would never take one."""
    worker, turns = recipe.parts.worker, recipe.hier.rollout.max_turns
    levels = set(worker.spec.levels(worker.options).values())
    if turns < len(levels):
        raise RecipeError(
            f"hier.rollout.max_turns: with {turns} turn an episode ends before the lower levels of worker "
            f"{worker.spec.name!r} take theirs; set it to at least {len(levels)}."
        )


@rule
def check_budget(recipe: ComposedRecipe) -> None:
    """Refuse a budget of a task in which its episodes cannot take one turn each."""
    budget, found = recipe.hier.rollout.budget, episodes(recipe)
    least = {"turns": found, "tokens": found * SHORTEST_TURN}
    if recipe.parts.estimator.spec.needs_groups:
        least["leaves"] = 2
    for name, amount in least.items():
        limit = getattr(budget, name)
        if limit is not None and limit < amount:
            raise RecipeError(
                f"hier.rollout.budget.{name}: {limit} for the {found} episodes of a task leave some without a turn or "
                f"a group; raise it to at least {amount}, or set it to null."
            )


@rule
def check_micro_batches(recipe: ComposedRecipe) -> None:
    """Refuse micro-batches by tokens that cannot hold the longest row."""
    row, parallel = longest_row(recipe), sequence_parallel(recipe)
    limits = [(ACTOR + "use_dynamic_bsz", ACTOR + "ppo_max_token_len_per_gpu")]
    limits += [(ROLLOUT + "log_prob_use_dynamic_bsz", ROLLOUT + "log_prob_max_token_len_per_gpu")]
    if needs_critic(recipe.config):
        limits += [("critic.use_dynamic_bsz", "critic.ppo_max_token_len_per_gpu")]
    for switch, line in limits:
        limit = int(value(recipe.config, line) or 0) * parallel
        if value(recipe.config, switch) and limit < row:
            raise RecipeError(
                f"{line}: a micro-batch must hold the longest row, data.max_prompt_length + "
                f"data.max_response_length = {row} tokens, and holds {limit}; raise it or shorten the rows."
            )


@rule
def check_replay_size(recipe: ComposedRecipe) -> None:
    """Refuse a replay that its disk budget does not hold."""
    options, row = recipe.hier.replay, longest_row(recipe)
    if options is None:
        return
    size, room = options.transitions * row * TOKEN_BYTES, options.max_gib * 2**30
    if size > room:
        raise RecipeError(
            f"hier.replay.transitions: {options.transitions} turns of up to {row} tokens take up to "
            f"{size / 2**30:.1f} GiB, more than the disk budget hier.replay.max_gib: {options.max_gib:g}; keep at most "
            f"{int(room / row / TOKEN_BYTES)}, or raise the budget."
        )


@rule
def check_server_lengths(recipe: ComposedRecipe) -> None:
    """Refuse a rollout server that is told to hold less than the longest row."""
    row = longest_row(recipe)
    model_length = value(recipe.config, ROLLOUT + "max_model_len")
    if model_length is not None and model_length < row:
        raise RecipeError(
            f"{ROLLOUT}max_model_len: {model_length} tokens do not hold the longest row, data.max_prompt_length + "
            f"data.max_response_length = {row}; raise it or set it to null."
        )
    batched = value(recipe.config, ROLLOUT + "max_num_batched_tokens")
    if not value(recipe.config, ROLLOUT + "enable_chunked_prefill") and batched is not None and batched < row:
        raise RecipeError(
            f"{ROLLOUT}max_num_batched_tokens: without enable_chunked_prefill a batch must hold a whole prompt, up to "
            f"{row} tokens, and holds {batched}; raise it."
        )


def sequence_parallel(recipe: ComposedRecipe) -> int:
    """Devices that share one row."""
    places = (ACTOR + "ulysses_sequence_parallel_size", ACTOR + "fsdp_config.ulysses_sequence_parallel_size")
    return max(int(value(recipe.config, place) or 1) for place in places)


def devices(recipe: ComposedRecipe) -> int:
    """GPUs, or slots that stand for them on a CPU."""
    return int(value(recipe.config, "trainer.nnodes")) * int(value(recipe.config, "trainer.n_gpus_per_node"))


def shards(recipe: ComposedRecipe) -> int:
    """Devices among which the weights of a model are divided; all of them unless the recipe says how many."""
    shard = int(value(recipe.config, ACTOR + "fsdp_config.fsdp_size") or -1)
    return shard if shard > 0 else devices(recipe)


def data_parallel(recipe: ComposedRecipe) -> int:
    """Trainer ranks that see different rows."""
    return devices(recipe) // sequence_parallel(recipe)

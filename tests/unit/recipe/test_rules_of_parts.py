"""What parts need of each other, and of models, prompts and machines: each need alone, there and not there."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from tests.unit.recipe.test_rules_at_bounds import ACTOR, DATA, ROLLOUT, base, passes, recipe, refuses, spec_of
from verl_hier.environments.base import Environment, StepResult
from verl_hier.environments.surroundings import ProcessOptions
from verl_hier.errors import HierError, RecipeError
from verl_hier.host.constraints import Template
from verl_hier.host.part import Part
from verl_hier.host.specs import EnvironmentSpec, NoOptions
from verl_hier.recipe import check as checking
from verl_hier.recipe.checks import (
    columns,
    keys,
    machine,
    parts,
    places,
    prompts,
    resources,
    roles,
    rows,
    sampling,
    self_imitation,
    tasks,
    world,
)
from verl_hier.recipe.checks import model as model_checks
from verl_hier.recipe.checks.model import ModelFacts, has_chat_template, model_facts
from verl_hier.recipe.compose import compose
from verl_hier.recipe.policies import PolicyOptions
from verl_hier.recipe.sharing import ExpectedSharing, expected_sharing
from verl_hier.rollout import Limits
from verl_hier.rollout.entropy import EntropyOptions
from verl_hier.training.options import ProcessRewardOptions, ReplayOptions, SelfImitationOptions, TeacherOptions
from verl_hier.training.schedule import Phase

CRITIC = {"critic.enable": True, "algorithm.adv_estimator": "grpo"}
WITHOUT = {"critic.enable": False}


def estimator(**given: Any) -> dict[str, Any]:
    return spec_of("estimator", **given)


# Columns, critics and what is trained beside the policy


def test_a_critic_is_for_an_estimator_that_reads_values() -> None:
    passes(parts.check_critic, CRITIC, **estimator(needs_critic=True))
    passes(parts.check_critic, WITHOUT, **estimator(needs_critic=False))
    refuses(parts.check_critic, "needs verl's critic", WITHOUT, **estimator(needs_critic=True))
    heads = {**CRITIC, "hier.value_heads": {}}
    plain = {"needs_critic": False, "native": False, "reads": (), "requires": ()}
    refuses(parts.check_heads, "reads no values", heads, **estimator(**plain))
    for reads in ({"needs_critic": True}, {"native": True}, {"reads": ("value",)}, {"reads": ("tokens.value",)}):
        passes(parts.check_heads, heads, **estimator(**{**plain, **reads}))
    passes(parts.check_heads, {**WITHOUT, "hier.value_heads": {}}, **estimator(**plain))
    refuses(parts.check_heads, "this recipe has no critic", {**WITHOUT, "hier.value_heads": {"low": 1.0}})


def test_a_head_is_read_or_required() -> None:
    low = {**CRITIC, "hier.value_heads": {"low": 1.0}}
    for reads in ({"requires": ("value_low",)}, {"reads": ("value_low",), "requires": ()}):
        passes(parts.check_heads, low, **estimator(needs_critic=True, **reads))
    refuses(
        parts.check_heads, "does not read the head 'low'", low, **estimator(needs_critic=True, requires=(), reads=())
    )


def test_columns_come_from_every_part() -> None:
    def there(lines: Mapping[str, Any], **given: Any) -> set[str]:
        return parts.columns_of(recipe({**WITHOUT, **lines}, **given))

    standard = there({})
    assert {"reward", "episodes.return", "tokens.logprob", "tokens.turn", "tokens.entropy"} <= standard
    assert not {"value", "tokens.value", "step_reward", "q1", "mine"} & standard
    assert {"value", "tokens.value"} <= there(CRITIC) and "step_reward" not in there(CRITIC)
    low = there({**CRITIC, "hier.value_heads": {"low": 1.0}})
    assert "value_low" in low and "value" not in low
    second = there({**CRITIC, "hier.process_reward": ProcessRewardOptions()})
    assert "step_reward" in second and "value" not in second
    replayed = there({**CRITIC, "hier.replay": ReplayOptions()})
    assert {"q1", "q2", "v1", "v2"} <= replayed and "value" not in replayed
    for kind in ("environment", "worker", "sampler", "schedule"):
        assert "mine" in there({}, **spec_of(kind, provides=("mine",)))


def test_a_missing_column_names_who_has_it() -> None:
    passes(parts.check_columns, {}, **estimator(requires=("reward", "episodes.return")))
    said = refuses(parts.check_columns, "needs the column 'value_low'", {}, **estimator(requires=("value_low",)))
    assert said.endswith("Installed parts that provide it: hier.value_heads.low: 1.0.")
    said = refuses(parts.check_columns, "'info_gain'", {}, **estimator(requires=("info_gain",)))
    assert "hier.probes.true_answer: {}" in said
    said = refuses(parts.check_columns, "'preference'", {}, **estimator(requires=("preference",)))
    assert "hier.sampler.name: branpo" in said
    assert "Installed parts" not in refuses(parts.check_columns, "'mine'", {}, **estimator(requires=("mine",)))


def test_a_replay_is_read_and_alone() -> None:
    check, replay = parts.check_replay, {**CRITIC, "hier.replay": ReplayOptions(), "hier.value_heads": {}}
    reads = estimator(requires=("q1",))
    passes(check, replay, **reads)
    passes(check, {"hier.replay": None}, **estimator(requires=()))
    refuses(check, "does not read 'q1'", replay, **estimator(requires=()))
    for beside in ({"hier.value_heads": {"low": 1.0}}, {"hier.process_reward": ProcessRewardOptions()}):
        refuses(check, "has heads of its own", {**replay, **beside}, **reads)


def test_kept_rows_stand_beside_what_they_can() -> None:
    check = self_imitation.check_self_imitation
    fine = {
        "hier.self_imitation": SelfImitationOptions(),
        **{"trainer.v1.trainer_mode": "hier_sync", "hier.teachers": {}, "hier.policies": {}},
        **{ACTOR + "use_kl_loss": False, ACTOR + "policy_loss.loss_mode": "clip_cov", **WITHOUT},
    }
    passes(check, fine, name="spear_alfworld")
    passes(check, {**fine, "hier.self_imitation": None, ACTOR + "use_kl_loss": True}, name="spear_alfworld")
    for line, given, words in (
        ("trainer.v1.trainer_mode", "hier_separate_async", "sampled by older policies"),
        ("critic.enable", True, "have no values"),
        ("hier.teachers", {"t": TeacherOptions("m")}, "not asked about kept rows"),
        ("hier.update.max_kl", 0.1, "moved by design"),
        (ACTOR + "use_kl_loss", True, "reference policy"),
        (ACTOR + "use_dynamic_bsz", False, "of one size"),
        (ACTOR + "policy_loss.loss_mode", "geo_mean", "each token by a weight"),
        (ACTOR + "policy_loss.loss_mode", "gpg", "no ratio"),
    ):
        refuses(check, words, {**fine, line: given}, name="spear_alfworld")
    refuses(check, "roles that do not learn", fine)


def test_a_process_reward_is_read_in_the_place_of_a_critic() -> None:
    check = parts.check_process_reward
    lines = {
        **CRITIC,
        "hier.process_reward": ProcessRewardOptions(),
        "hier.guards.shared_prefix": "once",
        "hier.value_heads": {},
    }
    for reads in ({"requires": ("step_reward",)}, {"requires": (), "reads": ("step_reward",)}):
        passes(check, lines, **estimator(**reads, needs_critic=False))
    own = estimator(requires=("step_reward",), needs_critic=False)
    passes(check, {**lines, "hier.process_reward": None}, **estimator(requires=()))
    refuses(check, "does not read 'step_reward'", lines, **estimator(requires=(), reads=()))
    refuses(check, "trained in the place of the critic", {**lines, **WITHOUT}, **own)
    refuses(check, "takes the place of the critic", lines, **estimator(requires=("step_reward",), needs_critic=True))
    refuses(check, "takes the place of the critic", {**lines, "hier.value_heads": {"low": 1.0}}, **own)
    refuses(check, "repeat lets the second model", {**lines, "hier.guards.shared_prefix": "repeat"}, **own)
    refuses(check, "bypass_mode", {**lines, "algorithm.rollout_correction": {"bypass_mode": True}}, **own)


def test_probes_are_read_and_can_ask() -> None:
    check, lines = parts.check_probes, {"hier.probes": {"feedback": {}}}
    passes(check, lines, **estimator(requires=("feedback_gain",)))
    passes(check, lines, **estimator(requires=(), reads=("feedback_gain",)))
    refuses(
        check,
        "does not read what the probe 'feedback' fills (feedback_gain)",
        lines,
        **estimator(requires=(), reads=()),
    )
    answer, reads = {"hier.probes": {"true_answer": {}}}, estimator(requires=("info_gain",))
    refuses(check, "the probe 'true_answer' needs", answer, **reads)
    passes(check, {**answer, DATA + "custom_cls.name": None}, **reads)


def test_a_penalty_in_the_reward_is_for_verls_own_advantages() -> None:
    line = "algorithm.use_kl_in_reward"
    passes(parts.check_kl, {line: False}, **estimator(native=False))
    passes(parts.check_kl, {line: True}, **estimator(native=True))
    refuses(parts.check_kl, f"{line}: ", {line: True}, **estimator(native=False))


# What workers, environments, samplers and servers need of each other


def test_a_worker_reads_what_answers_are_about() -> None:
    check = parts.check_info
    says = spec_of("environment", read_info=("who",), info=("who", "goal"))
    passes(check, {}, **says, **spec_of("worker", needs_info=("who",)))
    said = refuses(check, "says in 'who' of its `info`", {}, **says, **spec_of("worker", needs_info=()))
    assert said.endswith("(none installed).")
    known = spec_of("environment", read_info=("request",), info=("request",))
    assert "none installed" not in refuses(check, "says in 'request'", {}, **known, **spec_of("worker", needs_info=()))
    silent = spec_of("environment", read_info=(), info=("goal",))
    passes(check, {}, **silent, **spec_of("worker", needs_info=("goal",)))
    refuses(
        check, "reads 'who' in the `info` of answers", {}, **silent, **spec_of("worker", needs_info=("goal", "who"))
    )


def test_past_checkpoints_play_beside_a_server_that_loads_them() -> None:
    check = parts.check_saved_roles
    saved = spec_of("worker", saved_roles=lambda options: ["judge"])
    passes(check, {ROLLOUT + "name": "transformers"}, **saved)
    passes(check, {ROLLOUT + "name": "vllm"}, **spec_of("worker", saved_roles=None))
    passes(check, {ROLLOUT + "name": "vllm"}, **spec_of("worker", saved_roles=lambda options: []))
    refuses(check, "judge is played by past checkpoints", {ROLLOUT + "name": "vllm"}, **saved)


@pytest.mark.parametrize(
    ("server", "temperature", "good"),
    [("transformers", 0.7, True), ("vllm", 1.0, True), ("vllm", 0, True), ("vllm", 0.7, False), ("trtllm", 0.7, True)],
)
def test_given_tokens_are_scored_at_the_temperature_of_the_run(server: str, temperature: float, good: bool) -> None:
    lines = {ROLLOUT + "name": server, ROLLOUT + "temperature": temperature}
    passes(parts.check_forced_tokens, lines, **spec_of("sampler", needs_scores=False))
    if good:
        passes(parts.check_forced_tokens, lines, **spec_of("sampler", needs_scores=True))
    else:
        refuses(
            parts.check_forced_tokens,
            "needs the log-probs of given tokens",
            lines,
            **spec_of("sampler", needs_scores=True),
        )


def test_a_sampler_has_a_world_that_forks_and_a_server_that_says_enough() -> None:
    check, nothing = parts.check_sampler, {"needs_fork": False, "needs_top_logprobs": False, "needs_scores": False}
    never, native = spec_of("environment", fork="never"), spec_of("environment", fork="native")
    flat = estimator(needs_tree=False)
    passes(check, {ROLLOUT + "name": "trtllm"}, **spec_of("sampler", **nothing), **never, **flat)
    forks = spec_of("sampler", **{**nothing, "needs_fork": True})
    passes(check, {}, **forks, **native, **flat)
    said = refuses(check, "cannot fork", {}, **forks, **never, **flat)
    assert "alfworld" in said and "none installed" not in said
    for server, top, scores in (
        ("transformers", True, True),
        ("vllm", False, True),
        ("vllm_topk", True, True),
        ("trtllm", False, False),
    ):
        for need, able, words in (
            ("needs_top_logprobs", top, "likeliest tokens"),
            ("needs_scores", scores, "given tokens"),
        ):
            given = spec_of("sampler", **{**nothing, need: True})
            if able:
                passes(check, {ROLLOUT + "name": server}, **given, **flat)
            else:
                refuses(check, words, {ROLLOUT + "name": server}, **given, **flat)
    asks = spec_of("worker", needs_scores=lambda options: True)
    passes(check, {ROLLOUT + "name": "vllm"}, **spec_of("sampler", **nothing), **asks, **flat)
    refuses(
        check, "log-probs of given texts", {ROLLOUT + "name": "trtllm"}, **spec_of("sampler", **nothing), **asks, **flat
    )
    silent = spec_of("worker", needs_scores=lambda options: False)
    passes(check, {ROLLOUT + "name": "trtllm"}, **spec_of("sampler", **nothing), **silent, **flat)
    passes(check, {}, **forks, **native, **estimator(needs_tree=True))
    said = refuses(check, "never branches", {}, **spec_of("sampler", **nothing), **estimator(needs_tree=True))
    assert "nested" in said


def test_roles_are_left_out_where_the_worker_can_do_without() -> None:
    check = parts.check_stand_ins
    leaves = spec_of("sampler", leaves_out=lambda options: ["planner"])
    two = {"stand_ins": True, "active_roles": None, "roles": {"planner": 0, "executor": 1}}
    passes(check, {}, **leaves, **spec_of("worker", **two))
    passes(check, {}, **spec_of("sampler", leaves_out=None), **spec_of("worker", stand_ins=False))
    assert "team" in refuses(
        check, "cannot do; choose one that can", {}, **leaves, **spec_of("worker", **{**two, "stand_ins": False})
    )
    wrong = spec_of("sampler", leaves_out=lambda options: ["planer"])
    refuses(check, "leaves out the role 'planer' (did you mean 'planner'?)", {}, **wrong, **spec_of("worker", **two))
    refuses(check, "the worker has one role", {}, **leaves, **spec_of("worker", **{**two, "roles": {"planner": 0}}))


@pytest.mark.parametrize(
    ("source", "server", "good"),
    [
        *[("sampled", "trtllm", True), ("top_k", "transformers", True), ("top_k", "vllm", False)],
        *[("top_k", "vllm_topk", True), ("prefill", "vllm", True), ("prefill", "trtllm", False)],
    ],
)
def test_entropies_come_from_what_the_server_returns(source: Any, server: str, good: bool) -> None:
    lines = {ROLLOUT + "name": server, "hier.rollout.entropy": EntropyOptions(source)}
    if good:
        passes(parts.check_entropy, lines)
    else:
        refuses(parts.check_entropy, f"hier.rollout.entropy.source: {source}", lines)


def test_stop_strings_are_seen_with_a_tokenizer() -> None:
    check, line = parts.check_stop_strings, ROLLOUT + "skip_tokenizer_init"
    needs, not_ = spec_of("worker", needs_stop_strings=True), spec_of("worker", needs_stop_strings=False)
    passes(check, {ROLLOUT + "name": "vllm", line: True}, **needs)
    passes(check, {ROLLOUT + "name": "sglang", line: False}, **needs)
    passes(check, {ROLLOUT + "name": "sglang", line: True}, **not_)
    refuses(check, line, {ROLLOUT + "name": "sglang", line: True}, **needs)


def test_states_are_compared_where_they_have_names() -> None:
    check, compares = parts.check_anchors, estimator(requires=("anchor",))
    passes(check, {}, **compares, **spec_of("environment", names_states=True))
    passes(check, {}, **estimator(requires=()), **spec_of("environment", names_states=False))
    refuses(check, "names no states", {}, **compares, **spec_of("environment", names_states=False))


def test_groups_have_two_episodes_where_they_are_compared() -> None:
    check, plain = parts.check_episodes, spec_of("sampler", episodes=None)
    line = ROLLOUT + "n"
    passes(check, {line: 2}, **plain, **estimator(needs_groups=True))
    passes(check, {line: 1}, **plain, **estimator(needs_groups=False, native=False))
    refuses(check, "n = 1 makes groups of 1", {line: 1}, **plain, **estimator(needs_groups=True))
    refuses(check, "n = 4 makes groups of 1", {line: 4}, **spec_of("sampler", episodes=lambda options, n: n // 4))
    for name in parts.GROUPED:
        own = {line: 1, "algorithm.adv_estimator": name}
        refuses(check, f"estimator {name!r} compares", own, **plain, **estimator(needs_groups=False, native=True))
    own = {line: 1, "algorithm.adv_estimator": "gae"}
    passes(check, own, **plain, **estimator(needs_groups=False, native=True))


# Roles


@pytest.mark.parametrize(("steps", "good"), [(4, True), (5, False), (None, False), (0, False), (10**9, False)])
def test_somebody_learns_in_every_step_of_the_run(steps: int | None, good: bool) -> None:
    lines = {"trainer.total_training_steps": steps}
    late = learning(lambda step: Phase("late", levels=frozenset({0} if step < 5 else {7})))
    if good:
        passes(roles.check_roles, lines, **late)
    else:
        refuses(roles.check_roles, "in step 5 schedule", lines, **late)


def test_no_more_steps_are_looked_at_than_repeat() -> None:
    late = learning(lambda step: Phase("late", levels=frozenset({0} if step <= 1000 else {7})))
    passes(roles.check_roles, {"trainer.total_training_steps": 10**9}, **late)
    last = learning(lambda step: Phase("late", levels=frozenset({0} if step < 1000 else {7})))
    refuses(roles.check_roles, "in step 1000", {"trainer.total_training_steps": 10**9}, **last)


def test_a_judge_does_not_learn_by_its_own_verdicts() -> None:
    check, own = roles.check_judges, estimator(own_rewards=False)
    judges = spec_of("worker", active_roles=None, roles={"player": 0, "judge": 1}, judges=lambda options: ["judge"])
    never = learning(lambda step: Phase("p", roles=frozenset({"player"})))
    passes(check, {}, **judges, **own, **never)
    for step_of_the_judge in (1, 1000):
        late = learning(
            lambda step, at=step_of_the_judge: Phase("p", roles=frozenset({"judge" if step == at else "player"}))
        )
        said = refuses(check, "the role 'judge' learns", {}, **judges, **own, **late)
        others = said.partition("of a role (")[2].partition(")")[0].split(", ")
        known = base().host.specs("estimator").items()
        assert others == sorted(name for name, each in known if getattr(each, "own_rewards", False)) != []
        passes(check, {}, **judges, **estimator(own_rewards=True), **late)
        passes(check, {}, **spec_of("worker", judges=None), **own, **late)
    too_late = learning(lambda step: Phase("p", roles=frozenset({"judge" if step == 1001 else "player"})))
    passes(check, {}, **judges, **own, **too_late)


def learning(phase: Any) -> dict[str, Any]:
    made = replace(base().parts.schedule.spec, factory=lambda options: SimpleNamespace(phase=phase), named_roles=None)
    return {"schedule": Part(made, NoOptions())}


# Sampling


@dataclass(frozen=True)
class Own:
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


@dataclass(frozen=True)
class Team:
    roles: Mapping[str, Own] = field(default_factory=dict)


def team(**roles: Own) -> dict[str, Any]:
    worker = spec_of("worker", active_roles=None, roles={"planner": 0, "executor": 1})["worker"]
    once = SimpleNamespace(phase=lambda step: Phase("one", levels=frozenset({0}) if step < 1000 else frozenset({1})))
    late = replace(base().parts.schedule.spec, factory=lambda options: once)
    return {"worker": replace(worker, options=Team(roles)), "schedule": Part(late, NoOptions())}


def test_a_role_that_learns_is_sampled_as_it_is_trained() -> None:
    line = ROLLOUT + "temperature"
    for temperature in (None, 0.7):
        passes(sampling.check_temperatures, {line: 0.7}, **team(planner=Own(temperature)))
    for role in ("planner", "executor"):  # the second learns in the last step that is looked at
        refuses(sampling.check_temperatures, f"roles.{role}.temperature", {line: 0.7}, **team(**{role: Own(1.0)}))
    passes(sampling.check_temperatures, {line: 0.7}, **team(stranger=Own(1.0)))


def test_tokens_that_are_left_out_are_noted() -> None:
    def said(lines: Mapping[str, Any], **roles: Own) -> list[str]:
        usual = {ROLLOUT + "top_p": 1.0, ROLLOUT + "top_k": -1}
        return [note.partition(":")[0] for note in sampling.notes(recipe({**usual, **lines}, **team(**roles)))]

    assert said({}) == said({ROLLOUT + "top_k": 0}) == said({ROLLOUT + "top_p": None, ROLLOUT + "top_k": None}) == []
    assert said({ROLLOUT + "top_p": 0.9, ROLLOUT + "top_k": 5}) == [ROLLOUT + "top_p", ROLLOUT + "top_k"]
    assert said({}, planner=Own(top_p=0.5, top_k=3)) == [
        f"hier.worker.roles.planner.{name}" for name in ("top_p", "top_k")
    ]
    assert said({}, planner=Own(top_p=1.0, top_k=-1), executor=Own()) == []
    assert said({ROLLOUT + "top_p": 0.9}, planner=Own(top_p=0.9)) == [ROLLOUT + "top_p"]


# Prompts


@dataclass(frozen=True)
class Inner:
    prompt: Annotated[str, Template("plan")] = "{plan} {goal}"


@dataclass(frozen=True)
class Texts:
    system: str = "{anything}"
    first_prompt: Annotated[str, Template("plan")] = "{instruction} {plan}"
    later: Annotated[str | None, Template(later=True)] = "{whatever}"
    optional: Annotated[str, Template()] | None = None
    free_prompt: str = "{instruktion}"
    inner: Inner = field(default_factory=Inner)
    each: Mapping[str, Any] = field(default_factory=lambda: {"a": Inner("{instruction}"), "b": 3})


def test_templates_are_found_wherever_they_stand() -> None:
    found = {line: text for line, text, _ in prompts.templates(Texts(optional="{x}"), "w")}
    assert found == {
        "w.first_prompt": "{instruction} {plan}",
        "w.later": "{whatever}",
        "w.optional": "{x}",
        "w.inner.prompt": "{plan} {goal}",
        "w.each.a.prompt": "{instruction}",
    }
    every = {line for line, _, _ in prompts._texts(Texts(), "w")}
    assert every == found.keys() - {"w.optional"} | {"w.free_prompt"}


def worded(options: Any) -> dict[str, Any]:
    return {"worker": replace(base().parts.worker, options=options)}


def test_every_field_is_filled() -> None:
    check = prompts.check_prompts
    with_goal, without = spec_of("environment", info=("goal",)), spec_of("environment", info=())
    passes(check, {}, **worded(Texts()), **with_goal)
    said = refuses(check, "hier.worker.inner.prompt: nothing fills {goal}", {}, **worded(Texts()), **without)
    assert "fields of this environment and worker: " in said and "plan" in said and "goal," not in said
    prompts.require_fields(recipe({}, **worded(Texts()), **without), {"goal"})
    with pytest.raises(RecipeError, match=r"nothing fills \{goal\} \(did you mean 'goals'\?\)"):
        prompts.require_fields(recipe({}, **worded(Texts()), **with_goal), {"goals"})


def test_a_field_that_is_nearly_a_known_one_is_misspelt() -> None:
    check = prompts.check_misspelt_fields
    refuses(
        check,
        "hier.worker.free_prompt: nothing fills {instruktion} (did you mean 'instruction'?)",
        {},
        **worded(Texts()),
    )
    for good in ("{instruction} {other}", "{inst}", "{ broken", "{{instruktion}}"):
        passes(check, {}, **worded(Texts(free_prompt=good)))
    passes(check, {}, **worded(Texts()), **spec_of("environment", info=("instruktion",)))
    refuses(check, "did you mean 'plan'", {}, **worded(Texts(free_prompt="", first_prompt="{plann}")))


def test_a_world_fits_its_worker() -> None:
    def fits(options: Any, answer: StepResult) -> None:
        raise RecipeError(f"no seat in {answer.text}")

    refuses(prompts.check_world, "no seat in start", {}, **spec_of("worker", fits=fits), **world_of(Word))
    passes(prompts.check_world, {}, **spec_of("worker", fits=None))
    passes(prompts.check_world, {DATA + "custom_cls.name": None}, **spec_of("worker", fits=fits))


# Environments


class Word(Environment):
    closed = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        return StepResult("start", anchor=task.get("anchor"), info={"goal": seed})

    def step(self, action: str) -> StepResult:
        return StepResult("end", done=True)

    def close(self) -> None:
        Word.closed += 1


def world_of(factory: Any, made: Any = ({"id": 1}, {"id": 2}), **given: Any) -> dict[str, Any]:
    spec = EnvironmentSpec("word", lambda options: factory(), tasks=lambda options, split: list(made), **given)
    return {"environment": Part(spec, NoOptions())}


def test_a_world_is_asked_what_its_spec_leaves_open() -> None:
    before = Word.closed
    asked = recipe({"hier.seed": 7}, **world_of(Word))
    answer = world.first_answer(asked)
    assert answer is not None and answer.info == {"goal": 7} and Word.closed == before + 1
    assert world.info_names(asked) == {"goal"} and world.names_states(asked) is False
    assert world.names_states(recipe({}, **world_of(Word, [{"anchor": "s"}])))
    assert world.info_names(recipe({}, **world_of(Word, info=("a",)))) == {"a"}
    assert world.names_states(recipe({}, **world_of(Word, names_states=True)))
    for lines, given in (
        ({DATA + "custom_cls.name": None}, {}),
        ({}, {"modules": ("nowhere_at_all",)}),
        ({}, {"made": []}),
        ({"hier.rollout.process": ProcessOptions(python="python3")}, {}),
    ):
        other = recipe(lines, **world_of(Word, **given))
        assert world.first_answer(other) is world.info_names(other) is None and world.names_states(other)
    assert world.first_task(asked) == {"id": 1}
    assert [world.splits(asked.config | {"data": {"x": given}}, "x") for given in ("a", ["a", "b"], None)] == [
        ["a"],
        ["a", "b"],
        [],
    ]


def test_a_world_that_cannot_be_asked_is_named() -> None:
    class Broken(Word):
        def reset(self, task: Mapping[str, Any], seed: int) -> Any:
            raise OSError("no data\nmore")

    class Wrong(Word):
        def reset(self, task: Mapping[str, Any], seed: int) -> Any:
            return "start"

    def fails(options: Any, split: str) -> Any:
        raise KeyError

    with pytest.raises(RecipeError, match=r"'word' cannot be reset: no data$"):
        world.first_answer(recipe({}, **world_of(Broken)))
    with pytest.raises(RecipeError, match="answers a reset with str"):
        world.first_answer(recipe({}, **world_of(Wrong)))
    spec = replace(world_of(Word)["environment"].spec, tasks=fails)
    with pytest.raises(
        RecipeError, match=r"data\.train_files: environment 'word' makes no tasks for the split 'train': KeyError"
    ):
        world.first_task(recipe({DATA + "train_files": "train"}, environment=Part(spec, NoOptions())))


def test_packages_are_looked_for_where_the_world_runs() -> None:
    spec = EnvironmentSpec("word", lambda options: Word(), modules=("json.decoder", "nowhere_at_all.part"))
    assert world.missing_module(spec) == "nowhere_at_all.part"
    assert (
        world.missing_module(replace(spec, modules=("json",)))
        == ""
        == world.missing_module(replace(spec, modules=()), "no/python")
    )
    assert world.missing_module(spec, "no/such/python") == "json.decoder"


def test_there_are_enough_tasks() -> None:
    lines = {DATA + "train_batch_size": 2, DATA + "train_files": "train", DATA + "val_files": "val"}
    tasks.require_tasks(recipe(lines, **world_of(Word)))
    with pytest.raises(
        RecipeError, match=r"data.train_batch_size: a step takes 3 tasks, and environment 'word' has 2 in train"
    ):
        tasks.require_tasks(recipe({**lines, DATA + "train_batch_size": 3}, **world_of(Word)))
    tasks.require_tasks(
        recipe({**lines, DATA + "train_batch_size": 4, DATA + "train_files": ["a", "b"]}, **world_of(Word))
    )
    with pytest.raises(RecipeError, match=r"data\.val_files: a step takes 1 tasks"):
        spec = replace(
            world_of(Word)["environment"].spec, tasks=lambda options, split: [{}] * (3 if split == "train" else 0)
        )
        tasks.require_tasks(recipe(lines, environment=Part(spec, NoOptions())))
    tasks.require_tasks(recipe({**lines, DATA + "custom_cls.name": None}, **world_of(Word, [])))


def test_tasks_come_from_the_world_or_from_files(tmp_path: Path) -> None:
    check, makes, none = tasks.check_source, world_of(Word), spec_of("environment", tasks=None)
    usual = {DATA + "custom_cls": {"path": "pkg://verl_hier.compat.dataset", "name": "TaskDataset"}}
    passes(check, usual, **makes)
    refuses(check, "makes no tasks of its own", usual, **none)
    stock = {DATA + "custom_cls": {"path": None, "name": None}}
    passes(check, stock, **none)
    for half in ({"path": None, "name": None}, {"path": "x.py", "name": None}, {"path": None, "name": "Mine"}):
        refuses(check, "makes its own tasks", {DATA + "custom_cls": half}, **makes)
    passes(check, {DATA + "custom_cls": {"path": "x.py", "name": "Mine"}}, **makes)
    file = tmp_path / "mine.py"
    file.touch()
    for line in ("data.custom_cls.path", "reward.custom_reward_function.path"):
        for good in (str(file), "pkg://anything", None):
            passes(tasks.check_files, {line: good})
        refuses(tasks.check_files, f"{line}: there is no file", {line: str(tmp_path / "none.py")})


def test_files_that_verl_reads_are_named_by_their_ending() -> None:
    stock = {
        DATA + "custom_cls": {"path": None, "name": None},
        DATA + "train_files": "a.parquet",
        DATA + "val_files": ["b.json"],
    }
    assert rows.data_files(recipe(stock)) == [("data.train_files", "a.parquet"), ("data.val_files", "b.json")]
    assert (
        rows.data_files(recipe({}))
        == []
        == rows.data_files(recipe({**stock, DATA + "custom_cls": {"path": "x.py", "name": "M"}}))
    )
    passes(rows.check_formats, stock)
    refuses(
        rows.check_formats,
        "data.val_files: b.txt ends in none of",
        {**stock, DATA + "val_files": "b.txt"},
        **spec_of("environment", tasks=None),
    )
    refuses(rows.check_formats, "makes tasks of its own", {**stock, DATA + "val_files": "val"})


def test_rows_of_files_are_looked_at(tmp_path: Path) -> None:
    row = {
        "prompt": [{"role": "user", "content": "x"}],
        "data_source": "openai/gsm8k",
        "reward_model": {"ground_truth": "4"},
    }
    file = tmp_path / "a.jsonl"
    lines = {DATA + "custom_cls": {"path": None, "name": None}, DATA + "train_files": str(file), DATA + "val_files": []}
    stock = spec_of("environment", tasks=None, in_worker=False)
    passes(rows.check_rows, lines, **stock)
    file.write_text(f"{json.dumps(row)}\n")
    passes(rows.check_rows, lines, **stock)
    file.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'data_source': None})}\n")
    refuses(rows.check_rows, f"data.train_files: row 1 of {file} has no `data_source`", lines, **stock)
    passes(rows.check_rows, lines, **spec_of("environment", tasks=lambda options, split: []))
    file.write_text(f"{json.dumps(row)}\n" * 256 + "{}\n")
    passes(rows.check_rows, lines, **stock)
    file.write_text("no json\n")
    refuses(rows.check_rows, "data.train_files: line 1 of", lines, **stock)
    file.write_text(json.dumps({**row, "extra_info": {"tools_kwargs": {"a": 1}}}))
    refuses(rows.check_rows, "asks for tools", lines, **stock)
    passes(rows.check_rows, lines, **spec_of("environment", tasks=None, in_worker=True))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        *[(None, ""), ("runs/x", ""), ("s3://bucket/x", ""), ("memory://x", ""), ("/abs:olute", ""), ("a/b://c", "")],
        *[("", "names no folder"), (" ", "names no folder"), ("a\x00", "names no folder"), ("s4://bucket/x", "'s4'")],
        *[("ftpx:/x", "no file system 'ftpx'"), ("zip::s3://x", ""), ("zap::s3://x", "no file system 'zap'")],
    ],
)
def test_a_store_is_a_folder_or_an_address(path: str | None, words: str) -> None:
    if words:
        refuses(places.check_store, words, {"hier.store.path": path})
    else:
        passes(places.check_store, {"hier.store.path": path})


# Keys


def test_values_are_left_open_only_where_verl_leaves_them() -> None:
    passes(keys.check_open_values, {"reward.reward_model": {"path": "???"}, "distillation": {"x": "???"}})
    refuses(
        keys.check_open_values,
        "trainer.x: the recipe leaves this value to you; add `trainer.x=…`",
        {"trainer.x": "???"},
    )
    assert str(keys.left_open("data.hier.sampler.name")).startswith("hier.sampler.name: ")


@pytest.mark.parametrize(
    ("line", "good", "bad"),
    [
        ("data.shuffle", [True, False, None], [1, "yes", []]),
        ("trainer.logger", [["console"], "console", None], [{}, True]),
        (ACTOR + "optim", [{}, None], ["AdamW", [], True]),
        ("trainer.total_epochs", [3, "x", None], []),
    ],
)
def test_values_are_of_the_kind_of_verls(line: str, good: list[Any], bad: list[Any]) -> None:
    for given in good:
        passes(keys.check_kinds, {line: given})
    for given in bad:
        refuses(keys.check_kinds, f"{line}: expected", {line: given})


def test_keys_are_those_of_verl() -> None:
    passes(
        keys.check_keys,
        {"ray_kwargs.ray_init.anything": 1, ROLLOUT + "engine_kwargs": {"vllm": {"x": 1}}, "data.hier": {"x": 1}},
    )
    refuses(
        keys.check_keys,
        "trainer.total_epoch: trainer of verl has no key 'total_epoch' (did you mean 'total_epochs'?)",
        {"trainer.total_epoch": 1},
    )
    refuses(keys.check_keys, "more: the config of verl has no key 'more'", {"more": 1})
    refuses(keys.check_keys, "data.more: data of verl has no key", {"data.more": 1})
    passes(keys.check_keys, {"data.more": 1, "data.custom_cls.name": "Mine"})
    refuses(keys.check_keys, "data.more", {"data.more": 1, "data.custom_cls.name": None})


# Columns that an estimator reads


@pytest.mark.parametrize(
    ("read", "missing"),
    [
        (lambda table, options: table["reward"], ""),
        (lambda table, options: table["mine"], "mine"),
        (lambda table, options: table["tokens.mine"], "tokens.mine"),
        (lambda table, options: table.turns["mine"], "mine"),
        (lambda table, options: table.episodes["mine"], "episodes.mine"),
        (lambda table, options: table.tokens["mine"], "tokens.mine"),
        (lambda table, options: {}["mine"], ""),
        (lambda table, options: table.turns[3], ""),
        (lambda table, options: 1 / 0, ""),
    ],
)
def test_an_estimator_is_run_on_the_columns_that_there_are(read: Any, missing: str) -> None:
    check, own = columns.check_read_columns, estimator(factory=read, native=False)
    if missing:
        refuses(check, f"reads the column {missing!r}", {}, **own)
    else:
        passes(check, {}, **own)
    passes(check, {}, **estimator(factory=read, native=True))


def test_the_table_of_that_run_is_a_small_batch() -> None:
    table = columns._table(["tokens.switch", "judge", "reward"], {"planner": 0, "executor": 1})
    assert table["group"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1] and table["episode"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert table["turn"].tolist() == [0, 1] * 4 and table["level"].tolist() == table["role"].tolist() == [0, 1] * 4
    assert table["n_tokens"].tolist() == [2] * 8 and table["tokens.turn"].tolist() == sorted([*range(8)] * 2)
    assert table["tokens.switch"].tolist() == [True, True, False, False] * 4 and table["judge"].tolist() == [0, 1] * 4
    assert not table["tokens.logprob"].any() and table["reward"].tolist() == [0, 0.5, 1, 0, 0.5, 1, 0, 0.5]
    assert (
        table["anchor"].tolist() == [0, 1] * 4 and table.anchors == ("s0", "s1") and table.code("role", "executor") == 1
    )


# Models


def folder_of(path: Path, config: Mapping[str, Any], *files: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"architectures": ["A"], **config}))
    for name in files or ("tokenizer.json",):
        (path / name).write_text("{}")
    return path


def test_a_model_is_a_folder_or_a_name_on_a_hub(tmp_path: Path) -> None:
    for name, size in (
        ("Qwen/Qwen2.5-0.5B", 500_000_000),
        ("a/b-135m-chat", 135_000_000),
        ("a/b", None),
        ("7b/x_3bx", None),
    ):
        found = model_facts({"path": name}, "m")
        assert (found.parameters, found.local, found.missing) == (size, None, False)
    for bad in ("nowhere", "./a/b", "a/b/c", "a b/c"):
        with pytest.raises(RecipeError, match=r"m\.path: there is no model at"):
            model_facts({"path": bad}, "m")
    with pytest.raises(RecipeError, match=r"has no config\.json"):
        model_facts({"path": str(tmp_path)}, "m")
    for named in (None, [], ["A", "B"], "A"):
        folder_of(tmp_path / "n", {"architectures": named})
        with pytest.raises(RecipeError, match="has to name one class"):
            model_facts({"path": str(tmp_path / "n")}, "m")
    bare = folder_of(tmp_path / "bare", {}, "other.txt")
    with pytest.raises(RecipeError, match="has no tokenizer files"):
        model_facts({"path": str(bare)}, "m")
    whole = folder_of(tmp_path / "whole", {})
    assert model_facts({"path": str(bare), "tokenizer_path": str(whole)}, "m").local == bare
    assert model_facts({"path": str(bare), "tokenizer_path": "on/hub"}, "m").local == bare


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"])
def test_any_file_of_a_tokenizer_will_do(tmp_path: Path, name: str) -> None:
    assert model_facts({"path": str(folder_of(tmp_path / "m", {}, name))}, "m").parameters is None


def test_parameters_are_counted_in_weights_or_else_from_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "vocab_size": 10, "num_attention_heads": 2}
    layer = 8 * (2 * 2 * 4 + 2 * 8) + 3 * 8 * 32 + 2 * 8
    model = folder_of(tmp_path / "m", sizes)

    def count(**given: Any) -> int | None:
        folder_of(model, {**sizes, **given})
        return model_facts({"path": str(model)}, "m").parameters

    assert count() == 10 * 8 * 2 + 3 * layer + 8
    assert count(tie_word_embeddings=True) == 10 * 8 + 3 * layer + 8
    assert count(intermediate_size=5) == 10 * 8 * 2 + 3 * (8 * 32 + 3 * 8 * 5 + 16) + 8
    assert count(num_key_value_heads=1) == 10 * 8 * 2 + 3 * (8 * (2 * 2 * 4 + 2 * 4) + 3 * 8 * 32 + 16) + 8
    assert count(head_dim=6) == 10 * 8 * 2 + 3 * (8 * (2 * 2 * 6 + 2 * 12) + 3 * 8 * 32 + 16) + 8
    assert count(num_attention_heads=0) is count(hidden_size="x") is None
    header = json.dumps({"__metadata__": {}, "a": {"shape": [2, 3]}, "b": {"shape": []}}).encode()
    (model / "one.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert count() == 7
    (model / "two.safetensors").write_bytes(struct.pack("<Q", 10**9) + header)
    (model / "three.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]")
    assert count() == 7
    assert model_checks.LONGEST_HEADER == 100 * 2**20, "as in the library safetensors"
    monkeypatch.setattr(model_checks, "LONGEST_HEADER", len(header))
    assert count() == 7
    monkeypatch.setattr(model_checks, "LONGEST_HEADER", len(header) - 1)
    assert count() == 10 * 8 * 2 + 3 * layer + 8


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (None, "size unknown"),
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (203_400, "203k"),
        (10**6, "1M"),
        (10**9, "1B"),
        (1_540_000_000, "1.54B"),
    ],
)
def test_sizes_are_said_in_words(parameters: int | None, words: str) -> None:
    assert ModelFacts("m", None, parameters).size == words


def test_a_chat_template_is_in_a_file_or_in_the_tokenizer(tmp_path: Path) -> None:
    assert has_chat_template(ModelFacts("a/b", None, None))
    model = folder_of(tmp_path / "m", {}, "tokenizer_config.json")
    facts = ModelFacts("m", model, None)
    assert not has_chat_template(facts)
    (model / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert has_chat_template(facts)
    (model / "tokenizer_config.json").write_text("[]")
    assert not has_chat_template(facts)
    (model / "chat_template.jinja").touch()
    assert has_chat_template(facts)


# What a machine lacks

HUNDRED = ModelFacts("m", None, 100)


def test_memory_is_counted_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = {"trainer.device": "cpu", ACTOR + "use_kl_loss": False, "algorithm.use_kl_in_reward": False, **WITHOUT}
    needed = machine.memory_of(recipe(cpu), HUNDRED)
    assert (
        needed is not None
        and needed["actor_rollout_ref.model.path"] == 100 * (16 + 4)
        and needed["critic.model.path"] == 0
    )
    reference = machine.memory_of(recipe({**cpu, ACTOR + "use_kl_loss": True}), HUNDRED)
    assert reference is not None and reference["actor_rollout_ref.model.path"] == 100 * (16 + 8)
    unknown = machine.memory_of(recipe(cpu), ModelFacts("m", None, None))
    assert unknown is not None and unknown["actor_rollout_ref.model.path"] == 0
    gpu = {**cpu, "trainer.device": "cuda", "trainer.n_gpus_per_node": 2, "actor_rollout_ref.model.lora_rank": 0}
    assert machine.memory_of(recipe(gpu), HUNDRED) is machine.accelerator_memory_of(recipe(cpu), HUNDRED) is None
    assert machine.accelerator_memory_of(recipe(gpu), ModelFacts("m", None, None)) is None

    def held(lines: Mapping[str, Any]) -> Any:
        return machine.accelerator_memory_of(recipe({**gpu, **lines}), HUNDRED)

    assert held({}) == {"policy": 800}
    assert held({ACTOR + "use_kl_loss": True}) == {"policy": 800, "reference": 200}
    assert held({ACTOR + "use_kl_loss": True, "actor_rollout_ref.model.lora_rank": 8}) == {"policy": 200}
    critic = {**CRITIC, "critic.model": {"path": "a/b-1m"}}
    assert held(critic) == {"policy": 800, "critic": 8_000_000}
    assert held({**critic, "hier.replay": ReplayOptions()}) == {"policy": 800, "critic": 10_000_000}
    assert held({**critic, "critic.model": {"path": "a/b"}}) is None


OTHER = "a/b-1m"
"""A model of the hub whose name says that it has a million parameters."""


@pytest.mark.parametrize(
    ("policies", "lines", "held"),
    [
        ({}, {}, {"policy": 800}),
        ({"b": PolicyOptions(("x",))}, {}, {"policy": 800, "policy b": 800}),
        (
            {"b": PolicyOptions(("x",))},
            {ACTOR + "use_kl_loss": True},
            {"policy": 800, "reference": 200, "policy b": 1000},
        ),
        ({"b": PolicyOptions(("x",), model=OTHER)}, {}, {"policy": 800, "policy b": 8_000_000}),
        (
            {"b": PolicyOptions(("x",)), "c": PolicyOptions(("y",), model=OTHER)},
            {"trainer.n_gpus_per_node": 4},
            {"policy": 400, "policy b": 400, "policy c": 4_000_000},
        ),
        # The weights below adapters are there once; the adapters are small beside them.
        ({"b": PolicyOptions(("x",), "adapter")}, {"actor_rollout_ref.model.lora_rank": 8}, {"policy": 200}),
        ({"b": PolicyOptions(("x",), "none", url="http://localhost/v1")}, {}, {"policy": 800}),
    ],
)
def test_every_policy_with_weights_of_its_own_is_on_the_accelerators(
    policies: dict[str, PolicyOptions], lines: dict[str, Any], held: dict[str, int]
) -> None:
    gpu = {"trainer.device": "cuda", "trainer.n_gpus_per_node": 2, "actor_rollout_ref.model.lora_rank": 0, **WITHOUT}
    without = {ACTOR + "use_kl_loss": False, "algorithm.use_kl_in_reward": False}
    made = recipe({**gpu, **without, **lines, "hier.policies": policies})
    assert machine.accelerator_memory_of(made, HUNDRED) == held
    assert machine.memory_of(made, HUNDRED) is None


def test_every_policy_that_learns_has_processes_on_a_cpu() -> None:
    cpu = {"trainer.device": "cpu", **WITHOUT}

    def processes(policies: dict[str, PolicyOptions]) -> int:
        found = machine.memory_of(recipe({**cpu, "hier.policies": policies}), HUNDRED)
        assert found is not None
        return found["trainer.n_gpus_per_node"] // resources.PROCESS_BYTES

    assert "hier.policies" not in (machine.memory_of(recipe(cpu), HUNDRED) or {"hier.policies": 0})
    held = machine.memory_of(recipe({**cpu, "hier.policies": {"b": PolicyOptions(("x",))}}), HUNDRED)
    assert held is not None and held["hier.policies"] > 0
    alone = processes({})
    assert processes({"b": PolicyOptions(("x",))}) == alone + 2
    assert processes({"b": PolicyOptions(("x",), "adapter")}) == alone + 1
    assert processes({"b": PolicyOptions(("x",), "none")}) == alone


def why(found: Any) -> list[str]:
    return [each.why for each in found]


def test_what_a_machine_lacks_is_said_with_its_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cpu = {"trainer.device": "cpu", **WITHOUT}
    needed = machine.memory_of(recipe(cpu), HUNDRED)
    assert needed is not None
    whole = sum(needed.values())
    monkeypatch.setattr(machine, "available_bytes", lambda: whole)
    assert why(machine._memory(recipe(cpu), HUNDRED)) == []
    monkeypatch.setattr(machine, "available_bytes", lambda: whole - 1)
    (said,) = why(machine._memory(recipe(cpu), HUNDRED))
    assert said.startswith("trainer.n_gpus_per_node: this plan needs about") and "take fewer processes there" in said
    (said,) = why(machine._memory(recipe(cpu), ModelFacts("m", None, 10**12)))
    assert said.startswith("actor_rollout_ref.model.path") and "take a smaller model" in said and "TiB" not in said
    assert why(machine._memory(recipe({**cpu, "trainer.device": "cuda"}), HUNDRED)) == []

    package = spec_of("environment", modules=("nowhere_at_all",), extra="extra")
    (said,) = why(machine._environment(recipe({}, **package)))
    assert "`pip install 'verl-hier[extra]'` brings it" in said
    (found,) = machine._environment(recipe({}, **spec_of("environment", modules=("nowhere_at_all",), extra="")))
    assert "install it, or let hier.rollout.process.python" in found.why and found.commands == ()
    other = {"hier.rollout.process": ProcessOptions(python="no/such/python")}
    (said,) = why(machine._environment(recipe(other, **package)))
    assert "there is no interpreter no/such/python" in said
    assert why(machine._environment(recipe({}, **spec_of("environment", modules=("json",))))) == []

    (found,) = machine._server(recipe({ROLLOUT + "name": "sglang"}))
    assert found.commands == ("pip install 'verl-hier[sglang]'",)
    assert why(machine._server(recipe({ROLLOUT + "name": "transformers"}))) == []

    several = {"trainer.device": "cuda", "trainer.nnodes": 2, "ray_kwargs.ray_init": {}}
    (found,) = machine._gpus(recipe(several))
    assert "2 nodes need a Ray cluster" in found.why and len(found.commands) == 2
    assert why(machine._gpus(recipe({**several, "ray_kwargs.ray_init": {"address": "auto"}}))) == []
    assert why(machine._gpus(recipe({**several, "trainer.device": "cpu"}))) == []

    (found,) = machine._model(recipe({}), ModelFacts("runs/x", None, None, missing=True), ("make it",))
    assert found.commands == ("make it",) and "there is no model at 'runs/x' yet; make it with `make it`" in found.why
    assert why(machine._model(recipe({}), ModelFacts("x", tmp_path, None), ())) == []

    stock = {DATA + "custom_cls": {"path": None, "name": None}, DATA + "val_files": []}
    lacks = why(machine._data(recipe({**stock, DATA + "train_files": [str(tmp_path / "a.parquet")]})))
    assert lacks == [f"data.train_files: there is no file {tmp_path / 'a.parquet'}."]


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 2))
    monkeypatch.setitem(sys.modules, "torch", there)  # to import it takes longer than all of these tests
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    lines = {"trainer.device": "cuda", "trainer.nnodes": 1, "ray_kwargs.ray_init": {}}
    assert why(machine._gpus(recipe({**lines, "trainer.n_gpus_per_node": 2}))) == []
    (said,) = why(machine._gpus(recipe({**lines, "trainer.n_gpus_per_node": 3})))
    assert "asks for 3 GPUs and this machine has 2" in said


# What a check says


def test_the_notes_of_a_recipe() -> None:
    def said(lines: Mapping[str, Any], **given: Any) -> str:
        return " ".join(checking._notes(recipe(lines, **given)))

    batch, mini = DATA + "train_batch_size", ACTOR + "ppo_mini_batch_size"
    assert "does not divide" not in said({batch: 8, mini: 4})
    assert "is cut into 2 equal part(s)" in said({batch: 9, mini: 4}) and "into 1 equal part(s)" in said(
        {batch: 3, mini: 4}
    )
    assert "does not divide" not in said({batch: 9, mini: 4, "hier.update.mini_batch.prompts": 4})
    assert "sglang is not installed on this machine" in said({ROLLOUT + "name": "sglang"})
    assert "'nowhere_at_all' is not installed" in said({}, **spec_of("environment", modules=("nowhere_at_all",)))
    assert "mine" in said({}, **spec_of("sampler", notes=lambda options: ["mine"]))


def test_what_learns_beside_the_parts_is_listed() -> None:
    def said(lines: Mapping[str, Any]) -> dict[str, str]:
        found = dict(checking._further(recipe({**WITHOUT, ACTOR + "use_kl_loss": False, **lines})))
        assert found.pop("rollouts").startswith("stored, at most ")
        return found

    assert said({}) == {}
    critic = {**CRITIC, "critic.model.path": "c"}
    assert said(critic) == {"critic": "c, a value of each token"}
    assert (
        said({**critic, "hier.value_heads": {"low": 1.0, "high": 0.5}})["critic"]
        == "c, heads low (weight 1), high (weight 0.5)"
    )
    assert said({ACTOR + "use_kl_loss": True}) == {"reference": "a frozen copy of the policy's first weights"}
    assert said({"hier.replay": ReplayOptions(transitions=7)})["second model"] == "replay  transitions=7"
    assert said({"hier.process_reward": ProcessRewardOptions()})["second model"] == "process_reward"
    kept = said({"hier.self_imitation": SelfImitationOptions(max_age=3)})
    assert kept == {"self-imitation": "max_age=3"}
    assert said({"hier.probes": {"feedback": {}}}) == {"probe feedback": "with its defaults"}
    assert said({"actor_rollout_ref.model.lora_rank": 8}) == {"adapter": "of rank 8, which every role shares"}


def test_long_options_are_shortened() -> None:
    @dataclass(frozen=True)
    class Options:
        a: int = 1
        text: str = ""
        many: tuple[int, ...] = field(default_factory=tuple)

    assert checking._options(Options()) == ""
    assert checking._options(Options(2, "x" * 40)) == f"a=2, text={'x' * 40}"
    assert checking._options(Options(text="y\n" * 20 + "z")) == f"text={'y ' * 18}y…"
    assert checking._options(Options(many=(1,))) == "many=(1,)"


def test_sharing_is_that_of_episodes_and_roots() -> None:
    lines = {ROLLOUT + "n": 4, DATA + "max_prompt_length": 100, DATA + "max_response_length": 50}
    for roots, found in ((None, 4), (lambda options, n: 2, 2), (lambda options, n: 0, 1), (lambda options, n: 9, 4)):
        shared = expected_sharing(recipe(lines, **spec_of("sampler", episodes=None, roots=roots)))
        assert (shared.rows, shared.roots, shared.response, shared.prompts[1]) == (4, found, 50, 100)
    text = str(ExpectedSharing((10, 100), 50, 4, 2, True))
    assert text.startswith("engine: tree forwards ") and ", 2 of them with the first half of another one's" in text
    assert "would forward" in str(ExpectedSharing((10, 100), 50, 4, 4, False)) and "half" not in str(
        ExpectedSharing((10, 100), 50, 4, 4, True)
    )


def test_a_recipe_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(HierError, match="himac_alfworld"):
        compose("himac_alfwold")


def test_a_template_is_there_where_chats_are_rendered(tmp_path: Path) -> None:
    bare = ModelFacts("m", folder_of(tmp_path / "m", {}), None)
    hier = base().hier
    checking._check_template(replace(hier, rollout=replace(hier.rollout, template="plain")), bare)
    chat = replace(hier, rollout=replace(hier.rollout, template="chat"))
    checking._check_template(chat, ModelFacts("a/b", None, None))
    with pytest.raises(RecipeError, match=r"hier\.rollout\.template: the tokenizer of 'm' has no chat template"):
        checking._check_template(chat, bare)


def test_episodes_have_the_limits_of_the_block_or_of_verls_rows() -> None:
    lines = {"hier.rollout.max_turns": 3, "hier.rollout.max_tokens_per_turn": 4, "hier.rollout.quote_characters": 5}
    rows_of_verl = {
        ROLLOUT + "prompt_length": 100,
        ROLLOUT + "response_length": 50,
        "hier.rollout.context_tokens": None,
    }
    assert recipe({**lines, **rows_of_verl}).limits == Limits(3, 4, 150, 5)
    assert recipe({**lines, **rows_of_verl, "hier.rollout.context_tokens": 70}).limits == Limits(3, 4, 70, 5)


def test_only_token_columns_that_are_read_travel() -> None:
    def lists(**reads: Any) -> list[str]:
        schedule = spec_of("schedule", reads=reads.pop("schedule", ()))
        return recipe({}, **estimator(**{"requires": (), "reads": (), **reads}), **schedule).token_lists

    assert lists() == lists(requires=("reward",)) == []
    assert lists(requires=("tokens.logprob",)) == lists(schedule=("tokens.logprob",)) == ["logprobs"]
    assert lists(reads=("tokens.entropy", "tokens.logprob")) == ["logprobs", "entropy"]

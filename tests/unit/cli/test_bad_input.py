"""Bad input through the real command line: one clear sentence, exit code 2, and nothing was started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from tests.fixtures.distributions import Install, estimator_source, model_folder, write_distribution
from verl_hier.cli.main import main
from verl_hier.ops import training
from verl_hier.verl_facts.versions import verl_problem

Refused = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], model: Path) -> Refused:
    """Run `verl-hier train himac_alfworld …`, which must end before anything runs; returns its sentence."""

    def started(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a process was started")

    monkeypatch.setattr(training, "launch", started)

    def run(*overrides: str, recipe: str = "himac_alfworld", path: Path | None = None) -> str:
        place = f"actor_rollout_ref.model.path={path or model}"
        monkeypatch.setattr(sys, "argv", ["verl-hier", "train", recipe, place, *overrides])
        children = set(psutil.Process().children(recursive=True))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert set(psutil.Process().children(recursive=True)) <= children
        assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
        error = capfd.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("verl-hier: ") and "Traceback" not in error
        return error.removeprefix("verl-hier: ")

    return run


# ---- the nine of the first issue ---------------------------------------------------------------------------------


def test_unknown_plugin(refused: Refused) -> None:
    sentence = refused("hier.plugins.bultin=true")
    assert sentence.startswith("hier.plugins.bultin: no installed plugin") and "did you mean 'builtin'?" in sentence


def test_two_plugins_claiming_one_name(refused: Refused, install: Install) -> None:
    install("first-dist", {"first": "first_plugin"}, {"first_plugin.py": estimator_source("same")}, version="1.1")
    install("second-dist", {"second": "second_plugin"}, {"second_plugin.py": estimator_source("same")}, version="2.2")
    sentence = refused("hier.plugins.first=true", "hier.plugins.second=true")
    assert "two plugins provide the estimator 'same'" in sentence
    assert "first-dist 1.1" in sentence and "second-dist 2.2" in sentence and "disable one with" in sentence


def test_a_stranger_that_claims_a_built_in_name(refused: Refused, install: Install) -> None:
    install("clash-dist", {"clash": "clash_plugin"}, {"clash_plugin.py": estimator_source("himac")})
    sentence = refused("hier.plugins.clash=true")
    assert "'himac'" in sentence and "clash-dist 1.0" in sentence and "verl-hier" in sentence


def test_a_plugin_that_raises_at_import(refused: Refused, install: Install) -> None:
    install("boom-dist", {"boom": "boom_plugin"}, {"boom_plugin.py": "raise OSError('no licence file')"})
    sentence = refused("hier.plugins.boom=true")
    for part in ("'boom'", "boom-dist 1.0", "OSError: no licence file", "hier.plugins.boom: false"):
        assert part in sentence


def test_unknown_option(refused: Refused) -> None:
    assert "hier.sampler.plan: 'nested' has no option 'plan' (did you mean 'plans'?)" in refused("hier.sampler.plan=4")


def test_mistyped_option(refused: Refused) -> None:
    assert refused("hier.sampler.plans=many").startswith("hier.sampler.plans: expected int, got 'many'")


def test_option_that_the_part_itself_refuses(refused: Refused) -> None:
    assert "'alternating' refuses these options: period must be at least 1" in refused("hier.schedule.period=0")


def test_a_bound_of_an_option(refused: Refused) -> None:
    assert refused("hier.sampler.plans=0") == "hier.sampler.plans: must be at least 1, got 0."


def test_a_column_that_nobody_provides(refused: Refused, install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import EstimatorSpec

        @hookimpl
        def hier_estimators():
            return [EstimatorSpec("needy", lambda table, options: None, requires=("group", "colour"))]
        """
    install("needy-dist", {"needy": "needy_plugin"}, {"needy_plugin.py": source})
    sentence = refused("hier.plugins.needy=true", "hier.estimator={name: needy}")
    assert sentence.startswith("hier.estimator.name: estimator 'needy' needs the column 'colour'")
    assert "hier.worker.name" in sentence


def test_a_column_that_an_installed_part_would_provide(refused: Refused, install: Install) -> None:
    source = """
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import EstimatorSpec, WorkerSpec

        @hookimpl
        def hier_estimators():
            return [EstimatorSpec("needy", lambda table, options: None, requires=("colour",))]

        @hookimpl
        def hier_workers():
            return [WorkerSpec("painter", dict, provides=("colour",))]
        """
    install("needy-dist", {"needy": "needy_plugin"}, {"needy_plugin.py": source})
    sentence = refused("hier.plugins.needy=true", "hier.estimator={name: needy}")
    assert "Installed parts that provide it: hier.worker.name: painter." in sentence


@pytest.mark.slow
@pytest.mark.parametrize("package", ["alfworld", "textworld"])
def test_an_environment_whose_package_is_missing(package: str, model: Path) -> None:
    """In a process where the package cannot be imported: the plugin still loads, and the check names the extra."""
    code = (
        f"import sys; sys.modules[{package!r}] = None; "
        f"sys.argv = ['verl-hier', 'train', 'quickstart', 'actor_rollout_ref.model.path={model}']; "
        "from verl_hier.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"verl-hier: hier.environment.name: 'alfworld' needs the Python package {package!r}, which is not installed; "
        "`pip install 'verl-hier[alfworld]'` brings it."
    ]


def test_another_interpreter_without_the_environments_package(refused: Refused, tmp_path: Path) -> None:
    sentence = refused("hier.rollout.process.python=/no/such/python")
    assert sentence.startswith("hier.rollout.process.python: there is no interpreter /no/such/python; ")
    venv.create(tmp_path, symlinks=True)
    sentence = refused(f"hier.rollout.process.python={tmp_path}/bin/python")
    assert f"'alfworld' needs the Python package 'alfworld', which {tmp_path}/bin/python does not have" in sentence


def test_n_that_does_not_fit_the_sampler(refused: Refused) -> None:
    sentence = refused("actor_rollout_ref.rollout.n=1")
    assert sentence.startswith("actor_rollout_ref.rollout.n: the nested sampler") and "got 1" in sentence


def test_groups_of_one(refused: Refused) -> None:
    sentence = refused("actor_rollout_ref.rollout.n=1", recipe="grpo_alfworld")
    assert "estimator 'grpo' compares the episodes of a task" in sentence and "at least 2" in sentence


def test_verl_outside_the_tested_range(tmp_path: Path, model: Path) -> None:
    """In a process of its own, with a distribution that says it is verl 0.12."""
    fake = write_distribution(tmp_path / "fake", "verl", {}, {}, version="0.12.0")
    (fake / "verl-0.12.0.dist-info" / "entry_points.txt").unlink()
    command = [
        sys.executable,
        "-m",
        "verl_hier.cli.main",
        "train",
        "quickstart",
        f"actor_rollout_ref.model.path={model}",
    ]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(fake)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "verl-hier: verl 0.12.0 is outside the range that verl-hier was tested with (>=0.9.1,<0.10); "
        "`pip install 'verl>=0.9.1,<0.10'`, or upgrade verl-hier."
    ]


def test_a_trl_beside_which_verl_loads_no_model(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL up to 1.0 has the class at one of two places; 1.16 has it at neither."""
    home = tmp_path / "trl" / "experimental" / "ppo"
    home.mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    sentence = refused()
    assert "loads no model beside the installed trl" in sentence and sentence.endswith("an environment of its own.")
    for old in (home / "__init__.py", tmp_path / "trl" / "__init__.py"):
        old.write_text("class AutoModelForCausalLMWithValueHead: ...")
        assert verl_problem() == ""
        old.write_text("")


def test_no_free_memory_for_the_plan(refused: Refused, tmp_path: Path) -> None:
    huge = model_folder(tmp_path / "huge", hidden=32768, layers=200)
    sentence = refused(path=huge)
    assert "this plan needs about" in sentence and "GiB are free" in sentence
    assert sentence.startswith("actor_rollout_ref.model.path: ") and sentence.endswith("take a smaller model.")


def test_too_many_processes_for_the_memory(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_hier.recipe.checks.machine.available_bytes", lambda: 2**30)
    assert "1.0 GiB are free" in refused()


# ---- further ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("data.train_batchsize=4",), "data has no key 'train_batchsize' (did you mean 'train_batch_size'?)"),
        (("hier/size=big",), "hier/size: there is no 'big'; it has cluster, cpu, node."),
        (("trainer.v1.trainer_mode=sync",), "trainer.v1.trainer_mode: 'sync' is not a trainer of verl-hier"),
        (("trainer.use_v1=false",), "trainer.use_v1: "),
        (("hier.estimator.name=himca",), "hier.estimator.name: no enabled plugin provides an estimator called 'himca'"),
        (("hier.plugins.himac=false",), "the plugin 'himac' is installed but off"),
        (("hier.wroker={name: react}",), "hier.wroker: the hier block has no option 'wroker'"),
        (("hier.schedule.levels=[0,2]",), "hier.schedule.levels: schedule 'alternating' works on levels 0 and 2"),
        (
            ("hier/method=grpo", "hier/prompt=react", "hier.schedule={name: alternating}"),
            "hier.schedule.levels: schedule 'alternating' works on levels 0 and 1, but worker 'react' has only level 0",
        ),
        (("hier/method=grpo",), "hier.worker.planner_prompt: 'react' has no option 'planner_prompt'"),
        (("algorithm.use_kl_in_reward=true",), "algorithm.use_kl_in_reward: estimator 'himac'"),
        (("hier.environment={name: prompt}",), "data.custom_cls: environment 'prompt' makes no tasks"),
        (("data.train_batch_size=1024",), "a step takes 1024 tasks, and environment 'alfworld' has 480 in train"),
        (
            ("data.val_files=nonsense",),
            "environment 'alfworld' has no split 'nonsense'; it has train, val",
        ),
        (
            ("hier.worker={name: react}",),
            "estimator 'himac' works on levels 0 and 1, but worker 'react' has only level 0",
        ),
        (("hier.rollout.max_tokens_per_turn=4096",), "hier.rollout.max_tokens_per_turn: a turn may take 4096 tokens"),
        (("hier.rollout.context_tokens=100000",), "hier.rollout.context_tokens: 100000 tokens do not fit"),
        (("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64",), "a micro-batch must hold the longest row"),
        (("actor_rollout_ref.rollout.tensor_model_parallel_size=2",), "tensor_model_parallel_size: 2 processes"),
        (("data.train_batch_size=0",), "data.train_batch_size: expected a whole number of at least 1, got 0"),
        (("ray_kwargs.ray_init.num_cpus=2",), "ray_kwargs.ray_init.num_cpus: this plan's processes reserve at least"),
        (("ray_kwargs.ray_init.num_gpus=0",), "ray_kwargs.ray_init.num_gpus: "),
        (("ray_kwargs.ray_init.address=auto",), "ray_kwargs.ray_init.num_cpus: Ray takes no such number for a cluster"),
        (("trainer.v1.trainer_mode=hier_separate_async",), "trainer.v1.separate_async.parameter_sync_step"),
        (
            ("actor_rollout_ref.actor.loss_agg_mode=sum",),
            "actor_rollout_ref.actor.loss_agg_mode: 'sum' is not one of",
        ),
        (("+actor_rollout_ref.rollout.colour=red",), "actor_rollout_ref.rollout of verl has no key 'colour'"),
        (("actor_rollout_ref.model.lora_alpha=red",), "actor_rollout_ref.model.lora_alpha: expected a number above 0"),
        (("actor_rollout_ref.rollout.name=vllm",), "vllm is not installed here"),
    ],
)
def test_refused(refused: Refused, overrides: tuple[str, ...], words: str) -> None:
    assert words in refused(*overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("actor_rollout_ref.rollout.n=8",), "actor_rollout_ref.rollout.n: 4 designs x 4 executions are 16 episodes"),
        (("hier.worker.roles.find.tools=[fly]",), "roles.find.tools: 'fly' is not among `tools`"),
        (("hier.worker.roles.designer={}",), "roles: 'designer' cannot be the name of a role"),
        (("hier.worker.roles.find.tool=act",), "hier.worker.roles.find.tool: hier.worker.roles.find has no option"),
        (("hier.schedule={name: stagewise, levels: [1]}",), "levels must name at least two different levels"),
        (
            ("hier.schedule={name: stagewise, inactive_weight: 0.0}",),
            "hier.schedule.inactive_weight: must be above 0 and at most 1",
        ),
        (("hier.schedule={name: bottom_up, levels: [2, 0]}",), "hier.schedule.levels: schedule 'bottom_up' works on"),
        (
            ("hier.schedule={name: bottom_up, roles: [solver, designer]}",),
            "hier.schedule.roles: worker 'designer_executor' has no role 'solver'; it has designer, executor.",
        ),
        (("hier.schedule={name: bottom_up, steps: []}",), "2 stages need 1 numbers of steps"),
        (
            ("hier.curriculum.horizons=[1,2]",),
            "hier.curriculum: hier.curriculum refuses these options: 2 stages need 1 numbers",
        ),
        (("hier.curriculum.horizons=[0]",), "hier.curriculum.horizons[0]: must be at least 1, got 0"),
        (("hier.curriculum={horizons: [1, 2], steps: [0]}",), "hier.curriculum.steps[0]: must be at least 1, got 0"),
    ],
)
def test_designs_stages_and_horizons_refused(refused: Refused, overrides: tuple[str, ...], words: str) -> None:
    assert words in refused(*overrides, recipe="metaagentx_alfworld")


def test_a_model_that_is_not_there(refused: Refused, tmp_path: Path) -> None:
    assert "there is no model at" in refused(path=tmp_path / "nowhere")


def test_a_model_without_a_tokenizer(refused: Refused, tmp_path: Path) -> None:
    bare = model_folder(tmp_path / "bare")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (bare / file).unlink()
    assert "has no tokenizer files" in refused(path=bare)


@pytest.mark.parametrize("named", [None, [], ["LlamaForCausalLM", "Qwen2ForCausalLM"], "LlamaForCausalLM"])
def test_a_model_that_does_not_name_its_class(refused: Refused, tmp_path: Path, named: object) -> None:
    nameless = model_folder(tmp_path / "nameless")
    (nameless / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": named}))
    assert "has to name one class" in refused(path=nameless)


def test_a_tokenizer_without_a_chat_template(refused: Refused, tmp_path: Path) -> None:
    plain = model_folder(tmp_path / "plain", chat=False)
    assert "hier.rollout.template: the tokenizer of" in refused("hier.rollout.template=chat", path=plain)


def part(install: Install, hook: str, spec: str, expression: str) -> None:
    source = f"""
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import {spec}

        @hookimpl
        def {hook}():
            return [{spec}("mine", lambda *a: None, {expression})]
        """
    install("mine-dist", {"mine": "mine_plugin"}, {"mine_plugin.py": source})


def test_an_estimator_without_its_critic(refused: Refused, install: Install) -> None:
    part(install, "hier_estimators", "EstimatorSpec", "requires=('value',), needs_critic=True")
    assert "critic.enable" in refused("hier.plugins.mine=true", "hier.estimator={name: mine}")


def test_an_estimator_without_its_tree(refused: Refused, install: Install) -> None:
    part(install, "hier_estimators", "EstimatorSpec", "needs_tree=True")
    sentence = refused("hier.plugins.mine=true", "hier.estimator={name: mine}", recipe="grpo_alfworld")
    assert "needs turns with several children" in sentence and "nested" in sentence


def test_a_world_that_cannot_fork(refused: Refused, install: Install) -> None:
    part(install, "hier_environments", "EnvironmentSpec", "fork='never'")
    assert "cannot fork" in refused("hier.plugins.mine=true", "hier.environment={name: mine}")


def test_a_server_without_top_logprobs(refused: Refused, install: Install) -> None:
    part(install, "hier_samplers", "SamplerSpec", "needs_top_logprobs=True")
    sentence = refused("hier.plugins.mine=true", "hier.sampler={name: mine}", "actor_rollout_ref.rollout.name=vllm")
    assert "the rollout server 'vllm' does not return" in sentence and "transformers" in sentence


def test_a_server_that_scores_nothing(refused: Refused) -> None:
    server = "actor_rollout_ref.rollout.name=trtllm"
    sentence = refused("hier.sampler={name: rollback}", server, recipe="grpo_alfworld")
    assert sentence == (
        "actor_rollout_ref.rollout.name: sampler 'rollback' needs the log-probs of given tokens, which the rollout "
        "server 'trtllm' does not return; use one of `vllm`, `vllm_topk`, `sglang`, `transformers`."
    )
    sentence = refused("hier.rollout.entropy.source=prefill", server)
    assert sentence.startswith("hier.rollout.entropy.source: prefill needs the log-probs of prompts")


def test_entropies_of_likeliest_tokens_that_nobody_returns(refused: Refused) -> None:
    sentence = refused("hier.rollout.entropy.source=top_k", "actor_rollout_ref.rollout.name=sglang")
    assert sentence.startswith("hier.rollout.entropy.source: top_k needs") and "use sampled or prefill" in sentence


@pytest.mark.parametrize("limit", ["tokens", "turns", "environment_calls", "leaves", "wall_s"])
def test_a_zero_budget(refused: Refused, limit: str) -> None:
    sentence = refused(f"hier.rollout.budget.{limit}=0")
    assert sentence.startswith("hier.rollout.budget: ") and f"{limit} must be positive, got 0" in sentence


@pytest.mark.parametrize(
    ("recipe", "n"),
    [
        ("arpo_alfworld", 2),
        ("aepo_alfworld", 2),
        ("tree_grpo_alfworld", 5),
        ("treerl_alfworld", 99),
        ("treepo_alfworld", 1),
        ("latr_alfworld", 1),
        ("portool_alfworld", 0),
        ("metaagentx_alfworld", 3),
    ],
)
def test_n_that_does_not_fit_a_tree(refused: Refused, recipe: str, n: int) -> None:
    sentence = refused(f"actor_rollout_ref.rollout.n={n}", recipe=recipe)
    assert sentence.startswith("actor_rollout_ref.rollout.n: ") and str(n) in sentence


def test_likeliest_tokens_on_a_server_that_returns_none(refused: Refused) -> None:
    sentence = refused("actor_rollout_ref.rollout.name=sglang", recipe="latr_alfworld")
    assert "sampler 'latr' needs the log-probs of the likeliest tokens" in sentence and "'sglang'" in sentence


def test_a_score_that_is_not_there(refused: Refused) -> None:
    sentence = refused("hier.sampler={name: prune, score: 'os.path:nowhere'}", recipe="grpo_alfworld")
    assert sentence == "hier.sampler.score: 'os.path' has no 'nowhere'."


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_hier.errors import RecipeError

    monkeypatch.setattr(sys, "argv", ["verl-hier", "check", "nothing", "--debug"])
    with pytest.raises(RecipeError):
        main()

"""Forms of public data sets through the real trainer: what `check` lets pass is trained, and the rest costs no Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_data_forms import FILES, TOOLS, checked, composed
from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.trainer import Run, Trainer
from verl_hier.graph import read_graphs

pytestmark = pytest.mark.slow

FORMS = {file.stem: file for file in FILES}
REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return sum(map(ord, solution_str)) % 7 / 7
"""
ENVIRONMENTS = {"prompt": "flat", "verl_tools": "tree_grpo_verl_tools"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_byte_model(tmp_path_factory.mktemp("forms") / "model").parent
    (made / "reward.py").write_text(REWARD)
    (made / "tools.py").write_text(TOOLS)
    return made


def trained(train: Trainer, folder: Path, environment: str, form: Path, validated: Path) -> Run:
    """One step on the rows of a form, after a validation on those of another one."""
    lines = [
        f"data.train_files={form}",
        f"data.val_files={validated}",
        f"actor_rollout_ref.model.path={folder}/model",
        f"reward.custom_reward_function.path={folder}/reward.py",
        f"actor_rollout_ref.rollout.n={4 if environment == 'prompt' else 6}",
        "data.train_batch_size=4",
        "data.max_prompt_length=256",
        "data.max_response_length=128",
        "hier.rollout.max_tokens_per_turn=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=true",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.logger=[console,file]",
        f"hier.store.path={train.folder}/graphs",
    ]
    if environment == "verl_tools":
        lines.append(f"actor_rollout_ref.rollout.multi_turn.function_tool_path={folder}/tools.py")
    return train(ENVIRONMENTS[environment], lines, form.stem)


def assert_trained(run: Run, graphs: Path) -> None:
    assert run.code == 0, run.log[-3000:]
    (norm,) = run.metric("actor/grad_norm")
    assert norm > 0 and run.metric("hier/episodes/failed") == [0]
    groups = list(read_graphs(graphs / "step_000001"))
    assert len(groups) == 4 and all(group.complete() for group in groups)
    assert len({node.reward for group in groups for node in group.nodes}) > 1


@pytest.mark.parametrize(
    ("environment", "form", "validated"),
    [("prompt", "dapo_math", "no_extra_info"), ("verl_tools", "search_r1_verl_tool", "search_r1_verl_tool")],
    ids=["an index that is a UUID, and none", "a tool row"],
)
def test_forms_that_pass_the_check_train(
    train: Trainer, folder: Path, tmp_path: Path, environment: str, form: str, validated: str
) -> None:
    run = trained(train, folder, environment, FORMS[form], FORMS[validated])
    assert_trained(run, tmp_path / "graphs")
    assert any(name.startswith("val-core/") for step in run.steps for name in step), "the other form was validated"


def test_a_form_that_the_check_refuses_ends_before_ray_starts(folder: Path, tmp_path: Path) -> None:
    form = FORMS["gsm8k_interaction"]
    command = [sys.executable, "-X", "importtime", "-m", "verl_hier.cli.main", "train", "flat"]
    lines = [
        f"data.train_files={form}",
        f"data.val_files={form}",
        f"actor_rollout_ref.model.path={folder}/model",
        "actor_rollout_ref.rollout.n=4",
    ]
    ended = subprocess.run([*command, *lines], cwd=tmp_path, capture_output=True, text=True)
    said = [line for line in ended.stderr.splitlines() if not line.startswith("import time:")]
    assert ended.returncode != 0 and "| ray\n" not in ended.stderr
    sentence = f"verl-hier: data.train_files: row 0 of {form} asks for an interaction"
    assert len(said) == 1 and said[0].startswith(sentence), said
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains_or_is_refused(
    train: Trainer, folder: Path, tmp_path: Path, environment: str, form: str
) -> None:
    """What `check` refuses, for a row that its sentence names, does not get so far."""
    said = checked(composed(folder, environment, FORMS[form], True))
    if said:
        assert said.startswith("data.train_files: row 0 of")
    else:
        assert_trained(trained(train, folder, environment, FORMS[form], FORMS[form]), tmp_path / "graphs")

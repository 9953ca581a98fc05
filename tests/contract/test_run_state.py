"""What a resumed run has to share with its checkpoint, refused before verl loads anything."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from verl_hier.errors import FileError, RecipeError

pytest.importorskip("verl")
run_state = pytest.importorskip("verl_hier.compat.run_state")


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "global_step_3"
    folder.mkdir()
    run_state.write_state(folder, "joint", {"turn": 2}, ["low", "high"])
    return folder


def test_the_state_of_the_schedule_comes_back(checkpoint):
    assert run_state.read_state(checkpoint, "joint", ["low", "high"]) == {"turn": 2}


@pytest.mark.parametrize(
    ("schedule", "heads", "said"),
    [
        ("alternating", ["low", "high"], "hier.schedule.name: the checkpoint .* was written under 'joint'"),
        ("joint", ["high", "low"], "hier.value_heads: .* has the heads low, high, the recipe the heads high, low;"),
        ("joint", [], "hier.value_heads: .* has the heads low, high, the recipe one value and no heads;"),
    ],
)
def test_what_has_changed_is_refused_in_a_sentence(checkpoint, schedule, heads, said):
    with pytest.raises(RecipeError, match=said):
        run_state.read_state(checkpoint, schedule, heads)


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ({}, r"executor \(train: full\) in .*, and no other one in the recipe;"),
        ({"judge": "full"}, r"executor \(train: full\) in .*, and judge \(train: full\) in the recipe;"),
        ({"executor": "adapter"}, r"executor \(train: full\) in .*, and executor \(train: adapter\) in the recipe;"),
        ({"executor": "full", "judge": "full"}, r"and executor \(train: full\), judge \(train: full\) in the recipe;"),
    ],
)
def test_a_policy_that_was_added_removed_or_renamed_is_refused(tmp_path, policies, said):
    run_state.write_state(tmp_path, "joint", None, [], {"executor": "full"})
    assert run_state.read_state(tmp_path, "joint", [], {"executor": "full"}) is None
    with pytest.raises(RecipeError, match=rf"hier\.policies: .*{said}"):
        run_state.read_state(tmp_path, "joint", [], policies)


def test_a_run_without_policies_writes_what_it_always_wrote(checkpoint):
    assert json.loads((checkpoint / run_state.STATE_FILE).read_text()).keys() == {"schedule", "value_heads"}


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="no hier trainer wrote it"):
        run_state.read_state(tmp_path, "joint", [])


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 10**5, '{"schedule": 1}', '{"schedule": {"name": 1}}', "\xff"])
def test_a_damaged_state_is_refused_in_a_sentence(checkpoint, text):
    (checkpoint / run_state.STATE_FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(FileError, match=r"is damaged|cannot be read"):
        run_state.read_state(checkpoint, "joint", ["low"])


def test_earlier_checkpoints_say_nothing_of_heads(checkpoint):
    held = json.loads((checkpoint / run_state.STATE_FILE).read_text())
    del held["value_heads"]
    (checkpoint / run_state.STATE_FILE).write_text(json.dumps(held))
    assert run_state.read_state(checkpoint, "joint", ["low"]) == {"turn": 2}


def test_it_is_the_checkpoint_that_verl_resumes_from(checkpoint, tmp_path, monkeypatch):
    def found(mode, **more):
        return run_state.checkpoint_of(OmegaConf.create({"resume_mode": mode, "default_local_dir": ".", **more}))

    monkeypatch.chdir(tmp_path)
    assert found("auto") is None and found("disable") is None
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    assert found("auto") == checkpoint and found("disable") is None
    assert found("resume_path", resume_from_path="global_step_3") == checkpoint

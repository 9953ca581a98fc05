"""What a run that goes on says of what has changed since it was begun."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from tests.fixtures.distributions import model_folder
from tests.fixtures.played_trainer import SOURCE
from tests.fixtures.tiers import spread
from verl_hier.errors import RecipeError
from verl_hier.ops.runs import Run
from verl_hier.ops.training import plan_run, start
from verl_hier.recipe import handover
from verl_hier.recipe.catalogue import find

Go = Callable[..., tuple[Run, list[str]]]
LINES = [
    ("data.seed", 5),
    ("hier.seed", 11),
    ("data.train_batch_size", 2),
    ("actor_rollout_ref.actor.optim.lr", 0.5),
    ("actor_rollout_ref.rollout.temperature", 0.3),
]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """`go(resume=…)` trains `mine.yaml`, whose lines are `write(line=value)`'s, or another `recipe`."""
    (tmp_path / "played.py").write_text(SOURCE)
    model = model_folder(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(handover, "MAIN", "played")
    write()
    place = [f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=2", "trainer.save_freq=1"]

    def run(*overrides: str, recipe: str = "mine.yaml", **options: object) -> tuple[Run, list[str]]:
        said: list[str] = []
        given = overrides if options.get("resume") else (*place, *overrides)
        return start(plan_run(recipe, given, name="one", **options), said.append), said

    return run


def write(**lines: object) -> None:
    content = yaml.safe_load(find("grpo_alfworld").text)
    for line, value in lines.items():
        *blocks, key = line.split(".")
        place = content
        for block in blocks:
            place = place.setdefault(block, {})
        place[key] = value
    Path("mine.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


MORE = "trainer.total_training_steps=4"


@pytest.mark.parametrize(("line", "value"), spread(2, LINES))
def test_an_edited_line_is_refused_until_the_command_names_it(go: Go, line: str, value: object) -> None:
    go()
    write(**{line: value})
    with pytest.raises(RecipeError, match=rf"(?s)was begun with something else .*{line}: .* then, {value} now"):
        go(MORE, resume=True)
    run, said = go(MORE, f"{line}={value}", resume=True)
    assert "goes on from step 2" in said[0] and not any("since the run" in text for text in said)
    assert run.step == 4


def test_an_override_that_is_not_repeated_is_missed(go: Go) -> None:
    go("hier.seed=7")
    with pytest.raises(RecipeError, match=r"hier\.seed: 7 then, \d+ now"):
        go("trainer.total_training_steps=4")  # the same --name goes on by verl's rule
    run, _ = go(MORE, resume=True)
    assert run.recipe().hier.seed == 7


def test_what_changes_no_step_is_noted(go: Go) -> None:
    go()
    write(**{"trainer.test_freq": 3})
    _, said = go(MORE, resume=True)
    assert any(text.startswith("since the run was begun: trainer.test_freq: ") for text in said)


def test_a_file_with_other_content_is_refused_until_it_is_named(go: Go, tmp_path: Path) -> None:
    rows = tmp_path / "строки 1.parquet"
    rows.write_bytes(b"first")
    named = f"data.train_files='{rows}'"
    go(named)
    go(MORE, resume=True)
    rows.write_bytes(b"second")
    with pytest.raises(RecipeError, match=r"data\.train_files: .*строки 1\.parquet holds something else than then"):
        go("trainer.total_training_steps=6", resume=True)
    go("trainer.total_training_steps=6", named, resume=True)


def test_a_run_that_was_begun_before_goes_on(go: Go) -> None:
    """Its record has no hashes; a line that newer recipes have and it does not is no difference."""
    run, _ = go()
    record = json.loads((run.folder / "run.json").read_text())
    for key in ("recipe_file", "data"):
        del record[key]
    (run.folder / "run.json").write_text(json.dumps(record))
    kept = yaml.safe_load(run.recipe_file.read_text())
    del kept["hier"]["seed"]
    run.recipe_file.write_text(yaml.safe_dump(kept))
    assert go(MORE, resume=True)[0].step == 4
    (run.folder / "run.json").unlink()
    assert go("trainer.total_training_steps=6", resume=True)[0].step == 6


def test_what_a_newer_verl_hier_has_changed_is_kept_as_recorded(go: Go) -> None:
    run, _ = go()
    kept = yaml.safe_load(run.recipe_file.read_text())
    kept["actor_rollout_ref"]["actor"]["optim"]["lr"] = 0.125
    run.recipe_file.write_text(yaml.safe_dump(kept))
    run, said = go(MORE, resume=True)
    assert run.recipe().actor_rollout_ref.actor.optim.lr == 0.125
    assert any("actor_rollout_ref.actor.optim.lr: the recipe now says" in text for text in said)


def test_a_run_of_a_recipe_that_was_shipped_otherwise_goes_on_with_its_own(go: Go) -> None:
    """IGPO as it was shipped before its authors' reward and mini-batches were: those lines are neither in the run that
    goes on nor hidden from its user."""
    run, _ = go("paper=igpo_search", "data.train_batch_size=4", recipe="igpo_search")
    shipped = run.recipe()
    kept = yaml.safe_load(run.recipe_file.read_text())
    del kept["hier"]["rewards"], kept["hier"]["environment"]["reward"]
    kept["hier"]["environment"]["invalid_penalty"] = 0.1
    kept["hier"]["update"]["mini_batch"] = {"prompts": 4}
    run.recipe_file.write_text(yaml.safe_dump(kept))
    run, said = go(MORE, recipe="igpo_search", resume=True)
    assert run.step == 4
    before, after = (OmegaConf.to_container(held.hier, resolve=True) for held in (OmegaConf.create(kept), run.recipe()))
    assert {name: after[name] for name in before if name != "store"} == {
        name: before[name] for name in before if name != "store"
    }
    assert "rewards" not in after and shipped.hier.rewards.answer.options.wrong_format == -2.0
    changed = "rewards.answer.function", "environment.reward", "environment.invalid_penalty", "update.mini_batch.rows"
    for line in changed:
        assert any(text.startswith(f"since the run was begun: hier.{line}: ") for text in said), line

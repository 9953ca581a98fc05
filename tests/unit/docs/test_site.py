"""The site builds without a warning, and what the README shows works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.byte_model import write_toy_task
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.testing.estimator import check_estimator

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# A recipe of somebody who runs verl and has not heard of us.
STOCK = """\
defaults:
  - ppo_trainer
  - _self_
data:
  train_files: {folder}/tasks.parquet
  val_files: {folder}/tasks.parquet
  train_batch_size: 4
  max_prompt_length: 64
  max_response_length: 16
actor_rollout_ref:
  model: {{path: {folder}}}
  actor: {{ppo_mini_batch_size: 2}}
  rollout: {{name: vllm, n: 4}}
reward: {{custom_reward_function: {{path: {folder}/reward.py, name: compute_score}}}}
"""


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    return found


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    # Without --quiet: under it mkdocs counts no warning, and a strict build passes whatever the pages say.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    assert "Where does it go?" in (tmp_path / "site/where/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("size", ["cpu", "node"])
def test_three_lines_make_a_stock_recipe_a_tree(byte_model, tmp_path, size):
    """The diff of the README, applied to a recipe that names nothing of ours."""
    write_toy_task(byte_model)
    stock = STOCK.format(folder=byte_model)
    lines = block("diff").splitlines()
    before, after = ("\n".join(line[1:] for line in lines if line[0] != sign) + "\n" for sign in "+-")
    assert stock.startswith(before) and len([line for line in lines if line[0] == "+"]) == 3
    file = tmp_path / "mine.yaml"
    file.write_text(stock.replace(before, after))
    config = compose(str(file), [f"+hier/size={size}"])
    check_recipe(config)
    assert config.hier.sampler.name == config.hier.estimator.name == "treepo"


def test_the_readme_is_short_and_its_figures_are_made_by_scripts():
    assert len(README.splitlines()) <= 150
    by_hand = re.sub(r"<!-- generated: .*?<!-- end -->|```.*?```", "", README, flags=re.DOTALL)
    allowed = {"verl 0.9.1", "Python 3.10 to 3.12", "FSDP2", "qwen2.5", "Apache-2.0"}
    for words in allowed:
        by_hand = by_hand.replace(words, "")
    assert re.findall(r"[^\n]*\d[^\n]*", by_hand) == []
    assert "pip install verl-hier" not in README, "it is on no index yet"


def test_the_estimator_of_the_readme_passes_the_kit():
    names: dict = {}
    exec(block("python"), names)
    (spec,) = names["hier_estimators"]()
    check_estimator(spec)

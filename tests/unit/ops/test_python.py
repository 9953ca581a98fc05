"""The functions of `import verl_hier`: light to import, typed, usable in a notebook, with callables as rewards."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import verl_hier
from tests.fixtures.byte_model import write_byte_model
from verl_hier.errors import RecipeError
from verl_hier.graph import read_graphs
from verl_hier.ops.python import _named, _reward_word, as_override
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.rewards.formats import matches, short, valid

SMALL = {"hier.environment.validation": 3, "hier.environment.pool": 2}


def test_the_package_stays_light_and_shows_what_it_has() -> None:
    code = (
        "import sys, verl_hier; assert 'train' in dir(verl_hier); verl_hier.Reward\n"
        "assert not {'torch', 'verl', 'ray', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert verl_hier.HierError.__name__ == "HierError"
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = verl_hier.trian
    stub = Path(verl_hier.__file__).with_suffix(".pyi").read_text()
    assert all(f" {name}" in stub for name in verl_hier.__all__ if name != "__version__"), "the stub names them all"


def test_compose_takes_choices_words_and_mappings() -> None:
    overrides = {"trainer.total_training_steps": 3, "hier.store.path": None, "hier.sampler": {"name": "independent"}}
    config = verl_hier.compose("himac_alfworld", "hier.seed=5", size="cpu", overrides=overrides)
    assert (config.hier.recipe.size, config.hier.seed, config.trainer.total_training_steps) == ("cpu", 5, 3)
    assert config.hier.store.path is None and dict(config.hier.sampler) == {"name": "independent"}
    assert verl_hier.compose("grpo_alfworld", size="node", server="sglang").hier.recipe.server == "sglang"
    with pytest.raises(verl_hier.HierError, match="not offered for size=node"):
        verl_hier.compose("quickstart", size="node")


TEXTS = ["plain", "it's", r"a\d+\'b", "ends with \\", "\\\\", "a, b: {c}", "", "true", "Grüße\n12", '"quoted"', "a=b"]


@pytest.mark.parametrize("value", [*TEXTS, 3, 1e-05, -2.5, True, None, [1, "it's"], {"a": {"b": ["x y", None]}}])
def test_every_value_survives_as_an_override(value: object) -> None:
    config = verl_hier.compose("himac_alfworld", overrides={"+extra": value})
    found = config.extra
    assert (found if not hasattr(found, "_content") else __import__("omegaconf").OmegaConf.to_container(found)) == value


def test_a_policy_is_measured_in_a_running_loop_with_callables_as_rewards(tmp_path: Path) -> None:
    def brief(episode: verl_hier.RatedEpisode) -> float:
        return -float(len(episode.turns))

    async def cell() -> verl_hier.Evaluation:
        return verl_hier.evaluate(
            "expert",
            "himac_alfworld",
            overrides=SMALL,
            tasks=2,
            reward_funcs=[brief, verl_hier.Reward(valid, 0.5, "turn", ("executor",))],
            graphs=tmp_path / "graphs.jsonl",
        )

    result = asyncio.run(cell())
    assert result.success is not None and result.success.mean == 1.0
    assert result.rewards["brief"].mean == -result.turns
    assert result.rewards["valid"].mean == 1.0
    executor = next(role for role in result.roles if role.role == "executor")
    assert result.ret.mean == pytest.approx(1.0 - result.turns + 0.5 * executor.turns)
    for graph in read_graphs(tmp_path / "graphs.jsonl"):
        assert graph.episodes[0].reward_info["brief"] == -len(graph.nodes)
    assert len(verl_hier.roll_out("expert", "himac_alfworld", overrides=SMALL, tasks=[2])) == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tasks": 0}, "tasks must be at least 1, got 0"),
        ({"reward_funcs": [valid, valid]}, "two functions have the same name"),
        ({"reward_funcs": [valid], "reward_weights": [1, 2]}, "2 weights for 1 reward functions"),
        ({"reward_funcs": [verl_hier.Reward(valid, roles=("boss",))]}, "has no role 'boss'"),
        ({"overrides": {"a b": 1}}, "this is no key of a recipe"),
    ],
)
def test_a_wrong_call_is_one_sentence(given: dict, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        verl_hier.evaluate("expert", "himac_alfworld", **given)


def test_rewards_for_training_are_named_in_the_recipe() -> None:
    given = {"shape": verl_hier.Reward(matches, 0.3, "turn", ("planner",), options={"pattern": r"[a-z]\d+\'s (?=x)"})}
    words = [_reward_word(name, reward) for name, reward in given.items()]
    assert ComposedRecipe.named("himac_alfworld", words).rewards == given
    weighted = _named([short, valid], [0.5, 2])
    assert {name: reward.weight for name, reward in weighted.items()} == {"short": 0.5, "valid": 2.0}
    assert list(_named([lambda episode: 0.0], None)) == ["reward_0"]


def test_a_reward_that_training_cannot_import_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'mine' cannot be used in training"):
        _reward_word("mine", verl_hier.Reward(lambda episode: 0.0))
    assert as_override("hier/size", "node") == "hier/size=node"


def test_training_starts_with_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the start of verl's processes, which the tests of `verl-hier train` run."""
    from verl_hier.ops import training

    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(training, "start", lambda plan, report: started.append(plan) or plan.run)
    model = write_byte_model(tmp_path / "model")
    steps = {"actor_rollout_ref.model.path": str(model), "trainer.total_training_steps": 2}
    run = verl_hier.train(
        "himac_alfworld", "hier.seed=4", overrides=steps, name="mine", reward_funcs=[valid], reward_weights=[0.2]
    )
    assert run.folder == Path("runs/himac_alfworld/mine")
    config = started[0].config
    assert (config.hier.seed, config.trainer.total_training_steps) == (4, 2)
    assert ComposedRecipe.of(config).rewards == {"valid": verl_hier.Reward(valid, 0.2)}
    with pytest.raises(verl_hier.HierError, match="nowhere"):
        verl_hier.train("himac_alfworld", overrides={"actor_rollout_ref.model.path": "/nowhere"})
    assert len(started) == 1

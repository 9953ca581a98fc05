"""Forms of public data sets: what `check` says of a file is what happens to its rows in a run.

The files have the columns and the kinds of values of public data sets; each goes through verl's data set class, our
rollout worker, the environment and verl's reward function, in this process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.reward_score import default_compute_score

from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.tiers import spread
from verl_hier.compat.dataset import NumberedRows
from verl_hier.environments.blocking import build
from verl_hier.errors import RecipeError
from verl_hier.graph import RolloutGraph
from verl_hier.recipe.check import check_recipe
from verl_hier.recipe.compose import compose
from verl_hier.recipe.composed import ComposedRecipe
from verl_hier.recipe.data_rows import row_problem, scored_by_verl
from verl_hier.rollout.unfinished import UnfinishedEpisodes
from verl_hier.training.schedule import Phase

agent_loop = pytest.importorskip("verl_hier.compat.agent_loop")
naive = pytest.importorskip("verl.experimental.reward_loop.reward_manager.naive")

FILES = sorted((Path(__file__).parents[1] / "fixtures" / "data_forms").iterdir())
OUTCOMES = [
    pytest.param(file, environment, own, id=f"{file.stem}-{environment}-{'own' if own else 'verls'} reward")
    for file in FILES
    for environment, own in (("prompt", True), ("verl_tools", False), ("prompt", False), ("verl_tools", True))
]
REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(len(solution_str))
"""
TOOLS = """\
from verl.tools.function_tool import function_tool


@function_tool
async def search(query: str):
    \"\"\"Searches.

    Args:
        query: what for.
    \"\"\"
    return "nothing", 0.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_byte_model(tmp_path_factory.mktemp("forms") / "model", hidden=8, layers=1).parent
    (made / "reward.py").write_text(REWARD)
    (made / "tools.py").write_text(TOOLS)
    return made


def composed(folder: Path, environment: str, file: Path, own: bool) -> Any:
    name, lines = {
        "prompt": ("flat", []),
        "verl_tools": (
            "tree_grpo_verl_tools",
            [f"actor_rollout_ref.rollout.multi_turn.function_tool_path={folder}/tools.py"],
        ),
    }[environment]
    return compose(
        name,
        [
            *lines,
            f"reward.custom_reward_function.path={f'{folder}/reward.py' if own else 'null'}",
            f"data.train_files=[{file}]",
            f"data.val_files=[{file}]",
            f"actor_rollout_ref.model.path={folder}/model",
            f"actor_rollout_ref.rollout.n={4 if environment == 'prompt' else 6}",
            "data.max_prompt_length=256",
            "data.max_response_length=128",
            "hier.rollout.max_tokens_per_turn=32",
        ],
    )


def checked(config: Any) -> str:
    """What `check` says against a recipe, empty when it can run."""
    try:
        check_recipe(config)
    except RecipeError as error:
        return str(error)
    return ""


def run_row(config: Any, row: Mapping[str, Any], environment: Any, tokenizer: Any) -> float:
    """One row through our rollout worker and environment to verl's reward function."""
    asked: list[Any] = []

    class Runner:
        def pool(self, workers: int) -> None:
            return None

        async def roll_out(self, request: Any, policy: Any, environments: Any, on_lost: Any) -> RolloutGraph:
            asked.append(request)
            return RolloutGraph(task=dict(request.identity), step=request.step, seed=0, request=request.to_dict())

    worker: Any = object.__new__(agent_loop.HierAgentLoopWorker)
    worker.config, worker._runner, worker._pool, worker._policy = config, Runner(), object(), None
    worker._parts, worker._unfinished = SimpleNamespace(environment=environment), UnfinishedEpisodes(0)
    prompt = {**row, "uid": "u"}
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    asyncio.run(worker._roll_out(prompt, params, Phase("joint"), 1, False))
    task = asked[0].task
    json.dumps(task)
    if not environment.spec.in_worker:
        world = build(environment.spec, environment.options)
        world.reset(task, 0)
        assert world.step("an answer").done
    messages = task["messages"]
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    answer = tokenizer.encode("an answer #### 1")
    data = DataProto(
        TensorDict(
            {"prompts": [tokens], "responses": [answer], "attention_mask": [[1] * (len(tokens) + len(answer))]},
            batch_size=1,
        ).apply(torch.tensor),
        {
            name: np.array([value]) if not isinstance(value, list | dict) else boxed(value)
            for name, value in row.items()
        },
    )
    manager = naive.NaiveRewardManager(config, tokenizer, get_custom_reward_fn(config))
    manager.loop = loop = asyncio.new_event_loop()
    return float(loop.run_until_complete(manager.run_single(data))["reward_score"])


def boxed(value: Any) -> np.ndarray:
    """An array with one element, as verl's data protocol has any object."""
    found = np.empty(1, dtype=object)
    found[0] = value
    return found


@pytest.mark.parametrize(("file", "environment", "own"), spread(len(OUTCOMES) // 3, OUTCOMES))
def test_the_outcome_is_what_the_check_says(folder: Path, file: Path, environment: str, own: bool) -> None:
    from transformers import AutoTokenizer

    config = composed(folder, environment, file, own)
    said = checked(config)
    recipe = ComposedRecipe.of(config)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    try:
        rows = NumberedRows.of(create_rl_dataset([str(file)], config.data, tokenizer, None))
        scores = [run_row(config, rows[place], recipe.parts.environment, tokenizer) for place in range(len(rows))]
        happened = "" if scores and np.isfinite(scores).all() else "no scores"
    except Exception as error:
        happened = f"{type(error).__name__}: {error}"
    quiet = bool(said) and not happened
    # What nobody would notice is refused as well: pictures and tools that are left out, answers that equal nothing.
    assert not (happened and not said), f"check lets pass what fails: {happened}"
    assert not quiet or any(words in said for words in ("text alone", "asks for", "equals no answer")), said


SOURCES = st.text(max_size=12) | st.sampled_from(
    ["aime_x", "aime", "math", "searchR1_nq", "apps", "lighteval/MATH", "nq"]
)


@settings(deadline=None)
@given(SOURCES)
def test_which_sources_have_a_reward_function_is_what_verl_says(source: str) -> None:
    try:
        default_compute_score(source, "", None)
        known = True
    except NotImplementedError:
        known = False
    except Exception:
        known = True
    assert scored_by_verl(source) == known


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "index"]), inner),
    max_leaves=6,
)
ROWS = st.dictionaries(
    st.sampled_from(["prompt", "images", "agent_name", "extra_info", "reward_model", "data_source"]), JSON
)


@given(ROWS, st.booleans())
def test_rows_of_any_form_get_a_sentence_or_pass(row: dict[str, Any], tools: bool) -> None:
    said = row_problem(row, {"data": {"prompt_key": "prompt"}, "reward": {}}, tools)
    assert said == "" or said.endswith(".")


@pytest.mark.parametrize(
    ("own", "source", "truth", "words"),
    [
        (False, "openai/gsm8k", ["1"], "equals no answer in verl's reward function for 'openai/gsm8k'"),
        (False, "openai/gsm8k", 1, "equals no answer"),
        (False, "math_dapo", 0.5, "equals no answer"),
        (False, "searchR1_nq", "Paris", "equals no answer"),
        (True, "openai/gsm8k", ["1"], ""),
    ],
)
def test_ground_truths_that_equal_no_answer_are_refused(own: bool, source: str, truth: Any, words: str) -> None:
    row = {
        "prompt": [{"role": "user", "content": "q"}],
        "data_source": source,
        "reward_model": {"style": "rule", "ground_truth": truth},
    }
    reward = {"custom_reward_function": {"path": "reward.py" if own else None}}
    said = row_problem(row, {"data": {}, "reward": reward}, tools=False)
    assert words in said and bool(words) == bool(said)

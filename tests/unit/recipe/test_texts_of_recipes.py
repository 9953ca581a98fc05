"""What is read of recipes, data files, overrides and the authors' files: exactly what they say, up to each bound."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.unit.recipe.test_rules_at_bounds import ACTOR, DATA, base, recipe, spec_of
from verl_hier.errors import FileError, HierError, RecipeError
from verl_hier.recipe import (
    authors,
    catalogue,
    compose,
    data_rows,
    handover,
    hydra_words,
    papers,
    user_recipes,
    verl_lines,
    yaml_files,
)
from verl_hier.recipe.authors import ABSENT, Authors, AuthorsValue, Place
from verl_hier.recipe.catalogue import SIZES, Recipe
from verl_hier.recipe.checks import unread
from verl_hier.recipe.overrides import hydra_value, key_of, require_grammar
from verl_hier.recipe.schema import ColdStartOptions, HierConfig, RolloutOptions, StoreOptions
from verl_hier.training.options import LaunchOrderOptions, RefillOptions

# YAML of a user's own


def written(folder: Path, text: str) -> Path:
    (folder / "it.yaml").write_text(text, encoding="utf-8")
    return folder / "it.yaml"


def test_yaml_is_nested_as_deep_as_allowed(tmp_path: Path) -> None:
    deepest = yaml_files.DEEPEST
    assert deepest == 40
    for opening, closing in (("[", "]"), ("{a: ", "}")):
        text, content = yaml_files.read_yaml(written(tmp_path, opening * 40 + "1" + closing * 40))
        assert text.startswith(opening) and content
        with pytest.raises(FileError, match="nested too deeply: at most 40 levels are read"):
            yaml_files.read_yaml(written(tmp_path, opening * 41 + "1" + closing * 41))
    with pytest.raises(FileError, match="nested too deeply"):
        yaml_files.read_yaml(written(tmp_path, "a: &a [*a]"))


def test_yaml_holds_as_many_values_as_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_files, "MOST_VALUES", 7)
    # A mapping, a list of two, and the same list once more: 1 + 3 + 3 values.
    assert yaml_files.read_yaml(written(tmp_path, "a: &a [1, 2]\nb: *a"))[1] == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(FileError, match="too many values: at most 7"):
        yaml_files.read_yaml(written(tmp_path, "a: &a [1, 2]\nb: *a\nc: 3"))
    monkeypatch.undo()
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
    with pytest.raises(FileError, match="too many values: at most 20000"):
        yaml_files.read_yaml(written(tmp_path, bomb))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: 2\na: 3\n", "twice, in line 1 and in line 3"),
        ("a: {b: 1, b: 2}\n", "twice in line 1"),
        ("- x\n- a: 1\n\n  a: 2\n", "twice, in line 2 and in line 4"),
        ("x: &x {a: 1}\ny:\n  <<: *x\n  <<: *x\n", ""),
        ("x: &x {a: 1}\ny: *x\nz: {1: 2, 2: 1}\n", ""),
    ],
)
def test_a_key_that_stands_twice_is_named_with_its_lines(tmp_path: Path, text: str, where: str) -> None:
    if where:
        with pytest.raises(FileError, match=rf"the key '[ab]' stands {where}; keep one of them"):
            yaml_files.read_yaml(written(tmp_path, text))
    else:
        assert yaml_files.read_yaml(written(tmp_path, text))[1] == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3, 'c: 3': "),
        ("a: 'x\n", "line 2, '': "),
        ("a: b: c\n", "line 1, 'a: b: c': mapping values are not allowed here."),
        ("a: 2026-13-01\n", "is not YAML: month must be in 1..12"),
        ("a: \x01\n", "is not YAML"),
    ],
)
def test_what_is_no_yaml_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FileError) as caught:
        yaml_files.read_yaml(written(tmp_path, text))
    assert words in str(caught.value), str(caught.value)
    if "[1, 2" in text:
        assert "; what it is part of begins in line 2, 'b: [1, 2'." in str(caught.value)


def test_a_key_is_found_in_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, "hier:\n  sampler: {name: x,\n    plans: 3}\ntrainer: 4\n")
    for key, line in (("hier", 1), ("hier.sampler", 2), ("hier.sampler.plans", 3), ("trainer", 4)):
        assert yaml_files.line_of(file, key) == line
    for key in ("trainer.x", "sampler", "hier.plans", "hier.sampler.plans.x"):
        assert yaml_files.line_of(file, key) is None


# Overrides

quick = settings(max_examples=25, deadline=None)
inner = (
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.sampled_from([0.5, -1e-7, 3e20])
    | st.text("ab'\\, ={}", max_size=6)
)


@quick
@given(
    st.recursive(
        inner,
        lambda deep: st.lists(deep, max_size=3) | st.dictionaries(st.sampled_from("abc"), deep, max_size=2),
        max_leaves=5,
    )
)
def test_values_of_overrides_are_read_back(value: Any) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = f"x={hydra_value(value)}"
    (parsed,) = OverridesParser.create().parse_overrides([override])
    require_grammar([override])
    assert OmegaConf.create({"x": parsed.value()}).x == OmegaConf.create({"x": value}).x


def test_overrides_that_hydra_cannot_read_are_shown_quoted() -> None:
    assert [key_of(each) for each in ("+a.b=1", "++a=b=c", "~a", "a")] == ["a.b", "a", "a", "a"]
    require_grammar(["a=1", "+b='x,y'", "~c", "d=[1,2]"])
    for override, words in (
        ("a", "'a' is no key=value"),
        ("a=1,2", "gives several values to choose from; write 'a=[1,2]' for a list, or "),
        ("a=x=y:(", "is not in Hydra's grammar"),
    ):
        with pytest.raises(RecipeError) as caught:
            require_grammar(["b=1", override])
        assert words in str(caught.value)


def test_overrides_of_our_command_line_are_hydras() -> None:
    assert compose.overridden(
        ["size=node", "hier/model=x", "trainer.x=1", "hier.a.b=2", "+hier.c=3", "engine=tree"]
    ) == [*("hier/size=node", "hier/model=x", "trainer.x=1", "++hier.a.b=2", "+hier.c=3", "hier/engine=tree")]
    assert compose.overridden(["hier.worker={name: x}"]) == ["~hier.worker", "+hier.worker={name: x}"]
    assert compose.overridden(["hier.guards={a: 1}"]) == ["++hier.guards={a: 1}"]
    for bad in ("hier.worker=react", "+hier.sampler=x", "++hier.schedule=y"):
        with pytest.raises(RecipeError, match="is no block; write"):
            user_recipes.require_part_blocks(["trainer.x=1", bad])
    user_recipes.require_part_blocks(["hier.worker={name: react}", "hier.worker.name=react", "hier.seed=1"])
    with pytest.raises(RecipeError, match="the variant of tasks and prompts goes by the size"):
        user_recipes.require_part_blocks(["hier/variant=full"])


# Recipe files


def user_recipe(content: Any, name: str = "mine") -> Recipe:
    return Recipe(name, Path(f"/nowhere/{name}.yaml"), "" if content is None else yaml.safe_dump(content), content)


def test_a_recipe_of_a_users_own_has_a_list_and_a_base() -> None:
    user_recipes.require_list(user_recipe({"defaults": ["ppo_trainer"]}))
    user_recipes.require_list(user_recipe({"a": 1}))
    for content, words in ((None, "is empty"), ([1], "is no mapping"), ({"defaults": "x"}, "`defaults` is no list")):
        with pytest.raises(RecipeError, match=words):
            user_recipes.require_list(user_recipe(content))
    whole = {"model_engine": "dp", "transfer_queue": {}, "hier": {}, "data": {"hier": {}}}
    check = user_recipes.require_base
    check(user_recipe({"defaults": ["ppo_trainer", "hier/base", "_self_"]}), {"hier": {}, "data": {}})
    check(user_recipe({"defaults": ["other"]}), whole)
    check(user_recipe({"defaults": [{"/ppo_trainer": "x"}, {"override hier/base": "y"}]}), {"hier": {}, "data": {}})
    for lacking in ("model_engine", "transfer_queue"):
        with pytest.raises(RecipeError, match="lacks `ppo_trainer`"):
            check(user_recipe({"defaults": ["other"]}), {key: held for key, held in whole.items() if key != lacking})
    with pytest.raises(RecipeError, match="lacks `hier/base`"):
        check(user_recipe({"defaults": ["ppo_trainer"]}), {**whole, "data": {}})
    check(user_recipe({"defaults": ["ppo_trainer"]}), {"data": {}})
    check(user_recipe({"defaults": ["ppo_trainer"]}), {**whole, "data": None})


def test_what_a_recipe_says_to_hydra_is_handed_over() -> None:
    def said(content: Any) -> Any:
        return yaml.safe_load(handover._hydra_lines(user_recipe(content)) or "null")

    assert said({"defaults": ["a", {"hier/size": "x"}]}) is said(None) is said([1]) is None
    assert said({"hydra": {"searchpath": ["x"]}}) is None
    assert said({"hydra": {"searchpath": ["x"], "verbose": True}}) == {"hydra": {"verbose": True}}
    chosen = {"defaults": ["a", {"override hydra/job_logging": "none"}, {"hier/size": "x"}], "hydra": {"a": 1}}
    assert said(chosen) == {"defaults": [{"override hydra/job_logging": "none"}, "_self_"], "hydra": {"a": 1}}


def test_a_recipe_file_says_what_it_is() -> None:
    def of(text: str, content: Any = None) -> Recipe:
        return Recipe("m_e", Path("/x/m_e.yaml"), text, content)

    assert of("# What it does\na: 1").summary == "What it does" and of("a: 1\n# x").summary == of("").summary == ""
    groups = {"defaults": ["ppo_trainer", {"hier/method": "m", "other/x": "y"}, {"hier/environment": "e"}]}
    assert of("", groups).groups == {"method": "m", "environment": "e"} and of("", [1]).groups == {}
    assert of("", {"defaults": "x"}).groups == {} and of("", groups).method_and_environment == ("m", "e")
    assert of("", {"defaults": [{"hier/method": "x"}]}).method_and_environment is None
    assert not of("").shipped and catalogue.find("himac_alfworld").shipped


def test_choices_go_together() -> None:
    found = catalogue.find("himac_alfworld")
    assert found.sizes == ("cpu", "node", "cluster") and found.servers("cpu") == ("transformers", "vllm_cpu")
    assert found.models("node")[0] == "qwen2.5-1.5b-instruct" and found.models("cluster")[0] == "qwen2.5-7b-instruct"
    assert len([*found.combinations()]) == sum(len(found.models(s)) * len(found.servers(s)) for s in found.sizes)
    for good in (
        [],
        ["size=node", "server=sglang"],
        ["size=cpu", "model=tiny"],
        ["model=unheard_of"],
        ["paper=none"],
        ["size=x"],
    ):
        found.require_offered(good)
    for bad, words in (
        (["size=node", "model=tiny"], "model=tiny does not go with himac_alfworld at size=node; take model=qwen"),
        (["server=sglang"], "server=sglang does not go with himac_alfworld at size=cpu; take server=transformers or"),
        (["paper=himca"], "there are no authors' settings 'himca'"),
    ):
        with pytest.raises(RecipeError) as caught:
            found.require_offered(bad)
        assert words in str(caught.value)
    with pytest.raises(RecipeError, match=r"server=sglang .*, or choose size=node or size=cluster"):
        found.require_offered(["server=sglang"])
    only = Recipe(
        "x", found.path, "", {**found.content, "hier": {"recipe": {"only_sizes": ["node"], "only_servers": ["vllm"]}}}
    )
    assert only.sizes == ("node",) and only.servers("node") == ("vllm",)
    with pytest.raises(RecipeError, match="is not offered for size=cpu; it has size=node"):
        only.require_offered(["size=cpu"])
    with pytest.raises(RecipeError, match="server=sglang does not go with x at size=node; take server=vllm"):
        only.require_offered(["size=node", "server=sglang"])
    assert user_recipe({"defaults": []}).sizes == ()
    assert set(SIZES) == {"cpu", "node", "cluster"}


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("himac_alfworld_cpu", ("himac_alfworld",)),
        ("himac_alfworld_vllm_cpu", ("himac_alfworld", "server=vllm_cpu")),
        ("himac_alfworld_1.5b_vllm", ("himac_alfworld", "size=node", "model=qwen2.5-1.5b-instruct", "server=vllm")),
        ("himac_alfworld_7b_sglang", ("himac_alfworld", "size=node", "model=qwen2.5-7b-instruct", "server=sglang")),
        ("himac_alfworld_cluster", ("himac_alfworld", "size=cluster", "model=qwen2.5-7b-instruct", "server=vllm")),
        ("grpo_arithmetic_cpu", ("grpo_python_tool",)),
        ("unheard_of_cpu", ()),
        ("himac_alfworld", ()),
    ],
)
def test_former_names_are_translated(former: str, now: tuple[str, ...]) -> None:
    assert catalogue._renamed(former) == now


def test_blocks_of_verl_are_blocks() -> None:
    known = {"data": {"x": {}, "y": 1}, "other": {"z": {}}}
    for good in (
        {"data": {"x": {"a": 1}}, "other": None},
        {"data": "${x}", "other": {"z": "${y}"}},
        {"data": {"x": None, "y": [1]}, "more": 3},
    ):
        compose._require_blocks(good, known, "")
    for bad, line in (
        ({"data": None}, "data: expected a block"),
        ({}, "data: expected a block"),
        ({"data": {"x": 3}}, "data.x: expected a block"),
        ({"data": {}, "other": "words"}, "other: expected a block"),
        ({"data": {}, "other": {"z": []}}, r"other\.z: expected"),
    ):
        with pytest.raises(RecipeError, match=line):
            compose._require_blocks(bad, known, "")
    for line in (
        "trainer.v1",
        "actor_rollout_ref.rollout.val_kwargs",
        "algorithm",
        "critic",
        "actor_rollout_ref.model",
    ):
        assert line in compose.BLOCKS


def test_an_unknown_key_names_its_block_and_the_nearest() -> None:
    config = OmegaConf.create({"trainer": {"epochs": 1, "deep": {"x": 1}}, "data": 3})
    for key, words in (
        ("trainer.epoch", "trainer has no key 'epoch' (did you mean 'epochs'?)"),
        ("trainr.epochs", "the config has no key 'trainr' (did you mean 'trainer'?)"),
        ("trainer.deep.y", "trainer.deep has no key 'y';"),
        ("data.x", "data has no key 'x';"),
        ("trainer.epochs", "does not fit the recipe"),
    ):
        assert words in compose._unknown_key(key, config)
    with pytest.raises(RecipeError, match="model_engine: there is no 'deepspeed'; verl has "):
        compose.stock_of({"model_engine": "deepspeed"})


def test_the_choices_that_hydra_lists_are_told() -> None:
    listed = "In 'x': Could not find 'hier/model/tinny'\n\nAvailable options in 'hier/model':\n"
    listed += "\ttiny\n\tlarge\nConfig search path:\n\tx"
    assert (
        hydra_words.sentence(ValueError(listed))
        == "hier/model: there is no 'tinny' (did you mean 'tiny'?); it has tiny, large."
    )
    assert hydra_words.sentence(ValueError("full_key: a\nobject_type=dict")) == "ValueError."
    assert hydra_words.sentence(ValueError("One\nTwo.\nThree")) == "One. Two."
    error = ValueError("One\nOne")
    error.__cause__ = KeyError("why\nmore")
    assert hydra_words.sentence(error) == "One. \"'why\\\\nmore'\"." or hydra_words.sentence(error).startswith("One. ")


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"guard": {}}, "hier.guard: the hier block has no key 'guard' (did you mean 'guards'?)"),
        ({"rollout": {"max_turn": 3}}, "hier.rollout.max_turn: the hier.rollout block has no key"),
        ({"rollout": {"budget": {"turn": 3}}}, "hier.rollout.budget.turn: "),
        ({"rollout": 3, "environment": {"anything": 1}, "rewards": {"x": {"y": 1}}}, ""),
    ],
)
def test_keys_of_our_block_are_known(block: Mapping[str, Any], words: str) -> None:
    if not words:
        hydra_words.require_hier_keys(block)
        return
    with pytest.raises(RecipeError) as caught:
        hydra_words.require_hier_keys(block)
    assert words in str(caught.value)


# The block's own numbers


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        *[({"hidden": 8}, ""), ({"hidden": 7}, "hidden"), ({"hidden": 12}, "hidden"), ({"hidden": 0}, "hidden")],
        *[({"hidden": 16, "head_dim": 2}, ""), ({"head_dim": 1}, "head_dim"), ({"head_dim": 3}, "head_dim")],
        *[({"head_dim": 0}, "head_dim"), ({"name": ""}, "name"), ({"name": "a/b"}, "name"), ({"name": "a"}, "")],
    ],
)
def test_the_small_model_has_sizes_that_fit(given: dict[str, Any], problem: str) -> None:
    if not problem:
        ColdStartOptions(**given)
        return
    with pytest.raises(ValueError, match=f"^{problem} must be"):
        ColdStartOptions(**given)


def test_the_defaults_are_those_of_the_documentation() -> None:
    rollout, store, cold = RolloutOptions(), StoreOptions(), ColdStartOptions()
    assert (rollout.max_turns, rollout.max_tokens_per_turn, rollout.quote_characters) == (30, 512, 32_000)
    assert (rollout.environment_processes, rollout.time_limit_s, rollout.max_failed_share) == (2, 30.0, 0.5)
    assert (rollout.concurrent_tasks, rollout.carried_episodes, rollout.context_tokens) == (64, 1024, None)
    assert (store.path, store.every, store.validation, store.share, store.max_gib) == (None, 1, True, 1.0, None)
    assert (cold.episodes, cold.random_action, cold.skip_stage, cold.remember) == (480, 0.12, 0.35, True)
    assert (cold.steps, cold.batch_size, cold.learning_rate, cold.hidden, cold.layers) == (400, 16, 3e-3, 96, 2)
    config = HierConfig(environment={}, worker={}, sampler={}, estimator={})
    assert config.plugins == {"builtin": True} and config.schedule == {"name": "joint"}
    assert (config.seed, config.poll_interval_s, config.refill, config.replay) == (0, 0.05, None, None)
    assert config.launch_order is None


def test_parts_and_rewards_have_names() -> None:
    block = {kind: {"name": "x"} for kind in ("environment", "worker", "sampler", "estimator")}
    assert HierConfig.of({"hier": block}).block("worker") == {"name": "x"}
    assert (
        HierConfig.of({"hier": OmegaConf.create({**block, "seed": "${poll_interval_s}", "poll_interval_s": 3})}).seed
        == 3
    )
    for bad, words in (
        (None, "has no `hier:` block"),
        ({**block, "worker": {}}, r"hier\.worker\.name is missing"),
        ({**block, "schedule": {"name": ["x"]}}, r"hier\.schedule\.name: expected a name"),
        *(
            ({**block, "rewards": {name: {"function": "a:b"}}}, "no name for a reward")
            for name in ("acc", "reward", "a b", "")
        ),
    ):
        with pytest.raises(RecipeError, match=words):
            HierConfig.of({"hier": bad})
    HierConfig.of(
        {"hier": {**block, "rewards": {name: {"function": "json:dumps"} for name in ("accuracy", "rewards", "a-b_1")}}}
    )


# Data files


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("most", [None, 0, 2, 3, 9])
def test_rows_are_read_as_many_as_asked(tmp_path: Path, suffix: str, most: int | None) -> None:
    rows = [{"a": number} for number in range(3)]
    file = tmp_path / f"data{suffix}"
    file.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    assert [*data_rows.data_rows(file, most)] == rows[:most]


def test_rows_are_objects(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"a": 1}')
    assert [*data_rows.data_rows(tmp_path / "one.json")] == [{"a": 1}]
    for suffix in ("json", "jsonl"):
        (tmp_path / f"half.{suffix}").write_text(r'{"a": "\ud800"}')
        assert [*data_rows.data_rows(tmp_path / f"half.{suffix}")] == [{"a": "?"}]
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n[2]\n')
    with pytest.raises(FileError, match=r"row 1 of .* is no object but \[2\]"):
        list(data_rows.data_rows(tmp_path / "bad.jsonl"))
    with pytest.raises(FileError, match="ends in none of"):
        list(data_rows.data_rows(tmp_path / "x.csv"))


ROW = {
    "prompt": [{"role": "user", "content": "2 + 2"}],
    "data_source": "openai/gsm8k",
    "reward_model": {"ground_truth": "4"},
}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"prompt": None}, "does not hold messages"),
        ({"prompt": []}, "does not hold messages"),
        ({"prompt": ["x"]}, "does not hold messages"),
        ({"prompt": [{"role": 1, "content": "x"}]}, "does not hold messages"),
        ({"prompt": [{"role": "user"}]}, "does not hold messages"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "has messages of more than text"),
        ({"images": ["x"]}, "has images, and verl-hier hands text alone"),
        ({"videos": ["x"]}, "has videos"),
        ({"images": []}, ""),
        ({"extra_info": {"interaction_kwargs": {"a": 1}}}, "asks for an interaction"),
        ({"extra_info": {"interaction_kwargs": {}}}, ""),
        ({"extra_info": "x"}, ""),
        ({"extra_info": {"tools_kwargs": {"a": 1}}}, "asks for tools (`extra_info.tools_kwargs`)"),
        ({"agent_name": "tool_agent"}, "asks for the agent loop 'tool_agent'"),
        ({"agent_name": "single_turn_agent"}, ""),
        ({"agent_name": ""}, ""),
        ({"reward_model": None}, "has no `reward_model` with a `ground_truth`"),
        ({"reward_model": {}}, "has no `reward_model` with a `ground_truth`"),
        ({"data_source": None}, "has no `data_source`"),
        ({"data_source": "mine"}, "has the data source 'mine', for which verl has no reward function"),
        ({"reward_model": {"ground_truth": 4}}, "has the ground truth 4, which equals no answer"),
        ({"reward_model": {"ground_truth": {"target": "4"}}}, ""),
        ({"data_source": "searchR1_nq", "reward_model": {"ground_truth": {"target": ["4"]}}}, ""),
        ({"data_source": "searchR1_nq"}, "has the ground truth '4', which equals no answer"),
    ],
)
def test_a_row_can_be_rolled_out_and_scored(change: dict[str, Any], problem: str) -> None:
    said = data_rows.row_problem({**ROW, **change}, {"data": {}}, tools=False)
    assert said.startswith(problem) and bool(said) == bool(problem), said


def test_what_a_recipe_brings_is_not_asked_of_a_row() -> None:
    mine = {**ROW, "data_source": "mine", "reward_model": {"ground_truth": 4}}
    own = {"custom_reward_function": {"path": "x.py"}}
    for reward in (own, {"reward_model": {"enable": True}}):
        assert data_rows.row_problem(mine, {"data": {}, "reward": reward}, tools=False) == ""
    tools = {**ROW, "extra_info": {"tools_kwargs": {"a": 1}}, "agent_name": "tool_agent"}
    assert data_rows.row_problem(tools, {"data": {}}, tools=True) == ""
    named = {"asked": ROW["prompt"], "pictures": ["x"], **{key: held for key, held in ROW.items() if key != "prompt"}}
    assert data_rows.row_problem(named, {"data": {"prompt_key": "asked"}}, tools=False) == ""
    assert "has pictures" in data_rows.row_problem(
        named, {"data": {"prompt_key": "asked", "image_key": "pictures"}}, False
    )
    assert data_rows.row_problem(named, {"data": {}}, False).startswith(
        "has no column 'prompt', which data.prompt_key names; it has asked"
    )


def test_the_data_sources_of_verl_are_scored() -> None:
    for source in ("openai/gsm8k", "lighteval/MATH", "math_dapo", "aime2024", "searchR1_nq", "hiyouga/geometry3k"):
        assert data_rows.scored_by_verl(source)
    for source in ("mine", "", "gsm8k", "search_nq"):
        assert not data_rows.scored_by_verl(source)


# The authors' files


@pytest.mark.parametrize(
    ("line", "key", "found"),
    [
        ("lr: 1e-6  # rate", "lr", ["1e-6"]),
        ("    actor.lr=1.0e-6 \\", "lr", [1e-6]),
        ("parser.add('--gamma', default=0.95)", "default", [0.95]),
        ("x = {'eps': 0.2, 'other': 3}", "eps", [0.2]),
        ("train_size=16; val_size=4", "size", []),
        ("betas: [0.9, 0.95]", "betas", [[0.9, 0.95]]),
        ("--n 8 --n 9", "n", [8, 9]),
        ("flag=True", "flag", [True]),
        ("nothing here", "lr", []),
        ("n * 4", "n", [4]),
        ("x: ${y}", "x", ["${y"]),
        ("run('--kind gae')", "kind", ["gae"]),
        ('{"kind": "gae"}', "kind", ["gae"]),
    ],
)
def test_a_value_is_read_behind_its_key(line: str, key: str, found: list[Any]) -> None:
    assert authors._read(line, key) == found


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        *[(1, 1.0, True), ("1e-6", 1e-6, True), (1.0, 1.0 + 1e-8, False), (1.0, 1.0 + 1e-10, True), ("a", "a", True)],
        *[("a", "b", False), (True, 1, False), (True, True, True), (None, 0, False), (None, None, True)],
        *[
            ([1, 2], [1, 2.0], True),
            ([1], [1, 2], False),
            ([1, 3], [1, 2], False),
            ([1], 1, False),
            ("nan", "nan", False),
        ],
    ],
)
def test_values_are_equal_as_numbers_or_else_as_they_are(ours: Any, theirs: Any, same: bool) -> None:
    assert authors._same(ours, theirs) is authors._same(theirs, ours) is same


def test_a_place_says_what_stands_there() -> None:
    lines = ["lr: 1e-6", "n: 8", "flag"]
    place = partial(Place, "a/b", "0123456789")
    assert place("f", 2, "n", 8).wrong(lines) is None and place("f", 1, "lr", 1e-6).wrong(lines) is None
    assert place("f", 3, "n", 8).wrong(lines) == "has no 'n' in line 3, and is recorded with n = 8"
    assert place("f", 2, "n", 9).wrong(lines) == "has 8 in line 2, and is recorded with n = 9"
    assert (
        place("f", 4, "n", 8).wrong(lines) == "has no line 4"
        and place("f", None, "n", 8).wrong(lines) == "has no line None"
    )
    assert place("f", None, "gamma", ABSENT).wrong(lines) is None
    assert (
        place("f", None, "flag", ABSENT).wrong([*lines, "flag"]) == "holds 'flag' in line 3, and is recorded without it"
    )


def test_computed_values_are_computed() -> None:
    computed = {
        name: rule(*given)
        for name, given, rule in (
            (name, given, authors._COMPUTED[name])
            for name, given in (
                *[
                    ("product", (2, 3, 4)),
                    ("quotient", (12, 4)),
                    ("product over the last", (2, 6, 4)),
                    ("one more", (3,)),
                ],
                *[
                    ("one more than the product", (2, 3)),
                    ("of each player", (3,)),
                    ("of both players", (3,)),
                    ("list", (1, 2)),
                    ("quotient, at least one", (2, 4)),
                    ("difference", (7, 3)),
                    ("kibi", (2,)),
                    ("sum of kibis", (2, 1)),
                    ("one less", (3,)),
                ],
            )
        )
    }
    assert computed == {
        **{"product": 24, "quotient": 3, "product over the last": 3, "one more": 4, "one more than the product": 7},
        **{"of each player": 6, "of both players": 1.5, "list": [1, 2]},
        **{"quotient, at least one": 1.0, "difference": 4, "kibi": 2048, "sum of kibis": 3072, "one less": 2},
    }
    assert set(computed) == set(authors._COMPUTED)


CONTENT = {
    "words": {"algorithm.kind": {"gae_like": "gae"}},
    "groups": {
        "mine": {
            "repository": "a/b",
            "commit": "0123456789",
            "files": {"run": "run.sh"},
            "values": {
                "algorithm.gamma": {"topic": "limits", "at": "run:1", "key": "gamma", "reads": 0.9},
                "algorithm.kind": {"topic": ["KL", "entropy"], "at": "run:2", "key": "kind", "reads": "gae_like"},
                "batch": {
                    "topic": "filters",
                    "line": "data.size",
                    "at": ["run:3", "run:4"],
                    "key": ["a", "b"],
                    "reads": [2, 3],
                    "computed": "product",
                },
                "words": {"topic": "format", "at": "run", "key": "x", "reads": "absent", "value": 7},
                "said": {"topic": "format", "at": "run:2", "key": "kind", "reads": "gae_like"},
                "executed": {"topic": "format", "value": 5, "case": "cases.json"},
                "open": {"topic": "format", "unconfirmed": "nobody knows"},
            },
        }
    },
}


def test_recorded_values_are_compared_with_a_recipe_and_a_checkout(tmp_path: Path) -> None:
    mine = authors.authors(CONTENT)["mine"]
    by = {each.name: each for each in mine.values}
    assert (by["algorithm.gamma"].line, by["batch"].line, by["words"].line) == ("algorithm.gamma", "data.size", None)
    assert by["algorithm.kind"].value == "gae" and by["algorithm.kind"].topics == ("KL", "entropy")
    assert (
        by["batch"].value == 6
        and len(by["batch"].places) == 2
        and by["words"].value == 7
        and by["said"].value == "gae_like"
        and by["executed"].value == 5
    )
    assert by["words"].places[0].number is None and [each.name for each in mine.unconfirmed] == ["open"]
    config = {"algorithm": {"gamma": 0.9, "kind": "gae"}, "data": {"size": 6}, "hier": {"paper": {"differs": {}}}}
    topics = [said for said in authors.deviations(mine, config) if "no value for the topic" in said]
    assert authors.deviations(mine, config) == topics and len(topics) == len(authors.TOPICS) - 5
    changed = {**config, "algorithm": {"gamma": 0.8, "kind": "gae"}}
    assert authors.deviations(mine, changed)[0] == "algorithm.gamma is 0.8, and run.sh:1 of a/b has 0.9"
    for ours, left in ((0.8, 0), (None, 0), (0.7, 1)):
        differs = {**changed, "hier": {"paper": {"differs": {"algorithm.gamma": {"ours": ours}, "odd": {"ours": 1}}}}}
        assert len(authors.deviations(mine, differs)) - len(topics) == left
    (tmp_path / "run.sh").write_text("gamma=0.9\nkind=gae_like\na=2\nb=3\n")
    assert authors.confirm(mine, tmp_path) == []
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.sh").write_text("gamma=0.9\nkind=gae_like\na=2\nx=3\n")
    wrong = authors.confirm(mine, other)
    assert wrong == [
        "mine: batch: run.sh has no 'b' in line 4, and is recorded with b = 3",
        "mine: words: run.sh holds 'x' in line 4, and is recorded without it",
    ]
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "run.sh"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "run.sh").unlink()
    authors._lines.cache_clear()
    at_head = authors.authors({**CONTENT, "groups": {"mine": {**CONTENT["groups"]["mine"], "commit": "HEAD"}}})["mine"]
    assert authors.places_in(at_head, tmp_path) and authors.confirm(at_head, tmp_path) == []
    # Neither a file nor in its commit: the places are of another repository.
    assert authors.places_in(mine, tmp_path) == [] == authors.confirm(mine, tmp_path)
    with pytest.raises(HierError, match=r"has no run\.sh, neither as a file nor in its commit 0123456"):
        authors._lines(tmp_path, mine.commit, "run.sh")
    assert authors._where(by["executed"]) == "the executed case cases.json" and authors._where(by["words"]) == "run.sh"


def test_settings_have_their_place_in_the_source(tmp_path: Path) -> None:
    text = "a:\n  lr: 1.0e-6  # optim.lr\n  deep:\n    n: 8  # n\n  m: 3\n"
    text += "hier:\n  paper:\n    name: x  # no\nb: [1]  # list\n"
    file = written(tmp_path, text)
    found = [(each.line, each.value, each.where) for each in papers._settings(file)]
    assert found == [("a.lr", 1e-6, "optim.lr"), ("a.deep.n", 8, "n"), ("a.m", 3, ""), ("b", [1], "list")]
    assert papers.settings_of("nowhere") == [] and papers.contradictions({}) == []


# Readers of verl's lines


@pytest.mark.parametrize(
    ("name", "lines", "parts", "there"),
    [
        ("nobody", {}, {}, False),
        ("advantages", {}, ("estimator", {"native": True}), True),
        ("advantages", {}, ("estimator", {"native": False}), False),
        ("reward", {}, ("environment", {"tasks": None}), True),
        ("reward", {}, {}, False),
        ("data_set", {DATA + "custom_cls.name": None}, {}, True),
        ("data_set", {}, {}, False),
        ("tools", {}, ("environment", {"in_worker": True}), True),
        ("tools", {}, ("environment", {"in_worker": False}), False),
        (
            "agent_loop",
            {"actor_rollout_ref.rollout.agent.default_agent_loop": "tool_agent"},
            ("environment", {"in_worker": True}),
            True,
        ),
        (
            "agent_loop",
            {"actor_rollout_ref.rollout.agent.default_agent_loop": "tool_agent"},
            ("environment", {"in_worker": False}),
            False,
        ),
        (
            "agent_loop",
            {"actor_rollout_ref.rollout.agent.default_agent_loop": "x"},
            ("environment", {"in_worker": True}),
            False,
        ),
        ("kl_in_reward", {"algorithm.use_kl_in_reward": True}, {}, True),
        ("kl_in_reward", {"algorithm.use_kl_in_reward": False}, {}, False),
        ("kl_loss", {ACTOR + "use_kl_loss": True}, {}, True),
        ("kl_loss", {ACTOR + "use_kl_loss": False}, {}, False),
        ("critic", {"critic.enable": True}, {}, True),
        ("critic", {"critic.enable": False}, {}, False),
        ("reference", {ACTOR + "use_kl_loss": True}, {}, True),
        ("reference", {ACTOR + "use_kl_loss": False, "algorithm.use_kl_in_reward": False}, {}, False),
        ("separate_async", {"trainer.v1.trainer_mode": "hier_separate_async"}, {}, True),
        ("separate_async", {"trainer.v1.trainer_mode": "hier_colocate_async"}, {}, False),
        ("dro", {ACTOR + "policy_loss.loss_mode": "dro"}, {}, True),
        ("dro", {ACTOR + "policy_loss.loss_mode": "sapo"}, {}, False),
        ("samples", {"hier.refill": None}, {}, True),
        ("samples", {"hier.refill": RefillOptions(limit=2)}, {}, False),
        ("samples", {"hier.launch_order": LaunchOrderOptions()}, {}, False),
        ("draws", {"hier.refill": None}, {}, True),
        ("draws", {"hier.refill": RefillOptions(limit=2)}, {}, False),
        ("server", {"actor_rollout_ref.rollout.name": "vllm"}, {}, True),
        ("server", {"actor_rollout_ref.rollout.name": "transformers"}, {}, False),
    ],
)
def test_a_reader_is_there_or_says_why_not(name: str, lines: Any, parts: Any, there: bool) -> None:
    given = spec_of(parts[0], **parts[1]) if parts else {}
    said = verl_lines.READERS[name].absent(recipe(lines, **given))
    assert (said == "") == there


def test_only_what_changes_the_training_is_refused() -> None:
    refused = {name for name, reader in verl_lines.READERS.items() if reader.refused}
    assert refused == {"pf_ppo", "advantages", "reward", "data_filter", "tools", "agent_loop", "samples"}


def test_a_line_is_given_where_it_has_neither_verls_value_nor_ours() -> None:
    config, default = (
        base().config,
        {"trainer": {"save_freq": -1}, "a": {"b": "${oc.select:trainer.save_freq,3}", "c": "${.d}", "d": 7}},
    )
    line = "trainer.total_epochs"
    usual = config["trainer"]["total_epochs"]
    assert not unread._given({"trainer": {}}, line, default)
    assert not unread._given({"trainer": {"total_epochs": None}}, line, default)
    assert not unread._given({"trainer": {"total_epochs": usual}}, line, {"trainer": {"total_epochs": usual}})
    assert unread._given({"trainer": {"total_epochs": 987}}, line, {"trainer": {"total_epochs": usual}})
    found = {"trainer": {"save_freq": 5}, "a": {"b": 5, "c": 7, "d": 7}}
    assert unread._resolved(default["a"]["b"], found, "a.b") == 5 and unread._resolved("${.d}", found, "a.c") == 7
    assert unread._resolved("plain", found, "a.b") == "plain" and unread._resolved(3, found, "a.b") == 3
    assert unread._as_composed("1e-5") == 1e-5 and unread._as_composed("x") == "x" and unread._as_composed(3) == 3
    assert unread._as_composed("${x}") is unread._ANY
    ours = {line: values for line, values in unread._shipped().items() if unread._ANY not in values}
    assert len(ours) > 20
    for line, values in ours.items():
        nested: Any = {}
        block = nested
        *above, key = line.split(".")
        for name in above:
            block = block.setdefault(name, {})
        for found_there, is_given in (*((held, False) for held in values), ("another", True)):
            block[key] = found_there
            assert unread._given(nested, line, {}) == (
                is_given and found_there != unread._leaves_of("base.yaml").get(line, [None])[0]
            )
    leaves = dict(unread._leaves({"hier": {"a": 1}, "defaults": [], "x": {"hier": 2, "defaults": {"y": 3}}}, ""))
    assert leaves == {"x.hier": 2, "x.defaults.y": 3}


def test_random_names_are_never_offered() -> None:
    found, dice = catalogue.find("himac_alfworld"), random.Random(1)
    for _ in range(20):
        name = "".join(dice.choices("abcdef", k=6))
        found.require_offered([f"model={name}", f"server={name}"])  # Hydra says which there are
        assert found.groups.get("model") != name


def test_authors_are_plain_data() -> None:
    theirs = Authors(
        "g", "a/b", "c", (AuthorsValue("x", None, ("KL",), 1, ()), AuthorsValue("y", None, (), None, (), "why"))
    )
    assert [each.name for each in theirs.unconfirmed] == ["y"]

"""A small world, its tiny model and its workers, made once for all cold start tests."""

from importlib.util import find_spec

import pytest

from verl_hier.host.part import Part

collect_ignore_glob = [] if find_spec("alfworld") and find_spec("textworld") else ["test_*.py"]


@pytest.fixture(scope="session")
def options():
    from verl_hier_plugins.environments.alfworld.options import AlfworldOptions

    return AlfworldOptions(observation="short", goals=(1, 2), pool=12, validation=4, max_steps=60)


@pytest.fixture(scope="session")
def workers():
    """Workers by name."""
    from verl_hier_plugins.workers.designer_executor import hier_workers as designing
    from verl_hier_plugins.workers.designer_executor.options import DesignerExecutorOptions, RoleOptions
    from verl_hier_plugins.workers.planner_executor import PlannerExecutorOptions
    from verl_hier_plugins.workers.planner_executor import hier_workers as hierarchical
    from verl_hier_plugins.workers.react import ReactOptions
    from verl_hier_plugins.workers.react import hier_workers as flat

    prompt = "goal: {subgoal} | {places} | {observation}"
    return {
        "planner_executor": Part(hierarchical(), PlannerExecutorOptions(executor_prompt=prompt, subgoal_turns=30)),
        "react": Part(flat(), ReactOptions()),
        "designer_executor": Part(
            designing(),
            DesignerExecutorOptions(
                executor_prompt="{role}: {order} | {places} | {observation}",
                roles={name: RoleOptions() for name in ("find", "clean", "heat", "cool", "put")},
                define_roles=False,
                delivery_tag=None,
                turns=30,
            ),
        ),
    }


@pytest.fixture(scope="session")
def texts(options, workers):
    from verl_hier.coldstart import collect_texts
    from verl_hier_plugins.environments.alfworld import SPEC

    return list(collect_texts(Part(SPEC, options), list(workers.values()), walks=6))


@pytest.fixture(scope="session")
def model_dir(texts, tmp_path_factory):
    from verl_hier.coldstart import build_tiny

    return build_tiny(tmp_path_factory.mktemp("tiny"), texts)


@pytest.fixture(scope="session")
def tokenizer(model_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)

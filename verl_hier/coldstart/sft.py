"""The supervised part of the cold start, done by verl's own SFT trainer in a process of its own."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from verl_hier.coldstart.rows import read_rows
from verl_hier.compat.launch import Tail, Watch, launch
from verl_hier.errors import HierError
from verl_hier.graph.bounded_reading import read_json

logger = logging.getLogger(__name__)

LOG_NAME = "sft.log"
MODEL_NAME = "model"


Progress = Callable[[int, int, float], None]
"""Called with the number of the optimiser step, of all steps, and the loss of the step."""
_EXCEPTION = re.compile(r"^(\[rank\d+\]: )?[\w.]+(Error|Exception|Interrupt): ")
_STEP = re.compile(r"step:(\d+) .*?train/loss:([0-9.eE+-]+)")


def no_progress(step: int, steps: int, loss: float) -> None:
    """A `Progress` that shows nothing."""


class ColdStartError(HierError):
    """verl's SFT trainer failed; the message names its log and its last error."""


def run_sft(
    model_dir: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    steps: int = 1300,
    batch_size: int = 24,
    learning_rate: float = 3e-3,
    warmup_steps: int = 50,
    device: str = "cpu",
    processes: int = 1,
    seed: int = 0,
    overrides: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Path:
    """Train a model on demonstrations.

    Args:
        model_dir: folder with the model and its tokenizer.
        data: files of `write_demonstrations`.
        out: folder for the result; `out/model` is the trained model and `out/sft.log` its output.
        steps: optimiser steps. Counted in steps and not in seconds, so that two machines train the same policy.
        batch_size: rows a step.
        learning_rate: highest learning rate of a cosine with warm-up.
        warmup_steps: steps until it is reached.
        device: `cpu` or `cuda`.
        processes: FSDP ranks.
        seed: seed of the order of the rows.
        overrides: further Hydra overrides for `verl.trainer.sft_trainer`.
        progress: called about twice a second with the last step and its loss.

    Returns:
        `out/model`.

    Raises:
        ColdStartError: when the device is not there, or the trainer fails.
        RecipeError: for a file that holds no demonstrations, or such that the model cannot learn.
    """
    files = [data] if isinstance(data, str | Path) else list(data)
    rows = sum(1 for _ in read_rows(files, _vocabulary(Path(model_dir))))
    _require_device(device)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    epochs = math.ceil(steps / max(1, rows // batch_size))
    settings = [
        *sft_overrides(Path(model_dir), files, out, batch_size, device),
        f"trainer.total_training_steps={steps}",
        f"trainer.total_epochs={epochs}",
        f"trainer.n_gpus_per_node={processes}",
        f"optim.lr={learning_rate}",
        f"optim.lr_warmup_steps={warmup_steps}",
        f"+data.order_seed={seed}",
        f"hydra.run.dir={out / 'hydra'}",
    ]
    arguments = [
        *("torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
        *("-m", "verl.trainer.sft_trainer", *settings, *overrides),
    ]
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "WANDB_MODE": "offline"}
    if device == "cpu":
        variables["VERL_PLATFORM"] = "cpu"
    log = out / LOG_NAME
    status = launch(arguments, log, variables, _follower(log, steps, progress))
    if status:
        raise ColdStartError(f"verl's SFT trainer ended with status {status}: {_last_error(log)}; see {log}.")
    return _collect(out, steps)


def _vocabulary(model_dir: Path) -> int | None:
    """How many tokens a model knows; None where its config.json does not say it."""
    config = read_json(model_dir / "config.json")
    size = config.get("vocab_size") if isinstance(config, dict) else None
    return size if isinstance(size, int) else None


def _require_device(device: str) -> None:
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ColdStartError("torch finds no GPU on this machine; train on its processors with `--device cpu`.")


def _last_error(log: Path) -> str:
    """The last line of a log that names an exception, or else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if _EXCEPTION.search(line) and "ChildFailedError" not in line]
    return (named or lines or ["it wrote nothing"])[-1].rstrip(".")


def _follower(log: Path, steps: int, progress: Progress) -> Watch:
    """Reads what the log gains, and tells `progress`; for `launch`, which asks it whether to stop."""
    tail = Tail(log)

    def follow(process: object) -> bool:
        found = _STEP.findall(b"".join(tail.lines()).decode(errors="replace"))
        if found:
            progress(int(found[-1][0]), steps, float(found[-1][1]))
        return False

    return follow


def sft_overrides(model_dir: Path, files: Sequence[str | Path], out: Path, batch_size: int, device: str) -> list[str]:
    """Hydra overrides that make `verl.trainer.sft_trainer` read demonstrations and leave a Hugging Face folder."""
    settings = [
        f"model.path={model_dir}",
        f"data.train_files=[{','.join(map(str, files))}]",
        "data.custom_cls.path=pkg://verl_hier.coldstart.dataset",
        "data.custom_cls.name=DemonstrationDataset",
        f"data.train_batch_size={batch_size}",
        "data.pad_mode=no_padding",
        "data.use_dynamic_bsz=true",
        "data.max_token_len_per_gpu=16384",
        "data.num_workers=0",
        "optim.lr_scheduler_type=cosine",
        "optim.clip_grad=1.0",
        "checkpoint.save_contents=[hf_model]",
        "trainer.logger=[console]",
        "trainer.project_name=verl_hier",
        "trainer.experiment_name=coldstart",
        f"trainer.default_local_dir={out / 'checkpoints'}",
        "trainer.resume_mode=disable",
        f"trainer.device={device}",
    ]
    if device == "cpu":
        settings += [
            # FSDP1 and flash attention need an accelerator; see recipes/hier/size/cpu.yaml.
            "engine.strategy=fsdp2",
            "engine.use_torch_compile=false",
            "model.use_remove_padding=false",
            "model.enable_gradient_checkpointing=false",
            "+model.override_config.attn_implementation=sdpa",
        ]
        settings += [f"+engine.mixed_precision.{kind}_dtype=fp32" for kind in ("param", "reduce", "buffer")]
    return settings


def _collect(out: Path, steps: int) -> Path:
    """Move the Hugging Face folder of the last checkpoint to `out/model`."""
    saved = out / "checkpoints" / f"global_step_{steps}" / "huggingface"
    if not saved.is_dir():
        raise ColdStartError(f"verl's SFT trainer ended without a model in {saved}; see {out / LOG_NAME}.")
    target = out / MODEL_NAME
    if target.exists():
        shutil.rmtree(target)
    shutil.move(saved, target)
    shutil.rmtree(out / "checkpoints")
    losses = [loss for _, loss in _STEP.findall((out / LOG_NAME).read_text())]
    if losses:
        logger.info("loss %s -> %s", losses[0], losses[-1])
    return target

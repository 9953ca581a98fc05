"""The supervised step: rows and weights as verl's loss wants them, and one short run of verl's own trainer."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hier.coldstart import Noise, run_sft, write_demonstrations
from verl_hier.coldstart.dataset import DemonstrationDataset
from verl_hier.coldstart.sft import ColdStartError, _follower, sft_overrides
from verl_hier.errors import RecipeError
from verl_hier.host.part import Part
from verl_hier_plugins.environments.alfworld import SPEC


@pytest.fixture(scope="module")
def data(options, workers, tokenizer, tmp_path_factory):
    file = tmp_path_factory.mktemp("demonstrations") / "d.parquet"
    return write_demonstrations(Part(SPEC, options), workers["planner_executor"], tokenizer, file, n=12, noise=Noise())


def dataset(data, **config):
    return DemonstrationDataset(str(data), None, OmegaConf.create({"pad_mode": "no_padding", **config}))


def test_rows_keep_fractional_weights(data):
    rows = dataset(data)
    row = rows[0]
    assert row["loss_mask"].dtype == torch.float32 and row["loss_mask"].shape == row["input_ids"].shape
    assert {0.0, 0.1, 1.0} >= {round(float(w), 4) for w in row["loss_mask"]}
    assert torch.equal(row["position_ids"], torch.arange(len(row["input_ids"])))


def test_the_order_depends_on_its_seed(data):
    first, same, other = dataset(data), dataset(data, order_seed=0), dataset(data, order_seed=1)
    assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(first, same, strict=True))
    assert any(len(a["input_ids"]) != len(b["input_ids"]) for a, b in zip(first, other, strict=True))
    assert len(dataset(data)) == len(first)


def test_what_does_not_fit_is_refused(data):
    with pytest.raises(RecipeError, match="no_padding"):
        dataset(data, pad_mode="right")
    with pytest.raises(RecipeError, match="longest demonstration"):
        dataset(data, max_length=5)


@pytest.mark.parametrize(
    ("tokens", "weights", "said"),
    [
        ([], [], "no tokens"),
        ([1, None], [0.0, 1.0], "gaps"),
        ([1, 2], [1.0], "one weight for each token"),
        ([1, 2], [0.0, None], "one weight for each token"),
        ([1, -2], [0.0, 1.0], "between -2 and 1"),
        ([1, 10**6], [0.0, 1.0], "below [0-9]+, the size of the model's vocabulary"),
        ([1, 2], [0.0, -1.0], "at least 0"),
        ([1, 2], [0.0, float("nan")], "finite"),
    ],
)
def test_rows_that_teach_nothing_are_refused_before_the_trainer_starts(
    model_dir, tmp_path, monkeypatch, tokens, weights, said
):
    monkeypatch.setattr("verl_hier.coldstart.sft.launch", lambda *given: pytest.fail("the trainer was started"))
    types = pa.schema({"input_ids": pa.list_(pa.int64()), "weights": pa.list_(pa.float64())})
    rows = [{"input_ids": [1, 2], "weights": [0.0, 1.0]}, {"input_ids": tokens, "weights": weights}]
    pq.write_table(pa.Table.from_pylist(rows, types), tmp_path / "d.parquet")
    with pytest.raises(RecipeError, match=f"row 1 is no demonstration: .*{said}"):
        run_sft(model_dir, tmp_path / "d.parquet", tmp_path / "out")


def test_the_weighted_mean_is_what_verl_computes(data):
    """verl's loss on two rows against the definition, weights and all."""
    pytest.importorskip("verl")
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import SFTTensorCollator
    from verl.workers.utils.losses import sft_loss

    rows = [dataset(data)[i] for i in range(2)]
    batch = SFTTensorCollator("no_padding")(rows)
    # log_probs [sum of t], at each position that of the next token
    logprobs = torch.randn(sum(len(row["input_ids"]) for row in rows))
    nested = torch.nested.nested_tensor_from_jagged(logprobs, batch["input_ids"].offsets())
    tensors = TensorDict({"loss_mask": batch["loss_mask"]}, batch_size=[2])
    tu.assign_non_tensor(
        tensors, pad_mode="no_padding", dp_size=1, batch_num_tokens=float(batch["loss_mask"].values().sum())
    )
    loss, _ = sft_loss(None, {"log_probs": nested}, tensors)
    total = weight = 0.0
    for row, values in zip(rows, nested.unbind(), strict=True):
        total -= float((values[:-1] * row["loss_mask"][1:]).sum())
        weight += float(row["loss_mask"].sum())
    assert float(loss) == pytest.approx(total / weight, rel=1e-5)


def test_the_overrides_fit_verls_config(data, tmp_path):
    pytest.importorskip("verl")
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        overrides = sft_overrides(tmp_path / "model", [data], tmp_path, 24, "cpu")
        config = compose("sft_trainer_engine", overrides)
    assert config.engine.strategy == "fsdp2" and config.data.train_files == [str(data)]


def test_progress_is_read_from_whole_lines_of_the_log(tmp_path):
    seen: list[tuple[int, int, float]] = []
    log = tmp_path / "sft.log"
    follow = _follower(log, 9, lambda *found: seen.append(found))
    with log.open("w") as stream:
        for text, known in (
            ("starting\n", []),
            ("step:1 - train/loss:5.25 - train/lr:0.1\nstep:2 - train/lo", [(1, 9, 5.25)]),
            ("ss:4.5 - train/lr:0.1\n", [(1, 9, 5.25), (2, 9, 4.5)]),
            ("step:3 - train/loss:4.0\nstep:4 - train/loss:2e-3 - x\n", [(1, 9, 5.25), (2, 9, 4.5), (4, 9, 0.002)]),
        ):
            stream.write(text)
            stream.flush()
            assert follow(None) is False and seen == known


@pytest.mark.slow
def test_verls_trainer_learns_from_demonstrations(model_dir, data, tmp_path):
    model = run_sft(model_dir, data, tmp_path, steps=6, batch_size=8, warmup_steps=1)
    assert model == tmp_path / "model"
    before = AutoModelForCausalLM.from_pretrained(model_dir)
    after = AutoModelForCausalLM.from_pretrained(model)
    assert not torch.equal(before.model.embed_tokens.weight, after.model.embed_tokens.weight)
    assert AutoTokenizer.from_pretrained(model).get_vocab() == AutoTokenizer.from_pretrained(model_dir).get_vocab()
    assert (tmp_path / "sft.log").is_file() and not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_a_failed_run_says_where_to_look(model_dir, data, tmp_path):
    with pytest.raises(ColdStartError, match=r"sft\.log"):
        run_sft(model_dir, data, tmp_path, steps=2, overrides=["data.max_length=3"])

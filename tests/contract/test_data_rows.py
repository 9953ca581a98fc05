"""Rows of verl's data sets are known by their place, whatever `extra_info.index` says."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from verl_hier.compat.dataset import NumberedRows

# verl's registry imports our trainers, which import this module.
pytest.importorskip("verl_hier.compat.agent_loop")
tasks = pytest.importorskip("verl_hier.compat.tasks")

FORMS = Path(__file__).parents[1] / "fixtures" / "data_forms"
MESSAGES = [{"role": "user", "content": "1 + 1?"}]
SETTINGS = OmegaConf.create({"prompt_key": "prompt", "filter_overlong_prompts": False})
INDICES = st.one_of(
    st.lists(st.none() | st.text(max_size=5), min_size=3, max_size=3),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
    st.lists(st.none() | st.floats(), min_size=3, max_size=3),
    st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=3, max_size=3),
)


def numbered(files):
    """verl's data set as our trainers hold it."""
    trainer = object.__new__(tasks.TaskMixin)
    trainer.train_dataset = create_rl_dataset([str(file) for file in files], SETTINGS, None, None)
    return trainer.train_dataset


def drawn(rows, size):
    """Batches of verl's loader, as its trainer makes them."""
    for batch in StatefulDataLoader(rows, batch_size=size, collate_fn=collate_fn):
        yield tu.get_tensordict({**batch, "uid": np.array(["u"] * len(batch["raw_prompt"]), dtype=object)})


@settings(max_examples=20, deadline=None)
@given(INDICES)
def test_any_index_of_the_data_gives_way_to_the_place(tmp_path_factory, indices):
    file = tmp_path_factory.mktemp("rows") / "train.parquet"
    rows = [{"prompt": MESSAGES, "data_source": "mine", "extra_info": {"index": index}} for index in indices]
    pq.write_table(pa.Table.from_pylist(rows), file)
    found = numbered([file])
    batches = list(drawn(found, 3))
    assert [place for batch in batches for place in tasks.places_of(batch)] == [0, 1, 2]
    # What reward functions read is what the file says.
    assert [repr(found[place]["extra_info"]["index"]) for place in range(3)] == [repr(index) for index in indices]


@pytest.mark.parametrize("form", ["dapo_math", "no_extra_info", "extra_info_float_index", "aime2024", "gsm8k"])
def test_rows_of_several_files_have_numbers_of_their_own(form):
    # Two files that count from the same number.
    files = [FORMS / f"{form}.parquet"] * 2
    places = [place for batch in drawn(numbered(files), 4) for place in tasks.places_of(batch)]
    assert places == list(range(16))


def test_the_rest_is_the_data_set_s_own():
    rows = create_rl_dataset([str(FORMS / "gsm8k.parquet")], SETTINGS, None, None)
    found = NumberedRows.of(rows)
    assert len(found) == len(rows) == 8 and found.prompt_key == "prompt" and NumberedRows.of(found) is found
    assert found[3]["raw_prompt"] == rows[3]["raw_prompt"] and found[3]["reward_model"] == rows[3]["reward_model"]
    assert copy.copy(found)[5]["index"] == 5
    # verl's data set leaves its rows out of a pickle and reads them again.
    again = pickle.loads(pickle.dumps(found))
    again.resume_dataset_state()
    assert again[5]["index"] == 5
    with pytest.raises(AttributeError):
        _ = found.nothing_of_this_name


def test_a_data_set_that_hands_over_several_rows_at_once_is_numbered_too():
    class Fast:
        def __len__(self):
            return 4

        def __getitem__(self, place):
            return {"raw_prompt": MESSAGES, "index": "a text"}

        def __getitems__(self, places):
            return [self[place] for place in places]

    assert [place for batch in drawn(NumberedRows.of(Fast()), 2) for place in tasks.places_of(batch)] == [0, 1, 2, 3]

"""WebShop's files: what is read of them, and what is refused in a sentence."""

from __future__ import annotations

import json

import pytest

from verl_hier.errors import RecipeError
from verl_hier_plugins.environments.shop import SPEC
from verl_hier_plugins.environments.shop.options import ShopOptions

ITEM = {
    **{"asin": "B01", "name": "a small lamp", "query": "Lamp", "product_category": "Home › Lamps", "pricing": "$10.00"},
    **{"full_description": "bright", "small_description": ["fits anywhere"]},
    "customization_options": {"Colour": [{"value": "Red"}, {"value": "Blue"}]},
}
ATTRIBUTES = {"attributes": ["small", "bright"], "instruction": "find a lamp", "instruction_attributes": ["small"]}
WRITTEN = {"instruction": "a lamp please", "instruction_attributes": ["small"], "instruction_options": ["red"]}


def tasks(folder, item=ITEM, attributes=ATTRIBUTES, written=None):
    """The tasks of all splits."""
    files = {"items": [item], "attributes": {"B01": attributes}, "instructions": {"B01": [written]}}
    # Shops are kept by the paths of their files.
    folder, paths = folder / str(len(list(folder.iterdir()))), {}
    folder.mkdir()
    for name, content in files.items():
        if name != "instructions" or written is not None:
            paths[f"{name}_path"] = str(folder / f"{name}.json")
            (folder / f"{name}.json").write_text(json.dumps(content))
    found = []
    for split in ("train", "val", "test"):
        try:
            found += SPEC.tasks(ShopOptions(**paths, pool=0, validation=0), split)
        except RecipeError as error:
            if "no instruction for the split" not in str(error):
                raise
    return found


def test_made_up_and_written_instructions(tmp_path):
    (made,) = tasks(tmp_path)
    assert made["instruction"].startswith("find a lamp, and colour: ") and "price lower than" in made["instruction"]
    (said,) = tasks(tmp_path, written=WRITTEN)
    assert said["instruction"].startswith("a lamp please, and price lower than")
    assert said["goal"]["attributes"] == ["small"] and said["goal"]["options"] == ["red"]


@pytest.mark.parametrize("value", [1.5, "small", {"a": 1}, True])
def test_what_is_no_list_of_texts_is_refused(tmp_path, value):
    """A text would be taken for a list of its letters."""
    for changed in (
        {"attributes": {**ATTRIBUTES, "attributes": value}},
        {"attributes": {**ATTRIBUTES, "instruction_attributes": value}},
        {"written": {**WRITTEN, "instruction_attributes": value}},
        {"item": {**ITEM, "customization_options": {"Colour": value}}},
    ):
        with pytest.raises(RecipeError, match=r"hier.environment.*needs .*a? list"):
            tasks(tmp_path, **changed)
    if not isinstance(value, str):
        with pytest.raises(RecipeError, match="needs in `small_description` a list of texts"):
            tasks(tmp_path, item={**ITEM, "small_description": value})
    if not isinstance(value, dict):
        with pytest.raises(RecipeError, match="needs in `instruction_options` a list of texts"):
            tasks(tmp_path, written={**WRITTEN, "instruction_options": value})

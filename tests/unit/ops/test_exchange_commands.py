"""`verl-hier export` and `import`: what they print and write, and what they refuse."""

from __future__ import annotations

import json
import sys

import pytest

from tests.fixtures import rollout_graphs
from verl_hier.cli.main import main
from verl_hier.graph import read_graphs


@pytest.fixture
def verl_hier(monkeypatch, capsys):
    """Call the command line in this process; returns exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["verl-hier", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return run


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_chat_there_and_back(verl_hier, tmp_path, byte_model, template):
    chat, graphs = tmp_path / "chat.jsonl", tmp_path / "graphs.parquet"
    code, out, _ = verl_hier("export", rollout_graphs.GOLDEN, "--to", "chat", "--out", chat)
    count = len(chat.read_text().splitlines())
    assert code == 0 and out == f"{count} lines: {chat}\n"
    code, out, _ = verl_hier(
        "import", chat, "--from", "chat", "--model", byte_model, "--out", graphs, "--template", template
    )
    assert code == 0 and f"{count} episodes: {graphs}" in out
    assert verl_hier("export", graphs, "--to", "chat", "--out", tmp_path / "again.jsonl")[0] == 0
    told = [
        [json.loads(line)["messages"] for line in file.read_text().splitlines()]
        for file in (chat, tmp_path / "again.jsonl")
    ]
    assert sorted(map(json.dumps, told[0])) == sorted(map(json.dumps, told[1]))


@pytest.mark.parametrize(
    "arguments, columns",
    [
        (("sft", "--form", "turns", "--role", "agent"), ["prompt", "completion"]),
        (("pairs",), ["prompt", "chosen", "rejected"]),
        (("pairs", "--form", "plain", "--model", "MODEL", "--gap", "0.01"), ["prompt", "chosen", "rejected"]),
    ],
)
def test_rows_to_learn_from_and_what_was_left_out(verl_hier, tmp_path, byte_model, arguments, columns):
    chat, graphs, out = (tmp_path / name for name in ("chat.jsonl", "graphs.jsonl", "rows.jsonl"))
    verl_hier("export", rollout_graphs.GOLDEN, "--to", "chat", "--out", chat)
    verl_hier("import", chat, "--from", "chat", "--model", byte_model, "--out", graphs)
    given = [byte_model if word == "MODEL" else word for word in arguments]
    code, said, _ = verl_hier("export", graphs, "--to", *given, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert code == 0 and said.startswith(f"{len(rows)} lines: {out}\nleft out: ")
    assert all(list(row)[: len(columns)] == columns for row in rows)
    if "plain" in arguments:
        assert rows[0]["prompt"].endswith("<|im_start|>assistant\n") and isinstance(rows[0]["chosen"], str)


def test_a_dump_there_and_back_and_credited(verl_hier, tmp_path, byte_model):
    chat, graphs, dump = (tmp_path / name for name in ("chat.jsonl", "graphs.jsonl", "dump.jsonl"))
    verl_hier("export", rollout_graphs.GOLDEN, "--to", "chat", "--out", chat)
    verl_hier("import", chat, "--from", "chat", "--model", byte_model, "--out", graphs)
    assert verl_hier("export", graphs, "--to", "verl", "--model", byte_model, "--out", dump)[0] == 0
    line = json.loads(dump.read_text().splitlines()[0])
    assert list(line) == ["input", "output", "gts", "score", "step", "uid"]
    assert line["input"] == "user\ntask: do it | at 0\nassistant\n" and line["output"].startswith("right\nuser\nat 1")
    assert verl_hier("import", dump, "--from", "verl", "--model", byte_model, "--out", tmp_path / "again.jsonl")[0] == 0
    assert sum(len(graph.episodes) for graph in read_graphs(tmp_path / "again.jsonl")) == len(
        dump.read_text().splitlines()
    )
    code, out, _ = verl_hier(
        "credit", tmp_path / "again.jsonl", "--estimator", "grpo", "--out", tmp_path / "credit.jsonl"
    )
    assert code == 0 and "turns" in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("export", "NONE", "--to", "chat", "--out", "OUT.jsonl"), "does not exist"),
        (("export", "GOLDEN", "--to", "verl", "--out", "OUT.jsonl"), "--model FOLDER"),
        (("export", "GOLDEN", "--to", "chat", "--out", "OUT.csv"), "use .jsonl or .parquet"),
        (("export", "GOLDEN", "--to", "verl", "--model", "NONE", "--out", "OUT.jsonl"), "neither a folder here"),
        (("export", "GOLDEN", "--to", "chat", "--take", "best", "--out", "OUT.jsonl"), "--take is of --to sft"),
        (
            ("export", "GOLDEN", "--to", "atif", "--gap", "1", "--out", "OUT.jsonl"),
            "--gap is of --to sft and --to pairs",
        ),
        (("export", "GOLDEN", "--to", "sft", "--take", "errors", "--out", "OUT.jsonl"), "takes best or revised"),
        (
            ("export", "GOLDEN", "--to", "pairs", "--take", "best", "--out", "OUT.jsonl"),
            "siblings or errors or revised",
        ),
        (("export", "GOLDEN", "--to", "sft", "--form", "plain", "--out", "OUT.jsonl"), "--model FOLDER"),
        (("export", "GOLDEN", "--to", "pairs", "--model", "MODEL", "--out", "OUT.jsonl"), "--form plain"),
        (("export", "GOLDEN", "--to", "pairs", "--form", "turns", "--out", "OUT.jsonl"), "a pair is always one turn"),
        (
            ("export", "GOLDEN", "--to", "pairs", "--take", "revised", "--form", "plain", "--out", "OUT.jsonl"),
            "leave --form plain out",
        ),
        (
            ("export", "GOLDEN", "--to", "sft", "--take", "revised", "--form", "messages", "--out", "OUT.jsonl"),
            "leave --form out",
        ),
        (
            ("export", "GOLDEN", "--to", "sft", "--thought", "Oh.", "--out", "OUT.jsonl"),
            "--thought is of --take revised",
        ),
        (("export", "GOLDEN", "--to", "sft", "--gap", "1", "--out", "OUT.jsonl"), "--gap is of --to pairs"),
        (("export", "GOLDEN", "--to", "sft", "--least", "nan", "--out", "OUT.jsonl"), "not a finite number"),
        (("export", "GOLDEN", "--to", "pairs", "--least", "99", "--out", "OUT.jsonl"), "holds no such row. Left out:"),
        (("import", "NONE", "--from", "chat", "--model", "NONE", "--out", "OUT.jsonl"), "does not exist"),
        (("import", "GOLDEN", "--from", "verl", "--model", "NONE", "--out", "OUT.jsonl"), "neither a folder here"),
        (("import", "GOLDEN", "--from", "verl", "--model", "MODEL", "--out", "OUT.jsonl"), "line 1 lacks `input`"),
        (("import", "GOLDEN", "--from", "chat", "--model", "MODEL", "--out", "OUT.jsonl"), "line 1 lacks `messages`"),
        (("import", "GOLDEN", "--from", "chat", "--model", "BARE", "--out", "OUT.jsonl"), "--template plain"),
    ],
)
def test_what_cannot_be_is_one_sentence(verl_hier, tmp_path, byte_model, arguments, words):
    from transformers import AutoTokenizer

    bare = AutoTokenizer.from_pretrained(byte_model)
    bare.chat_template = None
    bare.save_pretrained(tmp_path / "bare")
    places = {
        "NONE": tmp_path / "none",
        "GOLDEN": rollout_graphs.GOLDEN,
        "MODEL": byte_model,
        "BARE": tmp_path / "bare",
    }
    given = [tmp_path / word.lower() if word.startswith("OUT") else places.get(word, word) for word in arguments]
    code, out, err = verl_hier(*given)
    sentence = err.splitlines()[-1]
    assert code == 2 and not out and words in sentence and sentence.startswith(("verl-hier: ", "Error: "))
    assert not list(tmp_path.glob("out*"))

"""The search environment on files: HotpotQA's two layouts, a corpus of one's own, a stored index, and what is wrong."""

import json
import os

import pyarrow
import pyarrow.parquet as parquet
import pytest

from verl_hier.errors import RecipeError
from verl_hier.testing.environment import check_environment
from verl_hier_plugins.environments.search import SPEC
from verl_hier_plugins.environments.search.files import held_out
from verl_hier_plugins.environments.search.options import SearchOptions

QUESTIONS = [
    {
        "_id": f"q{number}",
        "question": f"Which river flows past the birthplace of writer {number}?",
        "answer": f"River {number}",
        "supporting_facts": [[f"Writer {number}", 0], [f"Town {number}", 1], [f"Town {number}", 0]],
        "context": [
            [f"Writer {number}", [f"Writer {number} wrote novels.", f" He was born in Town {number}."]],
            [f"Town {number}", [f"Town {number} is a town.", f" It lies on River {number}."]],
            ["Noise", ["Nothing to see here."]],
        ],
    }
    for number in range(30)
]


def pairs_to_lists(pairs, second):
    return {"title": [pair[0] for pair in pairs], second: [pair[1] for pair in pairs]}


def columns(row):
    """The layout of the Parquet files: two lists side by side instead of pairs."""
    nested = {"supporting_facts": "sent_id", "context": "sentences"}
    return {k: pairs_to_lists(v, nested[k]) if k in nested else v for k, v in row.items()}


def write(folder, layout, rows=QUESTIONS, name="questions"):
    file = folder / f"{name}.{layout}"
    if layout == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist([columns(row) for row in rows]), file)
    elif layout == "json":
        file.write_text(json.dumps(rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def corpus(tmp_path):
    """Passages of which several have one title; one names its collection."""
    rows = [
        {"title": "Lake", "text": "The lake is deep."},
        {"title": "Lake", "text": "The lake is cold."},
        {"title": "Hill", "text": "The hill is \ud83d\ude00 steep, with half a sign: \ud83d.", "collection": "web"},
    ]
    return write(tmp_path, "jsonl", rows, "corpus")


def options(**values):
    return SearchOptions(**{"pool": 0, "validation": 0, "web_share": 0.0, **values})


@pytest.mark.parametrize("layout", ["parquet", "jsonl", "json"])
def test_questions_with_their_contexts(tmp_path, layout):
    made = options(data_path=write(tmp_path, layout), web_share=0.4)
    tasks = {split: SPEC.tasks(made, split) for split in ("train", "val", "test")}
    assert sum(map(len, tasks.values())) == 30 and len(tasks["train"]) > 20
    for split, found in tasks.items():
        assert all(held_out(task["question"]) == split for task in found)
    task = tasks["train"][0]
    row = next(row for row in QUESTIONS if row["_id"] == task["id"])
    number = row["_id"][1:]
    assert task == {
        "instruction": row["question"],
        "question": row["question"],
        "answers": [row["answer"]],
        "hops": 2,
        "support": [f"Writer {number}", f"Town {number}"],
        "data_source": "search",
        "id": row["_id"],
    }
    environment = SPEC.factory(made)
    environment.reset(task, 0)
    steps = [environment.step(f"{word} town {number}") for word in ("search", "web")]
    assert f"Town {number} is a town. It lies on River {number}." in f"{steps[0].text} {steps[1].text}"
    assert steps[-1].info["recall"] in (0.5, 1.0)
    assert environment.step(f"answer the river {number}").info["won"]
    with pytest.raises(RecipeError, match="knows the way to the answer of generated questions only"):
        environment.expert(None)


def test_a_data_set_conforms(tmp_path):
    made = options(data_path=write(tmp_path, "parquet"), index_path=str(tmp_path / "index"))
    check_environment(SPEC, made, tasks=1, actions=["search writer", "search town noise", "search 3 born novels"])


def test_a_validation_file_is_held_out_as_a_whole(tmp_path):
    train, validation = write(tmp_path, "jsonl", QUESTIONS[:20]), write(tmp_path, "jsonl", QUESTIONS[20:], "validation")
    made = options(data_path=train, validation_path=validation, pool=5)
    assert [task["id"] for task in SPEC.tasks(made, "train")] == [f"q{n}" for n in range(5)]
    assert [task["id"] for task in SPEC.tasks(made, "val")] == [f"q{n}" for n in range(20, 30)]
    environment = SPEC.factory(made)
    environment.reset(SPEC.tasks(made, "val")[0], 0)
    for number in (3, 23):
        titles = environment.step(f"search town {number}").info["documents"]
        assert any(title.startswith(f"Town {number} #") for title in titles), "contexts of both files are searched"
    assert sum("Noise" in title for title in environment.step("search noise").info["documents"]) == 1, "written once"


def test_a_corpus_of_ones_own(tmp_path, corpus):
    rows = [{"question": "How is the lake?", "answer": ["deep", "very deep"]}]
    made = options(
        data_path=write(tmp_path, "jsonl", rows), validation_path=write(tmp_path, "json", rows), corpus_path=corpus
    )
    (task,) = SPEC.tasks(made, "train")
    assert task["answers"] == ["deep", "very deep"] and "hops" not in task
    environment = SPEC.factory(made)
    first = environment.reset(task, 0)
    assert "recall" not in first.info
    step = environment.step("search lake")
    assert step.info["documents"] == ["Lake #0", "Lake #1"] and "[2] Lake: The lake is cold." in step.text
    assert step.anchor == "How is the lake? | Lake #0 | Lake #1"
    assert environment.step("search steep hill").info["documents"] == []
    assert "\N{GRINNING FACE} steep, with half a sign: ?." in environment.step("web steep hill").text
    assert environment.step("answer Very deep.").reward == 1.0


def test_a_stored_index_says_the_same_and_is_made_once_for_files_as_they_are(tmp_path, corpus):
    from verl_hier_plugins.environments.search import index

    folder = tmp_path / "index"
    memory = options(data_path=write(tmp_path, "jsonl"), corpus_path=corpus)
    stored = options(data_path=memory.data_path, corpus_path=corpus, index_path=str(folder))
    (task, *_) = SPEC.tasks(stored, "train")
    (made,) = folder.iterdir()
    assert sorted(path.name for path in made.iterdir()) == ["local", "web"]
    stamp = made.stat().st_mtime_ns
    SPEC.tasks(stored, "val")
    environments = [SPEC.factory(memory), SPEC.factory(stored)]
    for environment in environments:
        environment.reset(task, 0)
    for action in ("search lake", "web hill", "search deep", "search nothing", "search cold lake"):
        one, other = (environment.step(action) for environment in environments)
        assert one == other
    assert made.stat().st_mtime_ns == stamp and list(folder.iterdir()) == [made]
    with open(corpus, "a") as file:
        file.write(json.dumps({"title": "Moor", "text": "The moor is wet."}) + "\n")
    index.library.cache_clear()
    environments[1].reset(task, 0)
    assert environments[1].step("search moor").info["documents"] == ["Moor #3"]
    assert len(list(folder.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path, corpus):
    (tmp_path / "file").write_text("")
    made = options(data_path=write(tmp_path, "jsonl"), corpus_path=corpus, index_path=str(tmp_path / "file"))
    with pytest.raises(RecipeError, match=r"hier\.environment\.index_path: nothing can be written below"):
        SPEC.tasks(made, "train")


GOOD = {"question": "Who?", "answer": "Nobody", "context": [["Nobody", ["Nobody did."]]]}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "data_path: there is no file"),
        ("{", "data_path: line 1 of .* is not JSON"),
        (b"\xff\xfe", "data_path: .* cannot be read"),
        ("[1]", r"data_path: line 1 of q\.jsonl is no object"),
        ({"answer": "x"}, "line 1 of q.jsonl has no text in `question`; it has context, answer"),
        (GOOD | {"question": " "}, "has no text in `question`"),
        (GOOD | {"answer": []}, r"needs a text, or a list of texts, in `answer` or .*; it has \[\]"),
        (GOOD | {"answer": {"text": 3}}, "needs a text, or a list of texts, in `answer` or .*; it has {'text': 3}"),
        (GOOD | {"answer": True}, "needs a text, or a list of texts, in `answer` or .*; it has True"),
        (GOOD | {"context": None}, r"has no `context`; name the documents to search in hier\.environment\.corpus_path"),
        (GOOD | {"context": "text"}, "neither pairs nor lists `title` and `sentences`"),
        (GOOD | {"supporting_facts": {"title": ["a"], "sent_id": []}}, "neither pairs nor lists `title` and `sent_id`"),
        ("", "has no question for the split 'train'"),
    ],
)
def test_questions_that_do_not_fit_are_refused(tmp_path, content, sentence):
    file = tmp_path / "q.jsonl"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.write_text(content if isinstance(content, str) else json.dumps({"context": GOOD["context"]} | content))
    made = options(data_path=str(file), validation_path=write(tmp_path, "jsonl", [GOOD], "val"))
    with pytest.raises(RecipeError, match=r"^hier\.environment\.data_path: ") as error:
        SPEC.tasks(made, "train")
    error.match(sentence)


def test_questions_without_a_document_are_refused(tmp_path):
    made = options(data_path=write(tmp_path, "jsonl", [row | {"context": []} for row in QUESTIONS]))
    with pytest.raises(RecipeError, match=r"hier\.environment\.data_path: there are no documents in the file"):
        SPEC.tasks(made, "train")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("c.jsonl", None, "there is no file"),
        ("c.txt", "{}", r"c\.txt must end in \.parquet, \.jsonl, \.json"),
        ("c.parquet", "PAR1", "cannot be read"),
        ("c.json", "{}", "must hold one list"),
        ("c.json", "[]", "there are no documents"),
        ("c.jsonl", '{"title": "a"}', "line 1 of c.jsonl is no document; a line needs the texts `title` and `text`"),
        ("c.jsonl", '{"title": "a", "text": "b"}\n\n{"title": "", "text": " "}', "line 3 of c.jsonl is no document"),
        ("c.jsonl", '{"title": "a", "text": "b", "collection": "dark"}', "'dark'; it can be local or web"),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_documents_that_do_not_fit_are_refused(tmp_path, name, content, sentence, kept):
    if content is not None:
        (tmp_path / name).write_text(content)
    index = str(tmp_path / "index") if kept else ""
    made = options(data_path=write(tmp_path, "json"), corpus_path=str(tmp_path / name), index_path=index)
    with pytest.raises(RecipeError, match=r"^hier\.environment\.corpus_path: ") as error:
        SPEC.tasks(made, "train")
    error.match(sentence)
    assert not kept or not os.path.exists(index) or not os.listdir(index)

"""What is read of a stranger's file: exactly up to each bound, and nothing beyond it."""

import gzip
import json
import math
import os
import re
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hier.errors import FileError
from verl_hier.graph import bounded_reading
from verl_hier.graph.bounded_reading import (
    folder_entries,
    parquet_columns,
    parquet_metadata,
    parquet_rows,
    parquet_table,
    parse_json,
    read_json,
    read_text,
    require_regular,
    text_lines,
)

quick = settings(max_examples=25, deadline=None)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans() | st.none()
values = st.recursive(
    numbers | st.text(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(), inside, max_size=4),
    max_leaves=8,
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file.txt"


def test_only_a_regular_file_has_a_size(tmp_path, file):
    file.write_text("four")
    assert require_regular(file) == 4
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(FileError, match=rf"{re.escape(str(other))} is not a regular file\."):
            require_regular(other)
    for missing in (tmp_path / "none", tmp_path / "nul\0"):
        with pytest.raises(FileError, match="there is no file"):
            require_regular(missing)


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert [entry.name for entry in folder_entries(tmp_path)] == ["a", "b", "c"]
    with pytest.raises(FileError, match="cannot be read"):
        folder_entries(tmp_path / "a")


def test_a_text_has_as_many_bytes_as_allowed(file):
    file.write_text("é" * 3, encoding="utf-8")
    assert read_text(file, 6) == "ééé"
    with pytest.raises(FileError, match="has 6 bytes, and at most 5 are read"):
        read_text(file, 5)
    file.write_bytes(b"\xe9")
    with pytest.raises(FileError, match="cannot be read"):
        read_text(file)


@quick
@given(values)
def test_what_json_can_hold_is_read(value):
    assert parse_json(json.dumps(value), "it") == value
    assert parse_json(json.dumps(value, ensure_ascii=False), "it", repair=True) == value


def nested(levels, opening="[", closing="]", inside=""):
    return opening * levels + inside + closing * levels


@pytest.mark.parametrize("opening", ["[", '{"a":', '[1, {"b": '])
def test_lists_and_mappings_are_nested_as_deep_as_allowed(opening):
    closing = "".join({"[": "]", "{": "}"}[sign] for sign in reversed(opening) if sign in "[{")
    times = 100 // len(closing)
    assert parse_json(nested(times, opening, closing, "1"), "it")
    with pytest.raises(FileError, match="it is nested too deeply: at most 100 levels are read"):
        parse_json(nested(times + 1, opening, closing, "1"), "it")
    with pytest.raises(FileError, match="it is nested too deeply"):
        parse_json(nested(10**5, opening, closing, "1"), "it")


@pytest.mark.parametrize("place", ["{}", "[{}]", '{{"a": {}}}', "[0, {}]", "[{}, 0]", '["a", {}]', "[0.5, {}, 3]"])
def test_integers_fit_64_bits_wherever_they_stand(place):
    for fits in (2**63 - 1, -(2**63)):
        assert str(fits) in str(parse_json(place.format(fits), "it"))
    for large in (2**63, -(2**63) - 1):
        with pytest.raises(FileError, match="it holds an integer that does not fit 64 bits"):
            parse_json(place.format(large), "it")
    with pytest.raises(FileError, match="is not JSON"):
        parse_json(place.format("9" * 5000), "it")


def test_numbers_that_are_no_integers_may_be_anything():
    infinite, nothing, large = parse_json("[Infinity, NaN, 1e300]", "it")
    assert infinite == math.inf and math.isnan(nothing) and large == 1e300


@pytest.mark.parametrize("escape", [r"\ud800", r"\uD83D", r"\udfff", r"\uDC00"])
@pytest.mark.parametrize("place", ['"é{}"', '["é", "{}"]', '{{"{}": "é"}}', '{{"a": ["{}"], "b": "é"}}'])
def test_halves_of_surrogate_pairs_are_refused_or_replaced(file, place, escape):
    file.write_text(place.format(escape), encoding="utf-8")
    with pytest.raises(FileError, match="holds one half of a surrogate pair"):
        read_json(file)
    assert read_json(file, repair=True) == json.loads(place.format("?"))
    assert parse_json(place.format(r"\ud83d\ude00"), "it") == json.loads(place.format("\U0001f600"))


def test_lines_that_are_not_blank_have_their_number(tmp_path, file):
    text = "first\n\n  \nfourth é\nlast"
    file.write_text(text, encoding="utf-8")
    packed = tmp_path / "lines.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    for each in (file, packed):
        assert [(number, line.strip()) for number, line in text_lines(each)] == [
            (1, "first"),
            (4, "fourth é"),
            (5, "last"),
        ]
    file.write_bytes(b"")
    assert not [*text_lines(file)]


def test_lines_are_as_long_as_allowed(tmp_path, file, monkeypatch):
    monkeypatch.setattr(bounded_reading, "LONGEST_TEXT", 10)
    file.write_text("short\n" + "x" * 9 + "\n" + "y" * 10)
    assert [line for _, line in text_lines(file)] == ["short\n", "x" * 9 + "\n", "y" * 10]
    file.write_text("short\n" + "x" * 10 + "\n")
    with pytest.raises(FileError, match="line 2 has more than 10 bytes"):
        list(text_lines(file))


def test_a_compressed_file_grows_as_much_as_allowed(tmp_path, monkeypatch):
    packed = tmp_path / "lines.gz"
    packed.write_bytes(gzip.compress(b"0123456\n" * 1000, mtime=0))
    size = packed.stat().st_size
    monkeypatch.setattr(bounded_reading, "SMALL", 8000)
    monkeypatch.setattr(bounded_reading, "GROWTH", 1)
    assert len(list(text_lines(packed))) == 1000
    monkeypatch.setattr(bounded_reading, "SMALL", 7999)
    with pytest.raises(FileError, match="unpacked, it has more than 1 times its size"):
        list(text_lines(packed))
    monkeypatch.setattr(bounded_reading, "GROWTH", -(-8000 // size))
    assert len(list(text_lines(packed))) == 1000
    monkeypatch.undo()
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(FileError, match="cannot be read"):
        list(text_lines(packed))


# Parquet


@pytest.fixture
def table(tmp_path):
    """200 rows in row groups of 30: a number, a text, and a list of two numbers."""
    file = tmp_path / "table.parquet"
    rows = [{"number": place, "text": f"row {place}", "pair": [place, place + 1]} for place in range(200)]
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=30)
    return file


def test_rows_are_read_in_order_and_columns_as_asked(table):
    assert parquet_columns(table) == ["number", "text", "pair"] and parquet_metadata(table).num_rows == 200
    rows = list(parquet_rows(table))
    assert [row["number"] for row in rows] == [*range(200)] and rows[7]["pair"] == [7, 8]
    assert list(parquet_rows(table, ["text"]))[199] == {"text": "row 199"}


@quick
@given(places=st.sets(st.integers(0, 199), max_size=8) | st.sampled_from([{0}, {29, 30}, {199}, {60, 89, 90}]))
def test_rows_are_read_by_their_places(tmp_path_factory, places):
    file = tmp_path_factory.getbasetemp() / "places.parquet"
    if not file.exists():
        pq.write_table(pa.table({"number": [*range(200)]}), file, row_group_size=30)
    assert [row["number"] for row in parquet_rows(file, places=sorted(places))] == sorted(places)


def test_row_groups_without_a_wanted_row_are_not_unpacked(table):
    with pq.ParquetFile(table) as opened:
        groups, chosen = bounded_reading._choose(opened.metadata, [5, 29, 95, 199])
        assert (groups, chosen) == ([0, 3, 6], {5, 29, 35, 79})
        assert bounded_reading._choose(opened.metadata, []) == ([], set())
        assert bounded_reading._choose(opened.metadata, None) == ([*range(7)], None)


def test_columns_are_read_by_their_types_and_row_groups(table):
    wanted = pa.schema({"text": pa.string(), "number": pa.int64()})
    found = parquet_table(table, wanted)
    assert found.column_names == ["text", "number"] and found["number"].to_pylist() == [*range(200)]
    assert parquet_table(table, wanted, [6, 1])["number"].to_pylist() == [*range(180, 200), *range(30, 60)]
    assert parquet_table(table, wanted, []).num_rows == 0
    assert parquet_table(table, pa.schema({"pair": pa.list_(pa.int64())}))["pair"][199].as_py() == [199, 200]
    for name, kind in (("number", pa.int32()), ("other", pa.int64())):
        with pytest.raises(FileError, match=f"has no column '{name}' of type {kind}"):
            parquet_table(table, pa.schema({name: kind}))


def test_files_grow_to_64_mebibytes_or_a_hundred_times_their_size():
    assert (bounded_reading.SMALL, bounded_reading.GROWTH) == (64 * 1024**2, 100)


def test_equal_values_grow_as_much_as_allowed(tmp_path, monkeypatch):
    """A number of eight bytes a row, of which the file keeps one; four bytes a value are the least that they take."""
    file = tmp_path / "equal.parquet"
    schema = pa.schema([pa.field("number", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"number": [7] * 1000}, schema), file)
    readers = (lambda: list(parquet_rows(file)), lambda: parquet_table(file, schema).to_pylist())
    monkeypatch.setattr(bounded_reading, "SMALL", 0)
    for growth, read in product((8000 // file.stat().st_size + 1, 0), readers):
        monkeypatch.setattr(bounded_reading, "GROWTH", growth)
        if growth:
            assert read() == [{"number": 7}] * 1000
        else:
            with pytest.raises(FileError, match="too large"):
                read()
    for read in readers:
        monkeypatch.setattr(bounded_reading, "SMALL", 8000)
        assert read() == [{"number": 7}] * 1000
        for small in (7999, 4000, 3999, 0):
            monkeypatch.setattr(bounded_reading, "SMALL", small)
            with pytest.raises(FileError, match="too large: unpacked, it has more than 0 times its size"):
                read()


@pytest.mark.parametrize("nested", [False, True])
def test_too_many_values_are_refused_before_any_is_read(tmp_path, monkeypatch, nested):
    file = tmp_path / "equal.parquet"
    values = [[7] * 100] * 10 if nested else [7] * 1000
    pq.write_table(pa.table({"one": [1] * len(values), "values": values}), file)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("values were read"))
    monkeypatch.setattr(bounded_reading, "GROWTH", 0)
    monkeypatch.setattr(bounded_reading, "SMALL", 3999)
    kind = pa.list_(pa.int64()) if nested else pa.int64()
    for read in (lambda: list(parquet_rows(file)), lambda: parquet_table(file, pa.schema({"values": kind}))):
        with pytest.raises(FileError, match="is too large"):
            read()


def test_what_is_no_parquet_file_is_refused(file):
    file.write_text("text")
    reads = (parquet_columns, parquet_metadata, lambda path: list(parquet_rows(path)))
    for read in (*reads, lambda path: parquet_table(path, pa.schema({"a": pa.int64()}))):
        with pytest.raises(FileError, match="cannot be read as Parquet"):
            read(file)

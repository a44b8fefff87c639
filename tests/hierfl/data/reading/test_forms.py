"""Files of other forms than a csv file in UTF-8 are recognised, or the line says the option."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl import read_table
from hierfl.data.reading.options import Reading
from hierfl.data.reading.read import read_file
from hierfl.errors import UserError

TEXT = "site,age,note\nHäus A,5,x\nHäus B,-7.5,y\nHäus B,,z\n"


def packed(data: bytes) -> bytes:
    """Two members, one after the other, as logs are."""
    return gzip.compress(data[:20], mtime=0) + gzip.compress(data[20:], mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(), TEXT.encode("utf-8-sig"), TEXT.encode("utf-16"), TEXT.encode("utf-16-le"),
        TEXT.encode("utf-16-be"), TEXT.encode("utf-32"),
        gzip.compress(TEXT.encode(), mtime=0), packed(TEXT.encode("utf-16")),
        TEXT.replace(",", ";").encode(), TEXT.replace(",", "\t").encode(), TEXT.replace(",", "|").encode(),
        b"sep=,\n" + TEXT.encode(), b"sep=;\r\n" + TEXT.replace(",", ";").encode(), ("\n" + TEXT).encode(),
        TEXT.replace("\n", "\r\n").encode(), TEXT.replace("\n", "\r").encode(), TEXT.replace("\n", "\n\n").encode(),
        (TEXT + ",,\n , ,\n").encode(),
    ],
)  # fmt: skip
def test_what_is_sure_is_recognised(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    df = read_file(tmp_path / "t.csv", Reading(), used=["age", "note"], text=["site"])
    assert df["site"].tolist() == ["Häus A", "Häus B", "Häus B"]
    np.testing.assert_array_equal(df["age"], [5, -7.5, np.nan])
    assert df["note"].tolist() == ["x", "y", "z"]


def test_a_workbook_is_a_table(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    cells = pd.DataFrame(
        {"site": ["a", "b", "b"], "n": [1.0, 2.0, 3.0], "x": [0.1, np.nan, 1e-9], "on": [True, False, True],
         "day": pd.to_datetime(["2020-01-31", "2020-02-01", "2020-02-02"])}
    )  # fmt: skip
    path = tmp_path / "t.xlsx"
    with pd.ExcelWriter(path) as book:
        cells.to_excel(book, sheet_name="first", index=False)
        pd.DataFrame().to_excel(book, sheet_name="empty")
    df = read_file(path, Reading(types={"day": "date"}), used=["n", "x", "on", "day"], text=["site"])
    assert [df[name].dtype.kind for name in ("n", "x", "on", "day")] == list("ifbi")
    np.testing.assert_array_equal(df["x"], cells["x"])
    assert df["day"].tolist() == [18292, 18293, 18294]
    with pd.ExcelWriter(path) as book:
        cells.to_excel(book, sheet_name="first", index=False)
        cells[:2].to_excel(book, sheet_name="other sheet", index=False)
    with pytest.raises(UserError, match="several sheets: say --sheet first or --sheet 'other sheet'"):
        read_file(path, Reading())
    assert len(read_file(path, Reading(sheet="other sheet"))) == 2
    with pytest.raises(UserError, match="no sheet 'third'; it has 'first', 'other sheet'"):
        read_file(path, Reading(sheet="third"))


def zipped(name: str) -> bytes:
    """An archive that is no workbook."""
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as archive:
        archive.writestr(name, "a,b\n1,2\n")
    return kept.getvalue()


@pytest.mark.parametrize(
    ("content", "reading", "words"),
    [
        (TEXT.encode("latin-1"), {}, "line 2 is no text in UTF-8: say --encoding latin-1 or --encoding cp1252"),
        (TEXT.encode(), {"encoding": "ascii"}, "line 2 is no text in ascii"),
        (b"a;b\tc;d\n1;2\t3;4\n", {}, "columns by several separators: say --sep ';' or --sep tab"),
        (b"a;b;c\n1;2;3\n1;2\n", {}, "line 3 has 2 entries, and the header 3: quote entries that hold ';', or say"),
        (b"a b\n1 2\n", {}, "columns by blanks: say --sep space or --sep comma"),
        (TEXT.encode().replace(b"x", b"x\0"), {}, "NUL characters: say --encoding utf-16"),
        (b"sep=;\na;b;c\n1;2;3\n1;2\n", {}, "line 4 has 2 entries, and the header 3"),
        (gzip.compress(TEXT.encode() * 99, mtime=0)[:-30], {}, "its gzip data end early"),
        (b"\x1f\x8bno gzip at all, and long enough", {}, "cannot be read"),
        (b"\xd0\xcf\x11\xe0 an old workbook", {}, "save it as .xlsx or csv"),
        (zipped("t.csv"), {}, "cannot be read as an .xlsx workbook"),
        (TEXT.encode(), {"sheet": "first"}, "no .xlsx workbook, so it has no sheet 'first'"),
        (zipped("t.csv"), {"sep": ";"}, "an .xlsx workbook, of which sep says nothing"),
        (TEXT.encode(), {"types": {"nope": "date"}}, "unknown column 'nope'"),
    ],
)
def test_what_is_not_sure_is_one_line(content: bytes, reading: dict, words: str, tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_file(tmp_path / "t.csv", Reading(**reading))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_said_is_done(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("a b\n1.000 x\n2.500 y\n".encode("utf-16-le"))
    df = read_table(tmp_path / "t.txt", sep="space", encoding="utf-16-le", decimal=",", thousands="point")
    assert df["a"].tolist() == [1000, 2500]
    (tmp_path / "t.txt").write_text("a  b\n1   x\n2 y\n")
    assert read_table(tmp_path / "t.txt", sep="space")["b"].tolist() == ["x", "y"]
    assert list(read_table(tmp_path / "t.txt", sep="comma")) == ["a  b"]
    (tmp_path / "t.csv").write_text("a;b;c\n1,5;2.5;1.500\n2,5;3.5;2.500\n")
    with pytest.raises(UserError, match=r"'1\.500', '2\.500': say --decimal , --thousands \. to read 1500"):
        read_file(tmp_path / "t.csv", Reading(decimal=","), used=["a", "b", "c"])
    df = read_file(tmp_path / "t.csv", Reading(decimal=",", types={"c": "number"}), used=["a", "b", "c"])
    assert df.to_numpy().tolist() == [[1.5, 2.5, 1.5], [2.5, 3.5, 2.5]]


def test_a_table_is_no_larger_than_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERFL_MAX_GIB", "0.001")
    (tmp_path / "t.csv").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 2_000_000, mtime=0))
    with pytest.raises(UserError, match="the unpacked file has .* GiB, more than"):
        read_file(tmp_path / "t.csv", Reading())


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"sep": "::"}, "sep is one character"), ({"decimal": ";"}, "decimal is . or ,"),
        ({"thousands": "-"}, "unknown separator of thousands"), ({"thousands": "."}, "both '.'; say decimal"),
        ({"encoding": "utf-99"}, "encoding 'utf-99' is not known"), ({"types": {"x": "int"}}, "unknown type of column"),
        ({"types": {"x": "date"}, "order": {"x": ["a", "b"]}}, "so it is a category, no date"),
        ({"order": {"x": ["a", "b"]}, "reference": {"x": "b"}}, "in order from 'a'"), ({"na": 5}, "na is a list"),
        ({"order": {"x": "a<b"}}, "is a list of its levels"), ({"order": {"x": ["a", "a"]}}, "two different levels"),
        ({"types": ["x"]}, "types says something of columns"), ({"sep": 5}, "sep is text"),
    ],
)  # fmt: skip
def test_readings_that_cannot_be(declared: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        Reading.from_table(declared)
    assert words in str(caught.value)
    with pytest.raises(UserError, match="unknown option of reading a table 'delimiter'"):
        Reading.from_table({"delimiter": ";"})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("y:x\n1:2\n3:4\n", "one column, or columns by ':': say"),
        ("# made by a device\ny,x\n1,2\n", "delete the lines above the header"),
        ("A title,,\ny,x,site\n1,2,a\n", "line 1 names few columns, and is no header: delete the lines above it"),
    ],
)
def test_what_stands_above_a_header_or_between_columns_is_named(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=line):
        read_table(tmp_path / "t.csv")

"""Columns of a csv file have the types of their entries; what is no table is one line."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call

from hierfl.data import tables


def test_strays_in_a_column_of_numbers_are_named(tmp_path: Path, hierfl: Call) -> None:
    lines = [f"{k % 7},{k * 0.5},s{k % 4},{k}" for k in range(40)]
    lines[4], lines[9], lines[20], lines[30] = "4,?,s0,4", "2,n.a.,s1,9", "6,1.5 mg,s0,20", "2,?,s2,30"
    Path("t.csv").write_text("\n".join(["y,x,site,other", *lines]) + "\n")
    how = ("run", "mixed-effects", "--data", "t.csv", "-T", 1, "-q", "--formula")
    code, out, err = hierfl(*how, "y ~ x + (1 | site)")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'x' holds numbers, but also '?' (line 6), 'n.a.' (line 11), '1.5 mg' (line 22) and 1 more" in err
    assert hierfl(*how, "y ~ other + (1 | site)", "--out", "o")[0] == 0  # nobody asked for x
    df = tables.read("t.csv")
    assert df["x"].map(type).eq(str).all()


def test_columns_have_the_types_that_their_entries_have(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "whole,number,truth,word,gap,mixed,huge,site\n"
        "1,1.5,True,u,1,1,12345678901234567890,1\n"
        "-2,1e-3,false,v,NA,x,1,NA\n"
        "03,inf,TRUE,NA,3,y, 2 ,01\n"
    )
    df = tables.read(str(tmp_path / "t.csv"), used=["whole", "number", "truth", "gap", "huge"], text=["site"])
    assert [df[name].dtype.kind for name in ("whole", "number", "truth", "gap", "huge")] == list("ifbff")
    assert df["whole"].tolist() == [1, -2, 3]
    assert df["number"].tolist() == [1.5, 1e-3, np.inf]
    assert df["truth"].tolist() == [True, False, True]
    assert df["word"].isna().tolist() == [False, False, True]
    assert df["gap"].isna().tolist() == [False, True, False]
    assert df["mixed"].tolist() == ["1", "x", "y"]
    assert df["site"].tolist() == ["1", "NA", "01"]


def test_typed_columns_are_those_of_pandas_but_for_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {"a": rng.normal(size=200), "b": rng.integers(-9, 9, 200), "c": rng.choice(["u", "v"], 200)}
    pd.DataFrame(words).assign(d=lambda d: d.a.where(d.b > 0), e=lambda d: d.b > 2).to_csv(tmp_path / "t.csv")
    theirs, ours = pd.read_csv(tmp_path / "t.csv", float_precision="round_trip"), tables.read(str(tmp_path / "t.csv"))
    pd.testing.assert_frame_equal(ours, theirs)


def test_the_clients_column_is_no_number_beside(tmp_path: Path, hierfl: Call) -> None:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"y": rng.normal(size=40), "year": np.repeat(range(2000, 2010), 4)})
    df.to_csv("t.csv", index=False)
    how = ("run", "mixed-effects", "--data", "t.csv", "-T", 1, "-q", "--formula", "y ~ year + (1 | year)")
    code, _, err = hierfl(*how)
    assert (code, err) == (2, "error: column 'year' names the clients, which is text: as a number, it needs a copy\n")


FILES = [
    (b"y,x,x\n1,2,3\n", "two columns called 'x'"),
    (b"y,x,site\n1,2,a\n1,2\n", "line 3 has 2 entries, and the header 3"),
    (b"y,x,site\n1,2,a,4\n", "line 2 has 4 entries, and the header 3"),
    (b"y,x,site\n1,2,a\x00b\n", "NUL"),
    (b"y,x,site\n1,2,\xff\n", "cannot be read as csv"),
    (b'y,x,site\n1,2,"a\n', "cannot be read as csv"),
    (b"", "it is empty"),
    (b"y,x,site\n", "has no rows"),
    (b"y,x,site\n" + b"1,2," + b"a" * 300_000 + b"\n", "field larger than field limit"),
    (b"y,x,site\n1,2,\n2,1,b\n2,1,b\n", "column 'site' has 1 missing value"),
    (b"y,x,site\n1,2,a\x1b[31m\n2,1,b\n2,3,b\n", "names have no control characters"),
    (b"y,x,site\n1,2," + b"a" * 201 + b"\n2,1,b\n2,5,b\n", "a name of 201 characters, more than 200"),
    (b"y,x,site\n1,1e300,a\n2,1,a\n2,5,b\n", "column 'x' reaches 1e+300"),
    (b"y,x,site\n1e200,1,a\n2,1,a\n2,5,b\n", "column 'y' reaches 1e+200"),
]


@pytest.mark.parametrize(("content", "words"), FILES)
def test_files_that_are_no_tables_are_one_line(content: bytes, words: str, hierfl: Call) -> None:
    Path("t.csv").write_bytes(content)
    how = ("run", "mixed-effects", "--data", "t.csv", "-T", 1, "--formula", "y ~ x + (1 | site)")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        code, out, err = hierfl(*how)
    assert (code, out, err.count("\n"), seen) == (2, "", 1, [])
    assert words in err
    assert [path.name for path in Path.cwd().iterdir()] == ["t.csv"]


def test_a_table_is_a_regular_file(hierfl: Call) -> None:
    os.mkfifo("fifo.csv")
    Path("folder.csv").mkdir()
    how = ("run", "mixed-effects", "-T", 1, "--formula", "y ~ x + (1 | site)", "--data")
    for name, words in [("fifo.csv", "not a regular file"), ("folder.csv", "not a regular file")]:
        code, _, err = hierfl(*how, name)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
    code, _, err = hierfl(*how, "\udcff.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "is not valid UTF-8" in err


def test_bom_quotes_and_lines_in_cells_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeffy,"a, b",site\r\n1,"two\nlines",x\r\n\r\n2,"say ""so""",y\r\n'.encode())
    df = tables.read(str(path), text=["site"])
    assert list(df) == ["y", "a, b", "site"]
    assert df["a, b"].tolist() == ["two\nlines", 'say "so"']
    assert df["y"].tolist() == [1, 2]

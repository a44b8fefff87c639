"""Levels as they are declared: NA may be a country, levels have an order, and a reference comes first."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hierfl import read_table
from hierfl.data.reading.options import Reading, join_words, split_words
from hierfl.data.reading.read import read_file
from hierfl.errors import UserError

COUNTRIES = "site,country,arm,n\na,NA,None,1\nb,ZA,drug,NA\nNA,,drug,3\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with Namibia."""
    (tmp_path / "t.csv").write_text(COUNTRIES)
    return tmp_path / "t.csv"


def test_na_is_a_level_or_missing_as_it_is_said(path: Path) -> None:
    for column in ("country", "arm"):
        with pytest.raises(
            UserError, match=f"column '{column}' holds 'N.*' .line 2. .*: say --na N.* --type {column}="
        ):
            read_file(path, Reading(), used=[column, "n"], text=["site"])
    declared = Reading(types={"country": "category", "arm": "category"})
    df = read_file(path, declared, used=["country", "arm", "n"], text=["site"])
    assert df["country"].tolist()[:2] == ["NA", "ZA"]
    assert df["country"].isna().tolist() == [False, False, True]
    assert df["arm"].cat.categories.tolist() == ["None", "drug"]
    assert df["n"].isna().tolist() == [False, True, False]
    assert df["site"].tolist() == ["a", "b", "NA"]
    gone = read_file(path, Reading(na=("NA",)), used=["country", "n"], text=["site"])
    assert gone[["country", "n", "site"]].isna().sum().tolist() == [2, 1, 1]


def test_in_python_it_is_asked_as_well(path: Path) -> None:
    with pytest.raises(UserError, match=r"say hierfl.read_table\(path, na=\['NA'\]\) if these are missing"):
        read_table(path)
    df = read_table(path, na="NA", types={"arm": "category"})
    assert df["country"].isna().tolist() == [True, False, True]
    assert read_table(path, columns=["site", "n"], na=["NA"]).shape == (3, 2)
    with pytest.raises(UserError, match="unknown column 'm'"):
        read_table(path, columns=["m"])


def test_words_and_codes_are_missing_where_they_are_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,k,c,site\n1,-999,.,s\n.,5,a,s\n3,-999.0,missing,-\n")
    words = split_words('.,-,missing,-999,"a,b"')
    assert words == (".", "-", "missing", "-999", "a,b")
    assert split_words(join_words(words)) == words
    df = read_file(tmp_path / "t.csv", Reading(na=words), used=["x", "k", "c"], text=["site"])
    assert df.isna().to_numpy().tolist() == [
        [False, True, True, False],
        [True, False, False, False],
        [False, True, True, True],
    ]
    with pytest.raises(UserError, match="column 'site' holds '-' .line 4. among its names: say --na - if"):
        read_file(tmp_path / "t.csv", Reading(), text=["site"])
    names = read_file(tmp_path / "t.csv", Reading(types={"site": "category"}), text=["site"])
    assert names["site"].tolist() == ["s", "s", "-"]
    frame = read_table(pd.DataFrame({"k": [-999, 5, 7], "x": [1.5, -999.0, 2.0]}), na=["-999"])
    assert frame.isna().to_numpy().tolist() == [[True, False], [False, True], [False, False]]


def test_levels_have_the_order_and_the_reference_that_are_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("children,arm,dose\n3+,drug,10\n0,placebo,2\n1,drug,2\n3+,other,1\n")
    path = tmp_path / "t.csv"
    result = read_table(
        path, order={"children": ["0", "1", "2", "3+"]}, reference={"arm": "placebo"}, types={"dose": "category"}
    )
    assert result["children"].cat.categories.tolist() == ["0", "1", "2", "3+"]
    assert (result["children"].cat.ordered, result["arm"].cat.ordered) == (True, False)
    assert result["arm"].cat.categories.tolist() == ["placebo", "drug", "other"]
    assert result["dose"].cat.categories.tolist() == ["1", "2", "10"]
    again = read_table(read_table(path, types={"children": "category"}), reference={"dose": "2"})
    assert again["dose"].cat.categories.tolist() == ["2", "1", "10"]
    with pytest.raises(UserError, match=r"holds '3\+' \(line 2\) and 1 more, which its order '0<1' lacks"):
        read_table(path, order={"children": ["0", "1"]})
    (tmp_path / "blank.csv").write_text("children,y\n3+ ,1\n0,2\n")
    spelled = read_table(tmp_path / "blank.csv", order={"children": ["0", "3+", "9"]})["children"]
    assert spelled.cat.categories.tolist() == ["0", "3+", "3+ ", "9"]  # joined or refused where it is fitted
    with pytest.raises(UserError, match="no level 'plazebo' to be its reference; it has 'drug', 'other', 'placebo'"):
        read_table(path, reference={"arm": "plazebo"})
    with pytest.raises(UserError, match="column 'arm' names the clients, or groups of them: it has no type"):
        read_file(path, Reading(reference={"arm": "drug"}), text=["arm"])


def test_what_is_declared_has_to_be(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("w,p,d,m\n5 kg,5%,2020-01-31,5 kg\n? ,0.1,31.01.2020,3 g\n")
    for types, words in (
        ({"w": "number"}, r"declared a number, and holds '\? ' \(line 3\): say .*na=\['\?'\]"),
        ({"p": "percent"}, r"declared a percentage, and holds '0.1' \(line 3\)"),
        ({"p": "number"}, "several units, '%', 'none'"),
        ({"m": "number"}, "several units, 'g', 'kg'"),
        ({"d": "date"}, r"declared a date, and holds '31.01.2020' \(line 3\): say .*types={'d': 'date-dmy'}"),
    ):
        with pytest.raises(UserError, match=words):
            read_table(tmp_path / "t.csv", types=types)

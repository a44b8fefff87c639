"""Text that may be numbers is one line with three entries and what reads them; what is a category stays one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl import Federation, mixed_model, read_table
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.gate import parse
from hierfl.data.reading.options import Reading
from hierfl.data.reading.read import read_file
from hierfl.errors import UserError

#: entries of a column, of which the first are said; what reads them, and as what
DISGUISES = [
    (["6,968", "8,123", "999", "1,234,567"], {"thousands": ","}, [6968, 8123, 999, 1234567]),
    (["51,5", "41,1", "60"], {"decimal": ","}, [51.5, 41.1, 60]),
    (["6,968", "8,123", "0,5"], {"decimal": ","}, [6.968, 8.123, 0.5]),
    (["6.968,50", "1.000,25", "12,5"], {"decimal": ",", "thousands": "."}, [6968.5, 1000.25, 12.5]),
    (["1 200", "45\u00a0000", "7"], {"thousands": "space"}, [1200, 45000, 7]),
    (["1'200", "3\u2019400"], {"thousands": "apostrophe"}, [1200, 3400]),
    (["$1.50", "$-2", "$3"], {"types": {"x": "number"}}, [1.5, -2, 3]),
    (["12 kg", "8kg", "9.5 kg"], {"types": {"x": "number"}}, [12, 8, 9.5]),
    (["\u22121.5", "\u22122", "\u22120.5"], {"types": {"x": "number"}}, [-1.5, -2, -0.5]),
    (["12%", "8.5 %"], {"types": {"x": "percent"}}, [0.12, 0.085]),
    (["1,200 EUR", "800 EUR"], {"thousands": ",", "types": {"x": "number"}}, [1200, 800]),
    (["2020-01-31", "1970-01-02"], {"types": {"x": "date"}}, [18292, 1]),
    (["31 Jan 2020", "1 Feb 2020"], {"types": {"x": "date"}}, [18292, 18293]),
    (["31.01.2020", "01.02.2020"], {"types": {"x": "date-dmy"}}, [18292, 18293]),
    (["01/31/2020", "02/01/2020"], {"types": {"x": "date-mdy"}}, [18292, 18293]),
]


def written(path: Path, cells: list[str], copies: int = 3) -> Path:
    """A table of a column x, in a file."""
    pd.DataFrame({"x": cells * copies}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(("cells", "says", "values"), DISGUISES)
def test_numbers_as_text_are_said_and_read(cells: list[str], says: dict, values: list[float], tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", cells)
    with pytest.raises(UserError, match="column 'x' holds ") as caught:
        read_file(path, Reading(), used=["x"])
    message = str(caught.value)
    odd = [cell for cell in cells if not cell.isdigit()]
    assert all(repr(cell) in message for cell in odd[:3])
    assert "\n" not in message
    for name, value in says.items():
        flag = f"--type x={value['x']}" if name == "types" else f"--{name} "
        assert flag in message
    assert "--type x=category" in message
    result = read_file(path, Reading(**says), used=["x"])["x"]
    np.testing.assert_allclose(result.to_numpy(dtype=float), values * 3, rtol=1e-15)
    assert read_file(path, Reading(), used=[])["x"].map(type).eq(str).all()  # nobody uses it


def test_what_may_be_two_things_is_asked(tmp_path: Path) -> None:
    for cells, ways in (
        (["6,968", "8,123"], ("--thousands , to read 6968", "--decimal , to read 6.968")),
        (["01/02/2020", "03/04/2020"], ("x=date-dmy", "x=date-mdy")),
        (["12%", "8%"], ("--type x=number to read 12", "--type x=percent to read 0.12")),
    ):
        with pytest.raises(UserError) as caught:
            read_file(written(tmp_path / "t.csv", cells), Reading(), used=["x"])
        assert all(way in str(caught.value) for way in ways)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["0", "1", "2", "3+"], "but also '3+' (line 5) and 2 more: say --type x=category for levels or --na 3+"),
        (["0", "1", ".", "5"], "but also '.' (line 4) and 2 more: say --na . for missing values or --type x=category"),
        (["1,200", "3,400", "?"], "and also '?' (line 4) and 2 more: say --thousands , --na '?'"),
        (["a", "b", "NA"], "holds 'NA' (line 4) and 2 more beside other text: say --na NA"),
        (["a", "b", "missing"], "say --na missing for missing values or --type x=category for levels"),
        ([f"row {k} b" for k in range(3)], ""),
        ([f"row {k} b" for k in range(12)], "holds text with 12 levels in 12 rows"),
        (["18", "20", "-999", "30"], "holds -999 in 3 rows, and all others lie from 18 to 30: say --na -999"),
        (["0", "1", "99", "1"], "holds 99 in 3 rows"), (["0", "1", "9", "1"], "holds 9 in 3 rows"),
        (["0", "1", "2", "3", "4", "9"], ""),
        (["1st", "2nd", "3rd"], ""), (["A1", "B2", "C3"], ""), (["<5", ">9", "<7"], ""), (["1-4", "5-9"], ""),
        (["yes", "no"], ""), (["0", "98", "99", "50"], ""), (["-9", "-4", "3"], ""),
    ],
)  # fmt: skip
def test_what_is_not_sure_is_said_and_nothing_else(cells: list[str], words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", cells, 1 if len(cells) > 10 else 3)
    if not words:
        assert len(read_file(path, Reading(), used=["x"])) == 3 * len(cells)
        return
    with pytest.raises(UserError) as caught:
        read_file(path, Reading(), used=["x"])
    assert words in str(caught.value)


def frame(x: object) -> pd.DataFrame:
    """A table for a mixed model, with this column."""
    rng = np.random.default_rng(0)
    return pd.DataFrame({"y": rng.normal(size=40), "x": x, "site": [f"s{k % 5}" for k in range(40)]})


def test_frames_are_no_way_around(tmp_path: Path) -> None:
    """In Python the line names a call, which can be run as it stands."""
    df = frame([f"{1000 + 37 * k:,}" for k in range(40)])
    for call in (
        lambda: mixed_model(df, "y ~ x + (1 | site)"),
        lambda: from_formula(df, "y ~ x + (1 | site)"),
        lambda: Federation.from_frame(df, client="site", y="y", x=["x"]),
        lambda: Federation.from_frame(df, client="site", y="x", x=["y"]),
    ):
        with pytest.raises(UserError, match="'1,000', '1,037', '1,074': say df = hierfl.read_table") as caught:
            call()
    call = str(caught.value).split("say df = hierfl.read_table(")[1].split(") to read")[0]
    assert call == "df, thousands=','"
    result = read_table(df, thousands=",")
    assert result["x"].tolist() == [1000 + 37 * k for k in range(40)]
    inputs = Federation.from_frame(result, client="site", y="y", x=["x"]).x
    assert inputs[:, 0].sort().values.tolist() == result["x"].tolist()


def test_declared_categories_are_categories() -> None:
    """By a Categorical, by the formula, or by words that are no numbers."""
    years = [str(2000 + k % 4) for k in range(40)]
    with pytest.raises(UserError, match="holds numbers as text, '2000', '2001', '2002'"):
        from_formula(frame(years), "y ~ x + (1 | site)")
    for formula, x in (
        ("y ~ C(x) + (1 | site)", years),
        ("y ~ x + (1 | site)", pd.Categorical(years)),
        ("y ~ x + (1 | site)", read_table(frame(years), types={"x": "category"})["x"]),
    ):
        _, design = from_formula(frame(x), formula)
        assert len(design.fixed) == 4
    assert parse("y ~ C(x) + log(z) + (1 + C(`a b`, Sum) | site)").split == {"x", "a b"}
    assert parse("y ~ C(x) + x + (1 | site)").split == frozenset()


@pytest.mark.parametrize("cells", [["Jan-20", "Feb-20", "Mar-21"], ["3-Feb", "20-Jan"], ["January 20th", "may 5"]])
def test_months_with_a_day_or_a_year_are_refused(cells: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", cells)
    with pytest.raises(
        UserError, match="'x' holds months with a day or a year, .*write whole dates.*--type x=category"
    ):
        read_file(path, Reading(), used=["x"])
    assert read_file(path, Reading(types={"x": "category"}), used=["x"])["x"].nunique() == len(cells)


def test_names_of_months_and_genes_are_no_dates(tmp_path: Path) -> None:
    for cells in (["Jan", "Feb"], ["SEPT2", "MARCH1"], ["may be", "dec"]):
        assert read_file(written(tmp_path / "t.csv", cells), Reading(), used=["x"])["x"].nunique() == 2


@pytest.mark.parametrize(
    ("cell", "odd"), [('z"', True), ("'z", True), ("o'brien", False), ('5" pipe', False), ("the boys'", False)]
)
def test_a_quote_without_its_other_half_is_one_line(
    cell: str, odd: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"y,who,k\n1,{cell},u\n2,{cell},v\n3,b,{cell}\n")
    read_file(path, Reading(), used=["y", "k"], text=["who"])
    lines = [line for line in caplog.messages if "unpaired quote" in line]
    assert [line.partition(" and ")[0] for line in lines] == [
        f"column 'who' holds {cell!r} (line 2)", f"column 'k' holds {cell!r} (line 4): the unpaired "
        "quote is read as part of the name"
    ][: 2 * odd]  # fmt: skip

"""Numbers with marks of spreadsheets, digits of other scripts, months, times, and points between thousands."""

from pathlib import Path

import pandas as pd
import pytest

from hierfl.data.reading.frames import possible_codes, refuse_text
from hierfl.data.reading.options import Reading
from hierfl.data.reading.read import read_file, read_table
from hierfl.data.reading.remedies import OPTIONS, SITE
from hierfl.data.reading.typed import Typing
from hierfl.errors import UserError

ARABIC = {48 + digit: 0x660 + digit for digit in range(10)}
VALUES = [20 + 7 * k % 5 for k in range(40)]


@pytest.mark.parametrize(
    ("written", "kind", "first"),
    [
        ('="{}"', "number", 20), ("'{}", "number", 20), ("'{}'", "number", 20), ('"{}"', "number", 20),
        ("\uff12\uff10", "number", 20), ("{}", "number", 20),
        ("{}\u200b", "number", 20), ("\ufeff{}", "number", 20), ("{}\u00b70", "number", 20),
        ("2020-{:02d}", "date", 18262), ("{:02d}/2020", "date", 18262), ("Jan {}", "date", 14610),
    ],
)  # fmt: skip
def test_the_remedy_reads_what_was_refused(written: str, kind: str, first: int) -> None:
    shown = [v - 19 if kind == "date" and "Jan" not in written else v + 1990 * (kind == "date") for v in VALUES]
    text = [written.format(value) for value in shown]
    text = [cell.translate(ARABIC) for cell in text] if written == "{}" else text
    with pytest.raises(UserError, match=f"'inc': '{kind}'"):
        refuse_text(pd.DataFrame({"inc": text}), ["inc"])
    typing = Typing(Reading(types={"inc": kind}), OPTIONS)
    assert typing.column("inc", text, range(40), strict=True)[0] == first


@pytest.mark.parametrize(
    "written",
    ["08:{}", "{}*", "~{}", "{}'", "{}.-", "{}_000", "1.{}D+3", "1.{}x10^3", "{} \u00d7 10^-3", "{}/80", "3 1/{}",
     "[{}]", "{},-", "0x{}", "{}-", "5'{}\"", "{}h 21m", "7 years {} months", "{}\u00bd", "{} \u2154"],
)  # fmt: skip
def test_times_and_marked_numbers_are_no_category_in_silence(written: str) -> None:
    with pytest.raises(UserError, match="write plain numbers, or say .*category"):
        refuse_text(pd.DataFrame({"inc": [written.format(value) for value in VALUES]}), ["inc"])


@pytest.mark.parametrize(
    "levels", [("<18", "18-64", "65+"), ("1a", "1b", "2"), ("2019/20", "2019/21"), ("A1", "A2"), ("1h", "2x")]
)
def test_words_with_digits_stay_categories(levels: tuple[str, ...]) -> None:
    refuse_text(pd.DataFrame({"inc": levels * 20}), ["inc"])


def test_halves_alone_are_numbers() -> None:
    with pytest.raises(UserError, match="holds times, fractions or marked numbers as text, '\u00bd', '1'"):
        refuse_text(pd.DataFrame({"dose": ["\u00bd", "1", "1\u00bd"] * 20}), ["dose"])


def test_points_between_thousands_beside_smaller_numbers_are_asked_about() -> None:
    cells, rows = ["950", "1.200", "8.400", "620"], range(2, 6)
    with pytest.raises(UserError, match="holds '1.200' beside '950': say --decimal , --thousands . to read 1200 or"):
        Typing(Reading(), OPTIONS).column("inc", cells, rows, strict=True)
    large = Typing(Reading(decimal=",", thousands="."), OPTIONS).column("inc", cells, rows, strict=True)
    assert large.tolist() == [950, 1200, 8400, 620]
    declared = Typing(Reading(types={"inc": "number"}), OPTIONS).column("inc", cells, rows, strict=True)
    assert declared.tolist() == [950, 1.2, 8.4, 620]
    decimals = Typing(Reading(), OPTIONS).column("inc", ["1", "1.125", "2.250"], rows, strict=True)
    assert decimals.tolist() == [1, 1.125, 2.25]


@pytest.mark.parametrize("blank", ["\u2007", "\u2009", "\u202f", "\u00a0", "'", "\u2019", "\u00b4", "`"])
def test_every_blank_and_apostrophe_between_thousands_is_one(blank: str) -> None:
    text = [f"{value}{blank}200" for value in VALUES]
    with pytest.raises(UserError, match="between thousands as text"):
        refuse_text(pd.DataFrame({"inc": text}), ["inc"])
    typing = Typing(Reading(thousands="'" if blank in "'\u2019\u00b4`" else " "), OPTIONS)
    assert typing.column("inc", text, range(40), strict=True)[0] == 20200


def test_a_table_that_is_read_in_python_is_asked_about_points_and_zeros_too(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("site,inc\n1,950\n2,1.200\n3,8.400\n")
    with pytest.raises(UserError, match="column 'inc' holds '1.200' beside '950': say .*decimal=',', thousands='.'"):
        read_table(path)
    assert read_table(path, types={"inc": "number"})["inc"].tolist() == [950, 1.2, 8.4]
    path.write_text("site,inc\n1,950\n01,1200\n2,800\n")
    with pytest.raises(UserError, match=r"column 'site' holds '01' \(line 3\) beside '1': say .*'site': 'category'"):
        read_table(path)
    assert read_table(path, types={"site": "category"})["site"].tolist() == ["1", "01", "2"]
    assert read_table(path, types={"site": "number"})["site"].tolist() == [1, 1, 2]
    path.write_text("site,inc\n01,950\n02,1200\n")
    assert read_table(path)["site"].tolist() == [1, 2]


def test_a_number_with_the_other_mark_is_not_called_missing() -> None:
    with pytest.raises(
        UserError, match=r"decimal commas, '1,5' .*, and others, '2.5' .*: write them alike, or say"
    ) as why:
        refuse_text(pd.DataFrame({"inc": ["1,5", "2.5", "3,1", "4,0"] * 10}), ["inc"])
    assert "na=" not in str(why.value)


@pytest.mark.parametrize("written", [("38 kg", "80 lb"), ("1M", "3K"), ("3 EUR", "3 USD"), ("$5", "\u20ac5", "6")])
def test_numbers_of_several_units_are_no_category_in_silence(written: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="numbers with several units, .*: write them in one, or say .*category"):
        refuse_text(pd.DataFrame({"inc": list(written) * 20}), ["inc"])


@pytest.mark.parametrize("name", ["rot13", "base64", "idna2", "hex"])
def test_encodings_that_make_no_text_are_unknown(name: str) -> None:
    with pytest.raises(UserError, match=f"encoding '{name}' is not known"):
        Reading(encoding=name)


@pytest.mark.parametrize(
    ("numbers", "first"), [((20191231, 20200101), 18261), ((202011, 202012, 202101), 18567)], ids=["days", "months"]
)
def test_dates_as_whole_numbers_are_asked_about(numbers: tuple[int, ...], first: int) -> None:
    """From the last day of a year to the first of the next they rise by 8,870."""
    cells, rows = [*map(str, numbers)] * 9, range(2, 2 + 9 * len(numbers))
    with pytest.raises(
        UserError, match=f"dates as numbers, {numbers[0]}, .* say --type inc=date to read dates or --ty"
    ):
        Typing(Reading(), OPTIONS).column("inc", cells, rows, strict=True)
    dates = Typing(Reading(types={"inc": "date"}), OPTIONS).column("inc", cells, rows, strict=True)
    assert dates[0] == first
    assert dates[1] - dates[0] == (1 if len(numbers) == 2 else 30)
    plain = Typing(Reading(types={"inc": "number"}), OPTIONS).column("inc", cells, rows, strict=True)
    assert plain[0] == numbers[0]
    (line,) = possible_codes(pd.DataFrame({"inc": numbers}), ["inc"])
    assert "dates as numbers" in line


@pytest.mark.parametrize("numbers", [(20191231, 20191232), (202011, 202013, 202101), (20191231,), (201911, 201912)])
def test_other_whole_numbers_are_no_dates(numbers: tuple[int, ...]) -> None:
    cells = [*map(str, numbers)] * 9
    assert Typing(Reading(), OPTIONS).column("inc", cells, range(len(cells)), strict=True)[0] == numbers[0]


@pytest.mark.parametrize(
    ("levels", "asked"), [(("low", "high", "9"), True), (("A", "B", "0"), False), (("a1", "b", "9"), False)]
)
def test_a_lone_code_among_words_is_asked_about(levels: tuple[str, ...], asked: bool) -> None:
    """Sorted before the words, it would be the reference of all of them."""
    typing = Typing(Reading(), OPTIONS)
    if asked:
        with pytest.raises(UserError, match="holds '9' .*say --na 9 for missing values"):
            typing.column("arm", levels * 9, range(27), strict=True)
    else:
        typing.column("arm", levels * 9, range(9 * len(levels)), strict=True)


def test_a_site_is_told_to_write_plain_numbers() -> None:
    with pytest.raises(UserError, match='say plain numbers in the file to read 5 or kind = "category" of columns.w'):
        Typing(Reading(), SITE).column("w", ["5 kg", "6 kg", "7 kg"], [2, 3, 4], strict=True)


def test_zeros_behind_a_point_are_asked_about_where_entries_are_names(tmp_path: Path) -> None:
    """1.10 and 1.1 are two clients, and one number: in C() always, in Python where entries come twice."""
    path = tmp_path / "t.csv"
    path.write_text("site,y\n" + "1.1,1\n1.10,2\n1.2,3\n" * 2)
    with pytest.raises(UserError, match=r"'1\.10' \(line 3\) and 1 more beside '1\.1': say .*'site': 'category'"):
        read_table(path)
    assert read_table(path, types={"site": "category"})["site"].nunique() == 3
    assert read_table(path, types={"site": "number"})["site"].nunique() == 2
    with pytest.raises(UserError, match="--type site=category if these are names or levels"):
        read_file(path, Reading(), used=["site"], split=["site"])
    path.write_text("dose,y\n0.5,1\n0.50,2\n0.25,3\n")
    assert read_table(path)["dose"].tolist() == [0.5, 0.5, 0.25]
    path.write_text("dose,y\n" + "1.0,1\n1,2\n" * 2)
    assert read_table(path)["dose"].tolist() == [1.0] * 4
    with pytest.raises(UserError, match=r"'1\.0' \(line 2\) and 1 more beside '1'"):
        read_file(path, Reading(), used=["dose"], split=["dose"])


@pytest.mark.parametrize(
    ("numbers", "holds"),
    [
        ([f"{7 + k % 9}.{7 * k % 60:02d}" for k in range(40)], "times of a day, 8.07"),
        ([f"{7 + k % 9}{7 * k % 60:02d}" for k in range(40)], "times of a day, 807"),
        ([f"{18 + k % 4}{1 + k % 12:02d}{1 + 5 * k % 28:02d}" for k in range(9)], "dates as numbers, 180101"),
        ([f"{1 + 5 * k % 28}{1 + k % 12:02d}{18 + k % 4}" for k in range(9)], "dates as numbers, 010118"),
    ],
)  # fmt: skip
def test_times_and_short_dates_among_numbers_are_asked_about(numbers: list[str], holds: str) -> None:
    frame = pd.DataFrame({"x": numbers})
    with pytest.raises(UserError, match=rf"'x' holds .*{holds}.*--type x=number"):
        Typing(Reading(), OPTIONS).column("x", numbers, range(len(numbers)), strict=True)
    (line,) = possible_codes(frame.astype(float), ["x"])
    assert holds in line
    sure = Reading.from_table({"types": {"x": "number"}})
    assert Typing(sure, OPTIONS).column("x", numbers, range(len(numbers)), strict=True)[1] == float(numbers[1])


@pytest.mark.parametrize(
    "numbers",
    [
        [f"{k / 100:.2f}" for k in range(0, 2400, 7)], [str(k) for k in range(60)], ["7.30", "7.45", "8.15"] * 9,
        [str(k) for k in range(100000, 100040)], [f"7.{k:02d}" for k in range(50)], [str(100 * k) for k in range(23)],
        ["120115", "130210"],
    ],
)  # fmt: skip
def test_plain_numbers_are_no_times(numbers: list[str]) -> None:
    Typing(Reading(), OPTIONS).column("x", numbers, range(len(numbers)), strict=True)

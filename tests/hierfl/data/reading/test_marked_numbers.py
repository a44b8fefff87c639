"""Numbers with marks of spreadsheets, digits of other scripts, months, times, and points between thousands."""

import pandas as pd
import pytest

from hierfl.data.reading.frames import refuse_text
from hierfl.data.reading.options import Reading
from hierfl.data.reading.remedies import OPTIONS
from hierfl.data.reading.typed import Typing
from hierfl.errors import UserError

ARABIC = {48 + digit: 0x660 + digit for digit in range(10)}
VALUES = [20 + 7 * k % 5 for k in range(40)]


@pytest.mark.parametrize(
    ("written", "kind", "first"),
    [
        ('="{}"', "number", 20), ("'{}", "number", 20), ("\uff12\uff10", "number", 20), ("{}", "number", 20),
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


@pytest.mark.parametrize("written", ["08:{}", "{}*", "~{}", "{}'", "{}.-"])
def test_times_and_marked_numbers_are_no_category_in_silence(written: str) -> None:
    with pytest.raises(UserError, match="write plain numbers, or say .*category"):
        refuse_text(pd.DataFrame({"inc": [written.format(value) for value in VALUES]}), ["inc"])


@pytest.mark.parametrize("levels", [("<18", "18-64", "65+"), ("1a", "1b", "2"), ("2019/20", "2019/21"), ("A1", "A2")])
def test_words_with_digits_stay_categories(levels: tuple[str, ...]) -> None:
    refuse_text(pd.DataFrame({"inc": levels * 20}), ["inc"])


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

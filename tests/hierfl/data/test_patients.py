"""Rows of one patient that count."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl.data.patients import beyond_words, within_cap
from hierfl.errors import UserError


def test_the_first_rows_of_each_patient_count() -> None:
    df = pd.DataFrame({"site": list("aaaabbb"), "who": [1, 2, 1, 1, 1, 1, 2]})
    assert within_cap(df, ["site", "who"], 1).tolist() == [True, True, False, False, True, False, True]
    assert within_cap(df, ["site", "who"], 2).tolist() == [True, True, True, False, True, True, True]
    assert within_cap(df, ["who"], 3).tolist() == [True, True, True, True, False, False, True]
    # Whether a row counts does not depend on another patient.
    rest = df[df["who"] == 1]
    assert within_cap(rest, ["site", "who"], 2).tolist() == [True, True, False, True, True]


def test_names_that_are_not_there_are_refused() -> None:
    df = pd.DataFrame({"who": ["p", None, np.nan]})
    with pytest.raises(UserError, match="column 'who' names the patients, and lacks 2 of its 3 values"):
        within_cap(df, ["who"], 1)
    with pytest.raises(UserError, match="no column 'whom', which names the patients"):
        within_cap(df, ["whom"], 1)
    assert beyond_words(1, "who", 2) == "1 row is left out: of each patient (column who) the first 2 rows count"
    assert beyond_words(9, "who", 1) == "9 rows are left out: of each patient (column who) the first row counts"

"""Responses of two words: the level that is counted is named, in either way of writing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError, mixed_model
from hierfl.data.formula.federate import from_formula


def table(no: Any, yes: Any) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    df = pd.DataFrame({"age": rng.normal(size=80), "site": [f"s{k % 5}" for k in range(80)]})
    outcome = rng.random(80) < 1 / (1 + np.exp(-df.age))
    return df.assign(won=outcome.astype(int), y=pd.Series(np.where(outcome, "yes", "no")).map({"no": no, "yes": yes}))


@pytest.mark.parametrize(
    ("no", "yes", "left"),
    [
        ("no", "yes", ["y['yes']", 'y["yes"]', "y[yes]", "I(y == 'yes')", "binary(y, 'yes')", "I(y != 'no')"]),
        ("N", "Y", ["y['Y']", "I('Y' == y)"]),
        ("Nein", "Ja!", ["y['Ja!']"]),
        ("0", "1", ["y['1']"]),
        ("False", "True", ["y['True']"]),
        (1, 2, ["y[2]", "I(y == 2)"]),
        (1.0, 2.0, ["y[2]", "y[2.0]", "I(y - 1)"]),
        (False, True, ["y", "I(y == 1)"]),
        (0.0, 1.0, ["y", "y[1]"]),
    ],
)
def test_every_way_of_writing_is_the_response_of_zeros_and_ones(no: Any, yes: Any, left: list[str]) -> None:
    df = table(no, yes)
    wanted, _ = from_formula(df, "won ~ age + (1 | site)", family="binomial")
    for response in left:
        for frame in (df, df.assign(y=df.y.astype("category")), df.assign(y=df.y.astype(object))):
            if frame.y.dtype == "category" and not isinstance(yes, str):
                continue
            federation, _ = from_formula(frame, f"{response} ~ age + (1 | site)", family="binomial")
            np.testing.assert_array_equal(federation.y, wanted.y)
    reader = federation.about["reader"]
    assert reader(df[["age", "site"]]).shape == (80, 3)


@pytest.mark.parametrize(
    ("no", "yes", "words"),
    [
        (
            "no",
            "yes",
            "the response 'y' holds 'no', 'yes', and a binomial one is 0 or 1: write y['yes'] ~ or I(y == 'yes') ~",
        ),
        ("0", "1", "say df = hierfl.read_table(df, types={'y': 'number'}) to read them"),
        (1, 2, "it holds 1 and 2; write I(y == 2) ~ for the probability of 2"),
        (-1.0, 1.0, "it holds -1 and 1; write I(y == 1) ~"),
        ("don't", "won't", "rename the levels, without quotes"),
    ],
)
def test_what_is_not_zeros_and_ones_says_how_and_that_works(no: Any, yes: Any, words: str) -> None:
    df = table(no, yes)
    with pytest.raises(UserError, match=re.escape(words)) as refused:
        from_formula(df, "y ~ age + (1 | site)", family="binomial")
    wanted, _ = from_formula(df, "won ~ age + (1 | site)", family="binomial")
    for response in re.findall(r"(\S+\[\S+\]|I\(.+?\)) ~", str(refused.value)) if "'" not in str(yes) else ():
        federation, _ = from_formula(df, f"{response} ~ age + (1 | site)", family="binomial")
        np.testing.assert_array_equal(federation.y, wanted.y)


@pytest.mark.parametrize(
    ("formula", "family", "words"),
    [
        ("y ~ age + (1 | site)", "gaussian", "'y' holds no numbers but 'no', 'yes'; a gaussian one needs them; of two"),
        ("C(y) ~ age + (1 | site)", "binomial", "write y\\['yes'\\] ~ or I\\(y == 'yes'\\) ~"),
        ("y['Yes'] ~ age + (1 | site)", "binomial", "has no level 'Yes', .*; it has 'no', 'yes'; did you mean 'yes'"),
        ("I(y == 'y') ~ age + (1 | site)", "binomial", "column 'y' has no level 'y', which the formula names"),
        ("I(won == 'yes') ~ age + (1 | site)", "binomial", "column 'won' holds numbers, .* with the text 'yes'"),
        ("won ~ I(y == 1) + (1 | site)", "binomial", "column 'y' holds text, .* with the number 1: write y == '1'"),
        ("won ~ where(y == 'nein', 1, 0) + (1 | site)", "binomial", "has no level 'nein'"),
        ("y['yes' ~ age + (1 | site)", "binomial", "a level of the response is written y\\['LEVEL'\\]"),
        ("share ~ age + (1 | site)", "binomial", "of shares write p\\(successes, trials\\), with the counts"),
        ("three ~ age + (1 | site)", "binomial", "for the probability of one value write I\\(three == 3\\) ~"),
    ],
)  # fmt: skip
def test_levels_that_no_row_has_are_refused(formula: str, family: Any, words: str) -> None:
    df = table("no", "yes").assign(share=0.25, three=np.arange(80) % 3 + 1)
    df.loc[0, "share"] = 0.5
    with pytest.raises(UserError, match=words):
        from_formula(df, formula, family=family)


def test_events_and_weights_that_are_text_say_how() -> None:
    df = table("no", "yes").assign(t=lambda d: np.exp(d.age), status=lambda d: d.won + 1, w="2")
    for how, words in (
        ({"event": "y"}, "cannot hold events: df['y'] = (df['y'] == 'yes').astype(int), if 'yes' is the event"),
        ({"event": "status"}, "not 0 or 1: df['status'] = (df['status'] == 2).astype(int), if 2 is the event"),
        ({"weights": "w"}, "say df = hierfl.read_table(df, types={'w': 'number'})"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            from_formula(df, "t ~ age + (1 | site)", family="weibull", **how)


def test_a_fit_of_words_is_that_of_zeros_and_ones() -> None:
    df = table("N", "Y")
    words = mixed_model(df, "y['Y'] ~ age + (1 | site)", family="binomial", draws=0)
    numbers = mixed_model(df, "won ~ age + (1 | site)", family="binomial", draws=0)
    pd.testing.assert_frame_equal(words.summary().table, numbers.summary().table)

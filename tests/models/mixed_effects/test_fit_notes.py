"""What is to know of a fit as a whole is said in Python as on the command line."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call
from support.mixed import table

from hierfl import mixed_model
from hierfl.experiments.run_folder.summary import fit_warnings
from hierfl.models.mixed_effects.report.fit_notes import fit_notes

ENDED = "the fit ended before it made its draws, and what rests on them has no interval"


def test_what_a_fit_has_not_reached_is_in_its_summary() -> None:
    df = table(6)
    good = mixed_model(df, "y ~ x + (1 | site)", draws=20).summary()
    assert good.notes == ()
    for how, words in (
        ({"rounds": 2}, ("not at the maximum yet", ENDED)),
        ({"tol": 1e-300, "rounds": 30}, (ENDED,)),
        ({"draws": 0}, ("draws=0: standard deviations and predictions have no intervals",)),
    ):
        summary = mixed_model(df, "y ~ x + (1 | site)", **how).summary()
        assert [note[: len(start)] for note, start in zip(summary.notes, words, strict=True)] == list(words)
        assert str(summary).endswith("\n".join(summary.notes))


def test_the_reference_level_is_printed() -> None:
    df = table(6)
    df = df.assign(arm=np.resize(["usual", "new"], len(df)))
    summary = mixed_model(df, "y ~ arm + (1 | site)", draws=0).summary()
    assert summary.references == {"arm": "new"}
    assert "\narm: reference level new\n" in str(summary)


def test_one_wording_for_numbers_of_a_fit() -> None:
    """What a run's folder holds, and what a fit has."""
    numbers = {"off_maximum": 0.2, "effective_points": 40.0, "dropped": ["'z' is constant, and was dropped"]}
    assert fit_notes(numbers) == fit_warnings(numbers) == [
        "'z' is constant, and was dropped", "not at the maximum yet: 0.2 standard errors to go; more rounds",
        "what is known of the population rests on 40 draws' worth of points: take it for a sketch",
    ]  # fmt: skip
    assert fit_notes({"off_maximum": 1e9})[0].startswith("the likelihood is flat or bent upwards here")
    assert fit_notes({"off_maximum": 0.001, "effective_points": 400.0}) == []


@pytest.mark.figures("blank")
def test_a_column_that_was_dropped_is_named_everywhere(hierfl: Call, tmp_path: Path) -> None:
    df = table(6).assign(twice=lambda d: 2 * d.x)
    df.to_csv(tmp_path / "mine.csv", index=False)
    formula = "y ~ x + twice + (1 | site)"
    fit = mixed_model(df, formula, draws=0)
    line = "'twice' is a multiple of 'x', and was dropped"
    assert fit.summary().notes[0] == line
    assert fit.summary().table.effect.tolist() == ["Intercept", "x", "sd(Intercept)", "sd(residual)"]
    alone = mixed_model(df, "y ~ x + (1 | site)", draws=0)
    np.testing.assert_allclose(fit.predict(df, interval=None)["mean"], alone.predict(df, interval=None)["mean"])
    assert fit.log_likelihood == pytest.approx(alone.log_likelihood, rel=1e-12)
    how = ("--data", "mine.csv", "--formula", formula, "--set", "draws=0", "--out", "o")
    code, out, _ = hierfl("run", "mixed-effects", *how)
    assert code == 0
    assert all(note in out.replace("\n", " ") for note in fit.summary().notes)
    assert json.loads((tmp_path / "o" / "summary.json").read_text())["dropped"] == [line]
    assert hierfl("report", "o", "-q")[0] == 0
    assert line in unescape((tmp_path / "o" / "report.html").read_text())

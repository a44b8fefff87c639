"""New clients of a mixed model, after rows of their own: by the command, a request, and in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call

from hierfl import load_mixed_model, load_run, mixed_model


@pytest.mark.cpu(3, "two mixed models with their draws")
def test_rows_of_their_own_are_read_with_their_responses(hierfl: Call, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 60
    df = pd.DataFrame({"x": rng.normal(size=n), "site": np.arange(n) % 5}).assign(w=rng.integers(1, 4, n))
    df["y"] = 1 + df.x + rng.normal(size=5)[df.site] + rng.normal(size=n)
    df.to_csv("t.csv", index=False)
    new = df.head(30).assign(site=df.site + 10, y=df.y + 3)
    new.to_csv("given.csv", index=False)
    new.drop(columns=["y", "w"]).to_csv("new.csv", index=False)
    command = ("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ x + (1 | site)", "--weights", "w")
    assert hierfl(*command, "--quiet", "--out", "m")[0] == 0
    code, _, err = hierfl("predict", "m", "--data", "new.csv", "--new", "--given", "given.csv", "--out", "out.csv")
    assert code == 0, err
    predictions, rows = pd.read_csv("out.csv", dtype={"client": str}), new.astype({"site": str})
    wanted = load_run("m").predict(rows, "new", given=rows)
    pd.testing.assert_frame_equal(predictions, wanted)
    assert predictions["mean"].mean() > load_run("m").predict(rows, "new")["mean"].mean() + 2
    fit = mixed_model(df, "y ~ x + (1 | site)", weights="w")
    fit.save("saved")
    pd.testing.assert_frame_equal(fit.predict(rows, "new", given=rows), wanted, rtol=1e-6)
    pd.testing.assert_frame_equal(load_mixed_model("saved").predict(rows, "new", given=rows), wanted, rtol=1e-6)
    code, _, err = hierfl("predict", "m", "--data", "new.csv", "--new", "--given", "new.csv")
    assert code == 2
    assert "the table lacks column 'y'" in err
    assert len(err.splitlines()) == 1


@pytest.mark.cpu(4, "a mixed model of two levels whose residuals correlate")
def test_groups_inside_a_new_client_and_times_are_read_from_its_rows(hierfl: Call, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 72
    df = pd.DataFrame({"x": rng.normal(size=n), "site": np.repeat(list("abcdef"), 12)})
    df = df.assign(ward=np.tile(np.repeat([1, 2, 3], 4), 6), visit=np.tile(np.arange(4), 18))
    df["y"] = df.x + rng.normal(size=6).repeat(12) + rng.normal(size=18).repeat(4) + rng.normal(size=n)
    df.to_csv("t.csv", index=False)
    given = df.head(24).assign(site=np.repeat(["new", "other"], 12), y=df.y + 3, ward=df.ward + 5)
    given.to_csv("given.csv", index=False)
    asked = given.drop(columns=["y", "visit"])
    asked.to_csv("new.csv", index=False)
    command = ("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ x + (1 | site/ward)", "--quiet")
    assert hierfl(*command, "--correlation", "ar1(visit | ward)", "--out", "m")[0] == 0
    code, _, err = hierfl("predict", "m", "--data", "new.csv", "--new", "--given", "given.csv", "--out", "out.csv")
    assert code == 0, err
    predictions = pd.read_csv("out.csv")
    fit = mixed_model(df, "y ~ x + (1 | site/ward)", correlation="ar1(visit | ward)")
    wanted = fit.predict(asked, "new", given=given)
    pd.testing.assert_frame_equal(predictions, wanted, rtol=1e-6)
    assert predictions["mean"].mean() > fit.predict(asked, "new")["mean"].mean() + 2
    fit.save("saved")
    pd.testing.assert_frame_equal(load_mixed_model("saved").predict(asked, "new", given=given), wanted, rtol=1e-6)
    for rows in (given.drop(columns="visit"), given.drop(columns="ward")):
        rows.to_csv("short.csv", index=False)
        code, _, err = hierfl("predict", "m", "--data", "new.csv", "--new", "--given", "short.csv")
        assert code == 2
        assert "lacks column" in err
        assert len(err.splitlines()) == 1

"""Mixed models from a table on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.mixed_families import counts, mixedlm

from hierfl.data.tables import TABLES


@pytest.mark.figures("blank")
def test_the_default_table_run(hierfl: Call, tmp_path: Path) -> None:
    code, out, _ = hierfl("run", "mixed-effects", "--set", "population=ml", "--out", "radon")
    assert code == 0
    assert "log_uranium" in out
    assert "log likelihood -1059.012, AIC 2128.0" in out
    summary = json.loads((tmp_path / "radon" / "summary.json").read_text())
    assert summary["off_maximum"] < 1e-6
    assert summary["rounds"] < 20
    clients = pd.read_csv(tmp_path / "radon" / "clients.csv")
    assert len(clients) == 85
    theirs = mixedlm("log_radon ~ floor + log_uranium", TABLES["radon-like"].frame(), "county")
    effects_table = pd.read_csv(tmp_path / "radon" / "effects.csv")
    assert (np.abs(effects_table.estimate[:3] - theirs.fe_params.values) < 1e-4 * theirs.bse_fe.values).all()
    assert (tmp_path / "radon" / "figures" / "effects-Intercept.png").is_file()


def test_a_csv_file(hierfl: Call, tmp_path: Path) -> None:
    df = counts("binomial", 8)
    df.to_csv(tmp_path / "mine.csv", index=False)
    how = ("run", "mixed-effects", "--data", "mine.csv", "--group", "site", "--set", "draws=20", "--quiet")
    model = ("--formula", "y ~ 1 + x + (1 | site)", "--family", "binomial")
    assert hierfl(*how, *model, "--out", "whole", "--test-fraction", "0.3")[0] == 0
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["pm_rmse"] is not None
    assert summary["log_likelihood"] < 0
    kept = (tmp_path / "whole" / "effects.csv").read_bytes()
    assert hierfl("run", "--resume", "whole", "--quiet")[0] == 0
    assert kept == (tmp_path / "whole" / "effects.csv").read_bytes()
    df.assign(y=df.y + 1).to_csv(tmp_path / "mine.csv", index=False)
    df.to_csv(tmp_path / "semi.csv", index=False, sep=";")
    for arguments, words in (
        ((*how, *model), "a binomial response is 0 or 1"),
        (how, "say what to fit to mine.csv: --formula"),
        ((*how, "--formula", "y ~ nope + (1 | site)"), "unknown column 'nope'"),
        ((*how, *model, "--clients", "3"), "--clients is for data sets of arrays"),
        (("run", "mixed-effects", "--data", "digits"), "mixed-effects needs a table: FILE.csv, eight-schools"),
        (("run", "mixed-effects", "--data", "none.csv", "--formula", "y ~ 1 + (1|s)"), "no file"),
        (("run", "mixed-effects", "--data", "semi.csv", "--formula", "y ~ 1 + (1|s)"), "unknown column 's'"),
        (("run", "pfedvem", "--data", "mine.csv"), "say which column of mine.csv names the clients: --group COLUMN"),
        (("run", "pfedvem", "--formula", "y ~ x"), "--formula is for tables, and digits is not one"),
        (("run", "mixed-effects", "--family", "cauchy"), "unknown family 'cauchy'"),
    ):
        code, _, err = hierfl(*arguments)
        assert code == 2, arguments
        assert words in err, err
        assert err.count("\n") == 1


@pytest.mark.cpu(5, "five runs by the command")
def test_a_csv_file_of_names_in_several_spellings(hierfl: Call, tmp_path: Path) -> None:
    """Refused with both spellings; joined it is the clean file; a run of a version before did not look at them."""
    rng, k = np.random.default_rng(0), np.arange(40)
    df = pd.DataFrame({"y": rng.normal(size=40), "ward": np.array(["ward A", "ward B"])[k % 2], "arm": "placebo"})
    df.loc[k % 3 == 1, "arm"] = "drug"
    df.to_csv("clean.csv", index=False)
    df.assign(
        ward=[f"{v} " if j % 9 == 4 else v for j, v in enumerate(df.ward)],
        arm=[v.title() if j % 7 == 4 else v for j, v in enumerate(df.arm)],
    ).to_csv("dirty.csv", index=False)
    how = ("run", "mixed-effects", "--formula", "y ~ arm + (1 | ward)", "--set", "draws=0", "-q")
    code, _, err = hierfl(*how, "--data", "dirty.csv", "--out", "r")
    assert (code, err.count("\n")) == (2, 1)
    assert "column 'ward' holds 'ward A' and 'ward A '; 'ward B' and 'ward B '" in err
    for out, more in (
        ("clean", ()),
        ("join", ("--spellings", "join")),
        ("some", ("--spellings", "arm=join,ward=join")),
    ):
        data = "clean.csv" if out == "clean" else "dirty.csv"
        assert hierfl(*how, "--data", data, "--out", out, *more)[0] == 0
        assert (tmp_path / out / "effects.csv").read_bytes() == (tmp_path / "clean" / "effects.csv").read_bytes()
    assert hierfl(*how, "--data", "dirty.csv", "--out", "keep", "--spellings", "keep")[0] == 0
    assert len(pd.read_csv("keep/clients.csv")) == 4
    config = tmp_path / "keep" / "config.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("spellings")]
    config.write_text("\n".join(lines))
    (tmp_path / "keep" / "effects.csv").unlink()
    assert hierfl("run", "--resume", "keep", "-q")[0] == 0
    assert len(pd.read_csv("keep/effects.csv")) > len(pd.read_csv("join/effects.csv"))
    code, _, err = hierfl(*how, "--data", "dirty.csv", "--out", "r", "--spellings", "joined")
    assert (code, "unknown value of spellings 'joined'; known: refuse, join, keep" in err) == (2, True)

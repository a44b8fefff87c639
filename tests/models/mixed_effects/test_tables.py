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
    code, out, _ = hierfl("run", "mixed-effects", "--out", "radon")
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
        (("run", "pfedvem", "--data", "mine.csv"), "pfedvem needs a data set or FILE.npz"),
        (("run", "pfedvem", "--formula", "y ~ x"), "--formula is for tables, and digits is not one"),
        (("run", "mixed-effects", "--family", "cauchy"), "unknown family 'cauchy'"),
    ):
        code, _, err = hierfl(*arguments)
        assert code == 2, arguments
        assert words in err, err
        assert err.count("\n") == 1

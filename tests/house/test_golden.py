"""Golden runs: what is the same is found to be, and what is not is said."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.golden_compare import compare
from support.golden_grid import Allowed, Grid, table
from support.golden_write import write
from support.paths import ROOT

SUPPORT = ROOT / "tests" / "support"
SCRIPT, FILE, MIXED = (SUPPORT / name for name in ("golden.py", "golden.toml", "golden-mixed.toml"))
FITTED, REFUSED = "one_round/ml", "one_round/refused-rows"


@pytest.fixture
def grid() -> Grid:
    return Grid.read(FILE)


def test_the_grid_is_whole(grid: Grid) -> None:
    """Ten responses, four places of random effects, two populations (of a gaussian response three), two covariances."""
    cases = grid.matching("grid/*")
    assert len(cases) == 10 * 4 * 2 * 2 + 4 * 2
    assert {name.split("/")[1] for name in cases if "/reml/" in name} == {"gaussian"}
    assert {name.split("/")[0] for name in grid.cases} >= {"profile", "one_round", "weights", "known_se", "sites"}
    df = table(**grid.data)
    assert df.site.nunique() == 6
    pd.testing.assert_frame_equal(df, table(**grid.data))


def test_the_grid_of_a_rebuilding_is_whole(grid: Grid) -> None:
    """Kinds by responses and places; restricted estimates are of the nine responses that have no REML."""
    mixed = Grid.read(MIXED)
    kinds = Counter(name.split("/")[0] for name in mixed.cases)
    of_grids = {"climb": 10 * 4 * 2 + 4 * 2, "restricted": 9 * (4 + 2), "bayes": 10 * 4 * 2, "estimates": 10 * 3}
    assert {kind: kinds[kind] for kind in of_grids} == of_grids
    assert kinds.keys() >= {"profile", "one_round", "weights", "known_se", "sites", "call", "compare", "chunk", "flat"}
    assert "--set draws=0" in mixed.cases["slopes/poisson"]
    assert mixed.allowed[: len(grid.allowed)] == grid.allowed
    rows = table(**mixed.data).groupby("site").size()
    assert (rows.min(), rows.max()) == (1, 12)


def test_a_call_says_all_that_it_can(tmp_path: Path) -> None:
    """Tables, tensors and warnings of a fit and of its comparison with another; a question's refusal is an answer."""
    name, formula, smaller = "call", "y_gaussian ~ x + (1 | site)", "y_gaussian ~ 1 + (1 | site)"
    words = f"fit '{formula}' --than '{smaller}' --set population=reml --set draws=0"
    assert write(tmp_path, replace(Grid.read(MIXED), cases={name: words}), [name]) == []
    kept = {path.name for path in (tmp_path / name).iterdir()}
    assert kept >= {"rounds.npz", "fit.npz", "summary.csv", "ranef-client.csv", "shrinkage.csv", "predict-new.csv"}
    assert kept >= {"compare.csv", "ranef-patient.txt", "numbers.json"}
    assert "no draws" in (tmp_path / name / "log.txt").read_text()
    assert "personal/b_mean" in np.load(tmp_path / name / "fit.npz")
    assert "Satterthwaite" in (tmp_path / name / "compare.csv").read_text()


def test_a_case_says_its_population(tmp_path: Path) -> None:
    text = FILE.read_text().replace("[cases]", '[cases]\n"silent" = "{run} --formula y"')
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(ValueError, match="silent does not say population="):
        Grid.read(tmp_path / "grid.toml")


@pytest.mark.slow
@pytest.mark.cpu(4, "two fits, written twice")
def test_what_differs_is_found(grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    a, b, names = tmp_path / "a", tmp_path / "b", [FITTED, REFUSED]

    def compared(**allowed: Any) -> tuple[int, str]:
        entry: dict[str, Any] = {
            "cases": "one_round/*",
            "files": "rounds.npz",
            "keys": "*/gram",
            "why": "a sum",
            **allowed,
        }
        more = (Allowed(**entry),) if allowed else ()
        code = compare(a, b, Grid(grid.data, grid.cases, (*grid.allowed, *more)), names)
        return code, capsys.readouterr().out

    for out in (a, b):
        assert write(out, grid, names) == []
    output = capsys.readouterr().out
    assert "2 cases, 2 of them run" in output
    assert "1 refused, 0 broken off" in output
    write(a, grid, names)
    assert "2 cases, 0 of them run" in capsys.readouterr().out
    code, output = compared()
    assert code == 0, output
    assert "2 cases identical (1 cases end in an error)" in output
    assert "exempt: cases *, files *, keys *seconds*: time" in output

    rounds = dict(np.load(b / FITTED / "rounds.npz"))
    gram = rounds["001/sent/effects/gram"]
    gram[3, 2] *= 1 + 1e-13
    np.savez(b / FITTED / "rounds.npz", **rounds)
    code, output = compared()
    assert code == 1
    assert re.search(
        r"rounds.npz: 001/sent/effects/gram: \[3, 2\]: .*, the first of 1 of \d+; up to .*e-1\d relative", output
    )
    code, output = compared(relative=1e-12)
    assert code == 0
    assert f"{FITTED}: identical, 1 rounded" in output
    assert "    rounds.npz: 001/sent/effects/gram: [3, 2]: " in output
    assert "rounding up to 1e-12: cases one_round/*, files rounds.npz, keys */gram: a sum (1 times)" in output
    assert compared(relative=1e-14)[0] == 1
    assert compared(relative=1e-12, keys="*/shared/*")[0] == 1
    gram[3, 2] = np.nan
    np.savez(b / FITTED / "rounds.npz", **rounds)
    assert compared(relative=1e-12)[0] == 1
    assert compared(why="another message")[0] == 0

    effects = b / FITTED / "run" / "effects.csv"
    effects.write_text(effects.read_text().replace("sd(x)", "sd(z)"))
    code, output = compared(why="another message")
    assert (code, "effects.csv: effect: [3]: sd(x) and sd(z)" in output) == (1, True)
    error = b / REFUSED / "error.txt"
    error.write_text(error.read_text().replace("needs 6", "needs 7"))
    assert "it needs 7 (least_rows)" in compared()[1]
    error.unlink()
    assert "error.txt: (file): only in the first folder" in compared()[1]
    (b / REFUSED / "case.json").unlink()
    assert f"{REFUSED}: MISSING in {b}" in compared()[1]


@pytest.mark.slow
def test_two_checkouts_by_one_command(tmp_path: Path) -> None:
    def called(*words: str | Path) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    code, out, err = called("checkouts", ROOT, ROOT, "--case", "one_round/[mr]*")
    assert code == 0, out + err
    assert out.endswith("4 cases identical (2 cases end in an error), 0 different or missing\n")
    code, _, err = called("write", tmp_path / "out", "--checkout", tmp_path)
    assert (code, err.count("\n"), f"and not that of {tmp_path}" in err) == (2, 1, True)
    code, _, err = called("checkouts", ROOT, "no-such-revision", "--case", "one_round/refused-*")
    assert (code, err.count("\n"), "no-such-revision is no folder of a checkout" in err) == (2, 1, True)

"""The page that goes from a simulation to sites runs as it is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.paths import ROOT

PAGE = (ROOT / "docs" / "sites.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_every_command_of_the_page_runs(masked: bool, tmp_path: Path) -> None:
    """One after the other, in one folder; both tables of effects are the same. With masks by one word more.

    The part on a plain model runs once: the same with masks is a test of tests/experiments/federate.
    """
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "HIERFL_STATE": str(tmp_path / "state"),
    }  # fmt: skip
    plain, word = "hierfl federate study mixed-effects ", "--masked "
    assert f"{plain}{word}" in PAGE
    first, last = PAGE.split("(plain-model)=")
    page = first.replace(f"{plain}--sample", f"{plain}{word}--sample") if masked else first + last
    for kind, block in re.findall(r"^```(python|sh)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        command = [sys.executable, "-c", block] if kind == "python" else ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    mine, pooled = (pd.read_csv(tmp_path / part / "effects.csv") for part in ("server", "pooled"))
    assert mine.effect.tolist() == pooled.effect.tolist()
    for column in ("estimate", "standard_error"):
        np.testing.assert_allclose(mine[column], pooled[column], rtol=1e-8)
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary.get("masked", False) is masked
    contributions = pd.read_csv(tmp_path / "server" / "contributions.csv")
    (trips,) = set(contributions.groupby("client").size())
    assert trips == (19 if masked else 17)  # as the page says
    (report,) = (tmp_path / "at-north" / "studies").glob("stages-*/results/report.html")
    assert report.is_file()
    if not masked:
        study, pooled = (pd.read_csv(tmp_path / f"visits-{part}" / "globals.csv") for part in ("server", "pooled"))
        np.testing.assert_allclose(study[["mean", "sd"]], pooled[["mean", "sd"]], rtol=1e-9)  # as the page says

"""The page that goes from a simulation to sites runs as it is there."""

from __future__ import annotations

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
def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    """One after the other, in one folder; in the end both tables of effects are the same."""
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "HIERFL_STATE": str(tmp_path / "state"),
    }  # fmt: skip
    for kind, block in re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        command = [sys.executable, "-c", block] if kind == "python" else ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    mine, pooled = (pd.read_csv(tmp_path / part / "effects.csv") for part in ("server", "pooled"))
    assert mine.effect.tolist() == pooled.effect.tolist()
    for column in ("estimate", "standard_error"):
        np.testing.assert_allclose(mine[column], pooled[column], rtol=1e-8)
    (report,) = (tmp_path / "at-north" / "studies").glob("stages-*/results/report.html")
    assert report.is_file()

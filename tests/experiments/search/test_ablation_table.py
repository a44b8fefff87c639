"""Ablations side by side: what the tables say is what the ablations found."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from support.commands import Call, command

from hierfl import UserError
from hierfl.experiments.search.ablation_table import markdown, read


@pytest.fixture
def ablation(hierfl: Call, tmp_path: Path) -> Path:
    small = ["--rounds", 2, "--network", "mlp:4", "-J", 6, "--split", "label-skew:5", "--seeds", 2, "--choose-seeds", 0]
    small += ["--set", "head_epochs=1", "--set", "base_epochs=1", "--set", "base_batch=100"]
    code, _, err = hierfl("ablate", "pfedvem", *small, "--draws", 3, "--out", "a", "--quiet")
    assert code == 0, err
    return tmp_path / "a"


def test_tables_say_what_was_found(ablation: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = ablation / "all.md"
    command("ablation-table", ablation, "--out", out)
    text = out.read_text()
    assert capfd.readouterr().out.strip() == text.strip()
    table = pd.read_csv(ablation / "comparison" / "table.csv")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| pfedvem")]
    assert [line[:3] for line in lines] == 2 * [["pfedvem", "digits", "fixed"], ["pfedvem", "digits", "flat"]]
    fixed = table[table["over"].str.contains("fixed") & (table["kind"] == "draws")].set_index("metric")
    gain = fixed.loc["accuracy"]
    star = "" if gain["low"] <= 0 <= gain["high"] else " *"
    assert lines[0][4] == f"{100 * gain['gain']:+.2f} ({100 * gain['low']:+.2f}…{100 * gain['high']:+.2f}){star}"
    assert lines[0][6] == f"{fixed.loc['nll', 'share_better']:.0%}"
    assert lines[0][3] == "2"
    sizes = pd.read_csv(ablation / "comparison" / "sizes.csv")
    sizes = sizes[sizes["over"].str.contains("fixed") & (sizes["metric"] == "nll") & (sizes["kind"] == "draws")]
    first, last = sizes.iloc[0], sizes.iloc[-1]
    small, large = lines[2][3:6], lines[2][6:9]
    assert small[0] == f"{first['n_from']} to {first['n_to']}"
    assert small[2].startswith(f"{first['gain']:+.3f}")
    assert large[2].startswith(f"{last['gain']:+.3f}")
    # what is kept of it is enough
    kept = ablation.parent / "kept"
    kept.mkdir()
    for name in ("comparison.json", "table.csv", "sizes.csv"):
        (kept / name).write_bytes((ablation / "comparison" / name).read_bytes())
    assert markdown([read(kept)]) == text
    assert str(ablation) not in (kept / "comparison.json").read_text()
    runs = json.loads((kept / "comparison.json").read_text())["runs"]
    assert runs["pfedvem (hierarchical prior)"]["0"] == "../hierarchical-0"


def test_a_folder_without_an_ablation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no ablation"):
        command("ablation-table", tmp_path)

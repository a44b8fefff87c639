"""`hierfl ablate`: a method without its prior, each at its best settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call

from hierfl import UserError
from hierfl.experiments.methods import shipped_settings
from hierfl.experiments.search.scales import chosen_scale


def configs_scale(run: Path) -> float:
    return float(tomllib.loads((run / "config.toml").read_text())["settings"]["sigma_0"])


def test_a_scales_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best at an end is followed, three times; stopped at any cell, it ends where it would have."""
    ran = []

    def objective(method: str, data: str, given: dict, settings: dict, settle: int, progress: bool) -> dict:
        if len(ran) == stop:
            raise KeyboardInterrupt
        ran.append(float(settings["sigma_0"]))
        return {"pm_nll": abs(np.log(float(settings["sigma_0"]) / 200)), "diverged_local_steps": 0}

    monkeypatch.setattr("hierfl.experiments.search.cells.evaluate_cell", objective)
    usual = shipped_settings("pfedvem", "digits")[0].get("sigma_0", 0.1)
    wanted = usual * 10 * 27
    for first in (99, 3, 5, 6, 7):
        out, stop = tmp_path / str(first), first
        ran.clear()
        arguments = ("pfedvem", "digits", "fixed", {"rounds": 1}, {}, out, 1)
        try:
            chosen = chosen_scale(*arguments, progress=False)
        except KeyboardInterrupt:
            stop = 99
            chosen = chosen_scale(*arguments, progress=False)
        assert chosen["sigma_0"] == pytest.approx(wanted)
        assert len(ran) == 8
    assert chosen_scale(*arguments, scales=[0.1, 1.0], progress=False) == {"sigma_0": 1.0}
    monkeypatch.setattr(
        "hierfl.experiments.search.cells.evaluate_cell",
        lambda *rest: {"pm_nll": float("nan"), "diverged_local_steps": 1},
    )
    with pytest.raises(UserError, match="under the fixed prior nothing that was tried is finite"):
        chosen_scale(*arguments[:5], tmp_path / "nan", 1, progress=False)


@pytest.mark.slow
def test_an_ablation(hierfl: Call, tmp_path: Path) -> None:
    """Every prior with the scale that validation data chose for it, and everything else equal."""
    small = ["--rounds", 2, "-J", 6, "--split", "iid", "--network", "mlp:8", "--draws", 3, "--seeds", 2]
    small += ["--set", "head_epochs=1", "--set", "base_epochs=1", "--set", "base_batch=100"]
    arguments = ["ablate", "pfedvem", *small, "--set", "head_lr=0.01", "--set", "tau=deviation", "--out", "a"]
    code, _, err = hierfl(*arguments)
    assert code == 0, err
    configs = {}
    for prior in ("hierarchical", "fixed", "flat"):
        for seed in (0, 1):
            config = tomllib.loads((tmp_path / "a" / f"{prior}-{seed}" / "config.toml").read_text())
            assert config["run"]["seed"] == seed
            assert config["run"]["validation_fraction"] == 0
            assert config["settings"].pop("prior") == prior
            configs[prior, seed] = config
    for prior in ("hierarchical", "fixed"):
        search = json.loads((tmp_path / "a" / f"choose-{prior}.json").read_text())
        tried = {cell["all_settings"]["sigma_0"]: cell["pm_nll"] for cell in search["cells"]}
        usual = shipped_settings("pfedvem", "digits")[0].get("sigma_0", 0.1)
        assert len(tried) >= 5
        assert min(tried) <= 0.1 * usual * 1.001
        assert max(tried) >= 10 * usual * 0.999
        best = configs[prior, 0]["settings"].pop("sigma_0")
        assert tried[best] == min(tried.values())
        assert best not in (min(tried), max(tried)) or len(tried) == 5 + 3
        assert search["validation_fraction"] == 0.1
    assert not (tmp_path / "a" / "choose-flat.json").exists()
    assert configs["hierarchical", 0]["settings"].pop("tau") == "deviation"
    plain = [{k: v for k, v in configs[p, 0]["settings"].items() if k not in ("tau", "sigma_0")} for p in
             ("hierarchical", "fixed", "flat")]  # fmt: skip
    assert plain[0] == plain[1] == plain[2]
    gains = pd.read_csv(tmp_path / "a" / "comparison" / "gains.csv")
    assert set(gains["over"]) == {"pfedvem (fixed prior)", "pfedvem (flat prior)"}
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").glob("*/summary.json")}
    assert len(stamps) == 6
    code, out, err = hierfl(*arguments)
    assert code == 0, err
    assert "fixed prior" in out
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())
    search = tmp_path / "a" / "choose-fixed.json"
    record = json.loads(search.read_text())
    strange = {"settings": {}, "all_settings": {**record["cells"][-1]["all_settings"], "head_lr": 9.0}, "pm_nll": 0.0}
    search.write_text(json.dumps({**record, "cells": [strange, *record["cells"]]}))  # of other settings
    code, out, err = hierfl(*arguments)
    assert code == 0, err
    assert f"fixed: sigma_0={configs_scale(tmp_path / 'a' / 'fixed-0'):g}" in err
    other = ["ablate", "pfedvem", *small, "--set", "head_lr=0.02", "--set", "tau=deviation"]
    code, _, err = hierfl(*other, "--out", "a")
    assert code == 2
    assert "hierarchical-0 was run with head_lr = 0.01" in err


def test_what_cannot_be_ablated(hierfl: Call) -> None:
    command = ["ablate", "pfedvem", "--rounds", 2, "-J", 6, "--split", "iid", "--set", "head_lr=0.01", "--out", "a"]
    for more, words in (
        ([*command, "--scales", "1,2", "--choose-seeds", "0"], "--choose-seeds 0 chooses none"),
        ([*command, "--scales", "1,2", "--set", "sigma_0=1"], "--scales changes nothing"),
        (["ablate", "mixed-effects", "--test-fraction", "0"], "priors are compared on test data"),
        (["ablate", "fedavg"], "fedavg has no priors to compare"),
        ([*command, "--set", "prior=flat"], "the prior is what ablate varies"),
        ([*command, "--seeds", "0"], "at least one seed"),
        ([*command, "--scales", "a"], "--scales takes numbers"),
        ([*command, "--validation-fraction", "0", "--out", "b"], "--validation-fraction above 0, or --choose-seeds 0"),
        ([*command, "--set", "head_lr=-1"], "head_lr is set twice"),
        (["ablate", "pfedhb", "--set", "heads=auto"], "heads is what ablate varies"),
        (["ablate", "pfedhb", "--seeds", "0"], "at least one seed"),
        (["ablate", "pfedhb", "--scales", "0.1,1"], "--choose-seeds and --scales are for priors: of pfedhb parts are"),
    ):
        code, _, err = hierfl(*more)
        assert code == 2
        assert words in err, err


@pytest.mark.slow
@pytest.mark.figures("blank")
def test_an_ablation_of_parts(hierfl: Call, tmp_path: Path) -> None:
    """The whole beside it without a part, and with one more: one difference in settings each, the same seed."""
    small = ["--rounds", 2, "-J", 4, "--network", "mlp:4", "--seeds", 1, "--set", "draws=5", "--out", "a"]
    code, out, err = hierfl("ablate", "pfedhb", *small)
    assert code == 0, err
    configs = {p.parent.name: tomllib.loads(p.read_text()) for p in (tmp_path / "a").glob("*-0/config.toml")}
    assert len(configs) == 7
    whole = configs["whole-0"]["settings"]
    changed = {name: {k: v for k, v in config["settings"].items() if v != whole[k]} for name, config in configs.items()}
    assert changed == {
        "whole-0": {}, "fixed-prior-0": {"prior": "fixed"},
        "no-shares-0": {"shares": "off"}, "no-heads-0": {"heads": "off"},
        "neither-0": {"shares": "off", "heads": "off"}, "features-too-0": {"features": "on"},
        "confusion-too-0": {"confusion": "on"},
    }  # fmt: skip
    neither = json.loads((tmp_path / "a" / "neither-0" / "summary.json").read_text())
    assert neither["pm_nll"] == pytest.approx(neither["gm_nll"], rel=0.5)
    over = pd.read_csv(tmp_path / "a" / "comparison" / "gains.csv")["over"].unique()
    parts = ("fixed prior", "no shares", "no heads", "neither", "features too", "confusion too")
    assert set(over) == {f"pfedhb ({part})" for part in parts}
    assert "no heads prior=hierarchical, shares=on, heads=off" in " ".join(out.split())
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").glob("*/summary.json")}
    assert hierfl("ablate", "pfedhb", *small)[0] == 0
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())


@pytest.mark.slow
@pytest.mark.figures("blank")
def test_an_ablation_of_a_table(hierfl: Call, tmp_path: Path) -> None:
    """Scales by rows that are held out of the training rows; compared on others."""
    rng, site = np.random.default_rng(0), np.repeat([f"p{k}" for k in range(6)], 15)
    x = rng.normal(size=90)
    y = 1 + 2 * x + np.repeat(rng.normal(size=6), 15) + 0.3 * rng.normal(size=90)
    pd.DataFrame({"x": x, "y": y, "place": site}).to_csv(tmp_path / "t.csv", index=False)
    options = ["--data", "t.csv", "--formula", "y ~ 1 + x + (1 | place)", "--seeds", 1, "--out", "a"]
    few = ["--set", "draws=20"]
    code, out, err = hierfl("ablate", "mixed-effects", *options, *few, "--scales", "0.1,1")
    assert code == 0, err
    assert not (tmp_path / "a" / "choose-hierarchical.json").exists()  # its spread is learned
    search = json.loads((tmp_path / "a" / "choose-fixed.json").read_text())
    assert [cell["all_settings"]["sd_0"] for cell in search["cells"]] in ([0.1, 1.0], [1.0, 0.1])
    gains = pd.read_csv(tmp_path / "a" / "comparison" / "gains.csv")
    assert set(gains["n_test"]) == {3}
    assert set(gains["n"]) == {12}
    assert "RMSE" in out
    assert "bootstrap over clients alone (one seed)" in " ".join(out.split())

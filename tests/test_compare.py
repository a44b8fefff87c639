"""Comparing runs client by client: gains by hand, intervals that cover, and what cannot be compared."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call

from hierfl import UserError
from hierfl.arviz_io import import_arviz, loo
from hierfl.experiments.compare.comparison import compare_runs
from hierfl.experiments.compare.display import heading, markdown
from hierfl.experiments.compare.variants import differing, short_names
from hierfl.experiments.methods import shipped_settings
from hierfl.experiments.report.comparison import FILES
from hierfl.experiments.search.scales import chosen_scale
from hierfl.metrics import paired
from hierfl.plots.gains import gain_by_size, gain_intervals


def frame(seeds: int, clients: int, shift: float = 0.0, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [
        {"seed": s, "client": f"c{j}", "n": 5 * (j + 1), "n_test": 10, "accuracy": 0.5 + shift, "nll": 1 - shift,
         "coverage90": 0.8 + shift, "draws_nll": rng.normal()}
        for s in range(seeds)
        for j in range(clients)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_gains_have_the_sign_that_makes_more_better() -> None:
    one, two = frame(2, 3, 0.05), frame(2, 3)
    columns = {"accuracy": ("accuracy", "accuracy"), "nll": ("nll", "draws_nll"), "coverage90": ("coverage90",) * 2}
    found = paired.gains(one.sample(frac=1, random_state=0), two, columns).sort_values(["seed", "client"])
    assert np.allclose(found["accuracy"], 0.05)
    assert np.allclose(found["nll"], two["draws_nll"] - one["nll"])  # less is better
    assert np.allclose(found["coverage90"], 0.05)  # 0.05 nearer to 0.9
    nobody = one.assign(n_test=np.where(one["client"] == "c1", 0, 10))
    assert set(paired.gains(nobody, two.assign(n_test=nobody["n_test"]), columns)["client"]) == {"c0", "c2"}
    for other, words in (
        (two.assign(seed=two["seed"] + 5), "no seed in common"),
        (two.assign(n=two["n"] + 1), "other data"),
        (two[two["client"] != "c2"], "other data"),
    ):
        with pytest.raises(UserError, match=words):
            paired.gains(one, other, columns)


def brute(values: np.ndarray, seeds: np.ndarray, clients: np.ndarray | None, times: int) -> np.ndarray:
    """The bootstrap, one resample after the other."""
    rng, means = np.random.default_rng(1), []
    for _ in range(times):
        names, total = np.unique(seeds), []
        who = rng.choice(np.unique(clients), len(np.unique(clients))) if clients is not None else None
        for s in rng.choice(names, len(names)):
            mine = values[seeds == s]
            if clients is None:
                total.append(rng.choice(mine, len(mine)).mean())
            else:
                of = dict(zip(clients[seeds == s], mine, strict=True))
                total.append(np.mean([of[c] for c in who]))
        means.append(np.mean(total))
    return np.quantile(means, [0.025, 0.975])


@pytest.mark.parametrize("crossed", [False, True])
def test_the_bootstrap_is_the_one_that_is_described(crossed: bool) -> None:
    """Against loops; seeds differ by 1, clients by 2: alike under every seed, or afresh."""
    rng, s, j = np.random.default_rng(0), 4, 12
    seeds, clients = np.repeat(np.arange(s), j), np.tile([f"c{k}" for k in range(j)], s)
    lasting = np.tile(rng.normal(size=j), s) if crossed else rng.normal(size=s * j)
    values = np.repeat(rng.normal(size=s), j) + 2 * lasting + 0.1 * rng.normal(size=s * j)
    told = clients if crossed else None
    found = paired.bootstrap(values, seeds, told)
    assert found.mean == pytest.approx(values.mean())
    plain = brute(values, seeds, told, 4000) - values.mean()
    table = values.reshape(s, j)
    error, df = paired.standard_error(table if crossed else list(table))
    if not crossed:
        assert (error, df) == pytest.approx((table.mean(1).std(ddof=1) / s**0.5, s - 1))
    got = np.array([found.low, found.high]) - values.mean()
    assert got / np.ptp(got) == pytest.approx(plain / np.ptp(plain), abs=0.03)  # the bootstrap's shape
    normal = np.ptp(plain) / 2 / 1.96  # its standard deviation, about
    assert np.ptp(got) / np.ptp(plain) == pytest.approx(error * paired.student(df) / 1.96 / normal, rel=0.1)
    holes = np.r_[values, np.nan]
    more = paired.bootstrap(holes, np.r_[seeds, 0], None if told is None else np.append(told, "c99"))
    assert more == found
    assert paired.bootstrap(values, seeds, told) == found
    nothing = paired.bootstrap(np.array([np.nan]), np.zeros(1), None)
    assert all(np.isnan(nothing))


def test_the_interval_covers() -> None:
    """Of one seed's 40 clients, 95 times of a hundred; binomial error 1.5 points, and a little for the bootstrap's."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        values = rng.gamma(2.0, size=40)
        one = paired.bootstrap(values, np.zeros(40), None, times=1000)
        hits += one.low <= 2.0 <= one.high
    assert 0.88 <= hits / 200 <= 0.985


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("between", [0.0, 0.3, 1.0])
def test_intervals_of_few_seeds_cover(crossed: bool, between: float) -> None:
    """Three seeds of 20 clients, binomial error 1.5 points; the bootstrap alone covers 75 % (nested, between 1)."""
    rng, hits, times = np.random.default_rng(1), 0, 200
    seeds = np.repeat(np.arange(3), 20)
    names = np.tile(np.arange(20).astype(str), 3) if crossed else None
    for _ in range(times):
        values = between * np.repeat(rng.normal(size=3), 20) + rng.normal(size=60)
        if crossed:
            values = values + np.tile(rng.normal(size=20), 3)
        found = paired.bootstrap(values, seeds, names, times=500)
        hits += found.low <= 0 <= found.high
    assert 0.9 < hits / times < 0.995


def test_standard_errors_are_of_what_varies() -> None:
    """In the limits where one of them varies alone, where both do, and where there is hardly anything."""
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.normal(size=(4, 30))
    error, df = paired.standard_error(noise + 5 * rng.normal(size=(4, 1)))
    assert 2.9 < df < 3.2
    error, df = paired.standard_error(people := noise + 5 * rng.normal(size=(1, 30)))
    assert 28.5 < df < 29.6
    assert error == pytest.approx(people.mean(0).std(ddof=1) / 30**0.5, rel=1e-2)
    both = noise + 2 * rng.normal(size=(4, 1)) + 3 * rng.normal(size=(1, 30))
    error, df = paired.standard_error(both)
    expected = (both.mean(1).var(ddof=1) / 4 + both.mean(0).var(ddof=1) / 30) ** 0.5
    assert error == pytest.approx(expected, rel=1e-3)
    assert 3 < df < 29
    alike = [rng.normal(size=12) for _ in range(4)]
    alike = [row - row.mean() for row in alike]  # seeds that differ by less than their clients explain
    error, df = paired.standard_error(alike)
    assert df == 44
    assert error == pytest.approx(np.mean([row.var(ddof=1) for row in alike]) ** 0.5 / 48**0.5)
    assert paired.standard_error([np.array([1.0, 2.0, 4.0])])[1] == 2
    assert paired.standard_error([np.array([1.0]), np.array([2.0])]) == pytest.approx((0.5, 1))
    assert paired.standard_error([np.array([1.0])]) == (0.0, 0.0)
    assert paired.student(4) == pytest.approx(2.7764451)
    lone = paired.bootstrap(np.array([3.0]), np.zeros(1), None)
    assert (lone.mean, lone.low, lone.high) == (3.0, 3.0, 3.0)


def test_sizes_and_ranks() -> None:
    assert paired.by_size(np.array([1, 2, 3, 4, 5, 6])).tolist() == [0, 0, 1, 1, 2, 2]
    assert paired.by_size(np.array([7, 7, 7])).tolist() == [0, 0, 0]
    assert paired.by_size(np.array([1, 1, 1, 1, 9])).tolist() == [0, 0, 0, 0, 2]
    assert paired.by_size(np.array([5] * 9 + [10]), 6).tolist() == [0] * 9 + [5]
    assert paired.by_size(np.array([3, 4]), 1).tolist() == [0, 0]
    a = pd.Series([1.0, 2.0, 3.0, 4.0, np.nan])
    assert paired.rank_correlation(a, pd.Series([1.0, 8.0, 27.0, 64.0, 5.0])) == pytest.approx(1.0)
    assert np.isnan(paired.rank_correlation(a, pd.Series([1.0] * 5)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of two priors, one of the third, on a few digits."""
    from hierfl.experiments.configure import configure
    from hierfl.experiments.run_folder.start import start

    root = tmp_path_factory.mktemp("runs")
    for prior, seed in (("hierarchical", 0), ("hierarchical", 1), ("fixed", 0), ("fixed", 1), ("flat", 0)):
        given = {"rounds": 3, "seed": seed, "clients": 6, "split": "dirichlet:0.5,redraw", "network": "mlp:8"}
        config = configure("pfedvem", "digits", {**given, "draws": 4}, {"prior": prior, "head_lr": "0.01"})
        start(config, root / f"{prior}-{seed}", False, progress=False)
    config = configure("fedper", "digits", {**given, "seed": 0, "rounds": 2, "draws": 4}, {})
    start(config, root / "fedper", False, progress=False)
    return root


def test_a_comparison(runs: Path, hierfl: Call, tmp_path: Path) -> None:
    names = ["hierarchical-0", "hierarchical-1", "fixed-1", "flat-0", "fixed-0"]
    code, out, err = hierfl("compare", *(runs / name for name in names), "--out", tmp_path / "c")
    assert code == 0, err
    assert {p.name for p in (tmp_path / "c").iterdir()} == {*FILES, "comparison.json", "figures"}
    gains, table = (pd.read_csv(tmp_path / "c" / f"{name}.csv") for name in ("gains", "table"))
    clients = {name: pd.read_csv(runs / name / "clients.csv") for name in names}
    mine = gains[(gains["over"] == "pfedvem (fixed prior)") & (gains["seed"] == 1)]
    for kind, prefix in (("mean", ""), ("draws", "draws_")):
        one, two = (clients[f"{prior}-1"][f"{prefix}nll"] for prior in ("hierarchical", "fixed"))
        assert np.allclose(mine[mine["kind"] == kind]["nll"], two - one)
    flat = gains[(gains["over"] == "pfedvem (flat prior)") & (gains["kind"] == "draws")]
    assert np.allclose(flat["accuracy"], clients["hierarchical-0"]["draws_accuracy"] - clients["flat-0"]["accuracy"])
    one = table[(table["over"] == "pfedvem (fixed prior)") & (table["metric"] == "nll") & (table["kind"] == "draws")]
    both = gains[(gains["over"] == "pfedvem (fixed prior)") & (gains["kind"] == "draws")]
    assert one["gain"].item() == pytest.approx(both.groupby("seed")["nll"].mean().mean())
    assert one["seeds"].item() == 2
    assert one["low"].item() < one["gain"].item() < one["high"].item()
    assert one["share_better"].item() == pytest.approx((both["nll"] > 0).mean())
    assert set(table["metric"]) == {"accuracy", "nll", "brier", "ece"}
    left_out = pd.read_csv(tmp_path / "c" / "loo.csv")
    assert set(left_out["seed"]) == {0}  # all three have
    assert set(left_out["variant"]) == {"pfedvem (hierarchical prior)", "pfedvem (fixed prior)"}
    theirs = loo(import_arviz().from_netcdf(runs / "fixed-0" / "posterior.nc"))
    row = left_out[left_out["variant"] == "pfedvem (fixed prior)"]
    assert row["elpd_loo"].item() == pytest.approx(theirs["elpd_loo"])
    assert row["k_large"].item() == pytest.approx(float((theirs["pareto_k"] > theirs["good_k"]).mean()))
    assert "No leave-one-out of flat prior: its guide is a point" in " ".join(out.split())
    assert "Settings: hierarchical prior sigma_0=" in " ".join(out.split())
    assert "seeds (fixed prior: 2, flat prior: 1)" in " ".join(out.split())
    text = (tmp_path / "c" / "comparison.md").read_text()
    assert "pfedvem (hierarchical prior) against pfedvem (fixed prior), pfedvem (flat prior): digits, 6 clients" in text
    record = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert list(record["runs"]) == ["pfedvem (hierarchical prior)", "pfedvem (fixed prior)", "pfedvem (flat prior)"]
    assert (tmp_path / "c" / "figures" / "overview.png").stat().st_size > 20_000
    small = gains[gains["over"] == "pfedvem (flat prior)"]
    assert gain_by_size(small, "accuracy", "gain").get_title() == "Who gains"
    two_sizes = pd.DataFrame({"n": [5] * 9 + [10], "accuracy": [0.1] * 9 + [0.3]})  # (a mean of each, none between)
    assert gain_by_size(two_sizes, "accuracy", "gain").lines[-1].get_xydata().tolist() == [
        [5, pytest.approx(0.1)],
        [10, 0.3],
    ]
    assert len(gain_intervals(table[table["metric"] == "nll"], "NLL").get_yticks()) == 2


def test_other_methods_and_settings_have_names_of_their_own(runs: Path, tmp_path: Path) -> None:
    found = compare_runs([runs / "hierarchical-0", runs / "fedper"])
    assert [v.name for v in found.variants] == ["pfedvem (hierarchical prior)", "fedper"]
    assert found.loo is None
    assert differing(found.variants) == {"rounds": [3, 2]}
    assert "They differ in more than method and settings: rounds 3, 2." in heading(found)
    other = tmp_path / "other"
    shutil.copytree(runs / "hierarchical-0", other)
    text = (other / "config.toml").read_text()
    (other / "config.toml").write_text(text.replace("head_lr = 0.01", "head_lr = 0.02"))
    found = compare_runs([runs / "hierarchical-0", runs / "hierarchical-1", other], want_loo=False)
    assert [v.name for v in found.variants] == [
        "pfedvem (hierarchical prior), head_lr=0.01", "pfedvem (hierarchical prior), head_lr=0.02"
    ]  # fmt: skip
    assert list(short_names(found.variants).values()) == [
        "hierarchical prior, head_lr=0.01", "hierarchical prior, head_lr=0.02"
    ]  # fmt: skip
    assert (found.gains["nll"] == 0).all()


def test_runs_from_before_draws_were_kept_by_client(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fixed-0", tmp_path / "old")
    path = tmp_path / "old" / "clients.csv"
    frame = pd.read_csv(path)
    frame[[c for c in frame if not c.startswith("draws_")]].to_csv(path, index=False)
    found = compare_runs([runs / "hierarchical-0", tmp_path / "old"])
    assert set(found.gains["kind"]) == {"mean"}
    assert found.loo is not None  # (what the draws are is told)
    az, path = import_arviz(), tmp_path / "old" / "posterior.nc"
    data = az.from_netcdf(path)
    data.load()
    data.close()
    del data.log_likelihood.attrs["draws_of"]
    shutil.copytree(tmp_path / "old", tmp_path / "older", ignore=shutil.ignore_patterns("posterior.nc"))
    data.to_netcdf(str(tmp_path / "older" / "posterior.nc"), engine="h5netcdf")
    found = compare_runs([runs / "hierarchical-0", tmp_path / "older"])
    assert found.loo is None
    assert "from before posterior.nc told" in found.unfit["pfedvem (fixed prior)"]


def test_what_cannot_be_compared(runs: Path, hierfl: Call, tmp_path: Path) -> None:
    changed = {}
    for name, old, new in (("split", '"dirichlet:0.5,redraw"', '"iid"'), ("digest", "", ""), ("draws", "", "")):
        changed[name] = tmp_path / name
        shutil.copytree(runs / "fixed-0", changed[name])
        path = changed[name] / "config.toml"
        path.write_text(path.read_text().replace(old, new))
    summary = json.loads((changed["digest"] / "summary.json").read_text())
    (changed["digest"] / "summary.json").write_text(json.dumps({**summary, "federation": "0" * 16}))
    (changed["draws"] / "posterior.nc").unlink()
    begun = tmp_path / "begun"
    shutil.copytree(runs / "fixed-0", begun)
    (begun / "summary.json").unlink()
    first = runs / "hierarchical-0"
    for said, words in (
        ([changed["split"]], "its split is 'iid', not 'dirichlet:0.5,redraw'"),
        ([changed["digest"]], "holds other data, or splits them otherwise"),
        ([changed["draws"], "--loo"], "pfedvem (fixed prior): it has no draws (posterior.nc)"),
        ([runs / "flat-0", "--loo"], "needs two variants with draws; pfedvem (flat prior): its guide is a point"),
        ([begun], "has not finished"),
        ([first], "are the same run"),
        ([runs / "hierarchical-1"], "there is nothing to compare"),
        ([runs / "absent"], "is not the folder of a run"),
        ([runs / "fixed-1"], "they have no seed in common"),
        ([runs / "fixed-0", "--out", str(tmp_path)], "exists; choose another --out"),
        ([runs / "fixed-0", "--out", str(tmp_path), "--overwrite"], "is not the folder of a comparison"),
    ):
        code, _, err = hierfl("compare", first, *said)
        assert code == 2
        assert words in err, err
    assert hierfl("compare", first, changed["draws"], "--out", "plain", "--quiet")[0] == 0  # (leaves it out)
    assert not (tmp_path / "plain" / "loo.csv").exists()
    assert hierfl("compare", first, runs / "fixed-0", "--out", "plain", "--overwrite", "--quiet")[0] == 0
    assert (tmp_path / "plain" / "loo.csv").is_file()


def configs_scale(run: Path) -> float:
    return float(tomllib.loads((run / "config.toml").read_text())["settings"]["sigma_0"])


def test_a_scales_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best at an end is followed, three times; stopped at any cell, it ends where it would have."""
    ran = []

    def objective(method: str, data: str, given: dict, settings: dict, settle: int, progress: bool) -> dict:
        if len(ran) == stop:
            raise KeyboardInterrupt
        ran.append(float(settings["sigma_0"]))
        return {"pm_nll": abs(np.log(float(settings["sigma_0"]) / 200)), "failed_local_steps": 0}

    monkeypatch.setattr("hierfl.experiments.search.cells.evaluate_cell", objective)
    usual = shipped_settings("pfedvem", "digits")[0].get("sigma_0", 0.1)
    wanted = usual * 10 * 27
    for first in (99, 3, 5, 6, 7):
        out, stop = tmp_path / str(first), first
        ran.clear()
        arguments = ("pfedvem", "digits", "fixed", {"rounds": 1}, {}, out, 1)
        try:
            found = chosen_scale(*arguments, progress=False)
        except KeyboardInterrupt:
            stop = 99
            found = chosen_scale(*arguments, progress=False)
        assert found["sigma_0"] == pytest.approx(wanted)
        assert len(ran) == 8
    assert chosen_scale(*arguments, scales=[0.1, 1.0], progress=False) == {"sigma_0": 1.0}
    monkeypatch.setattr(
        "hierfl.experiments.search.cells.evaluate_cell", lambda *rest: {"pm_nll": float("nan"), "failed_local_steps": 1}
    )
    with pytest.raises(UserError, match="under the fixed prior nothing that was tried is finite"):
        chosen_scale(*arguments[:5], tmp_path / "nan", 1, progress=False)


def test_few_test_examples_say_little_of_calibration(runs: Path, tmp_path: Path) -> None:
    for name in ("hierarchical-0", "fixed-0"):
        shutil.copytree(runs / name, tmp_path / name)
        path = tmp_path / name / "clients.csv"
        pd.read_csv(path).assign(n_test=15).to_csv(path, index=False)
    found = compare_runs([tmp_path / "hierarchical-0", tmp_path / "fixed-0"], want_loo=False)
    assert found.scarce == ["ece"]
    assert "ece" not in set(found.table["metric"])
    assert "ECE left out: half of the clients have less than 20" in markdown(found)
    for name in ("hierarchical-0", "fixed-0"):
        path = tmp_path / name / "clients.csv"
        pd.read_csv(path).assign(n_test=0).to_csv(path, index=False)
    with pytest.raises(UserError, match="no client has test data to be compared on"):
        compare_runs([tmp_path / "hierarchical-0", tmp_path / "fixed-0"])


def test_an_ablation(hierfl: Call, tmp_path: Path) -> None:
    """Every prior with the scale that validation data chose for it, and everything else equal."""
    small = ["--rounds", 2, "-J", 6, "--split", "iid", "--network", "mlp:8", "--draws", 3, "--seeds", 2]
    said = ["ablate", "pfedvem", *small, "--set", "head_lr=0.01", "--set", "tau=deviation", "--out", "a"]
    code, _, err = hierfl(*said)
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
    code, out, err = hierfl(*said)
    assert code == 0, err
    assert "fixed prior" in out
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())
    search = tmp_path / "a" / "choose-fixed.json"
    held = json.loads(search.read_text())
    strange = {"settings": {}, "all_settings": {**held["cells"][-1]["all_settings"], "head_lr": 9.0}, "pm_nll": 0.0}
    search.write_text(json.dumps({**held, "cells": [strange, *held["cells"]]}))  # of other settings
    code, out, err = hierfl(*said)
    assert code == 0, err
    assert f"fixed: sigma_0={configs_scale(tmp_path / 'a' / 'fixed-0'):g}" in err
    other = ["ablate", "pfedvem", *small, "--set", "head_lr=0.02", "--set", "tau=deviation"]
    for more, words in (
        ([*other, "--out", "a"], "hierarchical-0 was run with head_lr = 0.01"),
        ([*said, "--scales", "1,2", "--choose-seeds", "0"], "--choose-seeds 0 chooses none"),
        ([*said, "--scales", "1,2", "--set", "sigma_0=1"], "--scales changes nothing"),
        (["ablate", "mixed-effects", "--test-fraction", "0"], "priors are compared on test data"),
        (["ablate", "fedavg"], "fedavg has no priors to compare"),
        ([*said, "--set", "prior=flat"], "the prior is what ablate varies"),
        ([*said, "--seeds", "0"], "at least one seed"),
        ([*said, "--scales", "a"], "--scales takes numbers"),
        ([*said, "--validation-fraction", "0", "--out", "b"], "--validation-fraction above 0, or --choose-seeds 0"),
        ([*said, "--set", "head_lr=-1"], "head_lr is set twice"),
    ):
        code, _, err = hierfl(*more)
        assert code == 2
        assert words in err, err


def test_an_ablation_of_a_table(hierfl: Call, tmp_path: Path) -> None:
    """Scales by rows that are held out of the training rows; compared on others."""
    rng, place = np.random.default_rng(0), np.repeat([f"p{k}" for k in range(6)], 15)
    x = rng.normal(size=90)
    y = 1 + 2 * x + np.repeat(rng.normal(size=6), 15) + 0.3 * rng.normal(size=90)
    pd.DataFrame({"x": x, "y": y, "place": place}).to_csv(tmp_path / "t.csv", index=False)
    said = ["--data", "t.csv", "--formula", "y ~ 1 + x + (1 | place)", "--rounds", 4, "--seeds", 1, "--out", "a"]
    few = ["--set", "draws=20", "--set", "chains=2", "--set", "newton_rounds=2"]
    code, out, err = hierfl("ablate", "mixed-effects", *said, *few, "--scales", "0.1,1")
    assert code == 0, err
    assert not (tmp_path / "a" / "choose-hierarchical.json").exists()  # its spread is learned
    search = json.loads((tmp_path / "a" / "choose-fixed.json").read_text())
    assert [cell["all_settings"]["sd_0"] for cell in search["cells"]] in ([0.1, 1.0], [1.0, 0.1])
    gains = pd.read_csv(tmp_path / "a" / "comparison" / "gains.csv")
    assert set(gains["n_test"]) == {3}
    assert set(gains["n"]) == {12}
    assert "RMSE" in out
    assert "bootstrap over clients alone (one seed)" in " ".join(out.split())

"""Comparing runs client by client, and what cannot be compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.drawing import one_figure
from support.once import Once

from hierfl import UserError
from hierfl.arviz_data import import_arviz
from hierfl.arviz_io import loo
from hierfl.elpd import elpd_value
from hierfl.experiments.compare.comparison import compare_runs
from hierfl.experiments.compare.display import heading, markdown
from hierfl.experiments.compare.variants import differing, short_names
from hierfl.experiments.report.comparison import FILES
from hierfl.plots.gains import gain_by_size, gain_intervals

#: steps of the methods that are compared
FEW = {"head_epochs": "3", "base_epochs": "2"}


def make(root: Path) -> None:
    """Two seeds of two priors, one of the third, on a few digits."""
    from hierfl.experiments.configure import configure
    from hierfl.experiments.run_folder.start import start

    with one_figure():
        for prior, seed in (("hierarchical", 0), ("hierarchical", 1), ("fixed", 0), ("fixed", 1), ("flat", 0)):
            given = {"rounds": 3, "seed": seed, "clients": 6, "split": "dirichlet:0.5,redraw", "network": "mlp:8"}
            config = configure("pfedvem", "digits", {**given, "draws": 4}, {"prior": prior, "head_lr": "0.01", **FEW})
            start(config, root / f"{prior}-{seed}", False, progress=False)
        config = configure("fedper", "digits", {**given, "seed": 0, "rounds": 2, "draws": 4}, {})
        start(config, root / "fedper", False, progress=False)


@pytest.fixture
def runs(once: Once) -> Path:
    """Runs that are compared, and never changed."""
    return once("compared runs", make)


@pytest.mark.figures
@pytest.mark.cpu(5, "all figures of a comparison are rendered")
def test_a_comparison(runs: Path, hierfl: Call, tmp_path: Path) -> None:
    names = ["hierarchical-0", "hierarchical-1", "fixed-1", "flat-0", "fixed-0"]
    code, out, err = hierfl("compare", *(runs / name for name in names), "--out", tmp_path / "c")
    assert code == 0, err
    assert {p.name for p in (tmp_path / "c").iterdir()} == {*FILES, "comparison.json", "figures"}
    gains, table = (pd.read_csv(tmp_path / "c" / f"{name}.csv") for name in ("gains", "table"))
    clients = {name: pd.read_csv(runs / name / "clients.csv") for name in names}
    mine = gains[(gains["over"] == "pfedvem (fixed prior)") & (gains["seed"] == 1)]
    for kind, prefix in (("mean", ""), ("draws", "draws_")):
        learned, fixed = (clients[f"{prior}-1"][f"{prefix}nll"] for prior in ("hierarchical", "fixed"))
        assert np.allclose(mine[mine["kind"] == kind]["nll"], fixed - learned)
    flat = gains[(gains["over"] == "pfedvem (flat prior)") & (gains["kind"] == "draws")]
    assert np.allclose(flat["accuracy"], clients["hierarchical-0"]["draws_accuracy"] - clients["flat-0"]["accuracy"])
    nll = table[(table["over"] == "pfedvem (fixed prior)") & (table["metric"] == "nll") & (table["kind"] == "draws")]
    both = gains[(gains["over"] == "pfedvem (fixed prior)") & (gains["kind"] == "draws")]
    assert nll["gain"].item() == pytest.approx(both.groupby("seed")["nll"].mean().mean())
    assert nll["seeds"].item() == 2
    assert nll["low"].item() < nll["gain"].item() < nll["high"].item()
    assert nll["share_better"].item() == pytest.approx((both["nll"] > 0).mean())
    assert set(table["metric"]) == {"accuracy", "nll", "brier", "ece"}
    left_out = pd.read_csv(tmp_path / "c" / "loo.csv")
    assert set(left_out["seed"]) == {0}  # all three have
    assert set(left_out["variant"]) == {"pfedvem (hierarchical prior)", "pfedvem (fixed prior)"}
    theirs = loo(import_arviz().from_netcdf(runs / "fixed-0" / "posterior.nc"))
    row = left_out[left_out["variant"] == "pfedvem (fixed prior)"]
    assert row["elpd_loo"].item() == pytest.approx(elpd_value(theirs, "elpd"))
    assert row["k_large"].item() == pytest.approx(
        float((elpd_value(theirs, "pareto_k") > elpd_value(theirs, "good_k")).mean())
    )
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
    two_sizes = pd.DataFrame({"n": [5] * 9 + [10], "accuracy": [0.1] * 9 + [0.3]})  # a mean of each, none between
    assert gain_by_size(two_sizes, "accuracy", "gain").lines[-1].get_xydata().tolist() == [
        [5, pytest.approx(0.1)],
        [10, 0.3],
    ]
    assert len(gain_intervals(table[table["metric"] == "nll"], "NLL").get_yticks()) == 2


def test_other_methods_and_settings_have_names_of_their_own(runs: Path, tmp_path: Path) -> None:
    comparison = compare_runs([runs / "hierarchical-0", runs / "fedper"])
    assert [v.name for v in comparison.variants] == ["pfedvem (hierarchical prior)", "fedper"]
    assert comparison.loo is None
    assert differing(comparison.variants) == {"rounds": [3, 2]}
    assert "They differ in more than method and settings: rounds 3, 2." in heading(comparison)
    other = tmp_path / "other"
    shutil.copytree(runs / "hierarchical-0", other)
    text = (other / "config.toml").read_text()
    (other / "config.toml").write_text(text.replace("head_lr = 0.01", "head_lr = 0.02"))
    comparison = compare_runs([runs / "hierarchical-0", runs / "hierarchical-1", other], want_loo=False)
    assert [v.name for v in comparison.variants] == [
        "pfedvem (hierarchical prior), head_lr=0.01", "pfedvem (hierarchical prior), head_lr=0.02"
    ]  # fmt: skip
    assert list(short_names(comparison.variants).values()) == [
        "hierarchical prior, head_lr=0.01", "hierarchical prior, head_lr=0.02"
    ]  # fmt: skip
    assert (comparison.gains["nll"] == 0).all()


def test_runs_from_before_draws_were_kept_by_client(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fixed-0", tmp_path / "old")
    path = tmp_path / "old" / "clients.csv"
    frame = pd.read_csv(path)
    frame[[c for c in frame if not c.startswith("draws_")]].to_csv(path, index=False)
    comparison = compare_runs([runs / "hierarchical-0", tmp_path / "old"])
    assert set(comparison.gains["kind"]) == {"mean"}
    assert comparison.loo is not None  # the file says what its draws are
    az, path = import_arviz(), tmp_path / "old" / "posterior.nc"
    data = az.from_netcdf(path)
    data.load()
    data.close()
    del data.log_likelihood.attrs["draws_of"]
    shutil.copytree(tmp_path / "old", tmp_path / "older", ignore=shutil.ignore_patterns("posterior.nc"))
    data.to_netcdf(str(tmp_path / "older" / "posterior.nc"), engine="h5netcdf")
    comparison = compare_runs([runs / "hierarchical-0", tmp_path / "older"])
    assert comparison.loo is None
    assert "from before posterior.nc said" in comparison.unfit["pfedvem (fixed prior)"]


def test_what_cannot_be_compared(runs: Path, hierfl: Call, tmp_path: Path) -> None:
    changed = {}
    for name, old, new in (("split", '"dirichlet:0.5,redraw"', '"iid"'), ("digest", "", ""), ("draws", "", ""),
                            ("rows", "", ""), ("clients", "", "")):  # fmt: skip
        changed[name] = tmp_path / name
        shutil.copytree(runs / "fixed-0", changed[name])
        path = changed[name] / "config.toml"
        path.write_text(path.read_text().replace(old, new))
    summary = json.loads((changed["digest"] / "summary.json").read_text())
    (changed["digest"] / "summary.json").write_text(json.dumps({**summary, "federation": "0" * 16}))
    frame = pd.read_csv(changed["digest"] / "clients.csv")
    more, others = frame.assign(n=frame["n"] + 1), frame.assign(client=frame["client"] + 9)
    for name, other in (("rows", more), ("clients", others)):
        (changed[name] / "summary.json").write_text(json.dumps({**summary, "federation": "0" * 16}))
        other.to_csv(changed[name] / "clients.csv", index=False)
    (changed["draws"] / "posterior.nc").unlink()
    begun = tmp_path / "begun"
    shutil.copytree(runs / "fixed-0", begun)
    (begun / "summary.json").unlink()
    first = runs / "hierarchical-0"
    for arguments, words in (
        ([changed["split"]], "its split is 'iid', not 'dirichlet:0.5,redraw'"),
        ([changed["digest"]], "the same clients have other values, other columns, or the same rows in another order"),
        ([changed["rows"]], "has other numbers of rows, or is split otherwise"),
        ([changed["clients"]], "it has other clients"),
        ([changed["draws"], "--loo"], "pfedvem (fixed prior): it has no draws (posterior.nc)"),
        ([runs / "flat-0", "--loo"], "needs two variants with draws; pfedvem (flat prior): its guide is a point"),
        ([begun], "has not finished"),
        ([first], "are the same run"),
        ([changed["clients"], changed["draws"]], "though their files have one name: it has other clients"),
        ([runs / "hierarchical-1"], "there is nothing to compare"),
        ([runs / "absent"], "is not the folder of a run"),
        ([runs / "fixed-1"], "they have no seed in common"),
        ([runs / "fixed-0", "--out", str(tmp_path)], "exists; choose another --out"),
        ([runs / "fixed-0", "--out", str(tmp_path), "--overwrite"], "is not the folder of a comparison"),
    ):
        code, _, err = hierfl("compare", first, *arguments)
        assert code == 2
        assert words in err, err
    assert hierfl("compare", first, changed["draws"], "--out", "plain", "--quiet")[0] == 0  # loo is left out
    assert not (tmp_path / "plain" / "loo.csv").exists()
    assert hierfl("compare", first, runs / "fixed-0", "--out", "plain", "--overwrite", "--quiet")[0] == 0
    assert (tmp_path / "plain" / "loo.csv").is_file()


def test_few_test_examples_say_little_of_calibration(runs: Path, tmp_path: Path) -> None:
    for name in ("hierarchical-0", "fixed-0"):
        shutil.copytree(runs / name, tmp_path / name)
        path = tmp_path / name / "clients.csv"
        pd.read_csv(path).assign(n_test=15).to_csv(path, index=False)
    comparison = compare_runs([tmp_path / "hierarchical-0", tmp_path / "fixed-0"], want_loo=False)
    assert comparison.scarce == ["ece"]
    assert "ece" not in set(comparison.table["metric"])
    assert "ECE left out: half of the clients have less than 20" in markdown(comparison)
    for name in ("hierarchical-0", "fixed-0"):
        path = tmp_path / name / "clients.csv"
        pd.read_csv(path).assign(n_test=0).to_csv(path, index=False)
    with pytest.raises(UserError, match="no client has test data to be compared on"):
        compare_runs([tmp_path / "hierarchical-0", tmp_path / "fixed-0"])

"""Sites' own files become what the pooled data would, and what sites have afterwards is theirs."""

from __future__ import annotations

import tomllib
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.commands import Call
from support.studies import PATIENTS, STAGES, FileStudy, formula_study, patients, write_tables, written

from hierfl import Federation, mixed_model
from hierfl.data.npz import load_npz
from hierfl.errors import UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import read_site_data
from hierfl.experiments.report.figures import pictures_of
from hierfl.inference import fit
from hierfl.inference.run.checkpoint import load
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Four sites' files."""
    return write_tables(patients(4), tmp_path / "data")


def test_data_that_change_are_noticed(own: dict[str, Path], tmp_path: Path) -> None:
    file_study = FileStudy(formula_study(tmp_path, own), own, tmp_path)
    file_study.serve()
    pd.read_csv(own["h01"])[:-1].to_csv(own["h01"], index=False)
    with pytest.raises(UserError, match="the data are not those with which .* began this study"):
        file_study.restart("h01")


def test_sites_with_columns_find_what_the_pooled_table_would(tmp_path: Path) -> None:
    """A network's inputs are standardised alike, labels are the declared ones, and a site may lack a label or level."""
    rng, n = np.random.default_rng(0), 160
    df = pd.DataFrame(
        {"site": rng.choice(["a", "b", "c"], n), "age": rng.normal(60, 9, n), "n": rng.integers(0, 5, n),
         "sex": rng.choice(["f", "m"], n), "on": rng.integers(0, 2, n), "y": rng.choice(["ill", "so-so", "well"], n)}
    )  # fmt: skip
    df = df[~((df.site == "a") & ((df.y == "well") | (df.sex == "m")))].reset_index(drop=True)
    columns = {
        "age": {"kind": "number", "least": 0, "most": 120}, "n": {"kind": "whole"}, "on": {"kind": "flag"},
        "sex": {"kind": "category", "levels": ["f", "m"]},
        "y": {"kind": "category", "levels": ["ill", "so-so", "well"]},
    }  # fmt: skip
    own = write_tables(df, tmp_path / "data")
    options = {"rounds": 2, "network": "linear", "draws": 2, "evaluate_every": 2, "validation_fraction": 0.0}
    settings = {"head_epochs": 1, "base_epochs": 1}
    text = draft("pfedvem", own["b"], list(own), "trial", options, settings, y="y", out=tmp_path / "study.toml")
    study = Study.read(written(tmp_path, text, columns))
    file_study = FileStudy(study.path, own, tmp_path)
    file_study.serve()

    wide = df.assign(f=(df.sex == "f").astype(float), m=(df.sex == "m").astype(float))
    x = ["age", "n", "f", "m", "on"]
    assert study.table["data"]["x"] == ["age", "n", "sex", "on"]
    pooled = Federation.from_frame(wide, client="site", y="y", x=x, test=0.2, standardise=True)
    mean, std = pooled.mean.clone(), pooled.std.clone()  # type: ignore[union-attr]
    mean[2:], std[2:] = 0.0, 1.0
    from dataclasses import replace

    pooled = replace(pooled, mean=mean, std=std)
    for j, name in enumerate(own):
        site = file_study.sites[name].site
        assert site is not None
        mine, theirs = site.plate.federation.batch([0]), pooled.batch([j])
        torch.testing.assert_close(mine.x, theirs.x.to(mine.x.dtype), rtol=1e-6, atol=1e-6)
        assert torch.equal(mine.y, theirs.y)
    run = fit(
        PFedVEM(architecture("linear", pooled), **settings), pooled, progress=False, chunk=1,
        **study.table["run"],
    )  # fmt: skip
    shared = {k.removeprefix("server/shared/"): v for k, v in load(tmp_path / "server" / "checkpoint")[0].items()}
    for name, value in run.shared.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-5)


def test_sites_with_images_find_what_the_pooled_arrays_would(tmp_path: Path) -> None:
    """Channels are standardised by whole numbers' sums: the same constants to the bit of float32."""
    rng, own = np.random.default_rng(1), {}
    x, y, who = rng.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8), np.arange(60) % 4, np.arange(60) // 20
    for j in range(3):
        rows = np.flatnonzero((who == j) & ((y < 3) | (j > 0)))
        own[f"s{j}"] = tmp_path / f"s{j}.npz"
        train, test = rows[: len(rows) - 4], rows[len(rows) - 4 :]
        np.savez(own[f"s{j}"], x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    text = draft(
        "pfedvem", own["s1"], list(own), "images", {"rounds": 1, "network": "mlp:8"}, {}, out=tmp_path / "study.toml"
    )
    study = Study.read(written(tmp_path, text))
    assert study.table["data"]["inputs"] == [3, 6, 6]
    sites = [read_site_data(study, path, name) for name, path in own.items()]
    totals = [{k: sum(site.sums([])[k] for site in sites) for k in ("n", "total", "square")}]
    outline, _ = study.data.model(totals, False)
    pools = [load_npz(path, 4) for path in own.values()]
    everyone = np.concatenate([pool.x_train for pool in pools]) / 255
    np.testing.assert_allclose(outline.mean.flatten(), everyone.mean((0, 2, 3)), rtol=1e-6)  # type: ignore[union-attr]
    np.testing.assert_allclose(outline.std.flatten(), everyone.std((0, 2, 3)), rtol=1e-6)  # type: ignore[union-attr]
    for site, name in zip(sites, own, strict=True):
        federation = site.federation(totals)
        assert federation.ids == [name]
        assert federation.classes == 4
        assert torch.equal(federation.mean, outline.mean)  # type: ignore[arg-type]
    FileStudy(study.path, own, tmp_path).serve()
    np.savez(own["s0"], x_train=x[:4], y_train=y[:4] + 9, x_test=x[:2], y_test=y[:2])
    with pytest.raises(UserError, match=r"4 labels are not in the range 0\.\.3"):
        read_site_data(study, own["s0"], "s0")


@pytest.mark.figures("blank")
@pytest.mark.cpu(5, "a study, its predictions and a report")
def test_after_a_study_a_site_predicts_and_reports_by_itself(
    own: dict[str, Path], tmp_path: Path, hierfl: Call
) -> None:
    study = formula_study(tmp_path, own, rounds=8)
    file_study = FileStudy(study, own, tmp_path)
    code, _, error = hierfl("predict", tmp_path / "h01", "--data", own["h01"])
    assert code == 2
    assert "the study has not begun for this site" in error
    file_study.serve()
    new = tmp_path / "new.csv"
    pd.DataFrame({"age": [40.0, 80.0], "stage": ["I", "IV"]}).to_csv(new, index=False)
    code, _, error = hierfl("predict", tmp_path / "h01", "--data", new, "--out", tmp_path / "p.csv")
    assert (code, error) == (0, f"2 rows in {tmp_path / 'p.csv'}\n")
    predictions = pd.read_csv(tmp_path / "p.csv")
    assert predictions.columns.tolist() == ["mean", "sd"]
    assert predictions["mean"][1] > predictions["mean"][0]
    code, _, error = hierfl("report", tmp_path / "h01", "--quiet")
    assert (code, error) == (0, "")
    results = file_study.site_folder("h01") / "results"
    page = (results / "report.html").read_text()
    assert "patients" in page
    pictures = pictures_of(results)
    assert {"forest"} <= {path.stem for _, path in pictures}
    assert page.count("<img") == len(pictures)
    # One site's rows do not say what all rows would.
    assert not (results / "estimates.csv").exists()
    # a level that the dictionary has not
    pd.DataFrame({"age": [40.0], "stage": ["V"]}).to_csv(new, index=False)
    code, _, error = hierfl("predict", tmp_path / "h01", "--data", new)
    assert code == 2
    assert "none of its 4 levels" in error


def test_an_empty_cell_is_dropped_at_every_site(tmp_path: Path, hierfl: Call) -> None:
    """As of the pooled table; the server's summary names it, and a site predicts without it."""
    df = patients(4)
    df["sex"] = np.where(np.arange(len(df)) % 2, "f", "m")
    df = df[~((df.sex == "m") & (df.stage == "III"))]
    own = write_tables(df, tmp_path / "data")
    columns = {**PATIENTS, "sex": {"kind": "category", "levels": ["f", "m"]}}
    formula = "y ~ sex*stage + (1 | site)"
    sample = tmp_path / "sample.csv"
    pd.DataFrame({"y": [0.5, 1.5], "sex": ["f", "m"], "stage": ["I", "II"]}).to_csv(sample, index=False)
    text = draft("mixed-effects", sample, list(own), "t", {"formula": formula, "rounds": 20}, {"draws": 0},
                 out=tmp_path / "study.toml")  # fmt: skip
    file_study = FileStudy(written(tmp_path, text, columns), own, tmp_path)
    summary = file_study.serve()
    whole = mixed_model(df, formula, draws=0)
    assert summary["dropped"] == whole.run.fitted.federation.about["dropped"]
    assert summary["dropped"] == ["'sex[m]:stage[III]' is zero in every row, and was dropped"]
    effects, pooled = pd.read_csv(tmp_path / "server" / "effects.csv"), whole.summary().table
    assert effects.effect.tolist() == pooled.effect.tolist()
    np.testing.assert_allclose(effects.estimate, pooled.estimate, rtol=1e-5, atol=1e-6)
    new = df[df.site == "h01"].head(3)
    new.drop(columns=["site", "y"]).to_csv("new.csv", index=False)
    code, out, err = hierfl("predict", "h01", "--data", "new.csv")
    assert code == 0, err
    predictions = pd.read_csv(StringIO(out))
    np.testing.assert_allclose(predictions["mean"], whole.predict(new, interval=None)["mean"], rtol=1e-4)
    new.assign(sex="m", stage="III").to_csv("new.csv", index=False)
    code, _, err = hierfl("predict", "h01", "--data", "new.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "3 of 3 rows have no prediction" in err


@pytest.mark.slow
def test_ordinal_codes_of_a_study_keep_their_names(
    tmp_path: Path, hierfl: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Codes 1, 2, 4 of a sample are levels in their order, text ones in the sample's, which a line says."""
    rng = np.random.default_rng(0)
    df = patients(4).assign(y=lambda d: np.array([1, 2, 4])[rng.integers(0, 3, len(d))])
    own, sample, how = write_tables(df, tmp_path / "data"), tmp_path / "sample.csv", {"family": "ordinal", "rounds": 25}
    pd.DataFrame({"y": [4, 1, 2], "age": 50.5, "stage": STAGES[:3]}).to_csv(sample, index=False)
    formula, out = "y ~ age + (1 | site)", tmp_path / "study.toml"
    text = draft("mixed-effects", sample, list(own), "t", {"formula": formula, **how}, {"draws": 0}, out=out)
    file_study = FileStudy(written(tmp_path, text), own, tmp_path)
    file_study.serve()
    effects = pd.read_csv(tmp_path / "server" / "effects.csv")
    assert effects.effect.tolist() == ["age", "sd(Intercept)", "1 | 2", "2 | 4"]
    whole = mixed_model(df, formula, family="ordinal", draws=0)
    np.testing.assert_allclose(effects.estimate, whole.summary().table.estimate, rtol=1e-4, atol=1e-4)
    new = df[df.site == "h01"].head(3)
    new.drop(columns=["site", "y"]).to_csv("new.csv", index=False)
    code, output, err = hierfl("predict", "h01", "--data", "new.csv")
    assert code == 0, err
    predictions, wanted = pd.read_csv(StringIO(output)), whole.predict(new, interval=None)
    assert list(predictions) == ["mean", "sd", "p_1", "p_2", "p_4"]
    np.testing.assert_allclose(predictions[["p_1", "p_2", "p_4"]], wanted[["p(1)", "p(2)", "p(4)"]], rtol=1e-4)
    np.testing.assert_allclose(predictions["mean"], wanted["mean"], rtol=0.02)
    assert not caplog.messages
    pd.DataFrame({"y": ["low", "high", "mid"], "age": 50.5}).to_csv(sample, index=False)
    text = draft("mixed-effects", sample, list(own), "t", {"formula": formula, **how}, {"draws": 0}, out=out)
    assert tomllib.loads(text)["columns"]["y"]["levels"] == ["low", "high", "mid"]
    assert caplog.messages[0].startswith("the levels of 'y' are in the order of the sample, low < high < mid")


@pytest.mark.cpu(4, "a study of counts, and its predictions")
def test_a_site_predicts_of_as_many_trials_as_its_file_says(tmp_path: Path, hierfl: Call) -> None:
    df = patients(4).assign(n=5, y=lambda d: (d.age.astype(int) % 6).clip(0, 5))
    own = write_tables(df, tmp_path / "data")
    sample = tmp_path / "sample.csv"
    df.head(8).to_csv(sample, index=False)
    formula, out = "p(y, n) ~ 1 + (1 | site)", tmp_path / "study.toml"
    options = {"formula": formula, "family": "binomial", "rounds": 20, "group": "site"}
    text = draft("mixed-effects", sample, list(own), "t", options, {"draws": 0}, out=out)
    FileStudy(written(tmp_path, text), own, tmp_path).serve()
    means = []
    for columns in (["age"], ["age", "n"]):
        df.head(2)[columns].to_csv("new.csv", index=False)
        code, output, err = hierfl("predict", "h01", "--data", "new.csv")
        assert code == 0, err
        means.append(pd.read_csv(StringIO(output))["mean"][0])
    assert means[1] == pytest.approx(5 * means[0])

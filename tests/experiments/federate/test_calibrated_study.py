"""A study that is calibrated: the server has sums, every site its own sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.studies import FileStudy, formula_study, patients, write_tables, written

from hierfl.errors import UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.leaving import leaving
from hierfl.experiments.federate.site_results import predictions, site_run, write_site_results
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership, read_site_data
from hierfl.inference.engines.remote.wire import decode

ROUNDS = 3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three sites of three classes; one of them is small."""
    folder, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    paths = {}
    for j, n in enumerate((160, 120, 8)):
        y = rng.integers(0, 3, n + 60)
        x = (1.5 * y[:, None] * np.array([1.0, -1.0, 0.5]) + rng.normal(size=(n + 60, 3)) + 0.3 * j).astype(np.float32)
        paths[f"h{j}"] = folder / f"h{j}.npz"
        np.savez(paths[f"h{j}"], x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    return paths


def study_of(files: dict[str, Path], folder: Path, **given: object) -> Path:
    how = {"rounds": ROUNDS, "network": "mlp:5", "validation_fraction": 0.2, "draws": 4, **given}
    return written(folder, draft("pfedvem", files["h0"], list(files), "letters", how, {}, out=folder / "study.toml"))


def test_server_and_sites_know_the_same(files: dict[str, Path], tmp_path: Path) -> None:
    study = study_of(files, tmp_path, calibrate="temperature", conformal=0.1)
    seen: dict[str, tuple[tuple[int, ...], int]] = {}
    file_study = FileStudy(study, files, tmp_path)

    def watch(name: str, request: bytes, reply: bytes) -> None:
        if decode(request)[0]["kind"] == "calibration":
            seen.update({k.rpartition("|")[2]: (tuple(v.shape), v.nbytes) for k, v in decode(reply)[1].items()})

    file_study.watch = watch
    summary = file_study.serve()
    assert {"pm_temperature", "pm_draws_tempered_nll", "set_threshold", "set_coverage"} <= summary.keys()
    assert not (tmp_path / "server" / "clients.csv").exists()
    # what leaves is what is said to leave
    agreed = Study.read(study)
    declared = {v.name: (v.shape, v.nbytes) for v in leaving(agreed, read_site_data(agreed, files["h0"], "h0"))
            if v.request == "calibration"}  # fmt: skip
    assert seen == declared
    coverage = []
    for name, path in files.items():
        member = Membership.read(file_study.site_folder(name))
        run = site_run(member)
        assert run.calibration is not None
        assert run.calibration.temperatures["pm"] == pytest.approx(summary["pm_temperature"])
        assert run.calibration.threshold == summary["set_threshold"]
        own = pd.read_csv(write_site_results(member, run) / "clients.csv")
        coverage.append(own["set_coverage"][0])
        new = tmp_path / f"{name}-new.npz"
        np.savez(new, x=np.load(path)["x_test"])
        predicted = predictions(member, run, new, 0)
        assert predicted.columns.tolist() == ["p_0", "p_1", "p_2", "label", "set"]
        # the likeliest label of averaged draws is in every set
        averaged = predictions(member, run, new, 4)
        assert all(label in inside.split() for label, inside in zip(averaged["label"], averaged["set"], strict=True))
    assert np.mean(coverage) == pytest.approx(summary["set_coverage"])


def test_options_are_agreed_on_and_an_older_study_has_none(
    files: dict[str, Path], tmp_path: Path, hierfl: Call
) -> None:
    sites = [part for name in files for part in ("--site", name)]
    options = ("--network", "mlp:5", "--calibrate", "temperature", "--conformal", 0.1)
    code, _, error = hierfl("federate", "study", "pfedvem", "--sample", files["h0"], *sites, *options)
    assert code == 0, error
    study = Study.read(tmp_path / "study.toml")
    assert study.options("cpu").calibrate == "temperature"
    assert study.options("cpu").conformal == 0.1
    older = {**study.table, "run": {k: v for k, v in study.table["run"].items() if k not in ("calibrate", "conformal")}}
    assert Study.from_table(older, study.path).options("cpu").calibrate == "none"


@pytest.mark.parametrize("given", [{"calibrate": "temperature"}, {"conformal": 0.1}])
def test_a_mixed_model_has_no_probabilities_to_calibrate(given: dict, tmp_path: Path) -> None:
    """The draft says so, and not the server after sites have sent sums."""
    files = write_tables(patients(3), tmp_path / "data")
    with pytest.raises(UserError, match="is of class probabilities, and this is a regression"):
        formula_study(tmp_path / "study", files, validation_fraction=0.2, **given)

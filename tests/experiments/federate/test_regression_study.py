"""A study of a regression: responses are standardised by sums, and predicted in their own unit at the sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import stays
from support.studies import FileStudy, write_tables, written

from hierfl import Federation, UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import read_site_data
from hierfl.inference import fit
from hierfl.inference.run.checkpoint import load
from hierfl.models import PFedVEM
from hierfl.nn.networks.build import architecture

OPTIONS = {"rounds": 3, "network": "linear", "draws": 2, "evaluate_every": 3, "validation_fraction": 0.0}
COLUMNS = {"age": {"kind": "number", "least": 0, "most": 120}, "cost": {"kind": "number", "least": 0, "most": 20000}}


@pytest.mark.cpu(4, "a study of four sites, and the pooled fit")
def test_sites_learn_the_sd_that_the_pooled_table_gives(tmp_path: Path) -> None:
    df = stays(4).rename(columns={"hospital": "site"})
    own = write_tables(df, tmp_path / "data")
    text = draft("pfedvem", own["h0"], list(own), "stays", dict(OPTIONS), {}, y="cost", out=tmp_path / "study.toml")
    study = Study.read(written(tmp_path, text, COLUMNS))
    assert study.table["data"]["learn_sd"] == "shared"
    file_study = FileStudy(study.path, own, tmp_path)
    file_study.serve()
    pooled = Federation.from_frame(df, client="site", y="cost", x=["age"], standardise=True)
    run = fit(PFedVEM(architecture("linear", pooled)), pooled, progress=False, chunk=1, **study.table["run"])
    shared = {k.removeprefix("server/shared/"): v for k, v in load(tmp_path / "server" / "checkpoint")[0].items()}
    for name, value in run.shared.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-5)
    site = file_study.sites["h2"].site
    assert site is not None
    units = site.plate.federation.units
    assert (units.mean, units.sd) == pytest.approx(tuple(pooled.response_units), rel=1e-9)


def test_what_a_study_says_of_the_sd(tmp_path: Path) -> None:
    """One that was agreed on before there was a choice, one with a number, and one of a classification."""
    df = stays(2).rename(columns={"hospital": "site"})
    own = write_tables(df, tmp_path / "data")

    def drafted(**more: object) -> Study:
        text = draft(
            "fedavg", own["h0"], list(own), "s", {**OPTIONS, **more}, {}, y="cost", out=tmp_path / "study.toml"
        )
        return Study.read(written(tmp_path, text, COLUMNS))

    new, number = drafted(), drafted(response_sd=500.0)
    assert (new.data.learn_sd, number.data.learn_sd, number.data.response_sd) == ("shared", "no", 500.0)
    table = {**new.table, "data": {k: v for k, v in new.table["data"].items() if k != "learn_sd"}}
    old = Study.from_table(table, new.path)
    assert old.data.form([]).keys() == {"n", "total", "square"}
    assert new.data.form([]).keys() - old.data.form([]).keys() == {"y_n", "y_total", "y_square"}
    sums = read_site_data(new, own["h0"], "h0").sums([])
    outline, network = new.data.model([sums], False)
    trained = read_site_data(new, own["h0"], "h0").pool.y_train
    assert outline.response_units.mean == pytest.approx(trained.mean())
    assert outline.response_units.sd == pytest.approx(trained.std())
    assert network.learned == "shared"
    with pytest.raises(UserError, match=r"--response-sd 500 is a number, and --learn-sd clients learns one"):
        drafted(response_sd=500.0, learn_sd="clients")
    x, y = np.zeros((8, 2), np.float32), np.arange(8.0)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    text = draft("fedavg", tmp_path / "a.npz", ["a", "b"], "s", {"network": "linear"}, {}, out=tmp_path / "study.toml")
    arrays = Study.read(written(tmp_path, text))
    assert (arrays.data.steps, arrays.data.form([]).keys()) == (1, {"y_n", "y_total", "y_square"})
    assert arrays.data.units([read_site_data(arrays, tmp_path / "a.npz", "a").sums([])]) == (3.5, y.std())

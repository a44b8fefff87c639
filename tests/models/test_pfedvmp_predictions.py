"""pFedVMP's predictions and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.commands import Call
from support.pfedvmp import Torch, bumps, method_of
from torch.nn.functional import cross_entropy

from hierfl.inference import fit
from hierfl.inference.evaluation.features import features
from hierfl.inference.evaluation.new_client import fit_new_client
from hierfl.models import FedPer, PFedV
from hierfl.nn.networks.build import architecture


def test_predictions_and_a_newcomer() -> None:
    """The shared base under the client's own head; a newcomer trains a head from the mean of the others'."""
    fed = bumps((40, 40, 40), test=0.3)
    run = fit(method_of(fed, lr=0.05, xi=0.5), fed, rounds=20, dtype=torch.float64, progress=False)
    assert run.last()["pm_accuracy"] > 0.8
    x = fed.x[fed.test[1]].double()
    client = Torch(run.fitted.method, run.shared, run.personal["w_j_point"][1])
    with torch.no_grad():
        theirs = client.head(client.base(x)).softmax(-1)
    assert torch.allclose(run.predict(fed.x[fed.test[1]], 1, draws=0), theirs, atol=1e-9)
    index = fed.train[0][:7]  # less than a minibatch: one step an epoch
    head = run.personal["w_j_point"].mean(0)
    by_hand = Torch(run.fitted.method, run.shared, head)
    optimizer = torch.optim.SGD(by_hand.head.parameters(), lr=0.05)
    for rounds in (0, 20):
        predictions = run.predict_new_client(fed.x[index], draws=0, given=(fed.x[index], fed.y[index]), rounds=rounds)
        for _ in range(rounds):
            optimizer.zero_grad()
            cross_entropy(by_hand.head(by_hand.base(fed.x[index].double())), fed.y[index]).backward()
            optimizer.step()
        with torch.no_grad():
            assert torch.allclose(predictions, by_hand.head(by_hand.base(fed.x[index].double())).softmax(-1), atol=1e-9)
    served = fit_new_client(run.fitted, fed.x[index], fed.y[index], 1)
    assert served.personal.keys() == {"w_j_point"}
    assert run.fitted.method.new_client_steps()[0].trains == ("w_j_point",)
    posterior = run.posterior(draws=4)
    assert set(posterior.log_likelihood.data_vars) == {"y"}


def test_features_are_what_the_head_sees() -> None:
    """Every client's own test data under its own base; latent features at their mean."""
    fed = bumps((40, 30, 20), test=0.3)
    ours = fit(method_of(fed, lr=0.05, xi=0.5), fed, rounds=2, dtype=torch.float64, progress=False)
    fedper = fit(FedPer(architecture("mlp:6", fed)), fed, rounds=2, dtype=torch.float64, progress=False)
    pfedv = fit(PFedV(architecture("mlp:6", fed, latent=True)), fed, rounds=2, dtype=torch.float64, progress=False)
    for run in (ours, fedper, pfedv):
        z, y, who = features(run.fitted)
        assert z.shape == (sum(fed.sizes("test")), 6)
        assert y.dtype.kind == "i"
        for j, name in enumerate(fed.ids):
            own = torch.as_tensor(z[who == name])
            assert y[who == name].tolist() == fed.y[fed.test[j]].tolist()
            head = run.personal["mu" if run is fedper else "w_j_point"][j]
            probabilities = run.fitted.method.network.head(head, own[None])[0].softmax(-1)
            assert torch.allclose(probabilities, run.predict(fed.x[fed.test[j]], name, draws=0), atol=1e-9)
    few = features(ours.fitted, most=10)
    assert [len(part) for part in few] == [10, 10, 10]
    rows = [{tuple(row) for row in z.round(9).tolist()} for z in (few[0], features(ours.fitted)[0])]
    assert rows[0] <= rows[1]


@pytest.mark.slow
@pytest.mark.figures
def test_from_the_command_line(hierfl: Call, tmp_path: Path) -> None:
    how = ["--rounds", 2, "--clients", 5, "--network", "mlp:8", "--quiet"]
    assert hierfl("run", "pfedvmp", *how, "--split", "dirichlet:0.5,keep=0.4,redraw", "--out", "o")[0] == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert 0 < summary["pm_accuracy_pooled"] < 1
    assert summary["accuracy_cv"] > 0
    code, out, _ = hierfl("report", "o")
    assert code == 0
    made = [
        "o/report.html",
        "o/figures/predictive-check.png",
        "o/figures/predictive-check-clients.png",
        "o/figures/posterior.png",
        "o/figures/features-classes.png",
        "o/figures/features-clients.png",
        "o/figures/features.png",
    ]
    assert out.split() == made
    assert all((tmp_path / path).stat().st_size > 5000 for path in made)
    (tmp_path / "o" / "summary.json").unlink()
    for folder, words in (("o", "has not finished"), ("nowhere", "not the folder of a run")):
        code, _, err = hierfl("report", folder)
        assert code == 2
        assert words in err
    assert hierfl("run", "mixed-effects", "--rounds", 2, "--quiet", "--out", "m")[0] == 0
    listed = hierfl("report", "m")[1].split()
    assert listed[0] == "m/report.html"
    assert not any("features" in path for path in listed)  # a table's columns are none

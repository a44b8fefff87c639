"""pFedV's predictions and results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.pfedv import Torch, method_of, pictures

from hierfl import UserError
from hierfl.arviz_data import group_names
from hierfl.errors import NotFinite
from hierfl.experiments.config import Configuration, RunConfig
from hierfl.experiments.run_folder.config_file import write_config
from hierfl.experiments.run_folder.results import write_results
from hierfl.inference import fit
from hierfl.inference.evaluation import fitted as predictions
from hierfl.inference.evaluation.personal import evaluate_personal
from hierfl.models import FedV, PFedV


@pytest.mark.parametrize("draws", [0, 7])
@pytest.mark.parametrize("cls", [PFedV, FedV])
def test_predictions_by_hand(cls: type[PFedV], draws: int) -> None:
    """The aggregate's encoder and classifier, the client's own last layer, and draws of q(z | x)."""
    fed = pictures((20, 15), test=0.3)
    run = fit(method_of(cls, fed, lr=0.1, batch=8), fed, rounds=3, dtype=torch.float64, progress=False, draws=7)
    x = fed.x[fed.test[1]]
    head = run.shared["w"] if cls is FedV else run.personal["w_j_point"][1]
    torchs = Torch(run.fitted.method.network).load(run.shared, head).eval()
    with torch.no_grad():
        mu, log_var = torchs.encoder(x.double()).chunk(2, -1)
        noise = run.fitted.noise([1], draws, "predict") if draws else None
        xi = noise.normal("z", len(x), mu.shape[1:])[:, 0] if noise else torch.zeros((1, *mu.shape))
        z = mu + (0.5 * log_var).exp() * xi
        theirs = torch.stack([torchs.head(torchs.base(draw)).softmax(-1) for draw in z]).mean(0)
    assert torch.allclose(run.predict(x, 1, draws=draws), theirs, atol=1e-9)


@pytest.fixture(scope="module")
def trained() -> dict[str, object]:
    fed = pictures((60, 60, 60), test=0.3, contrast=True)
    how = {"lr": 0.1, "epochs": 5, "batch": 16, "kl": "mean", "alpha": 0.1}
    return {cls.name: fit(method_of(cls, fed, **how), fed, rounds=20, progress=False, draws=8) for cls in (PFedV, FedV)}


def test_they_learn(trained: dict) -> None:
    for run in trained.values():
        assert run.last()["pm_accuracy"] > 0.85
        assert run.last()["pm_draws_accuracy"] > 0.85
    assert trained["fedv"].last()["gm_accuracy"] > 0.85
    assert trained["pfedv"].last()["gm_accuracy"] is None


def test_the_last_evaluation_is_kept(trained: dict) -> None:
    for run in trained.values():
        anew = replace(run, tested=None).client_metrics
        assert run.tested is not None
        for kept, fresh in zip(run.tested, anew, strict=True):
            assert kept.keys() == fresh.keys()
            assert all(np.array_equal(kept[k], fresh[k], equal_nan=True) for k in kept)
        assert run.last()["pm_draws_nll"] == pytest.approx(np.mean(anew[1]["nll"]))
    fed = pictures((20, 20), test=0.3)
    assert fit(method_of(FedV, fed), fed, rounds=0, progress=False).tested is not None
    assert fit(method_of(FedV, fed), fed, rounds=1, progress=False, splits=("validation",)).tested is None


def test_pieces_change_nothing(trained: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained["fedv"]
    whole = evaluate_personal(run.fitted, "test", 3, (0, 8))
    monkeypatch.setattr(predictions, "LATENTS", 7 * 8 * run.fitted.method.network.latents)
    for chunk in (1, 3):  # seven examples at a time
        cut = evaluate_personal(run.fitted, "test", chunk, (0, 8))
        np.testing.assert_allclose(cut[0]["nll"], whole[0]["nll"], rtol=1e-5)
        np.testing.assert_allclose(cut[1]["nll"], whole[1]["nll"], rtol=1e-5)
    posterior = run.posterior(draws=4)
    assert posterior.log_likelihood["y"].shape == (1, 4, sum(run.fitted.federation.sizes()))
    assert "posterior" not in group_names(posterior) or "z" not in posterior.posterior


def test_a_client_that_was_never_seen(trained: dict) -> None:
    """Another contrast: the global encoder and a last layer of its own, from a few examples."""
    new = pictures((8, 8, 8, 120), seed=1, contrast=True)
    index = new.train[3]
    x, y = new.x[index], new.y[index]
    for name, run in trained.items():
        if name == "pfedv":
            with pytest.raises(UserError, match="no global model"):
                run.predict_new_client(x)
            probabilities = run.predict_new_client(x[30:], given=(x[:30], y[:30]), draws=0, rounds=4)
            mean = run.personal["w_j_point"].mean(0)
            assert torch.equal(run.fitted.newcomer()["w_j_point"], mean)
        else:
            with pytest.raises(UserError, match="nothing that a new client"):
                run.predict_new_client(x, given=(x, y))
            probabilities = run.predict_new_client(x[30:], draws=0)
        assert torch.allclose(probabilities.sum(1), torch.ones(len(probabilities)), atol=1e-5)
        accuracy = float((probabilities.argmax(1) == y[30:]).float().mean())
        assert accuracy > (0.6 if name == "pfedv" else 0.2)
    pfedv = trained["pfedv"]
    for how, words in (
        ({"rounds": -1}, "rounds must be a whole number"),
        ({"rounds": 1.5}, "rounds must be a whole number"),
        ({"given": x}, "given is a pair"),
    ):
        with pytest.raises(UserError, match=words):
            pfedv.predict_new_client(x, **{"given": (x, y), **how})
    averaged = trained["fedv"].predict_new_client(x[30:], draws=50)
    assert not torch.allclose(averaged, probabilities)


@pytest.mark.parametrize("value", [float("nan"), 1e30, -1e30])
def test_a_model_that_has_diverged_leaves_its_results(value: float, tmp_path: Path) -> None:
    fed = pictures((20, 20), test=0.3)
    run = fit(method_of(PFedV, fed), fed, rounds=1, progress=False, draws=3)
    run.shared["encoder.4.bias"][:] = value  # means and log variances
    run = replace(run, tested=None)
    config = RunConfig(
        method="pfedv", method_digest="", data="pictures", clients=2, split="iid", network="", response_sd=1.0,
        rounds=1, participation=1.0, evaluate_every=1, quorum=1, chunk=0,
    )  # fmt: skip
    write_config(tmp_path, Configuration(config, {}))
    write_results(tmp_path, run, "pfedv")
    written = {path.name for path in tmp_path.iterdir()}
    assert {"clients.csv", "metrics.csv", "summary.json", "figures"} <= written
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    if value != -1e30:  # there every standard deviation is zero: a point
        assert "posterior.nc" not in written
        with pytest.raises(NotFinite, match="client c0 says nothing finite"):
            run.posterior()


def test_draws_are_independent_in_every_piece(trained: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pictures((8,), seed=1).x[:1].expand(8, -1, -1, -1)
    monkeypatch.setattr(predictions, "LATENTS", 4 * 5 * trained["fedv"].fitted.method.network.latents)
    for probabilities in (trained["fedv"].predict_new_client(x, draws=5), trained["fedv"].predict(x, 0, draws=5)):
        assert len(probabilities[:, 0].unique()) == 8


@pytest.mark.parametrize("prior", ["fixed", "flat"])
def test_what_is_said_of_z(prior: str) -> None:
    """Standard deviations over the data, all clients alike."""
    fed = pictures((20, 6), test=0.2)
    run = fit(method_of(FedV, fed, prior=prior, lr=0.1), fed, rounds=3, dtype=torch.float64, progress=False)
    _, numbers = run.fitted.method.population_summary(run.fitted)
    if prior == "flat":
        assert numbers == {}
        return
    torchs = Torch(run.fitted.method.network).load(run.shared, run.shared["w"]).eval()
    with torch.no_grad():
        x = fed.x[torch.cat([*fed.train])].double()
        sd = (0.5 * torchs.encoder(x).chunk(2, -1)[1]).exp()
    assert numbers == pytest.approx({"z_sd_median": float(sd.median()), "z_sd_least": float(sd.min())}, rel=0.005)

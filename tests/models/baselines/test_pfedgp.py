"""pFedGP: a Gaussian process on the client's own data, on features of all."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from support.baselines import NOISE, assert_resumed_is_the_same, features, fitted, lacking_classes, linear, rbf, rows_of
from support.federations import blobs, pictures, slopes
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.arviz_data import group_names
from hierfl.inference.clients.held_out import held_out
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.result import Run
from hierfl.models import PFedGP
from hierfl.models.baselines import pfedgp
from hierfl.nn.networks.build import architecture
from hierfl.ppl import gaussian_process

SIZES = [23, 12, 9, 14, 3]
#: as the GP is: nothing moves but what a test moves
STILL = {"steps": 0, "normalise": False}


@pytest.fixture
def skewed() -> Federation:
    return lacking_classes()


@pytest.fixture
def towns() -> Federation:
    return slopes(SIZES)


def test_a_regression_is_scikit_learns(towns: Federation) -> None:
    """Each client's own, given all of its data and nothing else: mean and standard deviation."""
    run = fitted(PFedGP(linear(towns), scale=2.0, length=1.5, **STILL), towns, 1)
    new = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for j in range(5):
        x, y = (t.numpy() for t in towns.examples(towns.train[j]))
        kernel = ConstantKernel(2.0, "fixed") * RBF(1.5, "fixed")
        alone = GaussianProcessRegressor(kernel, alpha=NOISE**2, optimizer=None).fit(x, y)
        mean, spread = alone.predict(new.numpy(), return_std=True)
        predictions = run.predict(new, client=towns.ids[j]).numpy()
        np.testing.assert_allclose(predictions[:, 0], mean, rtol=0, atol=1e-8)
        np.testing.assert_allclose(predictions[:, 1], np.sqrt(spread**2 + NOISE**2), rtol=0, atol=1e-8)


def test_a_linear_kernel_is_the_one_model_with_its_head_integrated_out(towns: Federation) -> None:
    """w_j ~ N(0, s I), weights and bias: the marginal likelihood, and predictions by the posterior of w_j."""
    method = PFedGP(linear(towns), kernel="linear", scale=1.7, objective="marginal", **STILL)
    run, chunk = fitted(method, towns, 1), rows_of(method, towns)
    bounds = elbo(method, chunk.batch(), chunk.view, None)
    for row, j in enumerate(chunk.clients):
        x, y = towns.examples(towns.train[j])
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
        cov = 1.7 * x @ x.T + NOISE**2 * torch.eye(len(x), dtype=x.dtype)
        marginal = torch.distributions.MultivariateNormal(torch.zeros(len(x), dtype=x.dtype), cov).log_prob(y)
        assert float(bounds[row]) == pytest.approx(float(marginal), rel=1e-10)
        precision = x.T @ x / NOISE**2 + torch.eye(3, dtype=x.dtype) / 1.7
        mean = torch.linalg.solve(precision, x.T @ y / NOISE**2)
        new = x[:3] + torch.tensor([0.3, -0.2, 0.0], dtype=x.dtype)
        variance = (new @ torch.linalg.inv(precision) * new).sum(1) + NOISE**2
        expected = torch.stack([new @ mean, variance.sqrt()], 1)
        torch.testing.assert_close(
            run.predict(new[:, :2], client=towns.ids[j]).double(), expected, rtol=1e-8, atol=1e-10
        )


def seen_by(run: Run, fed: Federation, j: int) -> tuple[Tensor, Tensor]:
    x, y = fed.examples(fed.train[j])
    return features({k: v.double() for k, v in run.shared.items()}, x), y


def exact(z: Tensor, new: Tensor, sign: Tensor) -> float:
    """p(y = + at new) of a logistic GP given three signs, by quadrature."""
    x, w = np.polynomial.hermite_e.hermegauss(50)
    w = w / w.sum()
    k, cross = rbf(z, z).numpy(), rbf(z, new[None]).numpy()[:, 0]
    root = np.linalg.cholesky(k + 8e-6 * np.eye(3))
    f = np.stack([g.ravel() for g in np.meshgrid(x, x, x, indexing="ij")], 1) @ root.T
    weight = np.einsum("i,j,k->ijk", w, w, w).ravel() * np.prod(1 / (1 + np.exp(-f * sign.numpy())), 1)
    solved = np.linalg.solve(root @ root.T, cross)
    probability = (1 / (1 + np.exp(-((f @ solved)[:, None] + math.sqrt(max(8 - cross @ solved, 0)) * x)))) @ w
    return float(weight @ probability / weight.sum())


def test_two_classes_are_a_logistic_gaussian_process() -> None:
    """Of three examples, and a class that nobody has: Gibbs draws agree with quadrature."""
    fed = blobs([3, 4])
    fed = dataclasses.replace(fed, train=[torch.cat([fed.train[0][fed.y[fed.train[0]] != 2]] * 2)[:3], fed.train[1]])
    net = architecture("mlp:5", fed)
    run = fitted(PFedGP(net, steps=0, draws=4000, gibbs=20), fed, 1)
    z, y = seen_by(run, fed, 0)
    assert set(y.tolist()) == {0, 1}
    new = fed.examples(fed.test[0][:2])[0]
    predictions = run.predict(new, client=fed.ids[0]).double()
    sign = torch.where(y == 0, 1.0, -1.0).double()
    for i in range(2):
        up = exact(z, features(run.shared, new)[i], sign)
        expected = [5 / 6 * up, 5 / 6 * (1 - up), 1 / 6]  # (n + alpha K, alpha) / (n + alpha C), alpha = 1
        np.testing.assert_allclose(predictions[i].numpy(), expected, atol=8e-3)


def test_what_a_client_has_never_seen(skewed: Federation) -> None:
    """Has a Dirichlet prior's probability, never the largest; a client of one class is sure of nothing else."""
    net = architecture("mlp:5", skewed)
    run = fitted(PFedGP(net, unseen=0.5, steps=2), skewed, 2)
    x = skewed.examples(skewed.test[0])[0]
    for j in range(5):
        p = run.predict(x, client=skewed.ids[j]).double()
        torch.testing.assert_close(p.sum(1), torch.ones(len(p), dtype=p.dtype))
        counts = torch.bincount(skewed.y[skewed.train[j]], minlength=3)
        present, n = counts > 0, int(counts.sum())
        lacking = torch.full_like(p[:, ~present], 0.5 / (n + 1.5))
        torch.testing.assert_close(p[:, ~present], lacking)
        assert present[p.argmax(1)].all()
    assert math.isfinite(run.evaluations[-1]["pm_nll"])
    assert run.evaluations[-1]["gm_accuracy"] is None


def test_a_client_of_one_class_says_nothing_of_the_features(skewed: Federation) -> None:
    """Alone in its chunk as beside others; where nobody has two there is nothing but the decay of weights."""
    method = PFedGP(architecture("mlp:5", skewed), draws=2, gibbs=1, lr=0.1)
    together, alone = (fitted(method, skewed, 2, **how) for how in ({}, {"chunk": 1}))
    for k, v in together.shared.items():
        torch.testing.assert_close(alone.shared[k], v, rtol=1e-8, atol=1e-10)
    train = [torch.cat([t[skewed.y[t] == skewed.y[t[0]]]] * 5)[:5] for t in skewed.train]
    single = dataclasses.replace(skewed, train=train)
    before = InitialWeights.for_network(method.network, 0).base
    for k, v in fitted(method, single, 1).shared.items():
        torch.testing.assert_close(v.double(), before[k].double() * (1 - 0.1 * 1e-3), rtol=1e-12, atol=1e-14)


def test_rows_in_groups_of_similar_size_are_as_all_together(
    skewed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients and predictions: groups are a matter of time alone."""
    method = PFedGP(architecture("mlp:5", skewed), draws=2, gibbs=2, lr=0.1)
    seen: list[list[list[int]]] = []

    def similar_rows(sizes: list[int], device: torch.device) -> list[list[int]]:
        seen.append(list(gaussian_process.similar_rows(sizes, device)))
        return seen[-1]

    monkeypatch.setattr(pfedgp, "similar_rows", similar_rows)
    together = fitted(method, skewed, 2)
    assert all(len(groups) == 1 for groups in seen)
    seen.clear()
    monkeypatch.setitem(gaussian_process.CUBES_PER_PASS, "cpu", 0)
    apart = fitted(method, skewed, 2)
    assert min(len(groups) for groups in seen) > 1
    orders = [[row for group in groups for row in group] for groups in seen]
    assert any(order != sorted(order) for order in orders)
    for k, v in together.shared.items():
        torch.testing.assert_close(apart.shared[k], v, rtol=1e-8, atol=1e-10)
    for run in (together, apart):  # each client by itself, in no group
        alone = []
        for j, client in enumerate(skewed.ids):
            x, y = skewed.examples(skewed.test[j])
            alone.append(-run.predict(x, client=client).double().log().gather(1, y[:, None]).mean())
        assert run.evaluations[-1]["pm_nll"] == pytest.approx(float(torch.stack(alone).mean()), rel=1e-6)


def test_predictions_know_the_training_data_and_no_other_test_input(skewed: Federation) -> None:
    """Together and one by one they are the same; another client's data give others."""
    run = fitted(PFedGP(architecture("mlp:5", skewed)), skewed, 2)
    x = skewed.examples(skewed.test[0])[0]
    p = run.predict(x, client=skewed.ids[0])
    torch.testing.assert_close(torch.cat([run.predict(x[i : i + 1], client=skewed.ids[0]) for i in range(len(x))]), p)
    assert (run.predict(x, client=skewed.ids[3]) - p).abs().max() > 0.05
    own, y = skewed.examples(skewed.train[0])
    assert (run.predict(own, client=skewed.ids[0]).argmax(1) == y).double().mean() > 0.8


def test_features_learn(skewed: Federation) -> None:
    """The gradient goes through the Gaussian process: the mean predictive likelihood of halves rises."""
    net = architecture("mlp:5", skewed)
    method = PFedGP(net, steps=1, lr=0.1, draws=10)
    before, after = (fitted(method, skewed, rounds) for rounds in (1, 40))
    scores = []
    for run in (before, after):
        chunk = rows_of(method, skewed, **{k: v.double() for k, v in run.shared.items()})
        for step in method.arranged():
            chunk = step.run(chunk, 0)
        halves = [held_out(chunk, chunk.batch(), 0.5, "test", k) for k in range(10)]
        values = chunk.view
        scores.append(float(sum((elbo(method, half, values, None) / half.n).mean() for half in halves)) / 10)
    assert scores[1] > scores[0] + 0.05


def test_a_new_client_needs_no_training(towns: Federation, skewed: Federation) -> None:
    """Its examples are conditioned on: as if it had been there."""
    for fed, net in ((towns, linear(towns)), (skewed, architecture("mlp:5", skewed))):
        run = fitted(PFedGP(net), fed, 2)
        x, y = fed.examples(fed.train[1])
        new = x[:4] + 0.1
        predictions = run.predict_new_client(new, 0, (x, y))
        torch.testing.assert_close(
            predictions, run.predict(new, client=fed.ids[1]), rtol=0.0, atol=0.0 if fed is towns else 0.1
        )
        with pytest.raises(UserError, match="no global model"):
            run.predict_new_client(new, 0)


def test_what_is_kept_of_a_posterior(skewed: Federation) -> None:
    """Nothing but what it says of the training data: f has no parameters."""
    inference_data = fitted(PFedGP(architecture("mlp:5", skewed)), skewed, 1).posterior(draws=4)
    assert "posterior" not in group_names(inference_data) or not list(inference_data.posterior.data_vars)
    n = sum(len(t) for t in skewed.train)
    assert inference_data.log_likelihood["y"].shape[-1] == n
    assert inference_data.posterior_predictive["y"].shape[-1] == n


def test_a_resumed_run_is_the_same(skewed: Federation, towns: Federation, tmp_path: Path) -> None:
    assert_resumed_is_the_same(PFedGP(architecture("mlp:5", skewed)), skewed, tmp_path / "labels", 0.4)
    net = architecture("mlp:5", towns, noise=NOISE)
    assert_resumed_is_the_same(PFedGP(net), towns, tmp_path / "numbers", 0.4)


def test_networks_and_data_that_fit(skewed: Federation) -> None:
    fed = pictures()
    for network, data in ((architecture("bncnn:2:5", fed), fed), (architecture("mlp:5,dropout=0.5", skewed), skewed)):
        with pytest.raises(UserError, match="without batch norm and dropout"):
            PFedGP(network)
        assert data.clients
    with pytest.raises(UserError, match="objective=marginal is a regression's"):
        PFedGP(architecture("mlp:5", skewed), objective="marginal")
    with pytest.raises(UserError, match="a client has 23 examples, and pfedgp takes 22 at most"):
        Fit(PFedGP(architecture("mlp:5", skewed), most=22), skewed, Options(rounds=1))  # before anything is written
    run = fitted(PFedGP(architecture("mlp:5", skewed), most=23), skewed, 1)
    with pytest.raises(UserError, match="a client has 24 examples"):
        run.predict_new_client(skewed.x[:2], given=(skewed.x[:24], skewed.y[:24]))
    for silent in ({"gibbs": 3}, {"draws": 4}, {"unseen": 0.1}):
        with pytest.raises(UserError, match="changes nothing in a regression"):
            PFedGP(architecture("mlp:5", slopes(SIZES), noise=NOISE), **silent)
    assert InitialWeights.for_network(architecture("mlp:5", skewed), 0).base

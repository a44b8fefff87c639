"""PFedEB on federations drawn from its own model: spreads, intervals and predictions beside the truth and referees.

The many data sets of these are in experiments/results/posteriors.
"""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from support.head_chains import beside_nuts
from support.head_evidence import derivatives, joint_mode, log_evidence, log_likelihood, maximum, padded
from support.simulated_heads import NOISE, S_W, Truth, covered, fitted, mean_field, measured, simulated

from hierfl.inference.run.result import Run

FEW = tuple(int(n) for n in np.geomspace(5, 80, 16).round())
VARIATIONAL = {"points": 16, "nodes": "off"}


def exact_log_evidence(truth: Truth) -> float:
    parts = [truth.fed.examples(index) for index in truth.fed.train]
    z = [truth.net.head.design(x) for x, _ in parts]
    y, whole = torch.cat([y for _, y in parts]), torch.cat(z)
    covariance = S_W**2 * whole @ whole.T + NOISE**2 * torch.eye(len(y), dtype=torch.float64)
    covariance += truth.rho**2 * torch.block_diag(*[each @ each.T for each in z])
    return float(torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))


def test_the_referee_has_the_exact_marginal_likelihood_of_a_gaussian_federation():
    truth = simulated("gaussian", 0.3, 0, FEW)
    # Eight draws of w: an error of some 0.1.
    assert log_evidence(padded(truth), 0.3) == pytest.approx(exact_log_evidence(truth), abs=0.3)


def test_the_referees_derivatives_are_those_of_its_likelihood():
    truth = simulated("softmax", 0.5, 0, (7, 4, 9))
    data, heads = padded(truth), torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).double()
    gradient, curvature = derivatives(data, heads)
    for j in range(3):

        def height(w: torch.Tensor, j: int = j) -> torch.Tensor:
            return log_likelihood(data, j, w)

        torch.testing.assert_close(gradient[j], torch.autograd.functional.jacobian(height, heads[j]))
        torch.testing.assert_close(curvature[j], -torch.autograd.functional.hessian(height, heads[j]))


@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_laplaces_population_is_the_joint_mode_of_the_integrated_likelihood(family):
    truth = simulated(family, 0.5, 1, FEW)
    run = fitted(truth, 30, points=1, nodes="off")
    m, precision, mu, _ = joint_mode(padded(truth), float(run.shared["w.log_rho"].exp()))
    order = truth.net.head.matrix_order
    torch.testing.assert_close(run.shared["w"][order], m, rtol=0, atol=1e-5)
    torch.testing.assert_close(run.personal["mu"][:, order], mu, rtol=0, atol=1e-5)
    method = run.fitted.method
    covariance = method.config.groups.unpacked(run.shared["w.covariance"])[0]
    torch.testing.assert_close(covariance, torch.linalg.inv(precision), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rho", [0.3, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_variational_spread_is_near_the_maximum_of_the_marginal_likelihood(rho):
    truth = simulated("logistic", rho, 0, FEW)
    estimate = fitted(truth, 25, **VARIATIONAL).shared["w.log_rho"].exp()
    assert float(estimate) == pytest.approx(maximum(truth)["rho"], rel=0.1)


def test_the_start_does_not_matter():
    truth, how = simulated("softmax", 0.3, 0, FEW), {**VARIATIONAL, "spreads": "blocks", "w_scale": 0.0}
    few, many = (fitted(truth, 40, sigma_0=start, **how).shared for start in (0.1, 3.0))
    torch.testing.assert_close(few["w.log_rho"], many["w.log_rho"], rtol=0, atol=0.01)
    torch.testing.assert_close(few["w.log_scale"], many["w.log_scale"], rtol=0, atol=0.01)


@pytest.mark.parametrize("family", ["gaussian", pytest.param("logistic", marks=pytest.mark.slow)])
def test_where_clients_agree_predictions_are_as_good_as_the_pooled_models(family):
    truth = simulated(family, 0.0, 0, (*FEW, 160, 240))
    metrics = measured(truth, fitted(truth, 16, points=1))
    assert metrics["rho"] < 0.05
    assert max(metrics["nll"], metrics["draws_nll"]) <= metrics["pooled_nll"] + 0.005


def said_of_clients(spreads: str) -> Run:
    truth = simulated("softmax", 0.5, 0, (*FEW, 60), shuffled=(16,), s_w=2.0)
    return fitted(truth, 30, points=1, nodes="off", spreads=spreads, w_scale=0.0)


def test_what_is_said_of_a_client_grows_with_its_data_and_shuffled_labels_surprise():
    run = said_of_clients("blocks")
    clients = run.clients
    honest = clients[clients["client"] != "place-016"]
    assert spearmanr(honest["n"], honest["gamma"]).statistic > 0.9
    assert spearmanr(honest["n"], honest["weight"]).statistic > 0.9
    surprise = clients.set_index("client")["surprise"]
    assert surprise.idxmax() == "place-016"
    assert surprise["place-016"] > 1.5 * surprise.drop("place-016").max()
    own = said_of_clients("clients")
    weight = [fit.clients.set_index("client")["weight"]["place-016"] for fit in (run, own)]
    assert weight[1] < 0.75 * weight[0]


def within(shares: list[float], low: float, high: float) -> None:
    """A share within bounds, two standard errors over data sets allowed."""
    share, error = np.mean(shares), np.std(shares, ddof=1) / len(shares) ** 0.5
    assert low - 2 * error <= share <= high + 2 * error, f"{share:.3f} +- {error:.3f}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "rho", "settings"),
    [
        ("gaussian", 0.3, {}),
        ("gaussian", 1.0, {"nodes": "off"}),
        ("logistic", 0.3, VARIATIONAL),
        ("softmax", 1.0, VARIATIONAL),
    ],
)
def test_spreads_are_found_and_intervals_cover(family, rho, settings):
    rows = []
    for number in range(20):
        truth = simulated(family, rho, number)
        rows.append(measured(truth, fitted(truth, 12, number, **settings)))
    for who in ("w", "w_j", "small", "large"):
        within([row[who] for row in rows], 0.87, 0.93)
    if family == "gaussian":
        off = np.array([row["rho"] / rho - 1 for row in rows])
        assert abs(off.mean()) <= max(0.05, 2 * off.std() / 20**0.5)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_intervals_of_clients_with_five_rows_cover_where_pfedvems_do_not(correlation):
    ours, theirs = [], []
    for number in range(20):
        truth = simulated("gaussian", 0.5, number, (5,) * 20, correlation=correlation)
        ours.append(covered(truth, fitted(truth, 12, number, spreads="blocks", w_scale=0.0))["w_j"])
        theirs.append(mean_field(truth)["w_j"])
    within(ours, 0.87, 0.93)
    assert np.mean(theirs) < 0.65


@pytest.mark.slow
def test_posteriors_of_heads_are_those_of_nuts():
    truth = simulated("logistic", 1.0, 0, (50, 50, 200), s_w=0.0)
    for agreement in beside_nuts(truth, 2000, 0, default={})["default"]:
        assert np.abs(np.concatenate([agreement.mean, agreement.logit_mean])).max() < 0.25
        assert np.abs(np.concatenate([agreement.sd, agreement.logit_sd]) - 1).max() < 0.15

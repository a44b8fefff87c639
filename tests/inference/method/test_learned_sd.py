"""A regression whose response's standard deviation is learned, in the user's units."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from support.federations import costs, stays
from support.representatives import of_all

from hierfl import Federation, Method, UserError
from hierfl.data.response_units import ResponseUnits
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.squared_residuals import mean_squared_residuals
from hierfl.inference.method.learned_sd import with_learned_sd
from hierfl.inference.run.coverage import Coverage
from hierfl.models import FedAvg, FedAvgFT, FedPop, Local, PFedGP, PFedVEM
from hierfl.nn.networks.build import architecture
from hierfl.ppl.plates import clients, data, flat, param, sample

#: methods by whose sd is learned; each method, and each of both by a method of either kind, in the quick set
EUROS = [
    (cls, settings, whose)
    for cls, settings in (
        (PFedVEM, {}), (FedAvg, {}), (Local, {}), (FedAvgFT, {}), (PFedGP, {"kernel": "linear", "normalise": False}),
        (FedPop, {"final_steps": 0}),
    )
    for whose in ("shared", "clients")
]  # fmt: skip
QUICK = [
    case for case in EUROS
    if (case[0], case[2]) not in ((FedAvg, "clients"), (Local, "shared"), (FedAvgFT, "shared"), (FedPop, "shared"))
]  # fmt: skip


@pytest.fixture(scope="module")
def hospitals() -> Federation:
    return Federation.from_frame(stays(), client="hospital", y="cost", x=["age"], standardise=False)


@pytest.mark.cpu(8, "twenty rounds of twenty clients")
@pytest.mark.parametrize("case", of_all(EUROS, QUICK, lambda case: f"{case[0].name}-{case[2]}"))
def test_costs_in_euro_are_predicted_in_euro(case: tuple[type[Method], dict, Any], hospitals: Federation) -> None:
    """Of a response with sd 1,094 around which is noise of sd 500, hospitals' sd being 300 (FedAvg has one model)."""
    cls, settings, whose = case
    method = cls(architecture("linear", hospitals, whose), **settings)
    if method.conditions and whose == "clients":
        with pytest.raises(UserError, match="pfedgp has one response's sd for all clients"):
            fit(method, hospitals, rounds=20, progress=False)
        return
    run = fit(method, hospitals, rounds=20, progress=False)
    last = run.last()
    assert 430 < last["pm_rmse"] < 620
    assert 0.8 < last["pm_coverage90"] < 0.97
    assert 7.4 < last["pm_nll"] < 7.9
    predictions = torch.stack([run.predict(stays()[["age"]][:99].to_numpy(), f"h{j}") for j in range(20)])
    assert 4800 < predictions[..., 0].mean() < 5200
    assert 420 < predictions[..., 1].square().mean().sqrt() < 620
    assert not run.warnings


@pytest.mark.parametrize("cls", [PFedVEM, Local])
def test_another_unit_changes_the_unit_alone(cls: type[Method]) -> None:
    """Cents, from another zero: predictions, metrics, and what ArviZ gets."""
    plain = costs([23, 12, 9])
    rescaled = dataclasses.replace(
        plain,
        y=1e5 + 100 * plain.y,
        response_units=ResponseUnits.from_responses((1e5 + 100 * plain.y[torch.cat([*plain.train])]).numpy()),
    )
    plain = dataclasses.replace(plain, response_units=None)  # found from the training rows where nobody says it
    how = {"rounds": 2, "dtype": torch.float64, "progress": False}
    euro, cent = (fit(cls(architecture("linear", fed)), fed, **how) for fed in (plain, rescaled))
    scale = torch.tensor([100.0, 100.0]).double(), torch.tensor([1e5, 0.0]).double()
    for predict in (lambda run: run.predict(plain.x[:4], "h1"), lambda run: run.predict(plain.x[:4], "h1", draws=3)):
        torch.testing.assert_close(predict(cent), predict(euro) * scale[0] + scale[1], rtol=1e-9, atol=0)
    expected, other = euro.last(), cent.last()
    for name in ("pm_rmse", "pm_crps"):
        assert other[name] == pytest.approx(100 * expected[name], rel=1e-9)
    assert other["pm_nll"] == pytest.approx(expected["pm_nll"] + np.log(100), rel=1e-9)
    assert other["pm_coverage90"] == expected["pm_coverage90"]
    a, b = euro.posterior(4), cent.posterior(4)
    np.testing.assert_allclose(b.posterior_predictive.y, 1e5 + 100 * a.posterior_predictive.y, rtol=1e-9)
    np.testing.assert_allclose(b.log_likelihood.y, a.log_likelihood.y - np.log(100), rtol=1e-7)
    np.testing.assert_allclose(b.observed_data.y, 1e5 + 100 * a.observed_data.y, rtol=1e-12)
    assert a.observed_data.y.mean() > 3000


def test_the_sd_is_the_maximiser_of_the_elbo() -> None:
    """E_q (y - x w)^2 of a linear head: squares at the mean, and the posterior's variance along the inputs."""
    federation = costs([23, 12])
    method, federation = with_learned_sd(PFedVEM(architecture("linear", federation)), federation)
    d = method.network.head.d
    mu, pi = torch.linspace(-1, 1, 2 * d).double().view(2, 1, d), torch.full((2, 1, d), -1.0).double()
    shared = {"w": torch.zeros(d).double(), "response_sd": torch.ones(()).double()}
    chunk = ClientChunk(method, federation, [0, 1], 1, 0, shared, {"mu": mu, "pi": pi, "rho": mu[..., :1].exp()})
    batch, sigma = chunk.batch(), torch.nn.functional.softplus(pi)
    z = method.network.head.design(batch.x)
    wanted = (batch.y - (z @ mu.mT).squeeze(-1)).square() + (z.square() @ sigma.square().mT).squeeze(-1)
    wanted = (wanted * batch.mask).sum(1) / chunk.n
    estimate = torch.stack([mean_squared_residuals(dataclasses.replace(chunk, round=r)) for r in range(60)]).mean(0)
    torch.testing.assert_close(estimate, wanted, rtol=0.1, atol=0)
    point = dataclasses.replace(chunk, values={**chunk.values, "pi": pi - 40})
    exact = ((batch.y - (z @ mu.mT).squeeze(-1)).square() * batch.mask).sum(1) / chunk.n
    torch.testing.assert_close(mean_squared_residuals(point), exact)


def test_what_is_sent_is_a_sum_of_squares() -> None:
    """Two numbers a client; a method that sends nothing, or fits after the last message, sends none."""
    federation = costs([23, 12])
    for cls, sends in ((FedAvg, True), (Local, False), (FedAvgFT, False)):
        method, _ = with_learned_sd(cls(architecture("linear", federation)), federation)
        assert ("response_sd" in method.exchange()) is sends
    assert with_learned_sd(Local(architecture("linear", federation)), federation)[0].exchange() == {}


def test_a_given_sd_keeps_the_users_units() -> None:
    federation = costs([23, 12])
    method = FedAvg(architecture("linear", federation, 500))
    assert with_learned_sd(method, federation) == (method, federation)
    assert torch.equal(federation.batch([0]).y, federation.y[federation.train[0]][None])
    for noise in (0, -1.0, "sharde", True, float("inf")):
        with pytest.raises(UserError, match="noise must be a number above zero"):
            architecture("linear", federation, noise)  # type: ignore[arg-type]
    for noise in (1e30, 1e-30):
        with pytest.raises(UserError, match="noise must be from 1e-12 to 1e"):
            architecture("linear", federation, noise)


class Robust(FedAvg):
    """With a likelihood of its own, in the user's units."""

    def model(self, batch: Any) -> None:
        w = sample("w", flat(self.network.head.d))
        with clients(batch), data(batch):
            mean = self.network.head(w, self.network.base(batch.x)).squeeze(-1)
            sample("y", dist.StudentT(4.0, mean, 500.0), obs=batch.y)


def test_a_likelihood_of_its_own_is_in_the_users_units() -> None:
    federation = costs([23, 12])
    method = Robust(architecture("linear", federation))
    assert with_learned_sd(method, federation) == (method, federation)


def test_a_new_client_has_the_populations_sd() -> None:
    federation = costs([23, 12, 9])
    method = PFedVEM(architecture("linear", federation, "clients"))
    run = fit(method, federation, rounds=3, dtype=torch.float64, progress=False)
    own = run.clients["response_sd"]
    predictions = run.predict_new_client(federation.x[:3], given=(federation.x[:3], federation.y[:3]), draws=0)
    assert predictions[:, 1].numpy() == pytest.approx(np.sqrt((own**2).mean()))
    torch.testing.assert_close(run.predict(federation.x[:1], "h0")[0, 1], torch.tensor(own[0]))


@pytest.mark.parametrize(("noise", "words"), [(1.0, "too narrow; the response's sd was given as 1"), ("shared", "")])
def test_coverage_far_from_90_percent_gets_a_line(
    noise: Any, words: str, hospitals: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    scaled = dataclasses.replace(hospitals, x=(hospitals.x - 60) / 12)
    with caplog.at_level(logging.WARNING):
        run = fit(FedAvg(architecture("linear", scaled, noise)), scaled, rounds=10, progress=False)
    lines = [line for line in run.warnings if "90 % intervals" in line]
    assert len(lines) == bool(words)
    assert all(words in line and "of the training responses" in line for line in lines)
    assert [r.message for r in caplog.records] == lines
    assert run.coverage.split == "train"


def test_no_parameter_is_asked_for_twice() -> None:
    """A method that declares a response_sd of its own keeps it."""

    class Own(FedAvg):
        def shared(self, start: Any) -> Any:
            return {**super().shared(start), "response_sd": torch.full((), 0.3).double()}

        def model(self, batch: Any) -> None:
            assert param("response_sd") is not None
            super().model(batch)

    federation = costs([23, 12])
    method = Own(architecture("linear", federation))
    assert with_learned_sd(method, federation) == (method, federation)


@pytest.mark.parametrize(
    ("by_kind", "words"),
    [
        ({"pm": 0.91, "pm_draws": 0.98}, "too wide; predict at the posterior mean (draws=0, --draws 0), where they "
         "cover 91.0%, or fit more rounds (rounds=, --rounds)"),
        ({"pm": 0.98}, "these intervals are too wide; fit more rounds (rounds=, --rounds)"),
    ],
)  # fmt: skip
def test_intervals_that_are_too_wide_have_a_way_out(by_kind: dict[str, float], words: str) -> None:
    warning = Coverage("train", by_kind, 1000, None).warning
    assert warning.startswith("90 % intervals of responses")
    assert words in warning

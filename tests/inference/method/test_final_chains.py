"""Final chains: the exact posterior given the shared values, for methods that know nothing of them."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pytest
import torch
from pyro.distributions import Categorical, Normal
from pyro.infer import MCMC, NUTS
from support.federations import blobs, slopes
from support.sites import Sites
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.experiments.methods import known_class
from hierfl.inference import Method, fit
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.method import final_chains
from hierfl.inference.method.capabilities import is_tabular
from hierfl.inference.run.result import Run
from hierfl.models import METHODS, FedAvg, FedPop, FedRep, PFedEB, PFedV, PFedVEM, PFedVMP
from hierfl.models.baselines.pfedbayes import PFedBayes
from hierfl.nn.networks.build import architecture

QUICK = {"dtype": torch.float64, "progress": False, "evaluate_every": 100}
#: methods whose head has a prior, and no chains of its own
SAMPLED = ("pfedvem", "pfedeb")
LEARNED = {"head_lr": 0.02, "sigma_0": 1.0, "head_epochs": 20}


def sampled(method: Method, fed: Federation, rounds: int = 3, **options: Any) -> Run:
    return fit(method, fed, rounds=rounds, final="chains", **{**QUICK, **options})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of few steps, where what they find is not the question."""
    monkeypatch.setattr(final_chains, "BURN", 10)
    monkeypatch.setattr(final_chains, "KEPT", 5)


def exact(fed: Federation, j: int, w: Tensor, rho: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a linear head (weights, bias) under N(w, rho^2)."""
    x, y = fed.examples(fed.train[j])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    prior = torch.eye(x.shape[1], dtype=x.dtype) / rho.square()
    covariance = torch.linalg.inv(x.T @ x / noise**2 + prior)
    return covariance @ (x.T @ y / noise**2 + prior @ w), covariance


def test_a_gaussian_posterior_is_drawn_from_exactly_and_nothing_is_refused() -> None:
    """Fails where drift, noise and decision do not belong together: then some proposals are refused."""
    fed = slopes([40, 7, 1, 12], noise=0.5)
    run = sampled(PFedVEM(architecture("linear", fed, noise=0.5), **LEARNED), fed)
    draws, stats = run.personal["w_j_draws"], run.personal["w_j_draws/stats"]
    assert draws.shape == (4, 4, 150, 3)
    assert torch.allclose(stats[..., 0], torch.ones(()).double(), atol=1e-9)
    longest = 1 - math.cos(2 * math.pi / 15)
    assert torch.allclose(stats[..., 1], torch.tensor(longest).double(), rtol=1e-3)  # nearly independent draws
    for j in range(4):
        mean, covariance = exact(fed, j, run.shared["w"], run.personal["rho"][j], 0.5)
        flat = draws[j].flatten(0, 1)
        sd = covariance.diagonal().sqrt()
        assert ((flat.mean(0) - mean) / sd).abs().max() < 4 / 600**0.5
        assert torch.allclose(flat.std(0) / sd, torch.ones(3).double(), atol=4 / 1000**0.5)
        assert torch.allclose(torch.corrcoef(flat.T), covariance / torch.outer(sd, sd), atol=0.15)


def test_draws_at_uncertain_shared_values_are_those_of_the_joint_posterior() -> None:
    """pFedEB's Gaussian draws are exact here, and a chain at each of them leaves their law as it is."""
    fed = slopes([30, 6, 12, 5], noise=0.5)
    how = {"base_epochs": 0, "nodes": "off", "draws": 2400, "w_scale": 1.0}
    net = architecture("linear", fed, noise=0.5)
    plain = fit(PFedEB(net, **how), fed, rounds=40, **QUICK)
    run = sampled(PFedEB(net, **how), fed, rounds=40)
    stats = run.personal["w_j_draws/stats"]
    assert torch.allclose(stats[..., 0], torch.ones(()).double(), atol=1e-7)
    gaussian, chained = plain.personal["w_j_draws"][:, 0], run.personal["w_j_draws"][:, 0]
    assert torch.isclose(gaussian, chained).double().mean() < 0.01  # they have moved
    sd = gaussian.std(1)
    assert ((gaussian.mean(1) - chained.mean(1)) / sd).abs().max() < 4 / 600**0.5
    assert torch.allclose(chained.std(1) / sd, torch.ones_like(sd), atol=4 / 600**0.5)
    # each at its own draw of w: they go together as the Gaussian ones do
    w = run.fitted.method.shared_draws(run.shared, 2400)["w"][:, 0, 0]

    def along(draws: Tensor) -> Tensor:
        return torch.stack([torch.corrcoef(torch.stack([draws[:, k], w[:, k]]))[0, 1] for k in range(3)])

    for j in range(4):
        assert torch.allclose(along(gaussian[j]), along(chained[j]), atol=0.15)


def made_of(method: type[Method], fed: Federation, draws: int) -> Method:
    """Heads under N(w, 2^2), nothing of which is learned: w is a start (pFedVEM) or 0."""
    net = architecture("linear", fed)
    if method is PFedVEM:
        return PFedVEM(net, sigma_0=2.0, head_lr=1e-6, base_epochs=0)
    return PFedEB(net, prior="fixed", sigma_0=2.0, draws=draws, base_epochs=0)


@pytest.mark.parametrize("method", [pytest.param(PFedVEM, marks=pytest.mark.slow), PFedEB])
def test_chains_have_the_moments_of_quadrature(method: type[Method], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes: what is not Gaussian has two numbers, the difference of slopes and of biases."""
    monkeypatch.setattr(final_chains, "KEPT", 1000)
    fed = blobs([9, 5], classes=2, features=1, seed=2)
    run = sampled(made_of(method, fed, 3000), fed, rounds=1)
    rho = run.personal["rho"][0] if method is PFedVEM else torch.tensor([2.0]).double()
    centre = run.shared["w"] if method is PFedVEM else torch.zeros(4).double()
    middle = (centre[[1, 3]] - centre[[0, 2]]) / 2**0.5
    x, y = fed.examples(fed.train[0])
    grid = torch.linspace(-6, 6, 401, dtype=torch.float64) * rho
    u = torch.cartesian_prod(grid + middle[0], grid + middle[1])
    logits = 2**0.5 * (u[:, :1] * x[:, 0] + u[:, 1:])
    height = Normal(middle, rho).log_prob(u).sum(1) + torch.nn.functional.logsigmoid((2 * y - 1) * logits).sum(1)
    weight = height.softmax(0)
    mean = weight @ u
    sd = (weight @ (u - mean).square()).sqrt()
    mode = u[height.argmax()]
    assert ((mode - mean) / sd).abs().max() > 0.15  # Laplace would be seen to be wrong
    draws = run.personal["w_j_draws"][0].flatten(0, 1)
    # PFedEB's heads are that difference themselves, the other way round.
    draws = (draws[:, [1, 3]] - draws[:, [0, 2]]) / 2**0.5 if method is PFedVEM else -draws
    assert (((draws.mean(0) - mean) / sd).abs() < 0.07).all()
    assert torch.allclose(draws.std(0) / sd, torch.ones(2).double(), atol=0.05)


def nuts(fed: Federation, j: int, w: Tensor, rho: Tensor, head: Any, draws: int) -> Tensor:
    """Draws of a client's head by Pyro's sampler, on the model written out again."""
    x, y = fed.examples(fed.train[j])

    def model() -> None:
        w_j = pyro.sample("w_j", Normal(w, rho).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", Categorical(logits=head(w_j, x[None])[0]), obs=y)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        sampler = MCMC(NUTS(model, jit_compile=True), num_samples=draws, warmup_steps=300, disable_progbar=True)
        sampler.run()
    pyro.clear_param_store()
    return sampler.get_samples()["w_j"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [PFedVEM, PFedEB])
def test_chains_find_what_nuts_finds(method: type[Method], monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax head whose posterior is no Gaussian: wide, and of few examples."""
    monkeypatch.setattr(final_chains, "KEPT", 1000)
    fed = blobs([25, 5], classes=3, features=2, seed=2)
    run = sampled(made_of(method, fed, 4000), fed, rounds=1)
    head, w = run.fitted.method.network.head, run.shared["w"]
    rho = run.personal["rho"][0] if method is PFedVEM else torch.tensor(2.0).double()
    theirs = nuts(fed, 0, w, rho, head, 3000)
    ours = run.personal["w_j_draws"][0].flatten(0, 1)
    x = 2 * torch.randn((1, 6, 2), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for of in (lambda d: d, lambda d: head(d[:, None], x)[:, 0].diff(dim=-1).flatten(1)):
        chain, reference = of(ours), of(theirs)
        assert (((chain.mean(0) - reference.mean(0)) / reference.std(0)).abs() < 0.1).all()
        assert torch.allclose(chain.std(0) / reference.std(0), torch.ones(()).double(), atol=0.08)


@pytest.mark.usefixtures("short")
def test_predictions_and_arviz_are_of_the_draws(small: Federation, net: Any) -> None:
    plain = fit(PFedVEM(net), small, rounds=2, **QUICK)
    run = sampled(PFedVEM(net), small, rounds=2)
    for name in ("mu", "pi", "rho"):
        assert torch.equal(plain.personal[name], run.personal[name])  # the rounds are the same
    draws = run.personal["w_j_draws"]
    x = torch.linspace(-2, 2, 16, dtype=torch.float64).view(4, 4)
    values = run.fitted.values([2])
    features = run.fitted.method.network.base.apply(
        {k: values[f"base.{k}"] for k in run.fitted.method.network.base.keys}, x[None]
    )
    own = draws[2].flatten(0, 1)
    want = run.fitted.method.network.head(own.mean(0)[None, None], features)[0].softmax(-1)
    assert torch.allclose(run.predict(x, "place-02", draws=0), want)
    data = run.posterior()
    assert data.posterior.sizes["chain"] == 4
    assert data.posterior["w_j"].shape == (4, final_chains.KEPT, 7, draws.shape[-1])
    assert set(data.sample_stats.data_vars) == {"lp", "acceptance_rate", "step_size", "diverging"}
    assert data.log_likelihood.attrs["draws_of"] == "chains"
    assert run.best() == {}
    spread = torch.tensor(run.clients["uncertainty"].tolist(), dtype=torch.float64)
    assert torch.allclose(spread, draws.flatten(1, 2).var(1).mean(1))
    few = (small.x[:6], small.y[:6])
    assert run.predict_new_client(x, given=few, rounds=2, draws=5).shape == (4, 3)
    assert torch.equal(run.predict_new_client(x), plain.predict_new_client(x))


@pytest.mark.usefixtures("short")
def test_chains_do_not_depend_on_who_is_beside_them(net: Any) -> None:
    fed = blobs([23, 2, 9])
    for made in (PFedVEM(net), PFedEB(net, draws=6)):
        runs = [sampled(made, fed, rounds=1, chunk=chunk).personal["w_j_draws"] for chunk in (1, 2)]
        assert torch.allclose(runs[0], runs[1], rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("short")
def test_a_stopped_fit_goes_on_to_the_same_draws(small: Federation, net: Any, tmp_path: Any) -> None:
    whole = sampled(PFedVEM(net), small, rounds=3)
    sampled(PFedVEM(net), small, rounds=2, folder=tmp_path)
    gone_on = sampled(PFedVEM(net), small, rounds=3, folder=tmp_path, resume=True)
    assert torch.equal(whole.personal["w_j_draws"], gone_on.personal["w_j_draws"])
    with pytest.raises(UserError, match="another method"):
        fit(PFedVEM(net), small, rounds=4, folder=tmp_path, resume=True, **QUICK)


@pytest.mark.usefixtures("short")
def test_sites_of_their_own_end_with_the_same_draws(small: Federation, net: Any, tmp_path: Any) -> None:
    how = {"rounds": 2, "dtype": torch.float64, "final": "chains", "evaluate_every": 100, "draws": 5}
    sites = Sites(PFedVEM(net), small, tmp_path, **how)
    remote, plate = sites.fit(), fit(PFedVEM(net), small, progress=False, **how)
    for name in ("pm_nll", "pm_draws_nll"):
        assert remote.last()[name] == pytest.approx(plate.last()[name], abs=1e-6)
    (row,) = sites.sites["place-03"].plate.fitted(Broadcast(2, plate.shared, final=True)).personal["w_j_draws"]
    assert torch.allclose(row, plate.personal["w_j_draws"][3], atol=1e-6)


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        (PFedVEM, {"prior": "flat"}, "a flat prior"),
        (PFedEB, {"prior": "flat"}, "a flat prior"),
        (FedRep, {}, "a flat prior"),
        (PFedVMP, {}, "a flat prior"),
        (PFedV, {}, "a latent for each example"),
        (FedAvg, {}, "has 0"),
        (FedPop, {}, "steps of its own"),
        (FedPop, {"population": "energy"}, "has 2"),
        (PFedBayes, {}, "more than the last layer"),
    ],
)
def test_what_cannot_be_sampled(method: type[Method], settings: dict, words: str, small: Federation) -> None:
    net = architecture("mlp:5", small, latent=method.latent)
    with pytest.raises(UserError, match=words):
        sampled(method(net, **settings), small)


def test_every_method_is_sampled_or_refused_in_one_line(small: Federation) -> None:
    for name in METHODS:
        cls = known_class({"method": name})
        assert cls is not None
        if is_tabular(cls) or name == "fedbn":  # made for a table, or a network with batch norm
            continue
        made = cls(architecture("mlp:5", small, latent=cls.latent))
        if name in SAMPLED:
            wrapped = final_chains.with_final_chains(made, small.template(), 1)
            assert isinstance(wrapped, cls), name
            assert type(wrapped).__qualname__ == cls.__qualname__
        else:
            with pytest.raises(UserError, match=r"^[^\n]+$"):
                final_chains.with_final_chains(made, small.template(), 1)

"""FedPop: its exchange against closed forms, its posteriors against analytic ones, its options each doing something."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Call
from support.federations import slopes
from support.rounds import rejections
from torch import nn

from hierfl import Federation, UserError
from hierfl.data.datasets import registry
from hierfl.data.synthetic import (
    effect_error,
    identified,
    log_likelihood,
    maximise,
    principal_angle_distance,
    synthetic,
    synthetic_pool,
)
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.gradients import elbo_gradient
from hierfl.inference.engines.base import ClientStatus
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedAvg, FedPop, FedRep, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator


def test_messages_are_fishers_identity(small: Federation, net: Architecture) -> None:
    """grad_mu = mean (z - mu) / sigma^2, grad_log_sigma = mean |z - mu|^2 / sigma^2 - d, over the draws."""
    for population in ("isotropic", "diagonal"):
        method = FedPop(net, population=population, chains=2)
        start = InitialWeights.of(net, 0)
        shared = {k: v.double() for k, v in method.shared(start).items()}
        shape = (7, 1, *method.personal(start)["z_draws"].shape)
        z = torch.randn(shape, generator=generator("z"), dtype=torch.float64)
        order = sorted(range(7), key=lambda j: -len(small.train[j]))
        chunk = ClientChunk(method, small, order, 1, 0, shared, {"z_draws": z})
        got = elbo_gradient(chunk, ["mu", "log_sigma"], 10, "any")
        gap, variance = z.flatten(2, 3).squeeze(1) - shared["mu"], (2 * shared["log_sigma"]).exp()
        assert torch.allclose(got["mu"], (gap / variance).mean(1), rtol=1e-10)
        by_number = gap.square().mean(1) / variance - 1
        wanted = by_number if population == "diagonal" else by_number.sum(1, keepdim=True)
        assert torch.allclose(got["log_sigma"], wanted, rtol=1e-10)


def regression(sizes: list[int]) -> tuple[Federation, Architecture]:
    fed = slopes(sizes, noise=0.5, seed=3)
    return fed, architecture("linear", fed, noise=0.5)


def test_the_last_chains_draw_from_the_analytic_posterior() -> None:
    import arviz as az

    fed, net = regression([40, 12, 3, 25, 2, 8])
    method = FedPop(
        net, kernel="metropolis", step_size=0.01, chains=4, final_steps=4000, final_keep=1000, lr=0.05, sigma_0=1.0
    )
    run = fit(method, fed, rounds=30, dtype=torch.float64, progress=False)
    mu, sigma = run.shared["mu"], run.shared["log_sigma"].exp()
    data = run.posterior()
    assert dict(data.posterior.sizes) == {"chain": 4, "draw": 1000, "client": 6, "z_dim_0": 3}
    effective, rhat = az.ess(data)["z"].values, az.rhat(data)["z"].values
    assert (rhat < 1.02).all()
    for j in range(6):
        x, y = fed.examples(fed.train[j])
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
        cov = torch.linalg.inv(x.T @ x / 0.25 + torch.eye(3, dtype=x.dtype) / sigma**2)
        mean = cov @ (x.T @ y / 0.25 + mu / sigma**2)
        draws = run.personal["z_draws"][j]
        error = (cov.diagonal() / torch.as_tensor(effective[j])).sqrt()
        assert ((draws.mean((0, 1)) - mean).abs() < 4 * error).all(), j
        spread = draws.flatten(0, 1).var(0) / cov.diagonal()
        assert ((spread - 1).abs() < 4 * (2 / torch.as_tensor(effective[j])).sqrt() + 0.02).all(), j


def test_the_population_is_the_marginal_likelihoods() -> None:
    """A linear-Gaussian model: mu and sigma against the maximum of the exact marginal likelihood."""
    fed, net = regression([12] * 60)
    parts = []
    for j in range(60):
        x, y = fed.examples(fed.train[j])
        parts.append((torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1), y))
    mu = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    log_sigma = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([mu, log_sigma], max_iter=200, tolerance_grad=1e-10)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for x, y in parts:
            cov = x @ x.T * (2 * log_sigma).exp() + 0.25 * torch.eye(len(y))
            total = total - torch.distributions.MultivariateNormal(x @ mu, cov).log_prob(y)
        total.backward()
        return total

    optimizer.step(loss)
    method = FedPop(
        net, kernel="metropolis", step_size=0.02, chains=4, burn=2, lr=0.1, lr_decay=0.98, sigma_0=0.6, final_steps=0
    )
    run = fit(method, fed, rounds=250, chunk=60, dtype=torch.float64, progress=False)
    assert torch.allclose(run.shared["mu"], mu.detach(), atol=0.02)
    assert torch.allclose(run.shared["log_sigma"], log_sigma.detach(), atol=0.02)


def test_a_fixed_population_is_never_moved_and_a_flat_one_is_not_there(small: Federation, net: Architecture) -> None:
    fixed = fit(FedPop(net, prior="fixed", sigma_0=0.7), small, rounds=3, dtype=torch.float64, progress=False)
    assert (fixed.shared["mu"] == 0).all()
    assert torch.allclose(fixed.shared["log_sigma"].exp(), torch.tensor(0.7).double())
    assert not torch.equal(fixed.shared["base.1.weight"], InitialWeights.of(net, 0).base["base.1.weight"].double())
    flat = fit(FedPop(net, prior="flat"), small, rounds=3, dtype=torch.float64, progress=False)
    assert set(flat.personal) == {"z_point"}
    assert "mu" not in flat.shared
    for run in (fixed, flat):
        with pytest.raises(UserError, match="no global model"):
            run.predict_new_client(torch.zeros(1, 4, dtype=torch.float64))


VARIANTS = [
    {"kernel": "metropolis"},
    {"start": "stateless"},
    {"population": "diagonal"},
    {"step_batch": 5},
    {"inner_phi_steps": 2},
    {"compress": "quantise:4"},
    {"compress": "sparsify:0.3"},
    {"base_decay": 0.5},
    {"mu_scale": 0.05},
    {"chains": 3},
    {"population": "energy"},
    {"population": "energy", "energy_hidden": 4},
    {"precondition": "rms"},
    {"beta2": 0.5},
    {"inner_phi_steps": 2, "inner_batch": 4, "inner_momentum": 0.9},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_option_changes_the_fit_and_none_depends_on_the_chunk(
    variant: dict, small: Federation, net: Architecture
) -> None:
    short = {"final_steps": 20, "final_keep": 5}
    plain, one, seven = (
        fit(FedPop(net, **short, **how), small, rounds=2, chunk=chunk, dtype=torch.float64, progress=False)
        for how, chunk in (({}, 7), (variant, 1), (variant, 7))
    )
    assert any(not torch.equal(one.shared[k], v) for k, v in plain.shared.items() if v.shape == one.shared[k].shape)
    for name, value in {**one.shared, **one.personal}.items():
        assert torch.allclose(value, {**seven.shared, **seven.personal}[name], rtol=1e-6, atol=1e-9), name


def test_too_many_numbers_for_control_variates(small: Federation, net: Architecture) -> None:
    with pytest.raises(UserError, match="5 draws are too few for 189 control variates"):
        fit(FedPop(net, control_variates=True), small, rounds=1, dtype=torch.float64, progress=False)


def test_the_exact_marginal_likelihoods_maximum_is_reached() -> None:
    """FedPop's synthetic data: in everything that is identified below 1e-3 relative, the scores having no noise."""
    fed, made = synthetic(0, clients=40, k=8)
    net = architecture("projection:2", fed, made.noise)
    method = FedPop(
        net, control_variates=True, kernel="metropolis", precondition="full", step_size=0.5, chains=8, sigma_0=1.0,
        lr=0.05, base_lr=0.03, lr_decay=0.985, beta2=0.97, final_steps=0,
    )  # fmt: skip
    run = fit(method, fed, 400, chunk=40, dtype=torch.float64, progress=False, evaluate_every=400)
    here = run.shared["base.1.weight"].T, run.shared["mu"], run.shared["log_sigma"].exp()
    best = maximise(fed, made.phi, here[1], here[2], made.noise)
    ours, theirs = identified(*here), identified(*best)
    for name in ours:
        assert float((ours[name] - theirs[name]).norm() / theirs[name].norm()) < 1e-3, name
    heights = [float(log_likelihood(fed, *v, made.noise)) for v in (here, best)]
    assert abs(heights[0] / heights[1] - 1) < 1e-6
    assert principal_angle_distance(made.phi, here[0]) < 0.1
    rotate = torch.linalg.qr(torch.randn((2, 2), generator=generator("rotate"), dtype=torch.float64))[0]
    assert principal_angle_distance(here[0] @ rotate * 3, here[0]) < 1e-7
    assert effect_error(made.phi @ rotate, made.z @ rotate, made) < 1e-12


def test_readings_of_the_synthetic_data() -> None:
    fed, made = synthetic(1)
    assert sorted(fed.sizes())[0] == 5
    assert fed.sizes().count(10) == 10
    rest = torch.cat([y - x @ made.phi @ z for (x, y), z in zip(map(fed.examples, fed.train), made.z, strict=True)])
    assert float(rest.var()) == pytest.approx(0.1, rel=0.2)
    fed, made = synthetic(1, reading="notebook")
    assert fed.sizes().count(2) == 90
    assert torch.allclose(made.z.norm(dim=1), torch.ones(100).double())
    assert made.noise == 0.1
    with pytest.raises(UserError, match="paper or notebook"):
        synthetic(1, reading="mine")  # type: ignore[arg-type]


def test_a_matrix_as_fixed_effect_is_found_up_to_rotation() -> None:
    """y = z_j^T phi^T x: the span of phi, which is what the data identify."""
    rng = generator("synthetic")
    phi = torch.linalg.qr(torch.randn((6, 2), generator=rng, dtype=torch.float64))[0]
    z = torch.randn((40, 2), generator=rng, dtype=torch.float64)
    x = torch.randn((40, 20, 6), generator=rng, dtype=torch.float64)
    y = (x @ phi @ z[..., None]).squeeze(-1) + 0.1 * torch.randn((40, 20), generator=rng, dtype=torch.float64)
    who = torch.arange(40).repeat_interleave(20)
    fed = Federation.from_arrays(x.flatten(0, 1).numpy(), y.flatten().numpy(), who.numpy(), test=0.0, task="regression")
    with torch.random.fork_rng():
        net = Architecture(Network(nn.Linear(6, 2, bias=False)), LinearHead(2, 1), noise=0.1)
    method = FedPop(net, step_size=3e-4, sigma_0=1.0, base_lr=0.05, lr=0.05, lr_decay=0.98, final_steps=0)
    run = fit(method, fed, rounds=200, chunk=40, dtype=torch.float64, progress=False)
    found = torch.linalg.qr(run.shared["base.weight"].T)[0]
    distance = (found @ found.T - phi @ phi.T).norm()
    assert distance < 0.02


def test_fedpop_on_the_command_line_resumes_and_reports(hierfl: Call, tmp_path: Path) -> None:
    short = ["--set", "final_steps=40", "--set", "final_keep=5", "--quiet"]
    assert hierfl("run", "fedpop", "--rounds", "4", "--out", "whole", *short)[0] == 0
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert summary["gm_accuracy"] is not None
    code, _, err = hierfl("run", "fedpop", "--out", "bad", "--set", "compress=zip")
    assert code == 2
    assert "compress is none, quantise:LEVELS or sparsify:SHARE" in err
    kept = {p.name: p.read_bytes() for p in (tmp_path / "whole" / "checkpoint").iterdir()}
    posterior = (tmp_path / "whole" / "posterior.nc").read_bytes()
    assert hierfl("run", "--resume", "whole", "--quiet")[0] == 0
    assert kept == {p.name: p.read_bytes() for p in (tmp_path / "whole" / "checkpoint").iterdir()}
    assert posterior == (tmp_path / "whole" / "posterior.nc").read_bytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"burn": 10}, "no draw is left"),
        ({"kernel": "metropolis", "step_batch": 5}, "needs all examples"),
        ({"final_steps": 10, "final_keep": 9}, "at least twice"),
        ({"compress": "quantise:many"}, "compress is none"),
        ({"compress": "sparsify:0"}, "keeps a share"),
        ({"lr_decay": 1.5}, "at most 1"),
        ({"base_decay": 0.5, "inner_phi_steps": 2}, "sends none of the base"),
        ({"mu_scale": 1.0, "prior": "fixed"}, "mu_scale=1.0 changes nothing with prior=fixed"),
        ({"population": "energy", "prior": "fixed"}, "population=energy is learned"),
        ({"energy_hidden": 3}, "energy_hidden=3 changes nothing with population=isotropic"),
        ({"control_variates": True, "inner_phi_steps": 1}, "messages that are gradients"),
        ({"precondition": "full", "burn": 0}, "learned in burn-in"),
    ],
)
def test_settings_that_cannot_be(settings: dict, words: str, net: Architecture) -> None:
    with pytest.raises(UserError, match=words):
        FedPop(net, **settings)


def places(sizes: list[int], seed: int = 7) -> Federation:
    """y_ij ~ N(z_j, 1), z_j ~ N(1.5, 0.7^2): x is one, and the head is z."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(len(sizes)), sizes)
    y = (1.5 + 0.7 * rng.normal(size=len(sizes)))[who] + rng.normal(size=len(who))
    return Federation.from_arrays(np.ones((len(who), 1)), y, who, test=0.0, task="regression").to(dtype=torch.float64)


@pytest.mark.parametrize("hidden", [0, 8])
def test_an_energy_with_a_second_chain_recovers_a_gaussian_population(hidden: int) -> None:
    """mu and sigma against the exact maximum; with a network in E, mean and spread of what the second chain draws."""
    fed = places([8] * 100)
    net = Architecture(Network(nn.Identity()), LinearHead(1, 1, bias=False), noise=1.0)
    means = torch.stack([fed.examples(index)[1].mean() for index in fed.train])
    mu, variance = means.mean(), means.var(unbiased=False) - 1 / 8  # equal sizes: the maximum of the marginal
    method = FedPop(
        net, population="energy", energy_hidden=hidden, kernel="metropolis", step_size=0.1, steps=12, burn=2, chains=4,
        lr=0.1, lr_decay=0.97, beta2=0.97, sigma_0=1.5, final_steps=400, final_keep=100,
    )  # fmt: skip
    run = fit(method, fed, 120, chunk=100, dtype=torch.float64, progress=False, evaluate_every=120)
    if not hidden:
        assert float(run.shared["mu"] - mu) == pytest.approx(0, abs=0.03)
        assert float(run.shared["log_sigma"].exp()) == pytest.approx(float(variance.sqrt()), rel=0.04)
    new = run.personal["z_new_draws"].flatten()
    assert float(new.mean() - mu) == pytest.approx(0, abs=0.05)
    assert float(new.std()) == pytest.approx(float(variance.sqrt()), rel=0.07)
    said = run.predict_new_client(np.ones((1, 1)), draws=2000)[0]
    assert float(said[0] - mu) == pytest.approx(0, abs=0.08)
    assert float(said[1]) == pytest.approx(float((1 + variance).sqrt()), rel=0.05)


def test_a_new_client_learns_from_a_few_examples() -> None:
    """After a chain on its own examples the analytic posterior at the fitted population; before it the population's."""
    fed, net = regression([15] * 30)
    method = FedPop(
        net, kernel="metropolis", precondition="full", step_size=0.5, chains=4, lr=0.1, lr_decay=0.97, sigma_0=1.0,
        final_steps=2000, final_keep=500,
    )  # fmt: skip
    run = fit(method, fed, 60, chunk=30, dtype=torch.float64, progress=False, evaluate_every=60)
    mu, sigma = run.shared["mu"], run.shared["log_sigma"].exp()
    few = torch.randn((3, 2), generator=generator("few"), dtype=torch.float64)
    y = few @ torch.tensor([2.0, -1.0]).double() + 0.3
    x = torch.cat([few, torch.ones(3, 1).double()], 1)
    cov = torch.linalg.inv(x.T @ x / 0.25 + torch.eye(3).double() / sigma**2)
    mean = cov @ (x.T @ y / 0.25 + mu / sigma**2)
    at = torch.tensor([[1.0, 0.5, 1.0]]).double()
    said = run.predict_new_client(at[:, :2], draws=4000, given=(few, y))[0]
    wanted = float((at @ cov @ at.T + 0.25).sqrt())
    assert float(said[0]) == pytest.approx(float(at @ mean), abs=0.05 * wanted)
    assert float(said[1]) == pytest.approx(wanted, rel=0.05)
    before = run.predict_new_client(at[:, :2], draws=4000)[0]
    assert float(before[1]) > 1.5 * wanted
    assert torch.equal(run.shared["mu"], mu)
    for given, words in (
        ((few, y[:2]), "as many targets"),
        ((few[:, :1], y), "inputs have shape"),
        ((few, y / 0), "NaN or infinite"),
    ):
        with pytest.raises(UserError, match=words):
            run.predict_new_client(at[:, :2], given=given)


def test_newcomers_of_other_methods(small: Federation, net: Architecture) -> None:
    x, y = small.examples(small.train[0])
    for method, own in ((PFedVEM(net), True), (FedRep(net), True), (FedAvg(net), False)):
        run = fit(method, small, 15, dtype=torch.float64, progress=False, evaluate_every=15)
        if not own:
            with pytest.raises(UserError, match="nothing that a new client could learn"):
                run.predict_new_client(x, given=(x, y))
            continue
        little, much = (run.predict_new_client(x, draws=0, given=(x, y), rounds=k) for k in (1, 20))
        assert much.gather(1, y[:, None]).log().mean() > little.gather(1, y[:, None]).log().mean() + 0.01
    with pytest.raises(UserError, match="whole numbers from 0 to 2"):
        run.predict_new_client(x, given=(x, y + 3))


def test_shared_values_that_have_diverged_end_in_no_traceback() -> None:
    """A regression's model says NaN then, which Pyro's validation would refuse."""
    fed = slopes([6, 4], features=2)
    method = FedPop(architecture("linear", fed, noise=0.5), final_steps=0)
    ready = Fit(method, fed, Options(rounds=2, dtype=torch.float64))
    ready.step()
    gone = {**ready.state.shared, "mu": torch.full_like(ready.state.shared["mu"], torch.nan)}
    ready.state = replace(ready.state, shared=gone)
    ready.step()
    assert ready.journal.diverged == 2
    assert rejections(ready) == [1, 1]
    assert ready.journal.status[-1].tolist() == [ClientStatus.REJECTED] * 2


def test_the_synthetic_data_have_a_name_and_are_made_from_the_seed(hierfl: Call, tmp_path: Path) -> None:
    few = ["--data", "fedpop-synthetic", "--rounds", 1, "--validation-fraction", 0.3, "--quiet"]
    for seed in (0, 1):
        code, _, err = hierfl("run", "local", *few, "--seed", seed, "--out", f"s{seed}")
        assert code == 0, err
    summaries = [json.loads((tmp_path / f"s{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert [s["clients"] for s in summaries] == [100, 100]
    assert summaries[0]["federation"] != summaries[1]["federation"]
    pool, truth = synthetic_pool(1)
    fed = Federation.from_pool(registry.load("fedpop-synthetic", tmp_path, 1), 0, "natural", validation=0.3, seed=1)
    assert fed.digest() == summaries[1]["federation"]
    assert np.array_equal(pool.y_train, synthetic(1)[0].y[: len(pool.y_train)])
    config = tomllib.loads((tmp_path / "s0" / "config.toml").read_text())["run"]
    assert (config["response_sd"], config["network"], config["chunk"]) == (0.1**0.5, "projection:2", 100)
    assert truth.noise == config["response_sd"]
    code, _, err = hierfl("run", "pfedvmp", *few, "--out", "no")
    assert code == 2
    assert len(err.splitlines()) == 1

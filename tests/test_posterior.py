"""Predictions and the ArviZ export: shapes, coordinates, and numbers against the analytic posterior."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.federations import blobs, slopes
from torch.distributions import Normal
from torch.nn.functional import softplus

from hierfl import Federation, UserError
from hierfl.arviz_io import import_arviz, loo, write
from hierfl.data.formula.federate import from_formula
from hierfl.inference import Run, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.langevin.step import Langevin
from hierfl.inference.method.base import Method
from hierfl.inference.objective.log_joint import log_joint
from hierfl.models import FedAvg, FedPer, FedPop, PFedV, PFedVEM, PFedVMP
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


@pytest.fixture(scope="module")
def lines() -> Run:
    fed = slopes([12, 5, 3, 8], features=2)
    net = architecture("linear", fed, noise=0.5)
    method = PFedVEM(net, head_epochs=200, head_lr=1e-3, particles=20)
    return fit(method, fed, rounds=5, dtype=torch.float64, progress=False)


def test_groups_dimensions_and_coordinates(lines: Run) -> None:
    data = lines.posterior(draws=50)
    assert sorted(data.groups()) == [
        "constant_data", "log_likelihood", "observed_data", "posterior", "posterior_predictive", "prior",
        "sample_stats",
    ]  # fmt: skip
    fed = lines.fitted.federation
    assert data.posterior["w_j"].dims == ("chain", "draw", "client", "w_j_dim_0")
    assert data.posterior["w_j"].shape == (1, 50, 4, 3)
    assert data.posterior["client"].values.tolist() == list(fed.ids)
    assert data.log_likelihood["y"].shape == (1, 50, 28)
    assert data.log_likelihood["client"].values.tolist() == [
        c for c, n in zip(fed.ids, fed.sizes(), strict=True) for _ in range(n)
    ]
    expected = torch.cat([fed.y[i] for i in fed.train]).numpy()
    assert np.allclose(data.observed_data["y"], expected)
    assert data.constant_data["tau"].dims == ("client",)
    assert np.allclose(data.constant_data["w"], lines.shared["w"])
    assert data.constant_data["n"].values.tolist() == [12, 5, 3, 8]


def test_draws_and_log_likelihood_are_the_guides_and_the_models(lines: Run) -> None:
    data = lines.posterior(draws=4000)
    fed, personal = lines.fitted.federation, lines.personal
    w_j = data.posterior["w_j"].values[0]
    sigma = softplus(personal["pi"]).numpy()
    assert (np.abs(w_j.mean(0) - personal["mu"].numpy()) < 5 * sigma / 4000**0.5).all()
    assert np.allclose(w_j.std(0), sigma, rtol=0.08)
    x, y = fed.examples(fed.train[1])
    draws = torch.as_tensor(w_j[:, 1]).double()
    mean = draws[:, :2] @ x.T + draws[:, 2:]
    by_hand = Normal(mean, 0.5).log_prob(y).numpy()
    mine = data.log_likelihood["y"].values[0][:, data.log_likelihood["client"].values == fed.ids[1]]
    assert np.allclose(mine, by_hand, atol=1e-3)  # kept in float32
    prior = data.prior["w_j"].values[0]
    rho = personal["rho"].numpy()
    assert np.allclose(prior.std(0), rho, rtol=0.08)
    assert (np.abs(prior.mean(0) - lines.shared["w"].numpy()) < 5 * rho / 4000**0.5).all()


def exact_loo(run: Run) -> np.ndarray:
    """log p(y_ij | the client's others), every example left out in turn; globals and rho_j held."""
    fed, found = run.fitted.federation, []
    for j, index in enumerate(fed.train):
        x, y = fed.examples(index)
        design = torch.cat([x, torch.ones(len(x), 1).double()], 1)
        rho, w = run.personal["rho"][j], run.shared["w"]
        for i in range(len(y)):
            others = torch.arange(len(y)) != i
            precision = design[others].mT @ design[others] / 0.25 + torch.eye(3) / rho**2
            mean = torch.linalg.solve(precision, design[others].mT @ y[others] / 0.25 + w / rho**2)
            variance = 0.25 + design[i] @ torch.linalg.solve(precision, design[i])
            found.append(float(Normal(design[i] @ mean, variance.sqrt()).log_prob(y[i])))
    return np.array(found)


@pytest.mark.parametrize("sigma_0", [0.3, 2.0])
def test_leave_one_out_is_the_exact_one(sigma_0: float) -> None:
    """At fixed hyper-parameters, wherever Pareto's k allows; what a mean-field guide gets wrong is corrected."""
    fed = slopes([12, 5, 3, 8], features=2)
    net = architecture("linear", fed, noise=0.5)
    runs, exact, found = {}, {}, {}
    for prior in ("hierarchical", "fixed"):
        method = PFedVEM(net, prior=prior, sigma_0=sigma_0, head_epochs=300, head_lr=2e-3, particles=20)
        run = runs[prior] = fit(method, fed, rounds=5, dtype=torch.float64, progress=False)
        if prior == "fixed":
            assert torch.equal(run.shared["w"], torch.zeros(3).double())
        data = run.posterior(draws=100_000)
        exact[prior], found[prior] = exact_loo(run), loo(data)
        gap = np.abs(found[prior]["loo_i"].values - exact[prior])
        good = found[prior]["pareto_k"].values < 0.7
        assert good.mean() > 0.5
        assert gap[good].max() < 0.05
        assert found[prior]["elpd_loo"] == pytest.approx(found[prior]["loo_i"].values.sum())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = import_arviz().loo(data, pointwise=True)
        assert np.abs(plain["loo_i"].values - exact[prior])[good].max() > 0.3  # though k says well
    ranked = import_arviz().compare(found).index.tolist()
    assert ranked == sorted(exact, key=lambda k: -exact[k].sum())


def test_arviz_takes_it_as_it_comes(lines: Run, tmp_path: Path) -> None:
    az = import_arviz()
    data = lines.posterior(draws=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a high Pareto k is a finding, not a fault
        summary = az.summary(data, var_names=["w_j"], kind="stats")
        assert len(summary) == 12
        loo = az.loo(data)
        assert np.isfinite(loo.elpd_loo)
        other = fit(
            PFedVEM(lines.fitted.method.network, prior="fixed"),
            lines.fitted.federation,
            rounds=2,
            dtype=torch.float64,
            progress=False,
        )
        table = az.compare({"hierarchical": data, "fixed": other.posterior(draws=200)})
        assert set(table.index) == {"hierarchical", "fixed"}
        axes = az.plot_forest(data, var_names=["w_j"], combined=True)
        assert len(axes)
        import matplotlib.pyplot as plt

        plt.close("all")
    write(data, tmp_path / "posterior.nc")
    again = az.from_netcdf(tmp_path / "posterior.nc")
    for group in data.groups():
        assert data[group].equals(again[group])
        assert data[group].attrs == again[group].attrs


def test_default_draws_stay_within_the_limit(small: Federation, net: Architecture, tmp_path: Path) -> None:
    run = fit(PFedVEM(net), small, rounds=1, progress=False)
    data = run.posterior(limit=60_000)
    assert 2 <= data.posterior.sizes["draw"] < 200
    numbers = sum(v.size * v.dtype.itemsize for g in data.groups() for v in data[g].values() if "draw" in v.dims)
    assert numbers < 60_000
    assert run.posterior().posterior.sizes["draw"] == 200


def test_methods_without_personal_latents_export_what_they_have(small: Federation, net: Architecture) -> None:
    average = fit(FedAvg(net), small, rounds=1, progress=False).posterior(draws=5)
    assert "posterior" not in average.groups()
    assert average.log_likelihood["y"].shape == (1, 5, 74)
    point = fit(FedPer(net), small, rounds=1, progress=False).posterior(draws=5)
    assert "prior" not in point.groups()  # a flat prior cannot be drawn from
    assert "training likelihood" in point.log_likelihood.attrs["about"]
    hierarchical = fit(PFedVEM(net), small, rounds=1, progress=False).posterior(draws=5)
    assert "training likelihood" not in hierarchical.log_likelihood.attrs["about"]
    values = point.posterior["w_j"].values
    assert (values == values[:, :1]).all()


def test_personal_predictions_are_the_models(lines: Run) -> None:
    fed = lines.fitted.federation
    x = fed.x[:6]
    mu, sigma = lines.personal["mu"][2], softplus(lines.personal["pi"][2])
    design = torch.cat([x.double(), torch.ones(6, 1)], 1)
    at_mean = lines.predict(x, client=2)
    assert torch.allclose(at_mean[:, 0], design @ mu)
    assert torch.allclose(at_mean[:, 1], torch.full((6,), 0.5, dtype=torch.float64))
    averaged = lines.predict(x, client=fed.ids[2], draws=20_000)
    exact = (design.square() @ sigma.square() + 0.25).sqrt()
    assert torch.allclose(averaged[:, 1], exact, rtol=0.03)
    assert torch.allclose(averaged[:, 0], at_mean[:, 0], atol=0.05)


def test_a_new_client_is_served_by_the_population(lines: Run) -> None:
    """Draws of w_j ~ N(w, rho^2 I) with the population's spread: mean x.w, variance |x|^2 mean(rho_j^2) + noise^2."""
    x = lines.fitted.federation.x[:6]
    design = torch.cat([x.double(), torch.ones(6, 1)], 1)
    said = lines.predict_new_client(x, draws=20_000)
    spread = lines.personal["rho"].square().mean()
    assert torch.allclose(said[:, 1], (design.square().sum(1) * spread + 0.25).sqrt(), rtol=0.03)
    centre = lines.predict_new_client(x, draws=0)
    assert torch.allclose(centre[:, 0], design @ lines.shared["w"])
    assert torch.allclose(said[:, 0], centre[:, 0], atol=0.1)


def test_class_probabilities_are_probabilities(small: Federation, net: Architecture) -> None:
    run = fit(PFedVEM(net), small, rounds=2, progress=False)
    for p in (
        run.predict(small.x[:5], 0),
        run.predict(small.x[:5], 0, draws=7),
        run.predict_new_client(small.x[:5]),
    ):
        assert p.shape == (5, 3)
        assert torch.allclose(p.sum(1), torch.ones(5), atol=1e-5)
    rows = run.clients
    j = 3
    right = run.predict(small.x[small.test[j]], j).argmax(1) == small.y[small.test[j]]
    assert rows["accuracy"][j] == pytest.approx(float(right.float().mean()))


def test_predictions_that_make_no_sense_are_refused(small: Federation, net: Architecture) -> None:
    run = fit(FedPer(net), small, rounds=1, progress=False)
    with pytest.raises(UserError, match="no client 'nowhere'"):
        run.predict(small.x[:2], "nowhere")
    with pytest.raises(UserError, match="no client 7; there are place-00"):
        run.predict(small.x[:2], 7)
    for draws in (-1, 1.5):
        with pytest.raises(UserError, match="draws must be (a whole number|at least 0)"):
            run.predict(small.x[:2], 0, draws=draws)
    with pytest.raises(UserError, match="no inputs"):
        run.predict(small.x[:0], 0)
    with pytest.raises(UserError, match="NaN or infinite"):
        run.predict(small.x[:2] * float("nan"), 0)
    with pytest.raises(UserError, match=r"expected \(n, 4\)"):
        run.predict(small.x[:2, :3], 0)
    with pytest.raises(UserError, match="fedper has no global model"):
        run.predict_new_client(small.x[:2])


def test_last_and_best_are_both_kept() -> None:
    import dataclasses

    fed = blobs([40, 30, 60])
    held = dataclasses.replace(fed, validation=[i[:10] for i in fed.train], train=[i[10:] for i in fed.train])
    run = fit(FedPer(architecture("mlp:5", held), lr=0.3), held, rounds=8, progress=False)
    metrics = run.metrics
    validation = metrics[metrics["split"] == "validation"].set_index("round")["pm_accuracy"]
    assert run.best()["round"] == validation.idxmax()
    assert run.last()["round"] == 8


def fitted_to(name: str) -> Run:
    """A small fit of each method that ships with a posterior."""
    if name.startswith("mixed-effects"):
        df = pd.DataFrame(
            {"x": np.random.default_rng(0).normal(size=80), "site": np.repeat([f"s{j}" for j in range(8)], 10)}
        )
        df["y"] = df["x"] + np.repeat(np.arange(8) % 3, 10)
        family = "gaussian" if name == "mixed-effects" else "poisson"
        df["y"] = df["y"] if family == "gaussian" else np.random.default_rng(1).poisson(np.exp(0.3 * df["y"]))
        fed, design = from_formula(df, "y ~ 1 + x + (1 + x | site)", family=family)
        method: Method = MixedEffects(design, chains=4, draws=30, thin=2)
        return fit(method, fed, rounds=5, dtype=torch.float64, progress=False)
    fed = blobs([40, 12, 30])
    if name == "pfedv":
        return fit(PFedV(architecture("mlp:6", fed, latent=True)), fed, rounds=2, progress=False)
    made: dict[str, Callable[[Architecture], Method]] = {
        "pfedvem": PFedVEM,
        "pfedvmp": PFedVMP,
        "fedpop": lambda net: FedPop(net, chains=2, final_steps=80, final_keep=20),
        "fedpop-metropolis": lambda net: FedPop(net, chains=2, kernel="metropolis", final_steps=80, final_keep=20),
    }
    return fit(made[name](architecture("mlp:6", fed)), fed, rounds=2, progress=False)


CHAINS = {"fedpop", "fedpop-metropolis", "mixed-effects", "mixed-effects-poisson"}
EVERY = ["pfedvem", "pfedv", "pfedvmp", *sorted(CHAINS)]


@pytest.mark.parametrize("name", EVERY)
def test_arviz_takes_every_method_and_files_keep_everything(name: str, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    az, run = import_arviz(), fitted_to(name)
    data = run.posterior()
    write(data, tmp_path / "posterior.nc")
    again = az.from_netcdf(tmp_path / "posterior.nc")
    assert sorted(again.groups()) == sorted(data.groups())
    for group in data.groups():
        assert data[group].identical(again[group]), group
    variable = next(iter(data.posterior.data_vars))
    if name.startswith("mixed-effects"):
        assert data.posterior["b_dim_0"].values.tolist() == ["Intercept", "x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = az.summary(again, var_names=[variable], coords={"client": again.posterior["client"].values[:1]})
        assert np.isfinite(one["mean"]).all()
        assert np.isfinite(az.loo(again).elpd_loo)
        assert len(az.compare({"one": again, "other": run.posterior(draws=40)})) == 2
        one_client = again.posterior["client"].values[:1]
        two = again.posterior[f"{variable}_dim_0"].values[:2]
        few = {"coords": {"client": one_client, f"{variable}_dim_0": two}, "var_names": [variable]}
        for draw in (az.plot_forest, az.plot_trace, az.plot_posterior, az.plot_pair):
            draw(again, **few)
        state = np.random.get_state()  # noqa: NPY002  (ArviZ draws from NumPy's global generator)
        az.plot_ppc(again, num_pp_samples=5)
        np.random.set_state(state)  # noqa: NPY002
        if name in CHAINS:
            az.plot_rank(again, **few)
            az.plot_ess(again, **few)
            assert np.isfinite(az.rhat(again)[variable]).all()
    plt.close("all")


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_chains_tell_of_their_draws(name: str) -> None:
    run = fitted_to(name)
    data, method, fed = run.posterior(), run.fitted.method, run.fitted.federation
    stats, (variable,) = data.sample_stats, data.posterior.data_vars
    adjusted = name != "fedpop"
    told = {"lp", "step_size", *(["acceptance_rate", "diverging"] if adjusted else [])}
    assert set(stats.data_vars) == told
    assert all(stats[k].dims == ("chain", "draw", "client") for k in told)
    if adjusted:
        assert stats["diverging"].dtype == bool
        assert not stats["diverging"].any()
        assert ((stats["acceptance_rate"] >= 0) & (stats["acceptance_rate"] <= 1)).all()
        assert 0.3 < float(stats["acceptance_rate"].mean()) < 0.85
        assert (stats["step_size"].max("draw") == stats["step_size"].min("draw")).all()  # held after burn-in
        assert float(stats["step_size"].isel(draw=0).std()) > 0  # each chain's own
    else:
        assert (stats["step_size"] == np.float32(method.settings.step_size)).all()
    # lp is the log joint at the draws, up to what does not depend on them
    j, latent = 1, data.posterior[variable].isel(client=1)
    draws = torch.as_tensor(latent.values, dtype=fed.dtype).flatten(0, 1)[:, None, None]
    height = log_joint(method, fed.batch([j]), run.fitted.values([j]), {variable: draws}).squeeze(1).numpy()
    lp = stats["lp"].isel(client=j).values.ravel()
    assert np.allclose(lp - lp.mean(), height - height.mean(), rtol=1e-4, atol=2e-3)
    # fewer draws are some of them, with their own statistics
    fewer = run.posterior(draws=data.posterior.sizes["chain"] * 5)
    step = data.posterior.sizes["draw"] / 5
    picked = [int(k * step) for k in range(5)]
    assert np.array_equal(fewer.posterior[variable], data.posterior[variable].isel(draw=picked))
    for k in told:
        assert np.allclose(fewer.sample_stats[k], stats[k].isel(draw=picked), rtol=1e-6), k


def test_some_clients_and_single_precision() -> None:
    run = fitted_to("mixed-effects")
    data, some = run.posterior(draws=40), run.posterior(draws=40, clients=["s5", 2])
    assert some.posterior["client"].values.tolist() == ["s5", "s2"]
    assert some.constant_data["client"].values.tolist() == ["s5", "s2"]
    for group in ("posterior", "prior", "sample_stats"):
        assert data[group].sel(client=["s5", "s2"]).equals(some[group])
    at = np.concatenate([np.flatnonzero(data.observed_data["client"].values == c) for c in ("s5", "s2")])
    for group in ("log_likelihood", "observed_data", "posterior_predictive"):
        assert np.array_equal(data[group]["y"].isel(obs=at), some[group]["y"])
    assert data.posterior["b"].dtype == data.log_likelihood["y"].dtype == np.float64
    half = run.posterior(draws=40, float32=True)
    for group in ("posterior", "prior", "log_likelihood", "posterior_predictive", "sample_stats"):
        for name, values in half[group].data_vars.items():
            assert values.dtype == (bool if name == "diverging" else np.float32)
            assert np.allclose(values, data[group][name], rtol=1e-5, atol=1e-6)
    for wrong, message in ((["s1", "s1"], "each once"), ([], "at least one"), (["nowhere"], "no client 'nowhere'")):
        with pytest.raises(UserError, match=message):
            run.posterior(clients=wrong)


def test_a_far_too_long_step_is_told() -> None:
    fed = slopes([12, 5], features=2)
    net = architecture("linear", fed, noise=0.05)
    method = FedPop(net, kernel="metropolis", step_size=50.0, final_steps=20, final_keep=5)
    run = fit(method, fed, rounds=1, dtype=torch.float64, progress=False)
    wild = [step.target for step in method.schedule().final_steps if isinstance(step, Langevin)]
    assert wild == [0.574]  # (it adapts; the first round's steps do not)
    chunk = ClientChunk(
        method, fed, [0, 1], 1, 0, run.shared, {k: v[:, None] for k, v in run.personal.items() if "/" not in k}
    )
    stats = Langevin(["z"], 10, 50.0, metropolis=True).run(chunk, 0).values["z_draws/stats"]
    assert stats.shape == (2, 1, 1, 10, 3)
    assert stats[..., 2].all()
    assert not stats[..., 0].any()

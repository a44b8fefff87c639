"""What every method exports, and what chains tell."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.federations import blobs, slopes
from support.representatives import of_all

from hierfl import UserError
from hierfl.arviz_data import group_names, import_arviz, of_trees
from hierfl.arviz_io import loo, write
from hierfl.data.formula.federate import from_formula
from hierfl.elpd import elpd_value
from hierfl.inference import Run, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.langevin.step import Langevin
from hierfl.inference.method.base import Method
from hierfl.inference.objective.log_joint import log_joint
from hierfl.models import FedPop, PFedV, PFedVEM, PFedVMP
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def fitted_to(name: str) -> Run:
    """A small fit of each method that ships with a posterior."""
    if name.startswith("mixed-effects"):
        df = pd.DataFrame(
            {"x": np.random.default_rng(0).normal(size=80), "site": np.repeat([f"s{j}" for j in range(8)], 10)}
        )
        df["y"] = df["x"] + np.repeat(np.arange(8) % 3, 10) + np.random.default_rng(2).normal(size=80)
        family = "gaussian" if name == "mixed-effects" else "poisson"
        df["y"] = df["y"] if family == "gaussian" else np.random.default_rng(1).poisson(np.exp(0.3 * df["y"]))
        fed, design = from_formula(df, "y ~ 1 + x + (1 + x | site)", family=family)
        method: Method = MixedEffects(design, draws=120)
        return fit(method, fed, rounds=100, dtype=torch.float64, progress=False)
    fed = blobs([40, 12, 30])
    if name == "pfedv":
        return fit(PFedV(architecture("mlp:6", fed, latent=True)), fed, rounds=2, progress=False)
    made: dict[str, Callable[[Architecture], Method]] = {
        "pfedvem": PFedVEM,
        "pfedvmp": PFedVMP,
        "fedpop": lambda net: FedPop(net, final_kernel="unadjusted", final_chains=2, final_steps=80, final_keep=20),
        "fedpop-metropolis": lambda net: FedPop(net, final_chains=2, final_steps=80, final_keep=20),
    }
    return fit(made[name](architecture("mlp:6", fed)), fed, rounds=2, progress=False)


CHAINS = {"fedpop", "fedpop-metropolis"}
MIXED = {"mixed-effects", "mixed-effects-poisson"}
EVERY = ["pfedvem", "pfedv", "pfedvmp", *sorted(CHAINS | MIXED)]


@pytest.mark.parametrize("name", of_all(EVERY, [*{*EVERY} - {"mixed-effects-poisson", "fedpop-metropolis"}], str))
def test_arviz_takes_every_method_and_files_keep_everything(name: str, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    az, run = import_arviz(), fitted_to(name)
    data = run.posterior()
    write(data, tmp_path / "posterior.nc")
    again = az.from_netcdf(tmp_path / "posterior.nc")
    assert sorted(group_names(again)) == sorted(group_names(data))
    for group in group_names(data):
        assert data[group].identical(again[group]), group
    variable = next(iter(data.posterior.data_vars))
    if name.startswith("mixed-effects"):
        assert data.posterior["b_dim_0"].values.tolist() == ["Intercept", "x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = az.summary(again, var_names=[variable], coords={"client": again.posterior["client"].values[:1]})
        assert np.isfinite(summary["mean"]).all()
        estimates = {"one": loo(again), "other": loo(run.posterior(draws=40))}
        assert np.isfinite(elpd_value(estimates["one"], "elpd"))
        assert len(az.compare(estimates)) == 2
        one_client = again.posterior["client"].values[:1]
        two = again.posterior[f"{variable}_dim_0"].values[:2]
        few = {"coords": {"client": one_client, f"{variable}_dim_0": two}, "var_names": [variable]}
        for draw in (az.plot_forest, az.plot_trace, az.plot_dist if of_trees() else az.plot_posterior, az.plot_pair):
            draw(again, **few)
        state = np.random.get_state()  # noqa: NPY002  # ArviZ draws from NumPy's global generator
        if of_trees():
            az.plot_ppc_dist(again, num_samples=5)
        else:
            az.plot_ppc(again, num_pp_samples=5)
        np.random.set_state(state)  # noqa: NPY002
        if name in CHAINS | MIXED:
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
        assert float(stats["acceptance_rate"].mean()) > 0.3
        assert (stats["step_size"].max("draw") == stats["step_size"].min("draw")).all()  # held after burn-in
        assert float(stats["step_size"].min()) > 0
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
    assert wild == [0.8]  # it adapts; the first round's steps do not
    chunk = ClientChunk(
        method, fed, [0, 1], 1, 0, run.shared, {k: v[:, None] for k, v in run.personal.items() if "/" not in k}
    )
    stats = Langevin(["z"], 10, 50.0, metropolis=True).run(chunk, 0).values["z_draws/stats"]
    assert stats.shape == (2, 1, 4, 10, 3)
    assert stats[..., 2].all()
    assert not stats[..., 0].any()

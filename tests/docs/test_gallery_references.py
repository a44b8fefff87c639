"""The gallery's references by NUTS: they are of the pages' own data and models, and what is settled mixed well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.gallery import GALLERY, Batch, enumerated, latents, load, log_joint, log_prior

PATHS = {path.stem: path for path in sorted((GALLERY / "references").glob("*.json"))}
#: models of which a federated fit is judged, with three data seeds each
JUDGED = (
    "eight_schools", "emax", "gaussian_mixture", "hidden_markov", "irt_2pl", "local_level", "meta_analysis",
    "negative_binomial", "ordinal", "poisson_glmm", "radon", "weibull_frailty",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_default_dtype(before)


@cache
def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", JUDGED)
def test_judged_models_have_references_that_mixed(name: str, seed: int) -> None:
    reference = read(PATHS[f"{name}-{seed}"])
    assert reference["settled"]
    assert not reference["caveat"]
    for quantity in reference["quantities"].values():
        assert np.max(quantity["rhat"]) < 1.01
        assert min(np.min(quantity["ess"]), np.min(quantity["ess_tail"])) >= 4000
    assert reference["divergences"] <= 1e-3 * reference["draws"] * reference["chains"]
    assert name != "eight_schools" or reference["quantities"]["tau"]["ess"] >= 10_000


@pytest.mark.parametrize("key", PATHS)
def test_a_reference_is_of_the_data_that_the_page_makes(key: str) -> None:
    reference = read(PATHS[key])
    assert key == f"{reference['model']}-{reference['seed']}"
    module = load(reference["model"])
    frame = module.data(reference["seed"])
    assert (reference["group"], reference["rows"]) == (module.GROUP, len(frame))
    assert reference["clients"] == sorted(frame[module.GROUP].unique())
    for quantity in reference["quantities"].values():
        mean, sd, low, high = (np.array(quantity[what]) for what in ("mean", "sd", "q05", "q95"))
        assert mean.shape == sd.shape == low.shape == high.shape == np.shape(quantity["ess"])
        assert quantity["of"] == "globals" or len(mean) == len(reference["clients"])
        assert (sd > 0).all()
        assert (low < high).all()


@pytest.mark.parametrize("key", PATHS)
def test_the_page_and_its_referee_have_the_same_log_joint(key: str) -> None:
    """Both write all constants; the referee sums over what the page enumerates by formulas of its own."""
    reference = read(PATHS[key])
    module = load(reference["model"])
    frame = module.data(reference["seed"])
    frame = frame.astype(dict.fromkeys(frame.select_dtypes(exclude="number"), "category"))
    values = {name: torch.tensor(value) for name, value in reference["point"]["values"].items()}
    first = Batch(frame, module.GROUP, reference["clients"][:1])
    own, sums = latents(module.model, first)[1], enumerated(module.model, first)
    shared = {name: value for name, value in values.items() if name not in own}
    prior = log_prior(module.model, first, shared)
    joint = prior
    for j, client in enumerate(reference["clients"]):
        mine = {name: values[name][j : j + 1, None] for name in own}
        joint = joint + log_joint(module.model, Batch(frame, module.GROUP, [client]), {**shared, **mine}, sums) - prior
    # A simplex was written with twelve digits.
    assert joint.item() == pytest.approx(reference["point"]["log_joint"], rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_eight_schools_is_its_quadrature(seed: int) -> None:
    """The mean mu and all effects integrate out in closed form, and what is left has one dimension, tau."""
    quantities = read(PATHS[f"eight_schools-{seed}"])["quantities"]
    frame = load("eight_schools").data(seed)
    y, sigma = frame["y"].to_numpy(), frame["sigma"].to_numpy()
    log_tau = np.linspace(-12.0, 9.0, 8001)
    tau = np.exp(log_tau)
    variance = sigma**2 + tau[:, None] ** 2
    precision, push = (1 / variance).sum(1) + 1 / 25, (y / variance).sum(1)
    log_density = -0.5 * (np.log(variance) + y**2 / variance).sum(1) + 0.5 * (push**2 / precision - np.log(precision))
    log_density += log_tau - np.log1p((tau / 5) ** 2)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mu = push / precision
    exact = {
        "tau": (weight @ tau, weight @ tau**2),
        "mu": (weight @ mu, weight @ (mu**2 + 1 / precision)),
    }
    for name, (mean, square) in exact.items():
        sd, got = np.sqrt(square - mean**2), quantities[name]
        error = sd / np.sqrt(got["ess"])
        assert got["mean"] == pytest.approx(mean, abs=4 * error)
        assert got["sd"] == pytest.approx(sd, rel=0.05)  # tau's fourth moment is large: its sd has a larger error

"""Every response by itself: its density beside SciPy's, derivatives, draws and limits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.responses import CASES, Case
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.data.formula.federate import from_formula
from hierfl.responses.binomial_links import LinkedBinomial
from hierfl.responses.counts import CountDistribution
from hierfl.responses.gamma_ratios import rising
from hierfl.responses.hurdle_poisson import HurdlePoisson
from hierfl.responses.nbinom1 import NegativeBinomial1
from hierfl.responses.registry import response_of
from hierfl.responses.zero_inflated_negative_binomial import ZeroInflatedNegativeBinomial
from hierfl.rng import generator

ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def rows_of(case: Case, df: pd.DataFrame) -> tuple[Any, Tensor, Columns, Mapping[str, Tensor]]:
    """The response, all rows but the first as one client's, their columns, and its own numbers at the truth."""
    columns = {k: v for k, v in case.how.items() if k not in ("cuts", "intervals")}
    federation, design = from_formula(df.assign(site=df.site.where(df.index < 1, "all")), case.formula,
                                      family=case.family, **columns)  # fmt: skip
    texts = {name: case.how.get(name, "") for name in ("cuts", "intervals", "degrees_of_freedom")}
    response = response_of(design, SimpleNamespace(noise_0=1.0, **texts))
    batch = federation.to("cpu", torch.float64).batch([federation.ids.index("all")])
    own = torch.tensor(case.own, dtype=torch.float64)
    sizes = [first.numel() for first in response.starts.values()]
    parts = zip(response.starts.items(), own.split(sizes), strict=True)
    values = {name: part if first.dim() else part[0] for (name, first), part in parts}
    if case.family == "student-t":  # whose scale is one over the spread of y
        values["log_scale"] = values["log_scale"] - np.log(response.unit)
    return response, batch.y, design.split(batch.x), values


@ALL
def test_densities_are_scipys(case: Case) -> None:
    df = case.table(8)
    df = df.assign(**case.known(df.assign(site=df.site.where(df.index < 1, "all"))))  # as rows_of has the sites
    response, y, columns, values = rows_of(case, df)
    eta = 1.5 * torch.randn(y.shape, generator=generator("eta"), dtype=torch.float64)
    ours = response.distribution(eta, values, columns).log_prob(y)[0].numpy()
    if case.family == "weibull":  # ours holds the intercept where it is when k changes
        eta = eta + (np.exp(case.own[0]) - 1) * response.c
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = case.log_density(df.iloc[1:], eta[0].numpy(), np.array(case.own))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@ALL
def test_a_total_is_the_sum_of_log_densities(case: Case) -> None:
    """Of more rows than are one product, some of which are filled up; and of rows of one trial where they may be."""
    response, y, columns, values = rows_of(case, case.table(8))
    if case.family.startswith("binomial"):
        y, columns = y.clamp(max=1.0), columns._replace(trials=None)
    mask = torch.rand(y.shape, generator=generator("mask")) < 0.8
    eta = (20 * torch.randn(4, *y.shape, generator=generator("eta"), dtype=torch.float64)).clamp(-300, 5)
    total = response.log_total(eta, y, values, columns, None)
    assert (total is not None) == (case.family in ("binomial", "poisson"))
    if total is None:
        return
    times = 3000 // y.shape[1]
    eta, y, mask = (value.repeat(*[1] * (value.dim() - 1), times) for value in (eta, y, mask))
    columns = columns._replace(trials=None)
    wanted = response.distribution(eta, values, columns).log_prob(y)
    for some, terms in ((None, wanted), (mask, torch.where(mask, wanted, 0.0))):
        torch.testing.assert_close(response.log_total(eta, y, values, columns, some), terms.sum(-1))


@ALL
def test_slopes_and_weights_are_the_densitys_derivatives(case: Case) -> None:
    response, y, columns, values = rows_of(case, case.table(8))
    eta = (1.5 * torch.randn(y.shape, generator=generator("eta"), dtype=torch.float64)).requires_grad_()
    height = response.distribution(eta, values, columns).log_prob(y).sum()
    (slope,) = torch.autograd.grad(height, eta, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), eta)
    derivatives = response.slope_and_weight(eta, y, values, columns)
    torch.testing.assert_close(derivatives[0], slope, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(derivatives[1].expand_as(eta), -bend, rtol=1e-9, atol=1e-9)
    safe = response.safe_weight(eta, y, values, columns)
    assert (safe >= 0).all()
    assert (derivatives[1] >= 0).all() == response.concave


@ALL
def test_what_is_drawn_has_the_mean(case: Case) -> None:
    response, _, columns, values = rows_of(case, case.table(8))
    eta = torch.linspace(-1, 1, 5).double()[:, None]
    selected = columns._replace(
        **{k: v[:1, :5].T for k, v in columns._asdict().items() if k in ("trials", "event") and v is not None}
    )
    fn = response.distribution(eta, values, selected)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = fn.sample(torch.Size([40_000]))
    gap = (drawn.mean(0) - fn.mean) / (drawn.std(0) / 200).clamp_min(1e-9)
    assert gap.abs().max() < 4.5


@pytest.mark.parametrize("size", [0.3, 20.0, 1e4, 1e9, 1e14])
def test_ratios_of_gamma_functions_keep_their_digits(size: float) -> None:
    """Beside products: Gamma(y + z) / (Gamma(z) z^y) is the product of 1 + i / z."""
    y = torch.tensor([0.0, 1.0, 2.0, 7.0, 60.0]).double()
    z = torch.tensor(size, dtype=torch.float64)
    i = torch.arange(60).double()
    counted = i < y[:, None]
    expected = torch.where(counted, torch.log1p(i / z), 0.0).sum(-1)
    torch.testing.assert_close(rising(y, z), expected, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(rising(y, z, 1), torch.where(counted, 1 / (z + i), 0.0).sum(-1), rtol=1e-11, atol=0)
    bend = torch.where(counted, -1 / (z + i).square(), 0.0).sum(-1)
    torch.testing.assert_close(rising(y, z, 2), bend, rtol=1e-9, atol=0)  # torch's own trigamma has ten digits


PLAIN = {"negative-binomial": "poisson", "nbinom1": "poisson", "zero-inflated-poisson": "poisson",
         "zero-inflated-negative-binomial": "negative-binomial", "beta-binomial": "binomial",
         "generalised-poisson": "poisson", "truncated-negative-binomial": "truncated-poisson",
         "hurdle-negative-binomial": "hurdle-poisson"}  # fmt: skip
WITHOUT = {"negative-binomial": ("log_size", 25.0), "zero-inflated-poisson": ("logit_zero", -30.0),
           "zero-inflated-negative-binomial": ("logit_zero", -30.0), "nbinom1": ("log_dispersion", -25.0),
           "beta-binomial": ("log_precision", 25.0), "generalised-poisson": ("log_dispersion", -25.0),
           "truncated-negative-binomial": ("log_size", 25.0),
           "hurdle-negative-binomial": ("log_size", 25.0)}  # fmt: skip


@pytest.mark.parametrize("wide", PLAIN)
def test_without_more_spread_they_are_the_plain_ones(wide: str) -> None:
    df, (name, limit) = CASES[PLAIN[wide]].table(6), WITHOUT[wide]
    response, y, columns, others = rows_of(CASES[wide], df)
    own = torch.tensor(limit).double().requires_grad_()
    eta = torch.randn(y.shape, generator=generator("eta"), dtype=torch.float64)
    height = response.distribution(eta, {**others, name: own}, columns).log_prob(y)
    expected = rows_of(CASES[PLAIN[wide]], df)[0].distribution(eta, others, columns).log_prob(y)
    torch.testing.assert_close(height, expected, rtol=1e-7, atol=1e-7)
    (slope,) = torch.autograd.grad(height.sum(), own)
    assert abs(float(slope)) < 1e-5


@pytest.mark.parametrize("size", [1e-3, 0.4, 3.0, 1e12])
@pytest.mark.parametrize("family", ["truncated-negative-binomial", "generalised-poisson"])
def test_hard_counts_have_their_derivatives_far_out(family: str, size: float) -> None:
    """Weights are differences of slopes, where neither a mean nor a size is an ordinary one."""
    case = CASES[family]
    response, *_ = rows_of(case, case.table(8))
    eta = torch.linspace(-12, 12, 49, dtype=torch.float64)
    (name,) = response.starts
    values, y, h = {name: torch.tensor(size).double().log()}, torch.tensor(2.0).double(), 1e-4
    at = [response.slope_and_weight(eta + k * h, y, values, None)[0] for k in (-2, -1, 1, 2)]
    bend = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h)
    weight = response.slope_and_weight(eta, y, values, None)[1]
    torch.testing.assert_close(weight, -bend, rtol=1e-7, atol=1e-9)


def test_without_an_end_of_df_a_t_is_a_normal() -> None:
    response, y, columns, values = rows_of(CASES["student-t"], CASES["gaussian"].table(6))
    df = torch.tensor(36.0).double().requires_grad_()
    eta = torch.randn(y.shape, generator=generator("eta"), dtype=torch.float64)
    height = response.distribution(eta, {**values, "log_df": df}, columns).log_prob(y)
    expected = torch.distributions.Normal(eta, response.scale(values)).log_prob(y)
    torch.testing.assert_close(height, expected, rtol=0, atol=1e-11)
    (slope,) = torch.autograd.grad(height.sum(), df)
    assert abs(float(slope)) < 1e-9


@pytest.mark.parametrize(
    "fn",
    [
        LinkedBinomial(torch.tensor(0.3).double().log(), torch.tensor(0.7).double().log(), torch.tensor(5.0).double()),
        NegativeBinomial1(torch.tensor(0.8).double(), torch.tensor(1.4).double()),
        ZeroInflatedNegativeBinomial(*torch.tensor([0.9, 1.7, -0.4]).double()),
        HurdlePoisson(*torch.tensor([0.6, -0.3]).double()),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_variances_are_sums_over_counts(fn: CountDistribution) -> None:
    """Pearson residuals divide by their roots."""
    y = torch.arange(400.0, dtype=torch.float64)[: 6 if isinstance(fn, LinkedBinomial) else None]
    p = fn.log_prob(y).exp()
    mean = (p * y).sum()
    torch.testing.assert_close(p.sum(), torch.ones(()).double())
    torch.testing.assert_close(fn.mean, mean)
    torch.testing.assert_close(fn.variance, (p * (y - mean).square()).sum())

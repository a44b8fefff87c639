"""Shrinkage: every client's coefficients by its own data alone and by the hierarchical model, and the population's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Design
from hierfl.ppl.restrict import Restrict

from .families import linear_predictor
from .model import MixedModel
from .newton import NEWTON_STEPS, NEWTON_TOLERANCE, PosteriorMode, damping
from .quadrature import passes

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.evaluation.fitted import Fitted

#: so many times the response's spread is the width of a prior that says nothing
FLAT_PRIOR_WIDTH = 1e5


def shrinkage_table(fitted: Fitted) -> pd.DataFrame:
    """Every client's coefficients alone and by the hierarchical model; the population's; the pooled.

    What a client has alone is the model's limit of an L so wide that it says nothing (fixed effects without a random
    part held); the pooled coefficients are that of L = 0, with all fixed effects fitted again. The hierarchical ones
    are shrunk to the population's: fixed effects of the fit. (Where clients differ in size, or the response is not
    gaussian, pooled data say something else.) A random effect that goes with no fixed one has a population of 0.

    Returns:
        Columns client, n, effect, local, population, pooled, hierarchical; local is NaN for a client whose data do not
        identify its coefficients, or put one of them at infinity.
    """
    import pandas as pd

    method, federation = fitted.method, fitted.federation
    assert isinstance(method, MixedModel)
    design, q = method.network, len(method.network.random)
    width = (FLAT_PRIOR_WIDTH * method.first_sd() / method.settings.sd_0).to(federation.device)
    wide = {"log_sd": width.log(), "corr": width.new_zeros(q * (q - 1) // 2)}
    with Restrict(fitted.values([0])):
        beta = method.value("beta")
    same = _combinations(fitted)
    population, pooled = same @ beta, same @ _pooled(fitted)
    local, hierarchical = beta.new_empty((federation.clients, q)), beta.new_empty((federation.clients, q))
    for clients in passes(fitted):
        batch, values = federation.batch(clients), fitted.values(clients)
        loose = {k: wide.get(k.rpartition(".")[2], v) for k, v in values.items()}
        with torch.no_grad():
            with Restrict(loose):
                mode, root = PosteriorMode(method).solve(batch)
            with Restrict(values):
                mean = PosteriorMode(method).solve(batch)[0]
        z = design.split(batch.x)[1]
        z = z if batch.mask is None else z * batch.mask[..., None]
        identified = torch.linalg.matrix_rank(z * width) == q
        # (a coefficient at infinity has hardly any curvature left where Newton's method ends)
        identified = identified & (root.norm(dim=-1) < 1e-2 * width).all(-1)
        if not method.exact and values["b_draws"].numel():
            mean = values["b_draws"].flatten(1, -2).mean(1)
        local[clients] = torch.where(identified[:, None], mode, torch.nan) + population
        hierarchical[clients] = mean + population
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "client": list(federation.ids), "n": federation.sizes(), "effect": design.random[k],
                    "local": local[:, k].cpu().numpy(), "population": float(population[k]),
                    "pooled": float(pooled[k]), "hierarchical": hierarchical[:, k].cpu().numpy(),
                }
            )
            for k in range(q)
        ],
        ignore_index=True,
    )  # fmt: skip


def _all_rows(fitted: Fitted) -> tuple[Batch, Tensor, Tensor]:
    """All training rows as one client's, and their x (1, N, p) and z (1, N, q)."""
    design, federation = fitted.method.network, fitted.federation
    assert isinstance(design, Design)
    index = torch.cat(list(federation.train))[None]
    batch = replace(federation.gather(index, None, [0]), n=index.new_full((1,), index.numel(), dtype=federation.dtype))
    x, z, _ = design.split(batch.x)
    return batch, x, z


def _combinations(fitted: Fitted) -> Tensor:
    """C (q, p) with x = z C for those fixed columns that are combinations of random ones; the others' are 0.

    So x beta is z (C beta), and what is left of it, which has no random part.
    """
    _, x, z = _all_rows(fitted)
    x, z = x.flatten(0, 1), z.flatten(0, 1)
    scale = z.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
    found = torch.linalg.lstsq(z / scale, x, driver="gelsd").solution
    gap = (z / scale @ found - x).norm(dim=0) / x.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(gap < 1e-8, found / scale[:, None], 0.0)


def _pooled(fitted: Fitted) -> Tensor:
    """The fixed effects where clients do not differ, (p,): the damped Newton steps of :mod:`.newton`."""
    method = fitted.method
    assert isinstance(method, MixedModel)
    batch, x, _ = _all_rows(fitted)
    _, _, known = method.network.split(batch.x)
    with Restrict(fitted.values([0])), torch.no_grad():
        beta = method.value("beta").clone()
        for _ in range(NEWTON_STEPS):
            slope, weight = PosteriorMode(method).derivatives(linear_predictor(x, beta), batch, known)
            # least squares of the rows, whose columns may hardly be told apart (a year, and its square)
            root = weight.clamp_min(0).sqrt().flatten()
            root, slope = root[root > 0, None], slope.flatten()[root > 0]
            rows = x.flatten(0, 1)[weight.flatten() > 0] * root
            scale = rows.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
            step = torch.linalg.lstsq(rows / scale, slope[:, None] / root, driver="gelsd").solution[:, 0] / scale
            far = (x @ step).abs().amax()
            beta = beta + (step if method.exact else damping(far) * step)
            if method.exact or far < NEWTON_TOLERANCE:
                break
    return beta

"""Shrinkage: every client's coefficients by its own data alone and by the hierarchical model, and the population's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError

from ..likelihood.moments import triangle
from ..likelihood.quadrature.newton import NEWTON_TOLERANCE
from ..model.arithmetic import linear
from ..model.effects import users_beta
from ..model.equations import MixedModel
from ..model.names import by_short_name

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.evaluation.fitted import Fitted

#: width of a flat prior, over the response's spread
FLAT_PRIOR_WIDTH = 1e5
#: examples, padding included, and clients of a pass
EXAMPLES_PER_PASS, CLIENTS_PER_PASS = 1_000_000, 1000


def shrinkage_table(fitted: Fitted) -> pd.DataFrame:
    """Every client's coefficients by its own data and by the hierarchical model, the population's, and the pooled ones.

    A client's own coefficients are the model's limit for an infinitely wide L; fixed effects without a random part stay
    as they were fitted. The pooled coefficients are those of L = 0, with all fixed effects fitted again. The
    hierarchical ones are posterior means, shrunk towards the population's, which are the fit's fixed effects. Where
    clients are in groups, such as regions, both include the group's effect. Pooled coefficients differ from the
    population's where clients differ in size, or where the response is not gaussian. A random effect without a fixed
    one has a population of 0.

    Returns:
        Columns client, n, effect, local, population, pooled, hierarchical; local is NaN for a client whose data do not
        identify its coefficients, or put one of them at infinity.
    """
    import pandas as pd

    method, federation = fitted.method, fitted.federation
    assert isinstance(method, MixedModel)
    if method.network.spread:
        raise UserError("shrinkage is of clients with one residual deviation: ranef() and residual_sds() say theirs")
    design, q, shared = method.network, method.covariance.q, by_short_name(fitted.shared)
    width = FLAT_PRIOR_WIDTH * design.scale * torch.ones(q, dtype=torch.float64, device=federation.device)
    turn = method.groupings["root"].to_users(width)
    same = _combinations(fitted)
    population, pooled = (same @ users_beta(method, beta) for beta in (shared["beta"], _pooled(fitted)))
    local, hierarchical = (width.new_empty((federation.clients, q)) for _ in range(2))
    loose = {**shared, "root": method.covariance.diagonal(width)}
    for clients in passes(fitted):
        batch, values = federation.batch(clients), fitted.values(clients)
        with torch.no_grad():
            u, factor = method.likelihood.modes(batch, values, loose)
        z = design.split(batch.x).z
        z = z if batch.mask is None else z * batch.mask[..., None]
        root = method.covariance.matrix(loose["root"])
        # A coefficient at infinity has hardly any curvature left where Newton's method ends.
        determined = (triangle(root, factor).norm(dim=-1) < 1e-2 * width).all(-1) & (torch.linalg.matrix_rank(z) == q)
        local[clients] = torch.where(determined[:, None], u @ root.T @ turn.T, torch.nan) + population
        hierarchical[clients] = _posterior_means(fitted, clients, same)
    moved = _regions(fitted, width)
    local, hierarchical = local + moved, hierarchical + moved
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


def passes(fitted: Fitted) -> Iterator[list[int]]:
    """All clients, largest first, in groups that are padded little and fit into memory."""
    sizes = fitted.federation.sizes()
    order = sorted(range(len(sizes)), key=lambda j: -sizes[j])
    for first, last in buckets([sizes[j] for j in order], EXAMPLES_PER_PASS):
        for row in range(first, last, CLIENTS_PER_PASS):
            yield order[row : min(row + CLIENTS_PER_PASS, last)]


def _posterior_means(fitted: Fitted, clients: list[int], same: Tensor) -> Tensor:
    """Posterior means of the clients' coefficients, (S, q), averaged over what is not known of the population's."""
    method = fitted.method
    assert isinstance(method, MixedModel)
    values = fitted.values(clients)
    turn = method.groupings["root"].to_users(same)
    kept = values["b_draws"].shape[-2] > 0
    draws = method.parts(fitted.shared["effects.draws"])["beta"] if kept else by_short_name(fitted.shared)["beta"][None]
    return (users_beta(method, draws) @ same.T).mean(0) + values["b_mean"].squeeze(1) @ turn.T


def _regions(fitted: Fitted, like: Tensor) -> Tensor:
    """Effects of the clients' groups on the coefficients that clients have, too, (J, q)."""
    method = fitted.method
    assert isinstance(method, MixedModel)
    random = method.network.random
    effects_of_regions = like.new_zeros(fitted.federation.clients, method.covariance.q)
    for level in method.above:
        effects = fitted.shared[f"effects.{level.effects}"] @ level.grouping.to_users(like).T
        homes = fitted.federation.about["reader"].places.homes
        own = effects[torch.tensor([homes.get(name, 0) for name in fitted.federation.ids])]
        for k, name in enumerate(level.grouping.names):
            if name in random:
                effects_of_regions[:, random.index(name)] = own[:, k]
    return effects_of_regions


def _all_rows(fitted: Fitted) -> Batch:
    """All training rows as one client's."""
    federation = fitted.federation
    index = torch.cat(list(federation.train))[None]
    return replace(federation.gather(index, None, [0]), n=index.new_full((1,), index.numel(), dtype=federation.dtype))


def _combinations(fitted: Fitted) -> Tensor:
    """C (q, p) with x = z C for those fixed columns that are combinations of random ones; the others' are 0.

    So x beta is z (C beta) plus the part of x beta without a random part. Columns are the table's, without units.
    """
    design = fitted.method.network
    inputs = _all_rows(fitted).x[0]
    p, q = len(design.fixed), len(design.random)  # type: ignore[attr-defined]
    x, z = inputs[:, :p], inputs[:, p : p + q]
    scale = z.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
    solution = torch.linalg.lstsq(z / scale, x, driver="gelsd").solution
    gap = (z / scale @ solution - x).norm(dim=0) / x.norm(dim=0).clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(gap < 1e-8, solution / scale[:, None], 0.0)


@torch.no_grad()
def _pooled(fitted: Fitted) -> Tensor:
    """The fixed effects where clients do not differ, (p,): damped Newton steps, as for a mode."""
    method = fitted.method
    assert isinstance(method, MixedModel)
    batch, shared = _all_rows(fitted), by_short_name(fitted.shared)
    columns = method.network.split(batch.x)
    values = {name: shared[name] for name in method.response_family.starts}
    beta = shared["beta"].clone()
    for _ in range(method.likelihood.newton_steps):
        slope, weight = method.response_family.slope_and_weight(
            method.predictor(columns, beta), batch.y, values, columns
        )
        # least squares of the rows: their columns may be nearly collinear
        root = weight.clamp_min(0).sqrt().flatten()
        rows = columns.x.flatten(0, 1)[root > 0] * root[root > 0, None]
        target = slope.flatten()[root > 0, None] / root[root > 0, None]
        step = torch.linalg.lstsq(rows, target, driver="gelsd").solution[:, 0]
        far = linear(columns.x, step).abs().amax() / method.response_family.unit
        beta = beta + method.likelihood.damping(far) * step
        if far < NEWTON_TOLERANCE:
            break
    return beta

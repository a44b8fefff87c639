"""The population of PFedEB: first values, and draws of a Gaussian q(w) and of the logarithms of its spreads."""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.inference.local.laplace.points import deviations
from hierfl.inference.local.laplace.population_terms import Groups
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.ppl.lattice import standard_points
from hierfl.rng import normals

from .config import Config
from .head_nodes import design
from .settings import PFedEBSettings

#: standard deviation of log rho below which draws are made at its mean alone
NARROW = 0.05
#: draws of the head over which a step of the base averages
BASE_DRAWS = 8


def initial_population(c: Config, s: PFedEBSettings, start: InitialWeights) -> State:
    """The server's first values, the base included, {name: (*shape)}."""
    if s.prior == "flat":
        return start.base
    count = c.number_of_blocks
    log_rho = torch.full((count,), s.sigma_0, dtype=torch.float64).log()
    if s.prior == "fixed":
        return {"w": torch.zeros_like(start.head), "w.log_rho": log_rho, **start.base}
    covariance = torch.zeros(c.groups.packed_size, dtype=torch.float64)
    population = {
        "w": s.init_scale * start.head,
        "w.covariance": covariance,
        "w.log_scale": torch.full_like(log_rho, s.w_scale or 1.0).log(),
        "w.log_rho": log_rho,
        "w.information": torch.eye(count, dtype=torch.float64),
        "w.log_evidence": torch.zeros(1, dtype=torch.float64),
        **({"w.log_varies": torch.full_like(log_rho, 0.3).log()} if c.own_spreads else {}),
        **({"w.waits": torch.ones(1, dtype=torch.float64)} if s.settle else {}),
    }
    if c.nodes:
        z, weights = design(count)
        k = 1 + len(z)
        population |= {
            "nodes": population["w"].expand(k, -1),
            "nodes.covariance": covariance.expand(k, -1),
            "nodes.log_rho": log_rho.expand(k, -1),
            "nodes.log_weight": torch.cat([weights[:1] - 100, weights]),
        }
    return {**population, **start.base}


def initial_head(c: Config, s: PFedEBSettings, start: InitialWeights) -> State:
    """First values of every client, {name: (*shape)}."""
    mu = s.init_scale * start.head
    if s.prior == "flat":
        return {"mu": mu}
    values = {"mu": mu, "w_j_draws": mu.expand(1, BASE_DRAWS if c.points > 1 else 1, -1)}
    if c.points > 1:
        values["w_j_away"] = mu.new_zeros(deviations(len(mu)), len(mu))
    if not c.learned:
        return values
    log_rho = torch.full((c.number_of_blocks,), s.sigma_0, dtype=torch.float64).log()
    values |= {"seen": mu.new_zeros(len(log_rho) + 1), "w_j_begun": mu}
    if c.own_spreads:
        values |= {"log_rho": log_rho, "log_rho_sd": torch.ones_like(log_rho)}
    if c.nodes:
        k = 1 + len(design(len(log_rho))[0])
        values |= {f"{name}_nodes": values[name].expand(k, *values[name].shape) for name in c.posterior().posterior}
    return values


def of_numbers(log: Tensor, blocks: Tensor) -> Tensor:
    """Spreads of a head's numbers (..., d) from the logarithms of blocks' (..., B)."""
    return log.exp()[..., blocks.to(log.device)]


def population_draws(shared: State, groups: Groups, order: Tensor, kept: int, number: int, own: bool) -> State:
    """w and log rho at draws of their posterior, in the order of a client's own draws: (number, 1, 1, ...).

    Those of w come in pairs m + e, m - e, first all of the first. log rho takes few values, the same for both of a
    pair: those of the nodes, where there are any, with q(w) of the same node; else points of a Gaussian.

    Args:
        shared: "w" and what is called after it, and "nodes" where there are any.
        groups: of the covariance.
        order: of the weight matrix, in which the covariance is.
        kept: number of draws that clients keep.
        number: how many of these are wanted, read evenly as :meth:`~hierfl.ppl.empirical_draws.EmpiricalDraws.some`.
        own: whether clients have log rho of their own: then w alone is drawn.
    """
    m, half = shared["w"], max(1, kept // 2)
    if "nodes" in shared:
        weights = shared["nodes.log_weight"].double().softmax(-1)
        places = (torch.arange(half, dtype=torch.float64, device=m.device) + 0.5) / half
        at = torch.searchsorted(weights.cumsum(-1), places).clamp_max(len(weights) - 1)
        means, covariances, points = (shared[k] for k in ("nodes", "nodes.covariance", "nodes.log_rho"))
    else:
        points = rho_points(shared["w.log_rho"].double(), shared["w.information"].double())
        at = torch.arange(half, device=m.device) % len(points)
        means, covariances = (shared[k][None] for k in ("w", "w.covariance"))
    which = at if len(means) > 1 else torch.zeros_like(at)
    root = groups.root(covariances)  # (K, G, p, p)
    e = normals(torch.Size((half, len(m))), 0, "population draws", dtype=torch.float64, device=m.device)
    away = torch.empty_like(e)
    for node in range(len(means)):
        at_node = which == node
        away[at_node] = (root[node] @ groups.split(e[at_node])[..., None]).squeeze(-1).flatten(-2)
    away = away[:, order.to(m.device).argsort()]
    centre, rho = means[which].double(), points[at]
    odd = kept % 2
    w = torch.cat([centre + away, centre[:odd], centre - away]).to(m)
    some = torch.arange(number, device=m.device) * kept // number
    draws = {"w": w[some][:, None, None]}
    if not own:
        draws["w.log_rho"] = torch.cat([rho, rho[:odd], rho]).to(m)[some][:, None, None]
    return draws


def rho_points(log_rho: Tensor, information: Tensor) -> Tensor:
    """Points (P, B) of equal weight, with the mean and covariance of N(log_rho, information^-1)."""
    sd = torch.linalg.inv(information).diagonal().sqrt()
    if bool((sd < NARROW).all()):
        return log_rho[None]
    z = standard_points(len(log_rho)).to(log_rho)
    root = torch.linalg.cholesky(information)
    # A spread at zero has no information. It is known to be small, and stays.
    away = torch.linalg.solve_triangular(root.mT, z.mT, upper=True).mT
    return log_rho + away.clamp(-2, 2)

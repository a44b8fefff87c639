"""A population with a Gaussian posterior of its mean, and a posterior of the logarithms of its spreads."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hierfl.inference.local.laplace.curvature import Covariance
from hierfl.inference.local.laplace.points import EXACT, deviations
from hierfl.inference.local.laplace.population_terms import Groups, PopulationTerms
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.server.rules.head_nodes import design
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.head import LinearHead
from hierfl.ppl.lattice import standard_points
from hierfl.rng import normals

#: standard deviation of log rho below which draws are made at its mean alone
NARROW = 0.05
#: numbers of a head whose matrices can be sent
MEDIUM = 600


def block_numbers(head: LinearHead, apart: bool) -> Tensor:
    """The block of each of a head's numbers, (d,): weights 0, and biases 1 where they are apart."""
    blocks = torch.zeros(head.d, dtype=torch.long)
    if apart and head.bias:
        blocks[head.rows * head.features :] = 1
    return blocks


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
        kept: draws that clients keep.
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
        there = which == node
        away[there] = (root[node] @ groups.split(e[there])[..., None]).squeeze(-1).flatten(-2)
    away = away[:, order.to(m.device).argsort()]
    centre, rho = means[which].double(), points[at]
    odd = kept % 2
    w = torch.cat([centre + away, centre[:odd], centre - away]).to(m)
    some = torch.arange(number, device=m.device) * kept // number
    found = {"w": w[some][:, None, None]}
    if not own:
        found["w.log_rho"] = torch.cat([rho, rho[:odd], rho]).to(m)[some][:, None, None]
    return found


def rho_points(log_rho: Tensor, information: Tensor) -> Tensor:
    """Points (P, B) of equal weight, with the mean and covariance of N(log_rho, information^-1)."""
    sd = torch.linalg.inv(information).diagonal().sqrt()
    if bool((sd < NARROW).all()):
        return log_rho[None]
    z = standard_points(len(log_rho)).to(log_rho)
    root = torch.linalg.cholesky(information)
    # (a spread at zero has no information, and nothing is known of it but that it is small: it is left there)
    away = torch.linalg.solve_triangular(root.mT, z.mT, upper=True).mT
    return log_rho + away.clamp(-2, 2)


class NormalPopulation(Method):
    """What a method with clients' heads w_j ~ N(w, diag(rho)^2) and a Gaussian q(w) begins with, draws and reports."""

    settings: Any
    #: draws of the head over which a step of the base averages
    base_draws = 8

    def __init__(self, network: Architecture, **settings: object) -> None:
        if network.noise is None:
            network = replace(network, head=replace(network.head, contrasts=True))
        super().__init__(network, **settings)
        s, head = self.settings, network.head
        # (of classes, draws of the biases would average over shares of the labels, and a pool has those of w)
        self.global_draws = 0 if network.noise is None else 100
        #: the block of each of the head's numbers, (d,), and the order of its weight matrix
        self.blocks, self.order_of_matrix = block_numbers(head, s.spreads != "pooled"), head.matrix_order
        columns = head.features + head.bias
        groups = {"diagonal": Groups(head.d, 1), "outputs": Groups(head.rows, columns), "full": Groups(1, head.d)}
        self.groups = groups[s.exchange if s.exchange != "auto" else "full" if head.d <= MEDIUM else "outputs"]
        self.covariance: Covariance = (
            s.covariance if s.covariance != "auto" else "full" if head.d <= MEDIUM else "low_rank"
        )
        self.points = s.points or (64 if self.is_small else 16)
        self.own = s.spreads == "clients" and s.prior == "hierarchical"
        nodes = s.nodes == "on" or (s.nodes == "auto" and self.is_small)
        self.has_nodes = s.prior == "hierarchical" and nodes and not self.own

    @property
    def is_small(self) -> bool:
        """Whether exact treatment is cheap."""
        return self.network.head.d <= EXACT

    @abstractmethod
    def posterior(self, terms: PopulationTerms | None = None, final: bool = False) -> GaussianHead:
        """The step on a head's posterior."""

    def shared(self, start: InitialWeights) -> State:
        s, count = self.settings, int(self.blocks.max()) + 1
        if s.prior == "flat":
            return start.base
        log_rho = torch.full((count,), s.sigma_0, dtype=torch.float64).log()
        if s.prior == "fixed":
            return {"w": torch.zeros_like(start.head), "w.log_rho": log_rho, **start.base}
        covariance = torch.zeros(self.groups.packed_size, dtype=torch.float64)
        population = {
            "w": s.init_scale * start.head,
            "w.covariance": covariance,
            "w.log_scale": torch.full_like(log_rho, s.w_scale or 1.0).log(),
            "w.log_rho": log_rho,
            "w.information": torch.eye(count, dtype=torch.float64),
            "w.log_evidence": torch.zeros(1, dtype=torch.float64),
            **({"w.log_varies": torch.full_like(log_rho, 0.3).log()} if self.own else {}),
        }
        if self.has_nodes:
            z, weights = design(count)
            k = 1 + len(z)
            population |= {
                "nodes": population["w"].expand(k, -1),
                "nodes.covariance": covariance.expand(k, -1),
                "nodes.log_rho": log_rho.expand(k, -1),
                "nodes.log_weight": torch.cat([weights[:1] - 100, weights]),
            }
        return {**population, **start.base}

    def personal(self, start: InitialWeights) -> State:
        mu, s = self.settings.init_scale * start.head, self.settings
        if s.prior == "flat":
            return {"mu": mu}
        found = {"mu": mu, "w_j_draws": mu.expand(1, self.base_draws if self.points > 1 else 1, -1)}
        if self.points > 1:
            found["w_j_away"] = mu.new_zeros(deviations(len(mu)), len(mu))
        if s.prior == "hierarchical":
            log_rho = torch.full((int(self.blocks.max()) + 1,), s.sigma_0, dtype=torch.float64).log()
            found |= {"seen": mu.new_zeros(len(log_rho) + 1), "w_j_begun": mu}
            if self.own:
                found |= {"log_rho": log_rho, "log_rho_sd": torch.ones_like(log_rho)}
            if self.has_nodes:
                k = 1 + len(design(len(log_rho))[0])
                found |= {
                    f"{name}_nodes": found[name].expand(k, *found[name].shape) for name in self.posterior().posterior
                }
        return found

    def shared_draws(self, shared: State, number: int) -> State:
        s = self.settings
        if s.prior != "hierarchical":
            return {}
        return population_draws(shared, self.groups, self.order_of_matrix, s.draws, number, self.own)

    def population_draws(self, shared: State, number: int) -> tuple[list[str], Tensor] | None:
        drawn = {k: v[:, 0, 0] for k, v in self.shared_draws(shared, number).items()}
        if not drawn:
            return None
        blocks = ["weights", "biases"] if len(shared["w.log_rho"]) > 1 else ["all"]
        names = [f"w[{k}]" for k in range(len(shared["w"]))]
        if "w.log_rho" not in drawn:
            return names, drawn["w"]
        return [*(f"rho[{b}]" for b in blocks), *names], torch.cat([drawn["w.log_rho"].exp(), drawn["w"]], -1)

    def client_summary(self, v: State) -> State:
        if self.settings.prior == "flat":
            return {}
        draws = v["w_j_draws"].flatten(2, 3)
        found = {"uncertainty": draws.var(2).mean((1, 2))}  # tr Cov(w_j | D) / d
        if self.settings.prior == "hierarchical":
            own = "log_rho" if self.own else "w.log_rho"
            away = (v["mu"] - v["w"]) / of_numbers(v[own], self.blocks)
            gamma = v["seen"][..., :-1].sum((1, 2))
            found["gamma"] = gamma  # effective number of parameters
            found["weight"] = v["seen"][..., -1].flatten()  # in w
            # |mu_j - m|^2 / (rho^2 gamma_j); a client without data is where the population is
            found["surprise"] = away.square().sum((1, 2)) / gamma.clamp_min(torch.finfo(gamma.dtype).tiny)
            if self.own:
                found["rho"] = v["log_rho"].mean((1, 2)).exp()
        return found

    @property
    def has_global_model(self) -> bool:
        return self.settings.prior == "hierarchical"

"""PFedEB: personalised federated empirical Bayes, the heads integrated out.

A method of this project: the model of pFedVEM, with a posterior of w and with spreads that the data decide.

    w            ~ N(0, diag(s_w)^2)
    w_j | w      ~ N(w, D),   D = diag(rho)^2;    s_w and rho: one for the weights, one for the biases
    y_ij | x_ij  ~ Categorical(softmax(Q^T w_j h_theta(x_ij)))       Q: orthonormal contrasts of the classes

    q(w)         = N(m, S)
    q(w_j | w)   = N(P_j^-1 (H_j mu_j + g_j + D^-1 w), P_j^-1),    P_j = H_j + D^-1

with g_j and H_j gradient and curvature of client j's log likelihood, averaged over draws of q(w_j). A round, at every
client: mu_j by Newton's steps; derivatives by w and log rho of its likelihood with w_j integrated out; a copy of theta
by gradient on the mean log likelihood. Clients that take part send these, and n_j theta_j, n_j. The server sums them:

    A_j = H_j (I + D H_j)^-1,   u_j = D^-1 (E[w_j | m] - m)
    S = (sum A_j + A_0)^-1,     m <- m + S (sum u_j - A_0 m),      A_0 = diag(s_w)^-2
    d l / d log rho_b = sum_j |E[w_j | m] - m|_b^2 / rho_b^2 - sum_j tr_b(H_j P_j^-1) + rho_b^2 sum_j tr_b(A_j S A_j)

Predictions draw log rho, then w, then w_j given w: a client's own data are counted once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from pyro.distributions import Delta, Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.gradient_transforms import Clipped
from hierfl.inference.local.laplace.population_terms import PopulationTerms
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.local.until import Until
from hierfl.inference.method.about import About
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, flat, param, sample

from .at_nodes import AtNodes
from .config import Config
from .head_nodes import HeadNodes
from .head_population import HeadPopulation
from .population import BASE_DRAWS, initial_head, initial_population, of_numbers, population_draws
from .settings import PFedEBSettings
from .waiting import Waiting


class PFedEB(Method):
    """Laplace posteriors of heads with correlations, Gaussian q(w), spreads by marginal likelihood, averaged base."""

    about = About(
        name="pfedeb",
        what="empirical Bayes, heads integrated out (this project)",
        family="hierarchical",
        stays="q(head)",
        sent="likelihood of w, score of rho, base",
        message_size=1.58,
        order=70,
    )
    independent_draws = True

    class Settings(PFedEBSettings):
        """See :class:`.settings.PFedEBSettings`."""

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.noise is None:
            network = replace(network, head=replace(network.head, contrasts=True))
        super().__init__(network, **settings)
        # Of classes, draws of the biases would average over shares of the labels, and a pool has those of w.
        self.global_draws = 0 if network.noise is None else 100
        self.config = Config.from_settings(self.settings, network.head)

    def shared(self, start: InitialWeights) -> State:
        return initial_population(self.config, self.settings, start)

    def personal(self, start: InitialWeights) -> State:
        return initial_head(self.config, self.settings, start)

    def model(self, batch: Batch) -> None:
        net, s = self.network, self.settings
        p = flat(net.head.d)
        if s.prior == "hierarchical":
            s_w = self.of_numbers(param("w.log_scale"))  # (d,)
            w = sample("w", Normal(0.0 * s_w, s_w).to_event(1))
        elif s.prior == "fixed":
            w = sample("w", flat(net.head.d))
        if s.prior != "flat":
            rho = self.of_numbers(param(self.log_rho))  # (d,), or (S, 1, d) where spreads are the clients' own
            p = Normal(w, rho).to_event(1)
        with clients(batch):
            w_j = sample("w_j", p)  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        q = Delta(param("mu")).to_event(1) if self.settings.prior == "flat" else EmpiricalDraws(param("w_j_draws"), 1)
        with clients(batch):
            sample("w_j", q)

    @property
    def log_rho(self) -> str:
        """The value that has the logarithms of the spreads around w: a client's own, or the population's."""
        return "log_rho" if self.config.own_spreads else "w.log_rho"

    def of_numbers(self, log: Tensor) -> Tensor:
        """Spreads of the head's numbers (..., d) from the logarithms of blocks' (..., B)."""
        return of_numbers(log, self.config.blocks)

    def posterior(self, terms: PopulationTerms | None = None, final: bool = False) -> GaussianHead:
        """The step on q(w_j); see :meth:`.config.Config.posterior`."""
        return self.config.posterior(terms, final)

    def local(self) -> list[LocalStep]:
        s, c = self.settings, self.config
        particles = 1 if s.prior == "flat" or c.points == 1 else BASE_DRAWS
        base = SVI(
            ["base"], s.base_epochs, sgd(s.base_lr, s.momentum), s.base_batch, particles, per="example",
            transform=Clipped(s.base_clip),  # where few examples say little of a head, some draws are far away
        )  # fmt: skip
        if s.prior == "flat":
            return [SVI(["mu"], s.head_epochs, sgd(s.head_lr, s.momentum)), Until(base, s.base_rounds)]
        head = self.posterior(c.terms() if c.learned else None)
        nodes = [AtNodes(head, "w", "nodes")] if c.nodes else []
        trained = Until(base, s.base_rounds)
        return [head, *nodes, Waiting(trained, "w.waits") if c.learned and s.settle else trained]

    def untrained_parts(self, rounds: int) -> str:
        """See :class:`~hierfl.inference.method.few_rounds.NeedsRounds`."""
        settle = self.settings.settle
        return "" if not self.config.learned or rounds > settle else (
            f"the base may wait for {settle} rounds (settle), and this fit has {rounds}: it may end with its base "
            "untrained"
        )  # fmt: skip

    def exchange(self) -> dict[str, AggregationRule]:
        s, c = self.settings, self.config
        rules: dict[str, AggregationRule] = {"base": SampleWeighted(s.server_lr, s.server_momentum, s.base_rounds)}
        if not c.learned:
            return rules
        rules["w"] = HeadPopulation(
            "w", "w_j", order=c.order, blocks=c.blocks_in_order, groups=c.groups, rho_scale=s.rho_scale,
            learn_scale=not s.w_scale, server_lr=s.server_lr, settle=s.settle,
        )  # fmt: skip
        if c.nodes:
            rules["nodes"] = HeadNodes(
                "nodes", "w", order=c.order, blocks=c.blocks_in_order, groups=c.groups, rho_scale=s.rho_scale,
                server_lr=s.server_lr,
            )  # fmt: skip
        return rules

    def schedule(self) -> Schedule:
        s = self.settings
        if s.prior == "flat":
            return Schedule()
        # A posterior follows from the shared values and the client's data: who does not report need not keep it fresh.
        return Schedule(absent="freeze", final_steps=[self.posterior(final=True)], final_when="evaluation")

    def shared_draws(self, shared: State, number: int) -> State:
        c = self.config
        return population_draws(shared, c.groups, c.order, c.draws, number, c.own_spreads) if c.learned else {}

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
        summary = {"uncertainty": draws.var(2).mean((1, 2))}  # tr Cov(w_j | D) / d
        if self.settings.prior == "hierarchical":
            away = (v["mu"] - v["w"]) / self.of_numbers(v[self.log_rho])
            gamma = v["seen"][..., :-1].sum((1, 2))
            summary["gamma"] = gamma  # effective number of parameters
            summary["weight"] = v["seen"][..., -1].flatten()  # in w
            # |mu_j - m|^2 / (rho^2 gamma_j); a client without data is where the population is
            summary["surprise"] = away.square().sum((1, 2)) / gamma.clamp_min(torch.finfo(gamma.dtype).tiny)
            if self.config.own_spreads:
                summary["rho"] = v["log_rho"].mean((1, 2)).exp()
        return summary

    @property
    def has_global_model(self) -> bool:
        return self.settings.prior == "hierarchical"

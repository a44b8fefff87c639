"""pFedVEM: confidence-aware personalised federated learning by variational EM.

Zhu, Ma and Blaschko, CVPR 2023. Head weights w_j differ between clients, the base network theta is all clients':

    w_j | w      ~ N(w, rho_j^2 I)                                        (4)    w flat, rho_j > 0
    y_ij | x_ij  ~ Categorical(softmax(w_j^T h_theta(x_ij)))
    q(w_j)       = N(mu_j, diag sigma_j^2),  sigma_j = softplus(pi_j)     (11)   w and theta are points

    ELBO = sum_j  E_q log p(D_j | w_j, theta) - KL(q(w_j) || p(w_j | w, rho_j^2))   (5)

A round, at every client: rho_j by (8); mu_j and pi_j by gradient on the ELBO; theta_j, a copy of theta, by gradient on
the mean log likelihood. Those who take part send tau_j mu_j, tau_j, n_j theta_j and n_j, with tau_j as of (8), before
mu_j and pi_j move. The server divides (9). A head has d numbers.

    rho_j^-2 = tau_j = d / (sum sigma_j^2 + |mu_j - w|^2)                                                (8)
    w  = sum_j tau_j mu_j / sum_j tau_j,    theta = sum_j n_j theta_j / sum_j n_j                        (9)

``shares="on"`` is an ablation of this project: y has the offset log E[pi_j | n_j] - log m (:mod:`._share_offset`).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro.distributions import Delta, Normal
from torch.nn.functional import softplus

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.closed_form import ClosedForm
from hierfl.inference.local.optimizers import decayed_sgd, sgd
from hierfl.inference.local.rho import RHO_FLOOR, closed_form_rho
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import PrecisionWeightedMean, SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample

from ._common_settings import lr_decay, server_momentum
from ._share_offset import ShareOffset, shares_setting


class PFedVEM(ShareOffset, Method):
    """Hierarchical Gaussian prior on the heads, mean-field Gaussian guide, averaged base."""

    about = About(
        name="pfedvem",
        what="confidence-aware variational EM",
        paper="Zhu et al., CVPR 2023",
        family="hierarchical",
        stays="q(head), rho",
        sent="head, confidence, base",
        message_size=1.0,
        order=10,
    )
    takes_adapters = True
    local_copies = ("base",)  # a client predicts with the base it has just trained

    @dataclass(frozen=True)
    class Settings:
        """Published grid: step sizes {1e-2, 1e-3, 1e-4}, sigma_0^2 {1, 0.1, 0.01}, head epochs {5, 10, 20}."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical",
            "prior of the clients' heads: centre w and spread rho_j learned | held at 0 and sigma_0 | none, and a "
            "point instead of a Gaussian guide",
        )
        tau: Literal["both", "uncertainty", "deviation"] = setting(
            "both",
            "what a client's confidence is made of: its posterior's variance and its distance from w | the variance "
            "alone | the distance alone (Tables 2, 3)",
            unless={"prior": ("fixed", "flat")},
        )
        sigma_0: float = setting(
            0.1, "initial standard deviation of each head weight, in guide (sigma_j) and prior (rho_j)", above=0,
            unless={"prior": ("flat",)}, scale_of=("hierarchical", "fixed"), at_most=1e12,
        )  # fmt: skip
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)
        head_epochs: int = setting(10, "R, full-batch gradient steps on the head in a round", at_least=0)
        head_lr: float = setting(1e-4, "step size of the head, on the objective summed over examples", above=0)
        base_epochs: int = setting(5, "E, passes through a client's data that train the base in a round", at_least=0)
        base_lr: float = setting(1e-3, "step size of the base, on the mean over examples", above=0)
        base_batch: int = setting(10, "B, examples in a minibatch of the base's training", at_least=1)
        momentum: float = setting(0.9, "momentum of head and base steps; every round begins without any", at_least=0)
        particles: int = setting(
            5, "K, draws of a head over which a step's gradient is averaged", at_least=1, at_most=10_000
        )
        server_lr: float = setting(
            1.0,
            "how far the server moves w and the base to the clients' means: 1 replaces them, 0.5 goes half way",
            above=0,
            at_most=1,
        )
        server_momentum: float = server_momentum("the base at the server")
        lr_decay: float = lr_decay("base_lr")
        shares: Literal["off", "on"] = shares_setting()

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        self.check_offset("pfedvem")

    def shared(self, start: InitialWeights) -> State:
        w = {"hierarchical": self.settings.init_scale * start.head, "fixed": torch.zeros_like(start.head)}
        population = {} if self.settings.prior == "flat" else {"w": w[self.settings.prior]}
        return {**population, **start.base, **self.offset_shared(start)}

    def personal(self, start: InitialWeights) -> State:
        mu = self.settings.init_scale * start.head
        if self.settings.prior == "flat":
            return {"mu": mu, **self.offset_personal(start)}
        sigma_0 = torch.tensor([self.settings.sigma_0], dtype=torch.float64)
        pi = sigma_0.expm1().log().expand_as(mu)  # softplus(pi) = sigma_0
        return {"mu": mu, "pi": pi, "rho": sigma_0, **self.offset_personal(start)}

    def model(self, batch: Batch) -> None:
        net = self.network
        if self.settings.prior == "flat":
            p = flat(net.head.d)
        else:
            w = sample("w", flat(net.head.d))
            p = Normal(w, param("rho")).to_event(1)  # Eq. 4, rho (S, 1, 1)
        with clients(batch):
            w_j = sample("w_j", p)  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(self.at_client(net.head(w_j, net.base(batch.x)))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        mu = param("mu")  # (S, 1, d), as pi
        q = Delta(mu) if self.settings.prior == "flat" else Normal(mu, softplus(param("pi")))  # Eq. 11
        with clients(batch):
            sample("w_j", q.to_event(1))

    def update_rho(self, v: State) -> torch.Tensor:
        """rho_j = tau_j^(-1/2) by Eq. 8, (S, 1, 1)."""
        # gradient steps cannot follow a prior that is tighter than they are long: tau is at most 1 / head_lr
        floor = max(RHO_FLOOR, self.settings.head_lr**0.5)
        return closed_form_rho(v["mu"], softplus(v["pi"]), v["w"], v["rho"], terms=self.settings.tau, floor=floor)

    def local(self) -> list[LocalStep]:
        s = self.settings
        rho = [ClosedForm("rho", self.update_rho)] if s.prior == "hierarchical" else []
        heads = ["mu"] if s.prior == "flat" else ["mu", "pi"]
        head = SVI(heads, s.head_epochs, sgd(s.head_lr, s.momentum), particles=s.particles)
        base = SVI(
            ["base"],
            s.base_epochs,
            decayed_sgd(s.base_lr, s.lr_decay, s.momentum),
            s.base_batch,
            particles=s.particles,
            per="example",
        )
        return [*self.offset_steps(), *rho, head, base]

    def exchange(self) -> dict[str, AggregationRule]:
        s = self.settings
        w = {"w": PrecisionWeightedMean("mu", "rho", server_lr=s.server_lr)} if s.prior == "hierarchical" else {}
        return {**w, "base": SampleWeighted(s.server_lr, s.server_momentum), **self.offset_rules()}

    def new_client_terms(self, personal: State) -> State:
        return {} if self.settings.prior == "flat" else {"rho": personal["rho"].square()}

    def init_new_client(self, means: State, initial: State, personal: State) -> State:
        return {**initial, **{k: v.sqrt() for k, v in means.items()}}  # rho: the spread of the whole population

    def client_summary(self, v: State) -> State:
        if self.settings.prior == "flat":
            return {}
        sigma, gap = softplus(v["pi"]), v["mu"] - v["w"]
        return {
            "tau": v["rho"].pow(-2).flatten(),
            "uncertainty": sigma.square().mean((1, 2)),  # tr Sigma_j / d
            "deviation": gap.square().mean((1, 2)),  # |mu_j - w|^2 / d
        }

    @property
    def has_global_model(self) -> bool:
        return self.settings.prior == "hierarchical"

"""pFedVEM: confidence-aware personalised federated learning by variational EM.

Zhu, Ma and Blaschko, CVPR 2023. Head weights w_j differ between clients, the base network theta is everybody's:

    w_j | w      ~ N(w, rho_j^2 I)                                   (4)    w flat, rho_j > 0
    y_ij | x_ij  ~ Categorical(softmax(w_j^T h_theta(x_ij)))
    q(w_j)       = N(mu_j, diag softplus(pi_j)^2)                    (11)   w and theta are points

    ELBO = sum_j  E_q log p(D_j | w_j, theta) - KL(q(w_j) || p(w_j | w, rho_j^2))       (5)

A round, at every client: rho_j by (8); mu_j, pi_j by gradient on the ELBO; a copy of theta by gradient on the mean log
likelihood. Those who take part send tau_j mu_j, tau_j = rho_j^-2 and n_j theta_j, n_j; the server divides (9).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pyro.distributions import Delta, Normal
from torch.nn.functional import softplus

from hierfl.data.batch import Batch
from hierfl.inference.exchange import RHO_FLOOR, ConfidenceWeighted, SampleWeighted, closed_form_rho
from hierfl.inference.method import ClosedForm, LocalStep, Method, Rule, Start, State, setting
from hierfl.inference.svi import SVI, sgd
from hierfl.ppl.plates import clients, data, flat, param, sample


class PFedVEM(Method):
    """Hierarchical Gaussian prior on the heads, mean-field Gaussian guide, averaged base."""

    name = "pfedvem"
    copies = ("base",)  # a client predicts with the base it has just trained

    @dataclass(frozen=True)
    class Settings:
        """Published grid: step sizes {1e-2, 1e-3, 1e-4}, sigma_0^2 {1, 0.1, 0.01}, head epochs {5, 10, 20}."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical", "w and rho_j learned | held at 0 and sigma_0 | a point guide and no prior"
        )
        tau: Literal["both", "uncertainty", "deviation"] = setting(
            "both", "what confidence is made of (Tables 2, 3)", unless={"prior": ("fixed", "flat")}
        )
        sigma_0: float = setting(
            0.1, "initial sigma_j and rho_j", above=0, unless={"prior": ("flat",)}, scale_of=("hierarchical", "fixed")
        )
        w_0: float = setting(0.1, "standard deviation of the initial w", at_least=0)
        head_epochs: int = setting(10, "R, full-batch gradient steps on the head", at_least=0)
        head_lr: float = setting(1e-4, "step size of the head, on the summed objective", above=0)
        base_epochs: int = setting(5, "E, epochs of the base", at_least=0)
        base_lr: float = setting(1e-3, "step size of the base, on the mean objective", above=0)
        base_batch: int = setting(10, "B, examples per step of the base", at_least=1)
        momentum: float = setting(0.9, "of both phases, forgotten each round", at_least=0)
        particles: int = setting(5, "K, draws of w_j per step", at_least=1)
        beta: float = setting(0.0, "how much of w and the base the server keeps", at_least=0, below=1)

    def shared(self, start: Start) -> State:
        w = {"hierarchical": self.settings.w_0 * start.head, "fixed": torch.zeros_like(start.head)}
        return {**({} if self.settings.prior == "flat" else {"w": w[self.settings.prior]}), **start.base}

    def personal(self, start: Start) -> State:
        mu = self.settings.w_0 * start.head
        if self.settings.prior == "flat":
            return {"mu": mu}
        sigma_0 = torch.tensor([self.settings.sigma_0], dtype=torch.float64)
        return {"mu": mu, "pi": sigma_0.expm1().log().expand_as(mu), "rho": sigma_0}  # softplus(pi) = sigma_0

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
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        mu = param("mu")
        q = Delta(mu) if self.settings.prior == "flat" else Normal(mu, softplus(param("pi")))  # Eq. 11
        with clients(batch):
            sample("w_j", q.to_event(1))

    def confidence(self, v: State) -> torch.Tensor:
        # gradient steps cannot follow a prior that is tighter than they are long: tau is at most 1 / head_lr
        floor = max(RHO_FLOOR, self.settings.head_lr**0.5)
        return closed_form_rho(
            v["mu"], softplus(v["pi"]), v["w"], v["rho"], terms=self.settings.tau, floor=floor
        )  # Eq. 8

    def local(self) -> list[LocalStep]:
        s = self.settings
        rho = [ClosedForm("rho", self.confidence)] if s.prior == "hierarchical" else []
        heads = ["mu"] if s.prior == "flat" else ["mu", "pi"]
        head = SVI(heads, s.head_epochs, sgd(s.head_lr, s.momentum), particles=s.particles)
        base = SVI(
            ["base"],
            s.base_epochs,
            sgd(s.base_lr, s.momentum),
            s.base_batch,
            particles=s.particles,
            per="example",
        )
        return [*rho, head, base]

    def exchange(self) -> dict[str, Rule]:
        s = self.settings
        w = {"w": ConfidenceWeighted("mu", "rho", keep=s.beta)} if s.prior == "hierarchical" else {}
        return {**w, "base": SampleWeighted(keep=s.beta)}

    def newcomer(self, personal: State, initial: State) -> State:
        return {**initial, "rho": personal["rho"].square().mean(0).sqrt()}  # the spread of the whole population

    def per_client(self, v: State) -> State:
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

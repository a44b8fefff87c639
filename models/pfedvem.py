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

from hierfl.federation import Batch
from hierfl.inference.exchange import ConfidenceWeighted, SampleWeighted, closed_form_rho
from hierfl.inference.method import ClosedForm, LocalStep, Method, Rule, State, setting
from hierfl.inference.svi import SVI, sgd
from hierfl.plates import clients, data, flat, param, sample


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
        tau: Literal["both", "uncertainty", "deviation"] = setting("both", "what confidence is made of (Tables 2, 3)")
        sigma_0: float = setting(0.1, "initial sigma_j and rho_j", above=0)
        w_0: float = setting(0.1, "standard deviation of the initial w", at_least=0)
        head_epochs: int = setting(10, "R, full-batch gradient steps on the head", at_least=0)
        head_lr: float = setting(1e-4, "step size of the head, on the summed objective", above=0)
        base_epochs: int = setting(5, "E, epochs of the base", at_least=0)
        base_lr: float = setting(1e-3, "step size of the base, on the mean objective", above=0)
        base_batch: int = setting(10, "B, examples per step of the base", at_least=1)
        momentum: float = setting(0.9, "of both phases, forgotten each round", at_least=0)
        particles: int = setting(5, "K, draws of w_j per step", at_least=1)

    def shared(self, rng: torch.Generator) -> State:
        w = self.settings.w_0 * torch.randn(self.network.head.d, generator=rng)
        return {"w": w, **self.network.base.init(rng)}

    def personal(self, shared: State, rng: torch.Generator) -> State:
        pi = torch.tensor(self.settings.sigma_0).expm1().log()  # softplus(pi) = sigma_0
        return {
            "mu": shared["w"],
            "pi": pi.expand_as(shared["w"]),
            "rho": torch.tensor([self.settings.sigma_0]),
        }

    def model(self, batch: Batch) -> None:
        net, prior = self.network, self.settings.prior
        w = sample("w", flat(net.head.d))
        rho = param("rho")  # (S, 1, 1)
        with clients(batch):
            if prior == "hierarchical":
                p = Normal(w, rho).to_event(1)  # Eq. 4
            elif prior == "fixed":
                p = Normal(torch.zeros_like(w), rho).to_event(1)
            else:
                p = flat(net.head.d)
            w_j = sample("w_j", p)  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net.head(w_j, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        mu, sigma = param("mu"), softplus(param("pi"))
        with clients(batch):
            sample("w_j", (Delta(mu) if self.settings.prior == "flat" else Normal(mu, sigma)).to_event(1))  # Eq. 11

    def confidence(self, v: State) -> torch.Tensor:
        return closed_form_rho(v["mu"], softplus(v["pi"]), v["w"], terms=self.settings.tau)  # Eq. 8

    def local(self) -> list[LocalStep]:
        s = self.settings
        rho = [ClosedForm("rho", self.confidence)] if s.prior == "hierarchical" else []
        head = SVI(["mu", "pi"], s.head_epochs, sgd(s.head_lr, s.momentum), particles=s.particles)
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
        w = {"w": ConfidenceWeighted("mu", "rho")} if self.settings.prior == "hierarchical" else {}
        return {**w, "base": SampleWeighted()}

    def newcomer(self, personal: State, initial: State) -> State:
        return {
            **initial,
            "rho": personal["rho"].square().mean(0).sqrt(),
        }  # the spread of the whole population

    def per_client(self, v: State) -> State:
        sigma, gap = softplus(v["pi"]), v["mu"] - v["w"]
        return {
            "tau": v["rho"].pow(-2).flatten(),
            "uncertainty": sigma.square().mean((1, 2)),  # tr Sigma_j / d
            "deviation": gap.square().mean((1, 2)),  # |mu_j - w|^2 / d
        }

    @property
    def has_global_model(self) -> bool:
        return self.settings.prior == "hierarchical"

"""Mixed effects: generalised linear models whose coefficients differ between places.

    b_j | L  ~ N(0, L L^T)                 random effects, q numbers; L diagonal, or any lower triangle
    eta_ij   = x_ij^T beta + z_ij^T b_j    beta the fixed effects, p numbers
    y_ij     ~ N(eta_ij, sigma^2)          gaussian (sigma learned, or known for each row)
    y_ij     ~ Bernoulli(logistic(eta_ij)) or Poisson(exp(eta_ij))

    maximised: sum_j log integral p(D_j | b, beta, sigma) N(b | 0, L L^T) db     (maximum likelihood, not REML)

Gaussian: the guide is the exact conditional p(b_j | D_j, beta, L, sigma), so that each place's ELBO *is* its marginal
log likelihood, and the ELBO's gradient its score (Fisher's identity); expectations of quadratics are taken at sigma
points, without Monte-Carlo error. Places send scores and their outer products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from pyro.distributions import Bernoulli, MultivariateNormal, Normal, Poisson
from torch import Tensor

from hierfl.errors import UserError
from hierfl.federation import Batch, buckets
from hierfl.formulas import INTERCEPT, Design
from hierfl.inference.exchange import Scoring
from hierfl.inference.method import Local, LocalStep, Method, Rule, Start, State, setting
from hierfl.inference.svi import elbo
from hierfl.networks import Architecture
from hierfl.noise import SigmaPoints
from hierfl.plates import Restrict, clients, data, param, sample

if TYPE_CHECKING:
    from hierfl.inference.run import Run

#: random effects' standard deviations stay above this share of where they began: a variance that wants to be zero would
#: drift to minus infinity on the log scale
LEAST = 1e-4


class MixedEffects(Method):
    """Random intercepts and slopes, by maximum likelihood, with every place's posterior."""

    name = "mixed-effects"
    network: Design

    @dataclass(frozen=True)
    class Settings:
        """Where to begin, in units of the response's spread."""

        prior: Literal["hierarchical", "fixed"] = setting(
            "hierarchical", "random effects' spread learned | held at sd_0"
        )
        covariance: Literal["full", "diagonal"] = setting("full", "of a place's random effects")
        sd_0: float = setting(1.0, "initial standard deviation of every random effect", above=0)
        noise_0: float = setting(1.0, "initial standard deviation of a gaussian response", above=0)

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if not isinstance(network, Design):
            raise UserError("mixed-effects models are made from a Design (--formula), not from a network")
        super().__init__(network, **settings)

    def shared(self, start: Start) -> State:
        s, d, q = self.settings, self.network, len(self.network.random)
        beta = torch.tensor([d.centre if name in INTERCEPT else 0.0 for name in d.fixed], dtype=torch.float64)
        values = {"beta": beta, "log_sd": self.first_sd().log()}
        if s.covariance == "full" and q > 1:
            values["corr"] = torch.zeros(q * (q - 1) // 2)
        if self.network.family == "gaussian" and not self.network.known:
            values["log_noise"] = torch.tensor(s.noise_0 * d.scale, dtype=torch.float64).log()
        learned = {"log_sd", "corr"} if s.prior == "fixed" else set()
        return {f"{'held' if k in learned else 'effects'}.{k}": v.double() for k, v in values.items()}

    def first_sd(self) -> Tensor:
        """The random effects' standard deviations to begin with, (q,)."""
        return self.settings.sd_0 * self.network.scale / torch.tensor(self.network.units, dtype=torch.float64)

    def value(self, name: str) -> Tensor:
        """A shared value by its short name, learned or held."""
        held = self.settings.prior == "fixed" and name in ("log_sd", "corr")
        return param(f"{'held' if held else 'effects'}.{name}")

    def spread(self) -> Tensor:
        """L, (q, q) or rows (S, 1, q, q): standard deviations times the Cholesky factor of the correlations."""
        sd, q = self.value("log_sd").exp(), len(self.network.random)
        if self.settings.covariance == "diagonal" or q == 1:
            return torch.diag_embed(sd)
        below = torch.zeros((q * (q - 1) // 2, q, q), dtype=sd.dtype, device=sd.device)
        for k, (row, column) in enumerate(torch.tril_indices(q, q, -1).T.tolist()):
            below[k, row, column] = 1
        rows = torch.eye(q, dtype=sd.dtype, device=sd.device) + torch.tensordot(self.value("corr"), below, 1)
        return sd[..., None] * rows / rows.norm(dim=-1, keepdim=True)

    def noise(self, known: Tensor | None) -> Tensor:
        """A gaussian response's standard deviation, broadcast to (S, n)."""
        return self.value("log_noise").exp() if known is None else known

    def model(self, batch: Batch) -> None:
        x, z, known = self.network.split(batch.x)
        q = len(self.network.random)
        prior = MultivariateNormal(x.new_zeros(q), scale_tril=self.spread())
        with clients(batch):
            b = sample("b", prior)  # (K, S, 1, q)
            with data(batch):
                eta = (x * self.value("beta")).sum(-1) + (z * b).sum(-1)
                sample("y", self.response(eta, known), obs=batch.y)

    def response(self, eta: Tensor, known: Tensor | None) -> Any:
        """p(y | eta)."""
        if self.network.family == "binomial":
            return Bernoulli(logits=eta)
        return Poisson(eta.exp()) if self.network.family == "poisson" else Normal(eta, self.noise(known))

    def personal(self, start: Start) -> State:
        q = len(self.network.random)
        return {"b_mean": torch.zeros(q).double(), "b_root": self.first_sd().diag()}

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            sample("b", MultivariateNormal(param("b_mean"), scale_tril=param("b_root")))

    def local(self) -> list[LocalStep]:
        return [Conditional(self)]

    def posterior(self) -> list[LocalStep]:
        return [Conditional(self)]

    def exchange(self) -> dict[str, Rule]:
        bounds = {"effects.log_sd": (LEAST * self.first_sd()).log()} if self.settings.prior == "hierarchical" else {}
        return {"effects": Scoring(sigma_points=True, least=bounds)}


@dataclass(frozen=True)
class Conditional:
    """The exact posterior of a gaussian response's random effects, N(m_j, V_j), by completing the square in b = L u."""

    method: MixedEffects

    @property
    def trains(self) -> Sequence[str]:
        """Mean, and a lower triangle whose square is the covariance."""
        return ("b_mean", "b_root")

    def run(self, local: Local, phase: object) -> Local:
        """Solves all rows' systems at once."""
        parts = []
        for first, last in buckets(local.sizes):
            part = local.part(first, last)
            with Restrict(part.values):
                parts.append(self._solve(part.batch()))
        mean, root = (torch.cat(found).unsqueeze(1) for found in zip(*parts, strict=True))
        return local.put({"b_mean": mean, "b_root": root})

    def _solve(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """m_j (S, q) and R_j (S, q, q) with V_j = R_j R_j^T."""
        x, z, known = self.method.network.split(batch.x)
        weight = self.method.noise(known).pow(-2).expand(batch.y.shape)
        if batch.mask is not None:
            weight = weight * batch.mask
        root = self.method.spread()
        zl = z @ root  # (S, n, q)
        one = torch.eye(zl.shape[-1], dtype=zl.dtype, device=zl.device)
        factor = torch.linalg.cholesky(one + (zl * weight[..., None]).mT @ zl)  # of the precision of u
        gap = (batch.y - (x * self.method.value("beta")).sum(-1)) * weight
        u = torch.cholesky_solve((zl * gap[..., None]).sum(-2)[..., None], factor)  # (S, q, 1)
        # however small L is, L factor^-T is a root of V_j; its QR decomposition has the lower triangular one
        lower = torch.linalg.qr((root @ torch.linalg.inv(factor).mT).mT).R.mT
        return (root @ u).squeeze(-1), lower * lower.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def marginal_log_likelihood(run: Run) -> float:
    """log p(y | beta, L, sigma) of a fitted gaussian model's training data, random effects integrated out.

    The guide is the exact posterior, so that the ELBO is its bound with equality.
    """
    fitted, total = run.fitted, 0.0
    with torch.no_grad():
        for j in range(fitted.federation.clients):
            batch = fitted.federation.batch([j])
            total += float(elbo(fitted.method, batch, fitted.values([j]), SigmaPoints(fitted.federation.dtype)))
    return total

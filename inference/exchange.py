"""Messages and the server's updates.

A client sends tensors of which the server only ever needs the sum: weights are inside. Sums are what all-reduce,
secure aggregation and differential privacy can work on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .method import Exchange, Local, State
from .svi import MakeOptimizer, controlled_scores, elbo_derivatives, elbo_gradient

#: rho is kept above this, tau below its inverse square: jointly in (w, rho) the ELBO has degenerate maxima with w at
#: some mu_j and rho_j -> 0
RHO_FLOOR = 1e-3


def closed_form_rho(
    mean: Tensor, scale: Tensor, centre: Tensor, before: Tensor, *, terms: str = "both", floor: float = RHO_FLOOR
) -> Tensor:
    """The rho_j that maximises E_q log N(w_j | w, rho_j^2 I): 1/rho_j^2 = tau_j = d / (tr Sigma_j + |mu_j - w|^2).

    pFedVEM, Eq. 8. It is the stationary point of its own block of the ELBO, given q and w.

    Args:
        mean, scale: of q(w_j), (S, 1, d).
        centre: w, (d,) or (S, 1, d).
        before: rho as it is, (S, 1, 1): kept where the terms say nothing, as the deviation does in the first round,
            when mu_j is still w.
        terms: "both", or one of the paper's ablations: "uncertainty" (the trace alone) or "deviation" (the distance
            alone).
        floor: the smallest rho; tau_j is at most floor^-2.

    Returns:
        rho, (S, 1, 1).
    """
    uncertainty = scale.square().mean(-1, keepdim=True)
    deviation = (mean - centre).square().mean(-1, keepdim=True)
    variance = {"both": uncertainty + deviation, "uncertainty": uncertainty, "deviation": deviation}[terms]
    return torch.where(variance > 0, variance.sqrt().clamp_min(floor), before)


def _per_row(weight: Tensor, value: Tensor) -> Tensor:
    """(S,) times (S, *shape)."""
    return weight.view(-1, *[1] * (value.dim() - 1)) * value


def _kept(keep: float, old: Tensor, new: Tensor) -> Tensor:
    return keep * old + (1 - keep) * new if keep else new


@dataclass(frozen=True)
class SampleWeighted:
    """The mean of the clients' copies weighted by how many examples they have: theta = sum n_j theta_j / sum n_j.

    FedAvg's rule. It is no M-step of a network's weights, and claims nothing.

    Args:
        keep: beta, how much of the old value stays: theta = beta theta_old + (1 - beta) mean. Where few clients
            report, this averages over the rounds as well.
    """

    keep: float = 0.0
    differentiates: ClassVar[bool] = False

    def message(self, names: Sequence[str], local: Local) -> State:
        """(n_j theta_j, n_j)."""
        sent = {name: _per_row(local.n, local.rows[name].squeeze(1)) for name in names}
        return {**sent, "weight": local.n}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Divide."""
        return {name: _kept(self.keep, old[name], total[name] / total["weight"]) for name in old}


@dataclass(frozen=True)
class ConfidenceWeighted:
    """The mean of the clients' posterior means weighted by confidence: w = sum tau_j mu_j / sum tau_j.

    pFedVEM, Eq. 9: the maximiser of the participants' ELBO in w under a flat p(w), given their rho_j.

    Args:
        mean: the personal value mu_j, (d,).
        rho: the personal value rho_j = tau_j^(-1/2), (1,).
        keep: beta, how much of the old w stays; above 0 it is a step towards the maximiser.
    """

    mean: str
    rho: str
    keep: float = 0.0
    differentiates: ClassVar[bool] = False

    def message(self, names: Sequence[str], local: Local) -> State:
        """(tau_j mu_j, tau_j)."""
        (name,) = names
        tau = local.rows[self.rho].flatten(1).squeeze(1).pow(-2)
        return {name: _per_row(tau, local.rows[self.mean].squeeze(1)), "tau": tau}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Divide."""
        (name,) = old
        return {name: _kept(self.keep, old[name], total[name] / total["tau"])}


#: from an optimiser to one of torch's schedules, such as ``partial(ExponentialLR, gamma=0.99)``
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True)
class Gradient:
    """The generic rule: ascend the clients' summed gradient of the restricted ELBO in the shared values.

    Any model runs with it. The sum over the |A| that reported is scaled by J / |A|, so that it estimates the sum over
    everyone, and the gradient of log p(globals) is added once. Where the guide is made of a chain's draws this is
    stochastic ascent of the marginal likelihood by Fisher's identity, grad log p(D_j | beta) = E[grad log p(z, D_j |
    beta) | D_j] (FedPop; Kotelevskii et al., NeurIPS 2022, Alg. 1).

    Args:
        optimizer: from leaves to a torch optimiser; what it remembers is kept on the server.
        particles: K, draws per client.
        schedule: of the step size over rounds; None for a constant one.
        project: puts new values back where they must lie, {name: (*shape)} to the same; None for anywhere.
    """

    optimizer: MakeOptimizer
    particles: int = 1
    schedule: MakeSchedule | None = None
    project: Callable[[State], State] | None = None
    differentiates: ClassVar[bool] = True

    def message(self, names: Sequence[str], local: Local) -> State:
        """Each row's gradient at the broadcast values, at its own new posterior."""
        return elbo_gradient(local, names, self.particles, ("gradient", *names))

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """One step of the optimiser on minus the estimated ELBO."""
        prior = exchange.prior_gradient(list(old))
        leaves = {name: value.clone().requires_grad_() for name, value in old.items()}
        optimizer = self.optimizer(list(leaves.values()))
        self._wind(optimizer, exchange.round - 1)
        for name, leaf in leaves.items():
            leaf.grad = -(total[name] * (exchange.clients / exchange.reported) + prior[name])
            mine = {k.removeprefix(f"{name}/"): v for k, v in exchange.memory.items() if k.startswith(f"{name}/")}
            if mine:
                optimizer.state[leaf] = {k: v.clone() for k, v in mine.items()}
        optimizer.step()
        for name, leaf in leaves.items():
            for k, v in optimizer.state[leaf].items():
                if v is not None:
                    exchange.memory[f"{name}/{k}"] = torch.as_tensor(v).clone()
        new = {name: leaf.detach() for name, leaf in leaves.items()}
        return self.project(new) if self.project else new

    def _wind(self, optimizer: torch.optim.Optimizer, rounds: int) -> None:
        """Brings the step size to where the schedule has it after so many rounds."""
        if self.schedule is None:
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)`")
            schedule = self.schedule(optimizer)
            for _ in range(rounds):
                schedule.step()


@dataclass(frozen=True)
class Scoring:
    """Scoring with what the clients know of the information: steps of Newton's kind for a few shared numbers.

    With g_j the gradient of client j's restricted ELBO in all values of the group, and C_j minus its second derivatives
    (the guide held),

        B = sum_j g_j g_j^T,    C = sum_j C_j,    theta <- theta + rate(t) (B^-1 + C^-1) g,    g = sum_j g_j + prior's.

    Where the guide is the exact posterior g_j is the score of the marginal likelihood (Fisher's identity), and near its
    maximum B is the information: that is the step of Berndt, Hall, Hall and Hausman (1974). Far from it B is too large
    and its steps too short, and C^-1 g, a step of the gradient EM algorithm (Lange, 1995), is always safe, since C is
    the information that there would be if the latents were seen. With draws it is stochastic approximation in that
    metric. None of it needs a step size for the data's units.

    Args:
        particles: K, draws per client.
        sigma_points: instead of draws: exact where the log joint is quadratic in the only latent.
        controls: the latent whose draws give control variates of second degree for the scores; None for none.
        keep: how much of the last round's B and C stays; 0 where nothing is random.
        rate: share of the step, or a function of the round, from 1. Half of it is at most about a Newton step.
        radius: a step is shortened to so much in the metric of B or C, whichever makes it shorter (about so many
            standard errors).
        least: lower bounds of some values, {name: (*shape)}. What stands at its bound and wants to go below is held,
            and the others move as if it were not there.
    """

    particles: int = 1
    sigma_points: bool = False
    controls: str | None = None
    keep: float = 0.0
    rate: float | Callable[[int], float] = 0.5
    radius: float = 5.0
    least: Mapping[str, Tensor] | None = None
    differentiates: ClassVar[bool] = True

    def message(self, names: Sequence[str], local: Local) -> State:
        """Each row's gradient, its outer product, and minus its second derivatives."""
        gradient, complete = elbo_derivatives(
            local, names, self.particles, ("gradient", *names), sigma_points=self.sigma_points, second=True
        )
        assert complete is not None
        if self.controls is not None:
            gradient = controlled_scores(local, names, self.controls, 2, self.particles)
        score = torch.cat([gradient[name].reshape(len(local.clients), -1) for name in names], 1)
        return {**gradient, "outer": score[:, :, None] * score[:, None], "complete": complete}

    def shapes(self, old: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Of what is sent beside the values themselves."""
        k = sum(value.numel() for value in old.values())
        return {"outer": (k, k), "complete": (k, k)}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """One step; nothing moves along what the clients say nothing about."""
        up = exchange.clients / exchange.reported
        prior = exchange.prior_gradient(list(old))
        g = torch.cat([(total[name] * up + prior[name]).flatten() for name in old])
        here = torch.cat([value.flatten() for value in old.values()])
        least = torch.full_like(here, -torch.inf)
        for name, value in (self.least or {}).items():
            first = sum(v.numel() for v in list(old.values())[: list(old).index(name)])
            least[first : first + value.numel()] = value.flatten().to(here)
        free = ~((here <= least) & (g < 0))
        both = {}
        for name in ("outer", "complete"):
            new = total[name] * up
            both[name] = _kept(self.keep, exchange.memory.get(name, new), new)
            if self.keep:
                exchange.memory[name] = both[name]
        g = g * free
        step = _solve(both["outer"], g, free) + _solve(both["complete"], g, free)
        length = torch.stack([step @ h @ step for h in both.values()]).min().clamp_min(0).sqrt()
        rate = self.rate(exchange.round) if callable(self.rate) else self.rate
        step = step * rate * (self.radius / length.clamp_min(self.radius))
        parts = (here + step).maximum(least).split([value.numel() for value in old.values()])
        return {name: part.view_as(value) for (name, value), part in zip(old.items(), parts, strict=True)}


def _solve(information: Tensor, g: Tensor, free: Tensor) -> Tensor:
    """information^-1 g among the free numbers, in units of the diagonal, since the numbers have units of their own.

    What is not positive (second derivatives far from a maximum) moves nothing.
    """
    h = torch.where(free[:, None] & free, information, 0.0)
    scale = h.diagonal().clamp_min(torch.finfo(h.dtype).tiny).sqrt()
    values, vectors = torch.linalg.eigh(h / (scale[:, None] * scale))
    along = (vectors.mT @ (g / scale)) * torch.where(values > 1e-8, 1 / values.clamp_min(1e-8), 0.0)
    return (vectors @ along) / scale

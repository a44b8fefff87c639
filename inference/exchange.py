"""Messages and the server's updates.

A client sends tensors of which the server only ever needs the sum: weights are inside. Sums are what all-reduce,
secure aggregation and differential privacy can work on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor

from .elbo import elbo_gradient
from .forms import Field, Form, beside, not_negative, some_weight, values_form
from .gaussians import Gaussian, Kind, eigh, packed_size
from .method import Exchange, Local, State
from .scores import controlled_scores, curvature
from .svi import MakeOptimizer

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


def _beside(weight: Tensor, value: Tensor) -> Tensor:
    """(*first,) beside (*first, *shape)."""
    return weight.view(*weight.shape, *[1] * (value.dim() - weight.dim()))


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

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The values times a weight above zero."""
        return {**values_form(old, scaled=True, weight="weight"), "weight": beside(old)}

    def message(self, names: Sequence[str], local: Local) -> State:
        """(n_j theta_j, n_j)."""
        sent = {name: _per_row(local.n, local.rows[name].squeeze(1)) for name in names}
        return {**sent, "weight": local.n}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Divide."""
        return {name: _kept(self.keep, old[name], total[name] / total["weight"]) for name in old}


@dataclass(frozen=True)
class Mean:
    """The plain mean over the clients that report, of their copies or of a personal value of the same shape.

    Args:
        of: the personal value; None for the copies.
        keep: how much of the old value stays: 1 - keep is the server's step towards the mean.
    """

    of: str | None = None
    keep: float = 0.0
    differentiates: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The values."""
        return values_form(old, scaled=True)

    def message(self, names: Sequence[str], local: Local) -> State:
        """What each row has; the server counts whom it has heard."""
        if self.of is not None:
            (name,) = names
            return {name: local.rows[self.of].squeeze(1)}
        return {name: local.rows[name].squeeze(1) for name in names}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Divide."""
        return {name: _kept(self.keep, old[name], total[name] / exchange.reported) for name in old}


@dataclass(frozen=True)
class Increment:
    """What everybody has is summed up in a shared value, and those who report tell by how much theirs has changed.

    Increments are divided by J: the value stays the mean over all clients of what each has last reported (SCAFFOLD's
    control variate; Karimireddy et al., ICML 2020, Alg. 1).

    Args:
        change: of each row, (S, *shape).
    """

    change: Callable[[Local], Tensor]
    differentiates: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """A change, which is on the scale of the value or of one."""
        return values_form(old, scaled=True)

    def message(self, names: Sequence[str], local: Local) -> State:
        """The change."""
        (name,) = names
        return {name: self.change(local)}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Add."""
        ((name, value),) = old.items()
        return {name: value + total[name] / exchange.clients}


@dataclass(frozen=True)
class Slots:
    """Several values in one, (C, *shape), each of which is the n_j-weighted mean of the copies that chose it.

    One that nobody has chosen stays (IFCA; Ghosh et al., NeurIPS 2020, Alg. 1).

    Args:
        label: the personal value (1,) that says which slot is a row's, 0 ... C - 1.
        keep: as for :class:`SampleWeighted`.
    """

    label: str
    keep: float = 0.0
    differentiates: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The slots times their weights, none of which is below zero, and one of which is above."""
        ((_, value),) = old.items()
        weight = beside(old, tuple(value.shape[:1]), some_weight)
        return {**values_form(old, scaled=True, weight="weight"), "weight": weight}

    def message(self, names: Sequence[str], local: Local) -> State:
        """n_j theta_j and n_j in the row's own slot, nothing in the others."""
        (name,) = names
        copies = local.rows[name].squeeze(1)  # (S, C, *shape)
        labels = torch.arange(copies.shape[1], device=copies.device)
        weight = (local.rows[self.label].flatten(1) == labels).to(copies) * local.n[:, None]
        return {name: _beside(weight, copies) * copies, "weight": weight}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Divide, slot by slot."""
        ((name, value),) = old.items()
        weight = _beside(total["weight"], value)
        new = _kept(self.keep, value, total[name] / weight.clamp_min(1))
        return {name: torch.where(weight > 0, new, value)}


@dataclass(frozen=True)
class GibbsDraw:
    """A draw of w given the clients' z_j ~ N(w, rho^2 I), under a flat prior: w ~ N(mean of z_j, rho^2 / |A|).

    DG-LMC's server (Plassier et al., ICML 2021, Alg. 1), with one rho for all clients; everybody should take part.

    Args:
        draws: the personal value that a chain has left, (chains, kept, *shape): the first chain's last draw is sent.
        rho: of the model.
    """

    draws: str
    rho: float
    differentiates: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The value times a precision above zero."""
        return {**values_form(old, scaled=True, weight="precision"), "precision": beside(old)}

    def message(self, names: Sequence[str], local: Local) -> State:
        """z_j / rho^2 and 1 / rho^2."""
        (name,) = names
        z = local.rows[self.draws][:, 0, 0, -1]
        precision = local.n.new_full((len(z),), self.rho**-2)
        return {name: _per_row(precision, z), "precision": precision}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Divide, and draw."""
        ((name, value),) = old.items()
        variance = 1 / total["precision"]
        return {name: total[name] * variance + variance.sqrt() * exchange.normal(name, value)}


@dataclass(frozen=True)
class RunningMean:
    """The mean of another shared value over the rounds so far, from some round on; nobody sends anything.

    Args:
        of: the other value, as it was before the round's update.
        burn: so many are left out, the first, as soon as there are others.
    """

    of: str
    burn: int = 0
    differentiates: ClassVar[bool] = False
    sends: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Nothing."""
        return {}

    def message(self, names: Sequence[str], local: Local) -> State:
        """Nothing."""
        return {}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """A step towards the value."""
        ((name, value),) = old.items()
        seen = exchange.memory.get("seen", value.new_zeros(())) + 1  # (rounds that were not void)
        exchange.memory["seen"] = seen
        return {name: value + (exchange.shared[self.of] - value) / (seen - self.burn).clamp_min(1)}


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

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The value times a confidence above zero."""
        return {**values_form(old, scaled=True, weight="tau"), "tau": beside(old)}

    def message(self, names: Sequence[str], local: Local) -> State:
        """(tau_j mu_j, tau_j)."""
        (name,) = names
        tau = local.rows[self.rho].flatten(1).squeeze(1).pow(-2)
        return {name: _per_row(tau, local.rows[self.mean].squeeze(1)), "tau": tau}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Divide."""
        (name,) = old
        return {name: _kept(self.keep, old[name], total[name] / total["tau"])}


@dataclass(frozen=True)
class GaussianProduct:
    """The mean of the product of Gaussian factors: Lambda = sum Lambda_j, mu = Lambda^-1 sum Lambda_j mu_j.

    pFedVMP, Eq. 12 and 13, of the clients that report in the round. Where none of them says anything the value stays as
    it was, whatever the prior. A scalar precision n_j is
    :class:`SampleWeighted`, tau_j :class:`ConfidenceWeighted`.

    Args:
        factors: what each row says of the value (*shape, D): h (S, *shape, D) and Lambda as
            :meth:`~hierfl.inference.gaussians.Gaussian.packed` has it.
        kind: of Lambda.
        prior: precision of a factor N(0, I / prior) more; 0 for none.
        dtype: of the factors: double precision, since their numbers may differ by much.
    """

    factors: Callable[[Local], tuple[Tensor, Tensor]]
    kind: Kind
    prior: float = 0.0
    dtype: torch.dtype = torch.float64
    differentiates: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Lambda, which is a precision, or nothing; and h = Lambda mu, with mu on the value's scale."""
        ((name, value),) = old.items()
        *some, d = value.shape
        size = (*some, packed_size(d, self.kind))
        if self.kind != "full":
            weighted = Field((*some, d), self.dtype, scaled=True, weight=itemgetter("precision"))
            return {name: weighted, "precision": Field(size, self.dtype, not_negative)}

        def mean(message: Mapping[str, Tensor]) -> Tensor:
            """Not a number where Lambda has a negative direction; huge where h lies outside of its range."""
            return Gaussian.unpacked(message[name], message["precision"], "full").regularised_mean()

        linear = Field((*some, d), self.dtype, scaled=True, value=mean, agrees=lambda sent: mean(sent).isfinite())
        return {name: linear, "precision": Field(size, self.dtype)}

    def message(self, names: Sequence[str], local: Local) -> State:
        """(h_j, Lambda_j), the latter packed."""
        (name,) = names
        linear, precision = self.factors(local)
        return {name: linear, "precision": precision}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """The product's mean."""
        ((name, value),) = old.items()
        product = Gaussian.unpacked(total[name], total["precision"], self.kind)
        if self.prior:
            weight = product.linear.new_full((*value.shape[:-1], 1), self.prior)
            product = product * Gaussian(torch.zeros_like(product.linear), weight, "scalar")
        spoken = (total["precision"] != 0).any(-1, keepdim=True)
        return {name: torch.where(spoken, product.mean(value), value)}


@dataclass(frozen=True)
class Total:
    """The sum of what the clients that report count of their data; a number that nobody speaks of stays.

    Args:
        counts: what each row tells, (S, *shape), nothing below zero.
    """

    counts: Callable[[Local], Tensor]
    differentiates: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Counts, none below zero."""
        return {name: replace(field, holds=not_negative) for name, field in values_form(old).items()}

    def message(self, names: Sequence[str], local: Local) -> State:
        """The counts."""
        (name,) = names
        return {name: self.counts(local)}

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """Their sum."""
        ((name, value),) = old.items()
        return {name: torch.where(total[name] > 0, total[name].to(value), value)}


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
        controls: a latent of few numbers whose draws give control variates; see
            :func:`~hierfl.inference.scores.curvature`.
    """

    optimizer: MakeOptimizer
    particles: int = 1
    schedule: MakeSchedule | None = None
    project: Callable[[State], State] | None = None
    controls: str | None = None
    differentiates: ClassVar[bool] = True

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Gradients, which have no scale of their own."""
        return values_form(old)

    def message(self, names: Sequence[str], local: Local) -> State:
        """Each row's gradient at the broadcast values, at its own new posterior."""
        if self.controls is not None:
            return controlled_scores(local, names, self.controls, self.particles)
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
    """Newton's method on the marginal likelihood, for a few shared numbers, from what draws of one latent know of it.

    Clients send the gradient g_j of their marginal log likelihood (Fisher's identity), its outer product, and two
    estimates of the curvature there (:class:`~hierfl.inference.scores.Curvature`): the observed information I, and the
    profile information S, which is never smaller and never negative where the log joint is concave. The server's step

        theta <- theta + rate(t) H^-1 g,    g = sum_j g_j + prior's,

    takes I along the directions in which it is clearly positive beside S; elsewhere (far from a maximum, or where there
    is next to no information) the outer products, as Berndt, Hall, Hall and Hausman (1974) do. With draws it is
    stochastic approximation in that metric. None of it needs a step size for the data's units.

    Args:
        latent: the latent, in the client plate and on the real line.
        particles: K, draws per client; with sigma points 0.
        sigma_points: expectations at these instead of draws: exact where the log joint is quadratic in the latent and
            the guide is Gaussian. With draws, gradients have control variates.
        keep: how much of the last round's matrices stays.
        rate: share of the step, or a function of the round, from 1.
        radius: a step is shortened to so much in the metric of H (about so many standard errors) to begin with, and at
            least. After a shortened step along which the gradient has kept more than half of its slope the radius is
            doubled: standard errors are small beside the way from a far start. After one along which the slope has
            changed its sign, and become steeper, it is a quarter.
        least: lower bounds of some values, {name: (*shape)}. What stands at its bound and wants to go below is held,
            and the others move as if it were not there.
        most: the longest step of some values' numbers, {name: number}: for logarithms and the like, which have units of
            their own.
    """

    latent: str
    particles: int
    sigma_points: bool = False
    keep: float = 0.0
    rate: float | Callable[[int], float] = 1.0
    radius: float = 5.0
    least: Mapping[str, Tensor] | None = None
    most: Mapping[str, float] | None = None
    differentiates: ClassVar[bool] = True

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Gradients, and three matrices; an outer product is nowhere below zero along its diagonal."""
        k, names = sum(value.numel() for value in old.values()), list(old)
        matrix = Field((k, k), next(iter(old.values())).dtype)

        def own(message: Mapping[str, Tensor]) -> Tensor:
            score = torch.cat([message[name].reshape(len(message["outer"]), -1) for name in names], 1)
            wanted = score[:, :, None] * score[:, None]
            gap = (message["outer"] - wanted).abs().amax((1, 2))
            return gap <= 1e-3 * wanted.abs().amax((1, 2))  # (compressed gradients have none: see Compressed)

        return {**values_form(old), "outer": replace(matrix, agrees=own), "profile": matrix, "observed": matrix}

    def message(self, names: Sequence[str], local: Local) -> State:
        """Each row's gradient, its outer product, and what it knows of the curvature."""
        exact, degree = self.sigma_points, 0 if self.sigma_points else 2
        known = curvature(local, names, self.latent, self.particles, degree, sigma_points=exact)
        gradient = known.scores
        score = torch.cat([gradient[name].reshape(len(local.clients), -1) for name in names], 1)
        outer = score[:, :, None] * score[:, None]
        return {**gradient, "outer": outer, "profile": known.profile, "observed": known.observed}

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
        known = {}
        for name in ("outer", "profile", "observed"):
            new = total[name] * up
            old_one = exchange.memory.get(name, new)
            # what is remembered must not be drowned for ever: then the round is void, as where it is not finite
            before = old_one.abs().amax()
            new = torch.where((before > 0) & (new.abs().amax() > JUMP * before), torch.nan, new)
            # (a void round leaves nothing to remember)
            known[name] = torch.where(old_one.abs().sum() > 0, _kept(self.keep, old_one, new), new)
            if self.keep:
                exchange.memory[name] = known[name]
        free = ~((here <= least) & (g < 0))
        rate = self.rate(exchange.round) if callable(self.rate) else self.rate
        radius = self._radius(g, exchange)
        step, length = newton_step(g, known["profile"], known["observed"], known["outer"], free, radius)
        step = rate * step
        longest = torch.cat(
            [torch.full_like(v, (self.most or {}).get(name, torch.inf)).flatten() for name, v in old.items()]
        )
        # the whole step becomes shorter: a part of it alone may lead downhill
        step = step / (step.abs() / longest).max().clamp_min(1)
        exchange.memory.update(step=step, slope=g @ step, radius=radius, short=(length > radius).to(g))
        parts = (here + step).maximum(least).split([value.numel() for value in old.values()])
        return {name: part.view_as(value) for (name, value), part in zip(old.items(), parts, strict=True)}

    def _radius(self, g: Tensor, exchange: Exchange) -> Tensor:
        """How far the next step may go, from what the gradient is after the last one."""
        last, least = exchange.memory, g.new_tensor(self.radius)
        if "step" not in last:
            return least
        kept = g @ last["step"] / last["slope"]  # (of the slope; not a number after no step, which changes nothing)
        grow = (last["short"] > 0) & (kept > 0.5)
        return (last["radius"] * torch.where(grow, 2.0, torch.where(kept < -1, 0.25, 1.0))).maximum(least)


#: how much larger than what is remembered a round's matrices may be
JUMP = 1e6
#: below this share of the profile information the observed one may be the draws' noise
CLEARLY = 0.1


def newton_step(
    g: Tensor, profile: Tensor, observed: Tensor, outer: Tensor, free: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor]:
    """H^-1 g among the free numbers, no longer than ``radius`` in the metric of H, and how long it would have been.

    See :class:`Scoring`. Not finite where the matrices are not.

    Args:
        g: (k,).
        profile, observed, outer: (k, k).
        free: (k,), False for what is held.
        radius: in standard errors, ().
    """
    index = free.nonzero().flatten()
    profile, observed, outer = (h[index][:, index] for h in (profile, observed, outer))
    # in units of the profile information: of its diagonal first, since the numbers have units of their own
    scale = profile.diagonal().abs().clamp_min(torch.finfo(g.dtype).tiny).sqrt()
    values, vectors = eigh(profile / (scale[:, None] * scale))
    # (below zero only where the log joint is not concave: then its size is all that is believed)
    none = 100 * torch.finfo(g.dtype).eps
    root = vectors * torch.where(values.abs() > none, values.abs().clamp_min(none).rsqrt(), 0.0) / scale[:, None]
    share, turn = eigh(root.mT @ observed @ root)
    root = root @ turn
    spread = ((root.mT @ outer) * root.mT).sum(-1)
    share = torch.where(share > CLEARLY, share, share.maximum(spread))
    along = root.mT @ g[index]
    along = torch.where(share > 0, along / share.clamp_min(torch.finfo(g.dtype).tiny), 0.0)
    length = (along.square() * share).sum().sqrt()
    step = (root @ along) * (radius / length.maximum(radius))
    return torch.zeros_like(g).index_copy(0, index, step), length

"""Local Langevin dynamics on a restricted model: draws of a client's latents given the globals.

The target of client j is its restricted log joint, up to a constant its log posterior,

    U_j(z) = log p(z | w) + sum_i log p(y_ij | x_ij, z, theta),

and a step of size gamma with preconditioner P (1 without) is

    z' = z + gamma P grad U_j(z) + sqrt(2 gamma P) xi,    xi ~ N(0, I).

Unadjusted, its stationary law is off by O(gamma): for a Gaussian of variance s^2 it has variance s^2 / (1 - gamma /
(2 s^2)). With minibatches the likelihood is weighted by n_j / b_j, which keeps the gradient unbiased (Welling and Teh,
ICML 2011). Metropolis-adjusted (MALA; Roberts and Tweedie, Bernoulli 1996), z' is accepted with probability
min(1, p(z') q(z | z') / (p(z) q(z' | z))), and the stationary law is the posterior.

All rows of the plate and all chains move at once, each with its own step size and its own decision. Latents with
constraints move on the real line, with the Jacobian of the map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import pyro
import torch
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.transforms import Transform

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError, unknown
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.guide_draws import draw_with
from hierfl.ppl.restrict import Restrict
from hierfl.rng import ClientNoise

from .elbo import log_joint
from .method import Local, State
from .minibatches import minibatches, plan, standing_features

#: log U(z) and its gradient at z, by name: (C, S) and (C, S, 1, *event)
Density = Callable[[State], tuple[Tensor, State]]
#: of each kept draw, since the one before: mean acceptance probability (0 without metropolis), step size, and whether
#: some proposal was less likely than where the chain stood by more than WILD nats, as where a step is far too long
STATS = ("acceptance_rate", "step_size", "diverging")
WILD = 1000.0
#: chains x examples of a pass, whose derivatives hold some twenty numbers for each
HELD = 1_000_000
Preconditioning = Literal["none", "rms", "fisher", "full"]


@dataclass(frozen=True)
class Langevin:
    """Langevin steps on personal latents, from where the chains last stood or from the prior.

    What the chains of a latent z have kept is the personal value z_draws, (chains, kept, *event): ``personal()``
    declares it with that shape, and the guide says ``sample("z", Draws(param("z_draws"), event_dim))``.

    Args:
        names: the latents; they move together, and are accepted together.
        steps: M, burn-in included.
        step_size: gamma, where it is not adapted, and where adaptation begins.
        metropolis: accept or reject.
        batch: examples per step; None for all of them.
        precondition: "none"; "rms", 1 / sqrt(E g^2) with a running mean (Li et al., AAAI 2016; without its curvature
            term); "fisher", 1 / E g^2 (the diagonal of Titsias, NeurIPS 2023); "full", his (E g g^T)^-1, one matrix per
            latent, for few numbers that depend on each other. They are learned during burn-in from the gradients g of
            all of a row's chains, then held.
        metric: a personal value R (e, e) of which P is R R^T, where it is known and need not be learned; for one latent
            with e numbers.
        around: a personal value (e,), beside a metric: the latent's log joint is quadratic, as a Gaussian model's is,
            so that its height, gradient and curvature there are all that there is to know. The model is asked for
            them once, not at every step.
        burn: steps at the beginning that are not kept.
        thin: every so many of the others are.
        target: acceptance to adapt each step size to during burn-in (0.574 is best for MALA in high dimension;
            Roberts and Rosenthal, JRSS B 1998); None to leave it.
        start: "last" goes on from the last kept draw (stateful), "prior" draws anew (stateless).
        sizes: a personal value (chains,) that remembers adapted step sizes from round to round; 0 for none yet.

    Beside the draws rows get ``z_draws/stats``, (chains, kept, 3), see :data:`STATS`: nobody declares it, and it is
    gone when the round ends; after the method's posterior steps it becomes the sample_stats of ``run.posterior()``.
    """

    names: Sequence[str]
    steps: int
    step_size: float
    metropolis: bool = False
    batch: int | None = None
    precondition: Preconditioning = "none"
    metric: str | None = None
    around: str | None = None
    burn: int = 0
    thin: int = 1
    target: float | None = None
    start: Literal["last", "prior"] = "last"
    sizes: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise UserError(f"Langevin moves a list of latents: Langevin([{self.names!r}], ...)")
        if self.precondition not in get_args(Preconditioning):
            raise unknown("preconditioner", self.precondition, get_args(Preconditioning))
        if self.start not in ("last", "prior"):
            raise unknown("start of a chain", self.start, ["last", "prior"])
        for name, least in (("steps", 0), ("burn", 0), ("thin", 1), ("batch", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"Langevin's {name} must be at least {least}, not {value}")
        if not 0 < self.step_size < float("inf"):
            raise UserError(f"Langevin's step_size must be above 0, not {self.step_size}")
        if self.steps and self.kept < 1:
            raise UserError(
                f"{self.steps} steps, {self.burn} of burn-in and one kept of {self.thin} keep nothing: more steps"
            )
        if self.batch is not None and self.metropolis:
            raise UserError("a minibatch knows no acceptance probability: metropolis needs batch=None")
        if self.precondition != "none" and not self.burn:
            raise UserError(f"the preconditioner {self.precondition!r} is learned during burn-in: burn must be above 0")
        if self.metric and (self.precondition != "none" or len(self.names) > 1):
            raise UserError("a metric is a preconditioner of its own, for one latent: precondition='none'")
        if self.around and (not self.metric or self.batch is not None):
            raise UserError("a quadratic log joint is told around a value by a metric, and by all examples: batch=None")
        if self.target is not None and not (self.metropolis and 0 < self.target < 1):
            raise UserError("a target acceptance lies between 0 and 1, and needs metropolis")
        if self.target is None and self.sizes:
            raise UserError("without a target no step size is adapted")

    @property
    def kept(self) -> int:
        """Draws of each chain that are kept."""
        return (self.steps - self.burn) // self.thin

    @property
    def trains(self) -> Sequence[str]:
        """What is changed."""
        return [*map(kept_as, self.names), *([self.sizes] if self.sizes else [])]

    def run(self, local: Local, phase: object) -> Local:
        """Moves the chains of all rows."""
        for name in self.trains:
            if name not in local.rows:
                raise UserError(f"Langevin moves {name!r}, which personal() does not declare")
        if not self.steps:
            return local
        with pyro.validation_enabled(False), torch.enable_grad():
            if self.batch is not None:
                found = [self._minibatches(local, phase)]
            elif self.around:
                found = [self._quadratic(local, phase)]
            else:
                cut = buckets(local.sizes, HELD // self._chains(local))
                found = [self._whole(local.part(*rows), phase) for rows in cut]
        return local.put({name: torch.cat([rows[name] for rows in found]) for name in found[0]})

    # -- one set of rows ------------------------------------------------------------------------------------------

    def _whole(self, local: Local, phase: object) -> State:
        batch = local.batch()
        frozen = FrozenFeatures.of(batch.x, frozenset(self.names), local.values)
        noise, target = self._noise(local, phase), _Target(local, self.metric)
        return self._chain(local, target, noise, lambda: target.density(batch, frozen))

    def _quadratic(self, local: Local, phase: object) -> State:
        """All rows at once, whatever their sizes."""
        (name,), parts = self.names, []
        for first, last in buckets(local.sizes, HELD):
            part = local.part(first, last)
            parts.append(_Target(part, self.metric, self.around).expansion(name, part.batch()))
        height, slope, bend = (torch.cat(found) for found in zip(*parts, strict=True))
        slope, *columns = (_event_first(v) for v in (slope, *bend.unsqueeze(1).unbind(-1)))  # (S, 1, e) each

        def density(u: State) -> tuple[Tensor, State]:
            turned = sum(column * u[name][..., k, None] for k, column in enumerate(columns))
            return height + _over_event(u[name] * (slope + 0.5 * turned)), {name: slope + turned}

        target = _Target(local, self.metric, self.around)
        return self._chain(local, target, self._noise(local, phase), lambda: density)

    def _noise(self, local: Local, phase: object) -> ClientNoise:
        return local.noise(phase, self._chains(local)).reading(self.steps)

    def _minibatches(self, local: Local, phase: object) -> State:
        size = min(self.batch or 1, max(local.sizes))
        plans = []
        for row, n in enumerate(local.sizes):
            epochs = -(-self.steps // -(-n // size))
            plans.append(plan(local, row, phase, size, epochs)[: self.steps])
        frozen = FrozenFeatures(frozenset(self.names), partial(standing_features, local))
        noise, target = self._noise(local, phase), _Target(local)
        batches = minibatches(local, plans, frozen, noise)
        return self._chain(local, target, noise, lambda: target.density(next(batches), frozen))

    def _chains(self, local: Local) -> int:
        """C, from the shape of what is kept: (S, 1, C, kept, *event)."""
        return local.rows[kept_as(self.names[0])].shape[2]

    def _chain(self, local: Local, target: _Target, noise: ClientNoise, fresh: Callable[[], Density]) -> State:
        """Runs the chains.

        Args:
            local: the rows.
            target: maps latents to the real line and back.
            noise: of the rows.
            fresh: the density for the next step.
        """
        z = target.begin(self.names, self.start, noise.reading(1))
        density = fresh()
        chains, rows = noise.particles, len(local.clients)
        laid = _event_first if self.around else Tensor.contiguous
        z = {k: laid(v) for k, v in z.items()}
        gamma = self._first_sizes(local, chains)
        scale = _Preconditioner(self.precondition)
        height, slope = density(z)
        chances, wild = torch.zeros_like(gamma), torch.zeros_like(gamma)  # since the last kept draw
        recent, count = gamma.log(), 0
        kept = {k: v.new_empty((rows, 1, chains, self.kept, *v.shape[3:])) for k, v in target.constrained(z).items()}
        stats = gamma.new_empty((rows, 1, chains, self.kept, len(STATS)))
        for step in range(self.steps):
            noise.at(step)
            burning = step < self.burn
            if burning:
                scale.learn(slope)
            xi = {k: laid(noise.normal(k, None, v.shape[3:])) for k, v in z.items()}
            proposal, drift = {}, {}
            for k in z:
                g = _wide(gamma, z[k])
                drift[k] = z[k] + g * scale.apply(k, slope[k])
                proposal[k] = drift[k] + (2 * g).sqrt() * scale.root(k, xi[k])
            if not self.metropolis:
                z = proposal
                if step + 1 < self.steps:
                    if self.batch is not None:
                        density = fresh()
                    height, slope = density(z)
            else:
                there, slope_there = density(proposal)
                log_ratio = there - height
                for k in z:
                    back = z[k] - proposal[k] - _wide(gamma, z[k]) * scale.apply(k, slope_there[k])
                    log_ratio = log_ratio + _over_event(0.5 * xi[k].square()) - scale.square(k, back) / (4 * gamma)
                coin = torch.special.ndtr(noise.normal("/accept", None, torch.Size()).squeeze(-1)).log()
                taken = coin < log_ratio  # (not where the ratio is not a number)
                z = {k: torch.where(_wide(taken, v), proposal[k], v) for k, v in z.items()}
                slope = {k: torch.where(_wide(taken, v), slope_there[k], v) for k, v in slope.items()}
                height = torch.where(taken, there, height)
                chance = log_ratio.exp().clamp(max=1).nan_to_num(0.0)
                if burning and self.target is not None:
                    rate = (step + 1) ** -0.6
                    gamma = (gamma.log() + rate * 4 * (chance - self.target)).exp()
                    # what is held afterwards is an average over the later half, which is steadier than the last one
                    past = max(1, step + 1 - self.burn // 2)
                    recent = recent + (gamma.log() - recent) / past
                    if step + 1 == self.burn:
                        gamma = recent.exp()
                elif not burning:
                    chances, wild = chances + chance, wild + ~(log_ratio > -WILD)
            if not burning and (step + 1 - self.burn) % self.thin == 0:
                for k, v in target.constrained(z).items():
                    kept[k][:, 0, :, count] = v.detach()[:, :, 0].transpose(0, 1)
                told = torch.stack([chances / self.thin, gamma, (wild > 0).to(gamma)], -1)
                stats[:, 0, :, count] = told.transpose(0, 1)
                count += 1
                chances, wild = torch.zeros_like(gamma), torch.zeros_like(gamma)
        result = {kept_as(k): draws for k, draws in kept.items()}
        if self.sizes:
            result[self.sizes] = gamma.mT.reshape(rows, 1, chains)
        result[stats_of(self.names[0])] = stats
        return result

    def _first_sizes(self, local: Local, chains: int) -> Tensor:
        """(C, S)."""
        size = torch.full((chains, len(local.clients)), self.step_size, dtype=local.federation.dtype)
        size = size.to(local.federation.device)
        if self.sizes is None:
            return size
        known = local.rows[self.sizes].squeeze(1).mT
        return torch.where(known > 0, known, size)


def kept_as(latent: str) -> str:
    """The personal value that holds a latent's draws (a value called like the latent would fix it)."""
    return f"{latent}_draws"


def stats_of(latent: str) -> str:
    """The rows' value that holds a chain's :data:`STATS`; of latents that move together the first one's."""
    return f"{kept_as(latent)}/stats"


class _Target:
    """The restricted log joint of some rows as a function of real numbers, and the way there and back.

    Beside a metric R R^T of a latent z the real numbers are u with z = R u (or m + R u), on which a step without a
    preconditioner is one in that metric.

    Args:
        local: the rows.
        metric: names R; None for 1.
        centre: names m; None for 0.
    """

    def __init__(self, local: Local, metric: str | None = None, centre: str | None = None) -> None:
        self.local, self.values = local, local.values
        self.root = local.rows[metric].squeeze(1) if metric else None  # (S, e, e)
        self.centre = local.rows[centre] if centre else None  # (S, 1, e)
        self._maps: dict[str, Transform] = {}

    def begin(self, names: Sequence[str], start: str, noise: ClientNoise) -> State:
        """Where the chains begin: (C, S, 1, *event)."""
        last: State = {}
        if start == "last":
            last = {k: self.local.rows[kept_as(k)][:, :, :, -1].movedim(2, 0) for k in names}
        drawn: State = {}

        def from_prior(name: str, fn: object, in_data: bool) -> Tensor:
            value = draw_with(noise)(f"{name}/prior", fn, in_data)
            drawn[name] = value.expand(noise.particles, *value.shape[-2 - len(fn.event_shape) :])  # type: ignore[attr-defined]
            return drawn[name]

        with torch.no_grad(), Restrict(self.values, latents=last, draw=from_prior) as seen:
            self.local.method.model(self.local.federation.template(len(self.local.clients)))
        for name in names:
            site = seen.sites.get(name)
            if site is None or site.kind != "latent" or not site.per_client or site.per_example:
                raise UserError(f"Langevin moves latents of the client plate, and {name!r} is none")
            self._maps[name] = biject_to(site.fn.support)
        if drawn.keys() - set(names):
            raise UserError(f"latent {sorted(drawn.keys() - set(names))[0]!r} of the model is moved by no step")
        begin = drawn if start == "prior" else last
        real = {k: self._maps[k].inv(begin[k]).detach() for k in names}
        if self.centre is not None and any(not torch.equal(real[k], begin[k]) for k in names):
            raise UserError(f"a log joint is not quadratic in a latent with constraints, such as {names[0]!r}")
        return {k: self._plain(v) for k, v in real.items()}

    def constrained(self, u: Mapping[str, Tensor]) -> State:
        """Back to where the model lives."""
        return {k: self._maps[k](self._real(v)) for k, v in u.items()}

    def _real(self, u: Tensor) -> Tensor:
        if self.root is None:
            return u
        z = _turned(self.root, u)
        return z if self.centre is None else self.centre + z

    def _plain(self, z: Tensor) -> Tensor:
        if self.root is None:
            return z
        gap = z if self.centre is None else z - self.centre
        rows = gap.flatten(2).transpose(0, 1)  # (S, C, e)
        found = torch.linalg.solve_triangular(self.root.mT, rows, upper=True, left=False)
        return found.transpose(0, 1).reshape(z.shape)

    def density(self, batch: Batch, frozen: FrozenFeatures) -> Density:
        """The log density on the real line and its gradient."""

        def at(u: State) -> tuple[Tensor, State]:
            leaves = {k: v.detach().requires_grad_() for k, v in u.items()}
            real = {k: self._real(v) for k, v in leaves.items()}
            there = {k: self._maps[k](v) for k, v in real.items()}
            total = log_joint(self.local.method, batch, self.values, there, frozen=frozen)
            for k, z in real.items():
                jacobian = self._maps[k].log_abs_det_jacobian(z, there[k])
                total = total + _over_event(jacobian)
            slopes = torch.autograd.grad(total.sum(), list(leaves.values()))
            return total.detach(), dict(zip(leaves, slopes, strict=True))

        return at

    def expansion(self, name: str, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Of a quadratic log joint at u = 0: height (S,), gradient (S, 1, e), second derivatives (S, e, e)."""
        assert self.centre is not None
        u = torch.zeros_like(self.centre)[None].requires_grad_()  # (1, S, 1, e)
        height = log_joint(self.local.method, batch, self.values, {name: self._real(u)})
        (slope,) = torch.autograd.grad(height.sum(), u, create_graph=True)
        lines = [torch.autograd.grad(slope[..., a].sum(), u, retain_graph=True)[0] for a in range(u.shape[-1])]
        bend = torch.stack(lines, -1)  # (1, S, 1, e, e)
        return height[0].detach(), slope[0].detach(), bend[0, :, 0].detach()


def _turned(matrix: Tensor, v: Tensor) -> Tensor:
    """A matrix of each row (S, e, e) times vectors (C, S, 1, *event)."""
    rows = v.flatten(2).transpose(0, 1) @ matrix.mT  # (S, C, e)
    return rows.transpose(0, 1).reshape(v.shape)


#: how much of a preconditioner the newest gradients are, at least
FORGET = 0.02


class _Preconditioner:
    """P, one for each row and latent: learned from the gradients of the row's chains, or 1.

    Everything takes and gives (C, S, 1, *event).
    """

    def __init__(self, kind: Preconditioning) -> None:
        self.kind, self.seen = kind, 0
        self._mean: State = {}  # F = E g^2 or E g g^T: (1, S, 1, *event), or (S, e, e)
        self._diagonal: State = {}  # P, (1, S, 1, *event)
        self._root: dict[str, tuple[Tensor, Tensor]] = {}  # R with P = R R^T, and its inverse, (S, e, e)

    def learn(self, slopes: State) -> None:
        """Takes one more gradient of every chain."""
        if self.kind == "none":
            return
        self.seen += 1
        for k, g in slopes.items():
            if self.kind == "full":
                flat = g.flatten(2)
                new = torch.einsum("csi,csj->sij", flat, flat) / len(g)
            else:
                new = g.square().mean(0, keepdim=True)
            old = self._mean.get(k, torch.zeros_like(new))
            weight = max(FORGET, 1 / self.seen)  # the way to where the mass lies is forgotten
            mean = self._mean[k] = old + weight * (new - old)
            if self.kind == "full":
                # a few gradients do not span the space: until they do, F is held away from the boundary
                share = 1e-9 + 1 / (self.seen * len(g))
                level = mean.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * share
                one = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
                inverse = torch.linalg.cholesky_ex(mean + (level + 1e-12) * one).L.mT
                self._root[k] = torch.linalg.solve_triangular(inverse, one, upper=True), inverse
            else:
                self._diagonal[k] = 1 / (1e-5 + mean.pow(0.5 if self.kind == "rms" else 1.0))

    def apply(self, name: str, v: Tensor) -> Tensor:
        """P v."""
        if name in self._root:
            root, _ = self._root[name]
            return (root @ (root.mT @ _columns(v))).view_as(v)
        return self._diagonal[name] * v if name in self._diagonal else v

    def root(self, name: str, v: Tensor) -> Tensor:
        """A root of P times v: standard normals become N(0, P)."""
        if name in self._root:
            return (self._root[name][0] @ _columns(v)).view_as(v)
        return self._diagonal[name].sqrt() * v if name in self._diagonal else v

    def square(self, name: str, v: Tensor) -> Tensor:
        """v^T P^-1 v, (C, S)."""
        if name in self._root:
            return _over_event((self._root[name][1] @ _columns(v)).square())
        return _over_event(v.square() / self._diagonal[name] if name in self._diagonal else v.square())


def _event_first(v: Tensor) -> Tensor:
    """The same, but a few numbers of an event lie far from each other, and those of all rows and chains side by side.

    Sums over the event, and what is broadcast along it, are then several times as fast.
    """
    return v.movedim(-1, 0).contiguous().movedim(0, -1)


def _columns(v: Tensor) -> Tensor:
    """(C, S, 1, *event) -> (C, S, e, 1)."""
    return v.flatten(2).unsqueeze(-1)


def _wide(each: Tensor, like: Tensor) -> Tensor:
    """(C, S) beside (C, S, 1, *event)."""
    return each.view(*each.shape, *[1] * (like.dim() - 2))


def _over_event(terms: Tensor) -> Tensor:
    """(C, S, 1, ...) -> (C, S)."""
    return terms.flatten(2).sum(2)

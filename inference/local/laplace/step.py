"""Gaussian posteriors of clients' heads with correlations, by natural-gradient steps.

For a head w_j with prior N(m, D), D = diag(r)^2, and a likelihood that sees it through a linear predictor, with g and H
the gradient and curvature of the log likelihood, averaged over q(w_j) (variational; Opper and Archambeau, Neural
Computation 2009) or at its mean mu_j alone (Laplace),

    q(w_j | m) = N(m + P^-1 (H (mu_j - m) + g), P^-1),    P = H + D^-1

whose mean is mu_j itself once Newton's steps have converged. These are natural-gradient steps of mean and precision of
length one (Khan and Rue, JMLR 2023), and one of them is exact where the likelihood is Gaussian. At another w the same
expansion has the mean P^-1 (H mu_j + g + D^-1 w). Where w is known as N(m, S) the average is over the marginal of w_j,
with covariance P^-1 + G S G^T, G = P^-1 D^-1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.ppl.lattice import standard_points
from hierfl.rng import ClientNoise

from ...clients.chunk import ClientChunk
from ...state import State
from .curvature import Covariance, curvature
from .forms import Curvature, Scaled
from .newton import conjugate_gradients, line_search
from .population_terms import PopulationTerms
from .target import Expansion, Target

#: numbers of the matrices (d, d) that rows hold at a time, and of their examples' (n, outputs, outputs + features)
HELD = 2_000_000
#: Newton's steps end where what one of them promises is less: 1e-8 posterior standard deviations
ARRIVED = 1e-16


@dataclass(frozen=True)
class GaussianHead:
    """Steps on a head's Gaussian posterior, and draws of it.

    The draws are the personal value ``LATENT_draws``, (1, K, d): ``personal()`` declares it, all of them mu_j, and the
    guide says ``sample(LATENT, EmpiricalDraws(param("LATENT_draws"), 1))``. They come in pairs mu + e, mu - e, whose
    mean is the posterior's. A round's expectations are averages over those of the last one, made with the same noise in
    every round, so that there is a point at which nothing moves; one draw is the mean, and the posterior Laplace's.

    Args:
        latent: the head's site in the model, whose prior is Normal.
        mean: the personal value mu_j, (d,).
        covariance: the form of the curvature; the mean is that with the exact one whatever the form.
        newton: steps on the mean at most, while the deviations of the draws are held.
        turns: how often the precision follows.
        rank: of ``covariance="low_rank"``.
        terms: what the head says of its population, left as rows ``LATENT/KEY`` for an aggregation rule.
        population: the shared value w that is the prior's mean, where it is known by
            :meth:`~hierfl.inference.method.base.Method.shared_draws`; "" where it is a point.
        final: so many draws in the end, each at its own draw of all shared values; 0 for K.
        refit: whether the likelihood is expanded anew where those differ in more than w.
        own: the personal value of a client's own log rho_j, drawn from N(., NAME_sd^2) with those; "" for none.
    """

    latent: str
    mean: str
    covariance: Covariance = "full"
    newton: int = 20
    turns: int = 1
    rank: int = 50
    terms: PopulationTerms | None = None
    population: str = ""
    final: int = 0
    own: str = ""
    refit: bool = False

    @property
    def drawn(self) -> str:
        """The personal value that holds the draws."""
        return f"{self.latent}_draws"

    @property
    def trains(self) -> Sequence[str]:
        """Mean and draws."""
        return (self.mean, self.drawn, *(self.terms.trains if self.terms else []))

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves the posteriors of all rows."""
        for name in self.trains:
            if name not in chunk.values:
                raise UserError(f"GaussianHead moves {name!r}, which personal() does not declare")
        kept = chunk.values[self.drawn].shape[3]
        around = self._shared_draws(chunk, kept).get(self.population) if kept > 1 else None
        with pyro.validation_enabled(False), torch.no_grad():
            found = [self._rows(chunk.part(*rows), around) for rows in self._parts(chunk)]
        return chunk.put({name: torch.cat([part[name] for part in found]).to(chunk.n.dtype) for name in found[0]})

    def _shared_draws(self, chunk: ClientChunk, number: int) -> State:
        """Those of w (K, 1, d) in the order of the weight matrix, the others (K, *shape)."""
        found = chunk.method.shared_draws(chunk.shared, number) if self.population else {}  # type: ignore[attr-defined]
        order = chunk.method.network.head.matrix_order.to(chunk.n.device)
        return {k: (v[:, 0, :, order] if k == self.population else v[:, 0, 0]).double() for k, v in found.items()}

    def _parts(self, chunk: ClientChunk) -> Iterator[tuple[int, int]]:
        head, kept = chunk.method.network.head, chunk.values[self.drawn].shape[3]
        dense = self.covariance == "full" or self.terms is not None
        each = head.d * max(head.d if dense else self.rank * (self.covariance == "low_rank"), kept, self.final)
        most = max(1, HELD // each)
        for first, last in buckets(chunk.sizes, HELD // (kept * head.outputs**2 + head.features)):
            yield from ((k, min(k + most, last)) for k in range(first, last, most))

    def _rows(self, chunk: ClientChunk, around: Tensor | None) -> State:
        target = Target(chunk, self.latent)
        mu, draws = (
            chunk.values[self.mean].squeeze(1).double(),
            chunk.values[self.drawn][:, 0, 0].double().transpose(0, 1),
        )
        posterior = Posterior(mu[:, target.order], (draws - draws.mean(0))[..., target.order])
        noise = self._noise(chunk, len(draws))
        posterior = self._turned(target, posterior, noise, around, self.turns)
        found = {self.mean: posterior.mu[:, target.back].unsqueeze(1)}
        at, h, scaled = posterior.expansion
        if self.terms is not None:
            said = self.terms.of(target.values, at, h, scaled)
            found |= {k: said.pop(k).unsqueeze(1) for k in self.terms.trains}
            found |= {f"{self.latent}/{key}": value.unsqueeze(1) for key, value in said.items()}
        if self.final:
            return found | self._final(chunk, target, self._places(chunk, target, posterior, noise, around))
        return found | self._kept(target, posterior.mu + posterior.away)

    def _kept(self, target: Target, heads: Tensor) -> State:
        """Draws (K, S, d) as they are kept."""
        return {self.drawn: heads[..., target.back].transpose(0, 1)[:, None, None]}

    def _noise(self, chunk: ClientChunk, number: int, d: int = 0) -> Tensor:
        """Standard normals (K, S, d), the same for a client in all rounds."""
        keys = chunk.keys.to(chunk.n.device)
        noise = ClientNoise(keys, (chunk.seed, "head"), max(1, number // 2), dtype=torch.float64)
        return _pairs(noise, self.latent, d or chunk.values[self.mean].shape[-1], number)

    def _turned(
        self, target: Target, posterior: Posterior, noise: Tensor, around: Tensor | None, turns: int
    ) -> Posterior:
        """Mean and precision, in turns."""
        for _ in range(turns):
            at, h, scaled = self._moved(target, posterior)
            spread = 0.0 if around is None else scaled.solve((around - around.mean(0)) / at.r)
            away = at.r * (scaled.root(noise) + spread)
            if len(away) > 1 and bool((posterior.away != 0).any()):
                # (all the way, precisions would overshoot: where draws are wide, curvatures are small, and the reverse)
                away = 0.5 * (away + posterior.away)
            posterior = Posterior(at.mu, away, (at, h, scaled))
        return posterior

    def _moved(self, target: Target, posterior: Posterior) -> tuple[Expansion, Curvature, Scaled]:
        """The expansion where the mean stands after Newton's steps, and the curvature there."""
        away = posterior.away if len(posterior.away) > 1 else None
        at = target.at(posterior.mu, away)
        for _ in range(self.newton):
            # (after the last step that of the step before will do: where nothing moves any more they are the same)
            h, scaled = self._curvature(at)
            slope = at.slope
            step = at.r * self._solved(at, scaled, at.r * slope)
            promised = (slope * step).sum(-1)
            if bool((promised < ARRIVED).all()):
                break
            at = line_search(target, at, step, promised, away)
        return at, h, scaled

    def around_mode(self, target: Target, number: int) -> tuple[Expansion, Curvature, Scaled]:
        """The posterior's expansion, begun at the prior's mean: of shared values and data alone.

        Args:
            target: the rows.
            number: draws over which it is averaged; 1 for the mode's.
        """
        m, _ = target.prior()
        begin = Posterior(m, torch.zeros_like(m).expand(number, *m.shape))
        return self._turned(target, begin, self._noise(target.chunk, number, m.shape[-1]), None, self.turns).expansion

    def _curvature(self, at: Expansion) -> tuple[Curvature, Scaled]:
        h = curvature(self.covariance, at.z, at.weights, self.rank)
        return h, h.scaled(at.r)

    def _solved(self, at: Expansion, scaled: Scaled, right: Tensor) -> Tensor:
        """B^-1 right, B exact."""
        return scaled.solve(right) if self.covariance == "full" else conjugate_gradients(at, scaled, right)

    def _final(self, chunk: ClientChunk, target: Target, places: Iterator[AtDraws]) -> State:
        """Draws (K, S, d) at draws of the shared values."""
        fresh = self._noise(chunk, self.final)
        found = torch.empty_like(fresh)
        for at in places:
            found[at.places] = at.centre + at.r * at.scaled.root(fresh[at.places])
        return self._kept(target, found)

    def _places(
        self, chunk: ClientChunk, target: Target, posterior: Posterior, noise: Tensor, around: Tensor | None
    ) -> Iterator[AtDraws]:
        """The posterior at draws of the shared values, those that share a precision at a time."""
        shared = self._shared_draws(chunk, self.final)
        if not shared:
            at, h, scaled = posterior.expansion
            everywhere = torch.arange(self.final, device=chunk.n.device)
            yield AtDraws(everywhere, target, at.m + at.offset(h, scaled), at.r, h, scaled)
            return
        w = shared.pop(self.population)
        for there, others, own in self._alike(shared, chunk):
            middle = w[there].mean(0)
            here = target.given({self.population: middle[0, target.back], **others}, own)
            if self.refit:
                at, h, scaled = self._turned(here, posterior, noise, around, 1).expansion
            else:
                at, h, _ = posterior.expansion
                at = here.under_prior(at)
                scaled = h.scaled(at.r)
            mean = at.m + at.offset(h, scaled) + at.r * scaled.solve((w[there] - middle) / at.r)
            each = here.given({self.population: w[there][..., None, target.back]}, {})
            yield AtDraws(there, each, mean, at.r, h, scaled)

    def _alike(self, shared: State, chunk: ClientChunk) -> Iterator[tuple[Tensor, State, State]]:
        """Draws (places) that share all but w: these values, {name: (*shape)}, and the rows' own, (S, 1, *shape)."""
        device = chunk.n.device
        if self.own:
            own, sd = (chunk.values[name].double() for name in (self.own, f"{self.own}_sd"))
            points, pair = standard_points(own.shape[-1]).to(own), torch.arange(self.final, device=device)
            pair = pair % (self.final - self.final // 2)
            for number, z in enumerate(points):
                there = (pair % len(points) == number).nonzero().flatten()
                if len(there):
                    yield there, {}, {self.own: own + sd * z}
            return
        flat = torch.cat([v.flatten(1) for v in shared.values()], 1)
        _, which = torch.unique(flat, dim=0, return_inverse=True)
        for number in range(int(which.max()) + 1):
            there = (which == number).nonzero().flatten()
            yield there, {k: v[there[0]] for k, v in shared.items()}, {}


@dataclass(frozen=True)
class AtDraws:
    """A Gaussian posterior of some rows' heads at some draws of the shared values, all with one precision.

    Attributes:
        places: of these draws, (K,).
        target: the rows at them: the population's mean is one for each, (K, 1, 1, d).
        centre: means, (K, S, d) or (S, d).
        r, h, scaled: standard deviations of the prior, the curvature, and B of both.
    """

    places: Tensor
    target: Target
    centre: Tensor
    r: Tensor
    h: Curvature
    scaled: Scaled


@dataclass(frozen=True)
class Posterior:
    """q(w_j) of some rows: mean (S, d), deviations of draws (K, S, d), and where its precision comes from."""

    mu: Tensor
    away: Tensor
    known: tuple[Expansion, Curvature, Scaled] | None = None

    @property
    def expansion(self) -> tuple[Expansion, Curvature, Scaled]:
        """Expansion and curvature of the last turn."""
        assert self.known is not None
        return self.known


def _pairs(noise: ClientNoise, site: str, d: int, number: int) -> Tensor:
    """Standard normals (K, S, d) in pairs e, -e: first all of the first, then of the second; an odd one is zero."""
    odd = noise.keys.new_zeros((number % 2, len(noise.keys), d), dtype=noise.dtype)
    if number == 1:
        return odd
    e = noise.normal(f"{site}/laplace", None, torch.Size((d,))).squeeze(2)
    return torch.cat([e, odd, -e])

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
from dataclasses import KW_ONLY, dataclass

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.rng import ClientNoise

from ...clients.chunk import ClientChunk
from ...state import State
from .curvature import Covariance, curvature
from .forms import Curvature, Scaled
from .lost import finite_draws
from .newton import nearer, newton_step
from .points import DEVIATIONS, client_deviations, deviations, population_deviations
from .population_terms import Groups, PopulationTerms
from .posterior import AtDraws, Posterior, alike, pairs
from .target import Expansion, Target

#: numbers of the matrices (d, d) that rows hold at a time, and of their examples' (n, outputs, outputs + features)
MAX_NUMBERS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class GaussianHead:
    """Steps on a head's Gaussian posterior, and draws of it.

    A round's likelihood is averaged over the posterior of the round before: of each example's predictor, whose
    covariance comes from the personal value ``LATENT_away`` (M, d), deviations from the mean with this covariance, made
    with the same noise in every round, so that there is a point at which nothing moves. Those are zero at first, as
    ``personal()`` declares them. With ``points=1`` there are none, and the posterior is Laplace's. Where q(w) is
    Gaussian ``LATENT_begun`` (d,) is w's mean when mu_j was made.

    The draws are the personal value ``LATENT_draws``, (1, K, d): ``personal()`` declares it, all of them mu_j, and the
    guide says ``sample(LATENT, EmpiricalDraws(param("LATENT_draws"), 1))``. They come in pairs mu + e, mu - e, whose
    mean is the posterior's, and are others in every round: what is trained on them cannot learn where they are. One
    draw is the mean.

    Args:
        latent: the head's site in the model, whose prior is Normal.
        mean: the personal value mu_j, (d,).
        covariance: the form of the curvature; the mean is that with the exact one whatever the form.
        newton: steps on the mean at most, while the covariance is fixed.
        nearer: steps before those, at most, of clients that are more than 0.01 nats from their mode, as those are that
            have been away for rounds.
        turns: how often the precision follows.
        rank: of ``covariance="low_rank"``.
        terms: what the head says of its population, left as rows ``LATENT/KEY`` for an aggregation rule.
        population: the shared value w that is the prior's mean, where q(w) is Gaussian; its covariance is
            ``NAME.covariance``; "" where w is a point.
        groups: of that covariance.
        final: so many draws in the end, each at its own draw of all shared values, by
            :meth:`~hierfl.inference.method.base.Method.shared_draws`; 0 for K.
        refit: whether the likelihood is expanded again where those differ in more than w.
        own: the personal value of a client's own log rho_j, drawn from N(., NAME_sd^2) with those; "" for none.
        points: of each example's predictor, over which likelihoods are averaged, at least; 1 for its mean.
        centred: other latents of the clients, which are put at the centre of their guide.
    """

    latent: str
    mean: str
    _: KW_ONLY
    covariance: Covariance = "full"
    newton: int = 20
    nearer: int = 0
    turns: int = 1
    rank: int = 50
    terms: PopulationTerms | None = None
    population: str = ""
    groups: Groups | None = None
    final: int = 0
    own: str = ""
    refit: bool = False
    points: int = 16
    centred: tuple[str, ...] = ()

    @property
    def drawn(self) -> str:
        """The personal value that holds the draws."""
        return f"{self.latent}_draws"

    @property
    def away(self) -> str:
        """The personal value that carries the covariance."""
        return f"{self.latent}_away"

    @property
    def begun(self) -> str:
        """The personal value that says where the population was."""
        return f"{self.latent}_begun"

    @property
    def posterior(self) -> Sequence[str]:
        """Mean, draws, what carries the covariance, and where the population was."""
        away, begun = [self.away] if self.points > 1 else [], [self.begun] if self.groups else []
        return (self.mean, self.drawn, *away, *begun)

    @property
    def trains(self) -> Sequence[str]:
        """The posterior, and what the terms leave."""
        return (*self.posterior, *(self.terms.trains if self.terms else []))

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves the posteriors of all rows."""
        for name in self.trains:
            if name not in chunk.values:
                raise UserError(f"GaussianHead moves {name!r}, which personal() does not declare")
        root = None if self.groups is None else self.groups.root(chunk.shared[f"{self.population}.covariance"])
        moved: State = {}
        with pyro.validation_enabled(False), torch.no_grad():
            for first, last in self._parts(chunk):
                for name, value in self._rows(chunk.part(first, last), phase, root).items():
                    if name not in moved:
                        moved[name] = value.new_empty((len(chunk.clients), *value.shape[1:]), dtype=chunk.n.dtype)
                    moved[name][first:last] = value
        return chunk.put(finite_draws(self, chunk, moved) if self.final else moved)

    def _parts(self, chunk: ClientChunk) -> Iterator[tuple[int, int]]:
        head = chunk.method.network.head
        # Numbers for each of the head's: a row of its matrix, or of the blocks that are sent, and its draws.
        wide = head.d if self.covariance == "full" else self.rank * (self.covariance == "low_rank")
        wide = max(wide, self.terms.groups.size) if self.terms else wide
        kept = max(chunk.values[self.drawn].shape[3], self.final)
        kept += deviations(head.d) if self.points > 1 else 0
        numbers_of_row = head.d * max(wide, kept)
        most = max(1, MAX_NUMBERS_AT_ONCE // numbers_of_row)
        numbers_of_example = (DEVIATIONS + 2 * self.points + head.rows) * head.outputs + head.features
        for first, last in buckets(chunk.sizes, MAX_NUMBERS_AT_ONCE // numbers_of_example):
            yield from ((k, min(k + most, last)) for k in range(first, last, most))

    def _rows(self, chunk: ClientChunk, phase: object, root: Tensor | None) -> State:
        dtype = chunk.n.dtype if self.covariance == "low_rank" else torch.float64
        target = Target(chunk, self.latent, dtype, self.centred)
        mu, away = chunk.values[self.mean].squeeze(1).to(dtype)[:, target.order], None
        if self.points > 1:
            away = chunk.values[self.away].squeeze(1).transpose(0, 1).to(dtype)[..., target.order]
        begun = None
        if root is not None:
            root, begun = root.to(dtype), chunk.values[self.begun].squeeze(1).to(dtype)[:, target.order]
        posterior = self._turned(target, Posterior(mu, away), root, self.turns, begun)
        at, h, scaled = posterior.expansion
        values = {self.mean: posterior.mu[:, target.back].unsqueeze(1)}
        if posterior.away is not None:
            values[self.away] = posterior.away[..., target.back].transpose(0, 1).unsqueeze(1)
        if self.groups is not None:
            values[self.begun] = at.m[:, target.back].unsqueeze(1)
        if self.terms is not None:
            terms = self.terms.row_messages(target, at, h, scaled)
            values |= {k: terms.pop(k).unsqueeze(1) for k in self.terms.trains}
            values |= {f"{self.latent}/{key}": value.unsqueeze(1) for key, value in terms.items()}
        if self.final:
            return values | self._final(target, self._places(target, posterior, root))
        kept, when = chunk.values[self.drawn].shape[3], (chunk.round, phase)
        away = at.r * scaled.root(self._noise(target, kept, when))
        if root is not None:
            away = away + self._of_population(at, scaled, root, self._noise(target, kept, (*when, "w")))
        return values | self._kept(target, posterior.mu + away)

    def _of_population(self, at: Expansion, scaled: Scaled, root: Tensor, noise: Tensor) -> Tensor:
        """G S^(1/2) noise, G = P^-1 D^-1: (K, S, d) of noise (K, S or 1, d)."""
        assert self.groups is not None
        w = torch.einsum("gpq,ksgq->ksgp", root, self.groups.split(noise)).flatten(-2)
        return at.r * scaled.solve((w / at.r).expand(len(w), *at.r.shape))

    def _kept(self, target: Target, heads: Tensor) -> State:
        """Draws (K, S, d) as they are kept."""
        return {self.drawn: heads[..., target.back].transpose(0, 1)[:, None, None]}

    def _noise(self, target: Target, number: int, when: tuple[object, ...]) -> Tensor:
        """Standard normals (K, S, d) of each client."""
        chunk = target.chunk
        keys, d = chunk.keys.to(chunk.n.device), chunk.method.network.head.d
        noise = ClientNoise(keys, (chunk.seed, "head", *when), max(1, number // 2), dtype=target.dtype)
        return pairs(noise, self.latent, d, number)

    def _turned(
        self, target: Target, posterior: Posterior, root: Tensor | None, turns: int, begun: Tensor | None = None
    ) -> Posterior:
        """Mean and precision, in turns."""
        if posterior.away is not None:
            noise = client_deviations(target.chunk, self.latent, posterior.mu)
            others = population_deviations(posterior.mu)
        for turn in range(turns):
            at, h, scaled = self._moved(target, posterior, None if turn else begun)
            away = posterior.away
            if away is not None:
                newest = at.r * scaled.root(noise)
                if root is not None:
                    newest = newest + self._of_population(at, scaled, root, others[:, None])
                # All the way, precisions would overshoot: where the posterior is wide, curvatures are small, and the
                # reverse; a row's first are taken whole, whichever rows are beside it.
                away = torch.where((away == 0).all(-1).all(0)[:, None], newest, 0.5 * (newest + away))
            posterior = Posterior(at.mu, away, (at, h, scaled))
        return posterior

    def _moved(self, target: Target, posterior: Posterior, begun: Tensor | None) -> tuple[Expansion, Curvature, Scaled]:
        """The expansion where the mean is after Newton's steps, and the curvature there.

        Directions are exact. A form that is not is a preconditioner alone, for which the last turn's curvature will do.
        """
        spread = None if posterior.away is None else target.spread(posterior.away, self.points)
        at = target.at(posterior.mu, spread) if begun is None else target.followed(posterior.mu, begun, spread)
        exact = self.covariance == "full"
        covariance_fixed = self.newton > 1 and not exact
        h, scaled = self._curvature(at, posterior.known[1] if covariance_fixed and posterior.known else None)
        if self.nearer:
            at, h, scaled = nearer(target, at, (h, scaled), spread, self._curvature, exact, self.nearer)
        for number in range(self.newton):
            # After the last step that of the step before will do: where nothing moves any more they are the same.
            h, scaled = self._curvature(at) if number and not covariance_fixed else (h, scaled)
            ahead = newton_step(target, at, scaled, spread, exact)
            if ahead is None:
                break
            at = ahead
        return at, *(self._curvature(at) if covariance_fixed else (h, scaled))

    def around_mode(self, target: Target) -> tuple[Expansion, Curvature, Scaled]:
        """The posterior's expansion, begun at the prior's mean: of shared values and data alone.

        Args:
            target: the rows.
        """
        m, _ = target.prior()
        begin = torch.zeros_like(m).expand(deviations(m.shape[-1]), *m.shape)
        return self._turned(target, Posterior(m, begin), None, self.turns).expansion

    def _curvature(self, at: Expansion, h: Curvature | None = None) -> tuple[Curvature, Scaled]:
        h = h or curvature(self.covariance, at.z, at.weights, self.rank)
        return h, h.scaled(at.r)

    def _final(self, target: Target, places: Iterator[AtDraws]) -> State:
        """Draws (K, S, d) at draws of the shared values."""
        fresh = self._noise(target, self.final, ())
        draws = torch.empty_like(fresh)
        for at in places:
            draws[at.places] = at.centre + at.r * at.scaled.root(fresh[at.places])
        return self._kept(target, draws)

    def _places(self, target: Target, posterior: Posterior, root: Tensor | None) -> Iterator[AtDraws]:
        """The posterior at draws of the shared values, those that share a precision at a time."""
        shared = self._shared_draws(target)
        if not shared:
            at, h, scaled = posterior.expansion
            everywhere = torch.arange(self.final, device=at.r.device)
            yield AtDraws(everywhere, target, at.m + at.offset(h, scaled), at.r, h, scaled)
            return
        w = shared.pop(self.population)
        for places, others, own in alike(shared, target, self.own, self.final):
            middle = w[places].mean(0)
            at_middle = target.given({self.population: middle[0, target.back], **others}, own)
            if self.refit:
                at, h, scaled = self._turned(at_middle, posterior, root, 1).expansion
            else:
                at, h, _ = posterior.expansion
                at = at_middle.under_prior(at)
                scaled = h.scaled(at.r)
            mean = at.m + at.offset(h, scaled) + at.r * scaled.solve((w[places] - middle) / at.r)
            at_each = at_middle.given({self.population: w[places][..., None, target.back]}, {})
            yield AtDraws(places, at_each, mean, at.r, h, scaled)

    def _shared_draws(self, target: Target) -> State:
        """Those of w (K, 1, d) in the order of the weight matrix, the others (K, *shape)."""
        if self.groups is None:
            return {}
        drawn = target.chunk.method.shared_draws(target.chunk.shared, self.final)  # type: ignore[attr-defined]
        w = target.cast(drawn.pop(self.population)[:, 0, :, target.order])
        return {k: target.cast(v[:, 0, 0]) for k, v in drawn.items()} | {self.population: w}

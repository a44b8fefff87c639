"""Low-rank changes of a backbone's layers, client by client, with spreads by marginal likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.laplace.posterior import pairs
from hierfl.inference.state import State
from hierfl.nn.functional import Network
from hierfl.nn.low_rank_changes import LowRankChanges
from hierfl.ppl.plates import param
from hierfl.ppl.restrict import Restrict
from hierfl.rng import ClientNoise

from .adapter_likelihood import MAX_NUMBERS_AT_ONCE, Likelihood
from .adapter_mixture import Mixture, Mode, half_as_good, inside
from .heads import HeadSpreads
from .turns import Turns

#: numbers at most: a client's posterior has a matrix of as many rows
MOST = 1000
#: where the spreads begin, and the scale of their half-normal prior
TAU_0, TAU_SCALE = 0.1, 10.0
#: draws by which Laplace's approximation is corrected: in a round, and at least in the end
WEIGHED, WEIGHED_LAST = 1024, 8000
#: further starts of Newton's steps, and steps from each: in a round, and in the end
STARTS, STARTS_LAST = (7, 3), (15, 8)
#: it stays as it is where a client has more numbers
WEIGHED_AT_MOST = 100
#: the matrices A are keyed by a number below this, which single precision holds
SEEDS = 2**20
NO_NOISE = "the spreads of a client's adapters are learned from numbers that noise would hide: adapters=off"


@dataclass(frozen=True)
class Adapters:
    """A client's layers are W_l + B_jl A_l, B_jl ~ N(0, tau_l^2); A_l is drawn once and fixed.

    Args:
        changes: of which layers.
        draws: of each client's posterior in the end.
    """

    changes: LowRankChanges
    draws: int

    @classmethod
    def for_network(cls, network: Network, rank: int, layers: str, draws: int) -> Adapters:
        """Of a network.

        Raises:
            UserError: where it cannot have them, and for too many numbers.
        """
        names = [name for name in layers.split(",") if name]
        try:
            changes = LowRankChanges.for_network(network, rank, names)
        except UserError as error:
            raise UserError(f"adapters: {error}") from error
        if changes.d > MOST:
            raise UserError(
                f"adapters of rank {rank} have {changes.d} numbers for each client, and {MOST} at most can be "
                f"integrated out: adapter_rank=1, or adapter_layers= some of {', '.join(changes.layers)}"
            )
        return cls(changes, draws)

    def shared(self, rng: torch.Generator) -> State:
        """log tau of each layer and its information; which A."""
        many = len(self.changes.layers)
        return {
            "adapters.log_rho": torch.full((many,), TAU_0, dtype=torch.float64).log(),
            "adapters.information": torch.eye(many, dtype=torch.float64),
            "adapters.seed": torch.randint(SEEDS, (1,), generator=rng).double(),
        }

    def personal(self, like: Tensor, kept: int) -> State:
        """A posterior at zero, of no width."""
        zero = like.new_zeros(self.changes.d)
        return {"a": zero, "a_j_draws": zero.expand(1, kept, -1)}

    def tau(self, like: Tensor) -> Tensor:
        """The spread of each number, (d,)."""
        return self.changes.apart(param("adapters.log_rho").exp()).to(like)

    def features(self, network: Network, x: Tensor, b: Tensor) -> Tensor:
        """The network's under B, rows (S, 1, d) or draws (K, S, 1, d): (..., S, n, p)."""
        seed = int(param("adapters.seed"))
        weights = self.changes.weights(b, seed, lambda key: param(f"{network.name}.{key}"))
        return network.under(weights, x)

    def own_weights(self, values: Mapping[str, Tensor], b: Tensor) -> State:
        """The rows' own layers, {name: (S, 1, *shape)}, for b (S, 1, d)."""
        name = self.changes.network.name
        own = self.changes.weights(b, int(values["adapters.seed"]), lambda key: values[f"{name}.{key}"])
        return {f"{name}.{key}": weight for key, weight in own.items()}

    def rule(self, turns: Turns) -> HeadSpreads:
        """How spreads are learned."""
        return HeadSpreads("adapters", "a_j", TAU_SCALE, turns, no_noise=NO_NOISE)

    def step(self, final: bool = False) -> AdapterPosteriors:
        """Newton's steps on q(B_j)."""
        if final:
            return AdapterPosteriors(self, 10, STARTS_LAST, max(WEIGHED_LAST, 4 * self.draws), self.draws)
        return AdapterPosteriors(self, 2, STARTS, WEIGHED, 0)


@dataclass(frozen=True)
class Adapted:
    """A step on other personal values, under the method without adapters, at the layers that a client's mean B makes.

    Args:
        adapters: the part.
        step: the step.
        switch: the shared value that is 1 where the part is in the model; "" for one that always is.
    """

    adapters: Adapters
    step: LocalStep
    switch: str = ""

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows after the step."""
        if self.switch and not bool(chunk.shared[self.switch] > 0):
            return self.step.run(chunk, phase)
        own = self.adapters.own_weights(chunk.shared, chunk.values["a"])
        moved = self.step.run(chunk.put(own), phase)
        values = {key: value for key, value in moved.values.items() if key not in own}
        return replace(moved, values={**values, **{k: v for k, v in chunk.values.items() if k in own}})


@dataclass(frozen=True)
class AdapterPosteriors:
    """Posteriors of B_j by Newton's steps and importance weights, given the means of the client's other latents.

    Steps go on from the mode that the row has, and from draws of the prior, since posteriors have several modes. The
    approximation q is a mixture of the Laplace approximations around all of them (:mod:`.adapter_mixture`), and the row
    keeps the highest. With H the generalised Gauss-Newton matrix of the log likelihood and D = diag(tau)^2,
    P = H + D^-1, a row leaves the score of log tau, E |B|_l^2 / tau_l^2 - d_l, and its expected information
    2 tr_lm((tau^2 A)^2), A = H P^-1 D^-1.

    The expectation, and the draws, are of the posterior itself, by importance weights of draws of q:
    E_q |B|_l^2, which is known, plus the difference that the weights make in q's draws. If the posterior is normal,
    weights are equal, and the score is exact. The derivative of the log marginal likelihood is this expectation
    (Fisher's identity). Laplace's score alone finds too small a tau where labels are few, and so do weights of
    draws around one mode.

    Args:
        adapters: the part.
        newton: steps from the mode that a row has.
        starts: draws of the prior from which steps begin, and how many steps.
        many: draws that are weighted, at least.
        final: draws in the end; 0 for as many as there are.
    """

    adapters: Adapters
    newton: int
    starts: tuple[int, int]
    many: int
    final: int

    @property
    def trains(self) -> Sequence[str]:
        """Mean and draws."""
        return ("a", "a_j_draws")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves the posteriors of all rows."""
        parts_of: dict[str, list[Tensor]] = {}
        numbers = self.adapters.changes.d * chunk.method.network.head.outputs
        rows = max(1, MAX_NUMBERS_AT_ONCE // (self._many(chunk) * self.adapters.changes.d))
        with torch.no_grad():
            for first, last in buckets(chunk.sizes, max(1, MAX_NUMBERS_AT_ONCE // numbers)):
                for row in range(first, last, rows):
                    for key, value in self._rows(chunk.part(row, min(row + rows, last))).items():
                        parts_of.setdefault(key, []).append(value.to(chunk.n.dtype).unsqueeze(1))
        return chunk.put({key: torch.cat(parts) for key, parts in parts_of.items()})

    def _rows(self, chunk: ClientChunk) -> State:
        changes, b = self.adapters.changes, chunk.values["a"].squeeze(1).double()
        with Restrict(chunk.view):
            tau = self.adapters.tau(chunk.n.double())
        likelihood = Likelihood.for_chunk(chunk, changes, tau)
        weighed = changes.d <= WEIGHED_AT_MOST
        others, steps = self.starts if weighed else (0, 0)
        # What a run's own precision cannot tell apart is no progress.
        mode = partial(Mode.climb, likelihood, rounding=torch.finfo(chunk.n.dtype).eps, again=bool(self.final))
        stream = partial(ClientNoise, chunk.keys.to(chunk.n.device), (chunk.seed, "adapters"), dtype=b.dtype)
        modes = [mode(b, self.newton)]
        if others:
            starts = stream(others).normal("starts", None, torch.Size((changes.d,))).squeeze(2)
            modes += [mode(tau * start, steps) for start in starts]
        mixture = Mixture(likelihood, modes, half_as_good(changes.d) if weighed else 1.0)
        noise = stream(-(-self._many(chunk) // (2 * len(modes))))
        normals = [pairs(noise, f"a_j/{k}", changes.d, 2 * noise.particles) for k in range(len(modes))]
        drawn = mixture.drawn(normals)
        weights = mixture.weights(drawn) if weighed else drawn.new_full(drawn.shape[:2], 1 / len(drawn))
        best = mixture.highest()
        score = self._by_layer(mixture.squares())
        score = score + ((weights - 1 / len(weights))[..., None] * self._by_layer((drawn / tau).square())).sum(0)
        information = 2 * self._by_layer(self._by_layer(inside(best).square()).mT)
        kept = self.final or chunk.values["a_j_draws"].shape[3]
        drawn = best.b[None] if kept == 1 else _resampled(drawn, weights, kept)
        return {"a": best.b, "a_j_draws": drawn.transpose(0, 1)[:, None], "a_j/score": score,
                "a_j/information": information}  # fmt: skip

    def _many(self, chunk: ClientChunk) -> int:
        """Draws of each row, at least."""
        weighed = self.adapters.changes.d <= WEIGHED_AT_MOST
        return self.many if weighed else self.final or int(chunk.values["a_j_draws"].shape[3])

    def _by_layer(self, numbers: Tensor) -> Tensor:
        """Sums over each layer's numbers, (..., d) to (..., L)."""
        return torch.stack([part.sum(-1) for part in numbers.split(self.adapters.changes.sizes, -1)], -1)


def _resampled(drawn: Tensor, weights: Tensor, kept: int) -> Tensor:
    """So many of the draws (M, S, d) in proportion to their weights (M, S): (kept, S, d).

    They are moved so that their mean is that of all draws: predictions at the mean have no noise of this choice.
    """
    places = (torch.arange(kept).to(weights) + 0.5) / kept
    which = torch.searchsorted(weights.cumsum(0).mT.contiguous(), places.expand(weights.shape[1], -1).contiguous())
    which = which.clamp_max(len(drawn) - 1).mT[..., None]
    chosen = drawn.gather(0, which.expand(-1, -1, drawn.shape[-1]))
    return chosen + (weights[..., None] * drawn).sum(0) - chosen.mean(0)

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

from .adapter_draws import Normals, Posterior
from .adapter_likelihood import MAX_NUMBERS_AT_ONCE, Likelihood
from .adapter_modes import Mode, inside
from .heads import HeadSpreads
from .turns import Turns

#: numbers at most: a client's posterior has a matrix of as many rows
MAX_NUMBERS = 1000
#: where the spreads begin, and the scale of their half-normal prior
TAU_0, TAU_SCALE = 0.1, 10.0
#: draws of a step of importance sampling, and of its last step: in a round, and in the end where a hundred are kept
DRAWN, DRAWN_LAST, KEPT = (1024, 2048), (2048, 8192), 100
#: where fewer are kept, a step in the end has this many draws at least, and the last step four times as many
DRAWN_LEAST = 256
#: Laplace's approximation stays where a client has more numbers, and where draws are worth fewer: a normal in many
#: dimensions is no longer near enough to a posterior for weights
DRAWN_AT_MOST, FEWEST = 20, 10.0
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
        """Returns the adapters of a network.

        Raises:
            UserError: where it cannot have them, and for too many numbers.
        """
        names = [name for name in layers.split(",") if name]
        try:
            changes = LowRankChanges.for_network(network, rank, names)
        except UserError as error:
            raise UserError(f"adapters: {error}") from error
        if changes.d > MAX_NUMBERS:
            raise UserError(
                f"adapters of rank {rank} have {changes.d} numbers for each client, and {MAX_NUMBERS} at most can be "
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
            each, last = (many * min(self.draws, KEPT) // KEPT // 8 * 8 for many in DRAWN_LAST)
            many = max(each, DRAWN_LEAST), max(last, 4 * self.draws, 4 * DRAWN_LEAST)
            return AdapterPosteriors(self, 10, many, self.draws)
        return AdapterPosteriors(self, 2, DRAWN, 0)


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
    """Posteriors of B_j by importance sampling, given the means of the client's other latents.

    The draws are those of :mod:`.adapter_draws`: posteriors have several modes and long tails. With D = diag(tau)^2 a
    row leaves the score of log tau, E |B|_l^2 / tau_l^2 - d_l, which is the derivative of the log marginal likelihood
    (Fisher's identity). Its expected information is 2 tr_lm((tau^2 A)^2), A = H P^-1 D^-1, P = H + D^-1, with H the
    generalised Gauss-Newton matrix of the log likelihood at the mode.

    Newton's steps lead to the mode, from that of the last round and from the draw of the highest density, and the row
    keeps the higher one. Laplace's approximation there is the posterior of a client with more than
    :data:`DRAWN_AT_MOST` numbers, and of one whose draws are worth fewer than :data:`FEWEST`.

    Args:
        adapters: the part.
        newton: steps from each start.
        many: draws of a step of importance sampling, and of its last step.
        final: draws in the end; 0 for as many as there are.
    """

    adapters: Adapters
    newton: int
    many: tuple[int, int]
    final: int

    @property
    def trains(self) -> Sequence[str]:
        """Mean and draws."""
        return ("a", "a_j_draws")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves the posteriors of all rows."""
        parts_of: dict[str, list[Tensor]] = {}
        numbers = self.adapters.changes.d * chunk.method.network.head.outputs
        draws = max(self.many) if self._sampled else self._kept(chunk)
        rows = max(1, MAX_NUMBERS_AT_ONCE // (draws * self.adapters.changes.d))
        with torch.no_grad():
            for first, last in buckets(chunk.sizes, max(1, MAX_NUMBERS_AT_ONCE // numbers)):
                for row in range(first, last, rows):
                    for key, value in self._rows(chunk.part(row, min(row + rows, last))).items():
                        parts_of.setdefault(key, []).append(value.to(chunk.n.dtype).unsqueeze(1))
        return chunk.put({key: torch.cat(parts) for key, parts in parts_of.items()})

    def _rows(self, chunk: ClientChunk) -> State:
        changes, b, kept = self.adapters.changes, chunk.values["a"].squeeze(1).double(), self._kept(chunk)
        with Restrict(chunk.view):
            tau = self.adapters.tau(chunk.n.double())
        likelihood = Likelihood.for_chunk(chunk, changes, tau)
        stream = partial(ClientNoise, chunk.keys.to(chunk.n.device), (chunk.seed, "adapters"), dtype=b.dtype)

        def noise(name: str, number: int) -> Tensor:
            return pairs(stream(number // 2), name, changes.d, number)

        # What a run's own precision cannot tell apart is no progress.
        climb = partial(Mode.climb, likelihood, rounding=torch.finfo(chunk.n.dtype).eps, again=bool(self.final))
        mode, posterior = climb(b, self.newton), None
        if self._sampled:
            start = None if self.final else Normals.around(mode, tau)
            posterior = Posterior.temper(likelihood, noise, *self.many, start)
            mode = Mode.higher(mode, climb(posterior.highest, self.newton))
        squares, drawn = mode.squares(tau), mode.drawn(tau, noise("a_j", kept))
        if posterior is not None:
            enough = (posterior.effective >= FEWEST)[:, None]
            squares = torch.where(enough, posterior.squares, squares)
            drawn = torch.where(enough, _resampled(posterior.b, posterior.weights, kept), drawn)
        drawn = mode.b[None] if kept == 1 else drawn
        information = 2 * self._by_layer(self._by_layer(inside(mode).square()).mT)
        return {"a": mode.b, "a_j_draws": drawn.transpose(0, 1)[:, None], "a_j/score": self._by_layer(squares - 1),
                "a_j/information": information}  # fmt: skip

    @property
    def _sampled(self) -> bool:
        return self.adapters.changes.d <= DRAWN_AT_MOST

    def _kept(self, chunk: ClientChunk) -> int:
        """Draws of each row that stay."""
        return self.final or int(chunk.values["a_j_draws"].shape[3])

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

"""Low-rank changes of a backbone's layers, client by client, with spreads by marginal likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.laplace.posterior import pairs
from hierfl.inference.objective.sites import guide_latents
from hierfl.inference.state import State
from hierfl.nn.functional import Network
from hierfl.nn.low_rank_changes import LowRankChanges, Pass
from hierfl.nn.output_derivatives import mean_output_curvature, moved_output, output_gradient
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.plates import param
from hierfl.ppl.restrict import Restrict
from hierfl.rng import ClientNoise

from .heads import HeadSpreads
from .turns import Turns

#: numbers at most: a client's posterior has a matrix of as many rows
MOST = 1000
#: where the spreads begin, and the scale of their half-normal prior
TAU_0, TAU_SCALE = 0.1, 10.0
#: how often a step of Newton's is halved, and what it promises where it has arrived
HALVINGS, ARRIVED = 8, 1e-14
#: numbers of the gradient of some examples' outputs that are held at a time
MAX_NUMBERS_AT_ONCE = 8_000_000
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
    def of(cls, network: Network, rank: int, layers: str, draws: int) -> Adapters:
        """Of a network.

        Raises:
            UserError: where it cannot have them, and for too many numbers.
        """
        names = [name for name in layers.split(",") if name]
        try:
            changes = LowRankChanges.of(network, rank, names)
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
        return AdapterPosteriors(self, 10 if final else 2, self.draws if final else 0)


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
    """Laplace's approximation of q(B_j) by Gauss and Newton's steps, given the means of the client's other latents.

    With H the generalised Gauss-Newton matrix of the log likelihood and D = diag(tau)^2, P = H + D^-1, a row leaves the
    score of log tau, |B|_l^2 / tau_l^2 - tr_l(H P^-1), and its expected information 2 tr_lm((tau^2 A)^2),
    A = H P^-1 D^-1. The score is the derivative of Laplace's log evidence where H is held.

    Args:
        adapters: the part.
        newton: steps.
        final: draws in the end; 0 for as many as there are.
    """

    adapters: Adapters
    newton: int
    final: int

    @property
    def trains(self) -> Sequence[str]:
        """Mean and draws."""
        return ("a", "a_j_draws")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves the posteriors of all rows."""
        parts_of: dict[str, list[Tensor]] = {}
        numbers = self.adapters.changes.d * chunk.method.network.head.outputs
        with torch.no_grad():
            for first, last in buckets(chunk.sizes, max(1, MAX_NUMBERS_AT_ONCE // numbers)):
                for key, value in self._rows(chunk.part(first, last), phase).items():
                    parts_of.setdefault(key, []).append(value.to(chunk.n.dtype).unsqueeze(1))
        return chunk.put({key: torch.cat(parts) for key, parts in parts_of.items()})

    def _rows(self, chunk: ClientChunk, phase: object) -> State:
        likelihood, b = Likelihood.of(chunk, self.adapters), chunk.values["a"].squeeze(1).double()
        tau, changes = likelihood.tau, self.adapters.changes
        identity = torch.eye(changes.d).to(tau)
        # What a run's own precision cannot tell apart is no progress.
        rounding = torch.finfo(chunk.n.dtype).eps
        scaled = tau.new_zeros(())
        for number in range(self.newton + bool(self.final)):
            height, gradient, h = likelihood.expanded(b)
            scaled = tau[:, None] * h * tau  # (D^1/2 H D^1/2: B - I)
            step = tau * torch.linalg.solve(scaled + identity, tau * gradient)
            promised = (gradient * step).sum(-1)
            if number == self.newton or bool((promised <= ARRIVED + rounding * height.abs()).all()):
                break
            length = torch.ones_like(height)
            for _ in range(HALVINGS):
                new = b + length[:, None] * step
                higher = likelihood.height(new)
                worse = ~(higher >= height)
                if not bool(worse.any()):
                    break
                length = torch.where(worse, length / 2, length)
            b = torch.where((higher >= height)[:, None], new, b)
        # Where steps have not arrived the curvature is that before the last one; in the end it is taken again.
        inside = torch.linalg.solve(scaled + identity, scaled)  # of A times tau^2, symmetric
        score = self._by_layer((b / tau).square() - inside.diagonal(dim1=-2, dim2=-1))
        information = 2 * self._by_layer(self._by_layer(inside.square()).mT)
        kept = self.final or chunk.values["a_j_draws"].shape[3]
        when = () if self.final else (chunk.round, phase)
        noise = ClientNoise(
            chunk.keys.to(chunk.n.device), (chunk.seed, "adapters", *when), max(1, kept // 2), dtype=b.dtype
        )  # fmt: skip
        e = pairs(noise, "a_j", changes.d, kept)  # (K, S, d)
        root = torch.linalg.cholesky(scaled + identity)
        away = tau * torch.linalg.solve_triangular(root.mT, e[..., None], upper=True).squeeze(-1)
        drawn = (b + away).transpose(0, 1)[:, None]
        return {"a": b, "a_j_draws": drawn, "a_j/score": score, "a_j/information": information}

    def _by_layer(self, numbers: Tensor) -> Tensor:
        """Sums over each layer's numbers, (..., d) to (..., L)."""
        return torch.stack([part.sum(-1) for part in numbers.split(self.adapters.changes.sizes, -1)], -1)


@dataclass(frozen=True)
class Likelihood:
    """Some rows' log likelihood as a function of B, (S, d), other latents at their centre.

    Attributes:
        method: the model without adapters.
        values: what the rows see.
        centre: the other latents.
        batches: the examples, some at a time.
        features: of examples under B.
        tau: spreads, (d,).
    """

    method: Any
    values: State
    centre: State
    batches: Sequence[Batch]
    features: Pass
    tau: Tensor

    @classmethod
    def of(cls, chunk: ClientChunk, adapters: Adapters) -> Likelihood:
        """Of the rows."""
        method, batch, view = chunk.method, chunk.batch(), chunk.view
        centre = {k: site.value for k, site in guide_latents(method, batch, view, None).items()}
        features = Pass.of(adapters.changes, chunk.shared, int(chunk.shared["adapters.seed"]), chunk.n)
        if adapters.changes.unchecked:
            features.check(batch.x)
            adapters.changes.unchecked.clear()
        with Restrict(view):
            tau = adapters.tau(chunk.n.double())
        rows, width = batch.y.shape
        most = max(1, MAX_NUMBERS_AT_ONCE // (rows * adapters.changes.d * method.network.head.outputs))
        batches = [_some(batch, k, k + most) for k in range(0, width, most)]
        return cls(method, view, centre, batches, features, tau)

    def height(self, b: Tensor) -> Tensor:
        """Log likelihood and log prior, (S,)."""
        said = [self._said(self._at(batch, self.features(batch.x, b)), batch) for batch in self.batches]
        return torch.stack(said).sum(0) - 0.5 * (b / self.tau).square().sum(-1)

    def expanded(self, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The height, its gradient (S, d), and minus the likelihood's expected second derivative, (S, d, d)."""
        height, gradient = -0.5 * (b / self.tau).square().sum(-1), -b / self.tau.square()
        h = b.new_zeros((*b.shape, b.shape[-1]))
        for batch in self.batches:

            def outputs(features: Tensor, batch: Batch = batch) -> tuple[Any, Tensor]:
                fn = self._at(batch, features)
                return fn, fn.logits[0] if hasattr(fn, "logits") else fn.mean[0, ..., None]

            fn, jacobian = self.features.jacobian(batch.x, b, outputs)
            height = height + self._said(fn, batch)
            first = _there(output_gradient(fn, batch.y)[0], batch)
            gradient = gradient + torch.einsum("snc,sncd->sd", first, jacobian)
            second = _there(mean_output_curvature(fn), batch)  # (S, n, C, C)
            h += (second @ jacobian).flatten(1, 2).mT @ jacobian.flatten(1, 2)
        return height, gradient, h

    def _at(self, batch: Batch, features: Tensor) -> Any:
        """The response's distribution under these features of the network, (1, S, n)."""
        frozen = FrozenFeatures(frozenset(), lambda network: features)
        frozen.show(batch.x)
        with Restrict(self.values, latents=self.centre, frozen=frozen) as restricted:
            self.method.model(batch)
        return moved_output(restricted.sites["y"].fn, features.new_zeros((1, 1, 1, 1)).double())

    def _said(self, fn: Any, batch: Batch) -> Tensor:
        return _there(fn.log_prob(batch.y)[0].detach(), batch).sum(-1)


def _some(batch: Batch, first: int, last: int) -> Batch:
    """Some of each row's examples."""
    mask = None if batch.mask is None else batch.mask[:, first:last]
    return Batch(batch.x[:, first:last], batch.y[:, first:last], mask, batch.n)


def _there(value: Tensor, batch: Batch) -> Tensor:
    """Zero where rows (S, n, ...) are padded."""
    value, mask = value.detach(), batch.mask
    return value if mask is None else torch.where(mask.view(*mask.shape, *[1] * (value.dim() - 2)), value, 0.0)

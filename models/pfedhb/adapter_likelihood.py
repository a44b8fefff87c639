"""A client's log likelihood as a function of the low-rank changes of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.objective.sites import guide_latents
from hierfl.inference.state import State
from hierfl.nn.low_rank_changes import LowRankChanges, Pass
from hierfl.nn.output_derivatives import mean_output_curvature, moved_output, output_gradient
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.restrict import Restrict

#: numbers of the gradient of some examples' outputs that are held at a time
MAX_NUMBERS_AT_ONCE = 8_000_000


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
    def for_chunk(cls, chunk: ClientChunk, changes: LowRankChanges, tau: Tensor) -> Likelihood:
        """Returns the likelihood of the rows, with these spreads (d,)."""
        method, batch, view = chunk.method, chunk.batch(), chunk.view
        centre = {k: site.value for k, site in guide_latents(method, batch, view, None).items()}
        features = Pass.from_changes(changes, chunk.shared, int(chunk.shared["adapters.seed"]), chunk.n)
        if changes.unchecked:
            features.check(batch.x)
            changes.unchecked.clear()
        rows, width = batch.y.shape
        most = max(1, MAX_NUMBERS_AT_ONCE // (rows * changes.d * method.network.head.outputs))
        batches = [_some(batch, k, k + most) for k in range(0, width, most)]
        return cls(method, view, centre, batches, features, tau)

    def height(self, b: Tensor) -> Tensor:
        """Log likelihood and log prior, (S,)."""
        return self.heights(b[None])[0]

    def heights(self, draws: Tensor) -> Tensor:
        """The same at draws (M, S, d): (M, S)."""
        rows, d = draws.shape[1:]
        height = -0.5 * (draws / self.tau).square().sum(-1)
        for batch in self.batches:
            numbers = batch.y.numel() * d * self.method.network.head.outputs
            log_likelihoods = []
            for b in draws.split(max(1, MAX_NUMBERS_AT_ONCE // numbers)):
                x = batch.x.expand(len(b), *batch.x.shape).flatten(0, 1)
                features = self.features(x, b.flatten(0, 1)).unflatten(0, (len(b), rows))
                log_likelihoods.append(self._log_likelihood(self._at(batch, features), batch))
            height = height + torch.cat(log_likelihoods)
        return height

    def expanded(self, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The height, its gradient (S, d), and minus the likelihood's expected second derivative, (S, d, d)."""
        height, gradient = -0.5 * (b / self.tau).square().sum(-1), -b / self.tau.square()
        h = b.new_zeros((*b.shape, b.shape[-1]))
        for batch in self.batches:

            def outputs(features: Tensor, batch: Batch = batch) -> tuple[Any, Tensor]:
                fn = self._at(batch, features)
                return fn, fn.logits[0] if hasattr(fn, "logits") else fn.mean[0, ..., None]

            fn, jacobian = self.features.jacobian(batch.x, b, outputs)
            height = height + self._log_likelihood(fn, batch)[0]
            first = _zero_padding(output_gradient(fn, batch.y)[0], batch)
            gradient = gradient + torch.einsum("snc,sncd->sd", first, jacobian)
            second = _zero_padding(mean_output_curvature(fn), batch)  # (S, n, C, C)
            h += (second @ jacobian).flatten(1, 2).mT @ jacobian.flatten(1, 2)
        return height, gradient, h

    def _at(self, batch: Batch, features: Tensor) -> Any:
        """The response's distribution under these features ([M,] S, n, p) of the network, ([M or] 1, S, n)."""
        frozen = FrozenFeatures(frozenset(), lambda network: features)
        frozen.show(batch.x)
        with Restrict(self.values, latents=self.centre, frozen=frozen) as restricted:
            self.method.model(batch)
        return moved_output(restricted.sites["y"].fn, features.new_zeros((1, 1, 1, 1)).double())

    def _log_likelihood(self, fn: Any, batch: Batch) -> Tensor:
        log_p = fn.log_prob(batch.y).detach()
        return (log_p if batch.mask is None else torch.where(batch.mask, log_p, 0.0)).sum(-1)


def _some(batch: Batch, first: int, last: int) -> Batch:
    """Some of each row's examples."""
    mask = None if batch.mask is None else batch.mask[:, first:last]
    return Batch(batch.x[:, first:last], batch.y[:, first:last], mask, batch.n)


def _zero_padding(value: Tensor, batch: Batch) -> Tensor:
    """Zero where rows (S, n, ...) are padded."""
    value, mask = value.detach(), batch.mask
    return value if mask is None else torch.where(mask.view(*mask.shape, *[1] * (value.dim() - 2)), value, 0.0)

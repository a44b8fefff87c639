"""Gains of PFedHB's parts in log density, on rows that nothing was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.held_fold import held_fold
from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.objective.sites import guide_latents
from hierfl.nn.likelihoods import Softmax
from hierfl.ppl.label_confusion import LabelConfusion, confused
from hierfl.ppl.restrict import Restrict

#: draws of a client's posteriors of heads, features and adapters over which a predictive density is averaged
DRAWS = 16
#: numbers of outputs at all draws that are held at a time
MAX_NUMBERS_AT_ONCE = 4_000_000
#: what a network's outputs are multiplied by, and whether w is moved: the first is the network as it is
SCALES = (1.0, 0.1, 0.16, 0.25, 0.4, 0.63, 0.8, 1.25, 1.6, 2.5, 4.0)
NULLS = tuple((scale, moved) for moved in (False, True) for scale in SCALES)
#: draws are of these latents; of shares it is the mean
DRAWN = {"heads": "w_j", "features": "v_j", "outcome": "o_j", "adapters": "a_j"}


def held_gains(
    chunk: ClientChunk, parts: tuple[str, ...], kind: type[Judge] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """How much each part adds to a client's log density of its held fold, given what has entered.

    Shared values are those that the server would predict with. Clients' posteriors are given their other rows. Shares
    are judged by the density at their mean, heads and features by the density averaged over draws. All densities have
    the same scale of the network's outputs, and the same shift of w by the heads' mean: those with which the parts that
    have entered do best (``parts.null``). So a part gains nothing by being less sure than a network that has
    memorised its rows, nor by learning what w has not learned yet.

    Args:
        chunk: the rows.
        parts: the parts that may enter.
        kind: of the densities; None for labels'.

    Returns:
        Gains in nats, (S, K), zero for parts that have entered. Gains of each of :data:`NULLS` over the first, without
        a further part, (S, G). Numbers of rows, (S,).
    """
    method: Any = chunk.method
    shared = method.prediction_params(chunk.shared)
    fold = held_fold(chunk.federation).rows
    sizes = [fold.sizes[j] for j in chunk.clients]
    own = {k: v for k, v in chunk.values.items() if k not in shared}
    gains = chunk.n.new_zeros((len(sizes), len(parts)), dtype=torch.float64)
    scaled = gains.new_zeros((len(sizes), len(NULLS)))
    outputs = method.network.head.outputs
    with torch.no_grad():
        for first, last in buckets(sizes, max(1, MAX_NUMBERS_AT_ONCE // (DRAWS * outputs))):
            if sizes[first]:
                rows = chunk.part(first, last)
                values = {**shared, **{k: v[first:last] for k, v in own.items()}}
                judge = (kind or Judge).for_chunk(rows, values, fold.padded(rows.clients))
                gains[first:last] = torch.stack([judge.gain(part) for part in parts], -1)
                scaled[first:last] = judge.nulls()
    return gains, scaled, torch.tensor(sizes, dtype=torch.float64, device=gains.device)


@dataclass(frozen=True)
class Judge:
    """Log densities of the held-out folds of some rows, (S,), under the parts that have entered and one part more.

    Attributes:
        method: the model.
        values: shared ones, and rows' own.
        batch: the fold.
        centre: the mean of each latent.
    """

    method: Any
    values: Mapping[str, Tensor]
    batch: Batch
    centre: Mapping[str, Tensor]

    @classmethod
    def for_chunk(cls, chunk: ClientChunk, values: Mapping[str, Tensor], at: tuple[Tensor, Tensor | None]) -> Judge:
        """Returns the judge of the rows' examples at these places."""
        batch = chunk.federation.gather(*at, chunk.clients)
        latents = guide_latents(chunk.method, batch, values, None)
        return cls(chunk.method, values, batch, {k: site.value for k, site in latents.items()})

    def gain(self, part: str) -> Tensor:
        """What a part adds; zero where it has entered."""
        scale, moved = self.version
        before = self.density(scale, moved)
        if part in ("confusion", "adapters"):
            # What all clients have in common is no difference between them: both must be worse.
            before = torch.maximum(before, self.density(scale, moved, part, expected=True))
        return torch.where(self.has(part), 0.0, self.density(scale, moved, part) - before)

    @property
    def version(self) -> tuple[float, bool]:
        """The one of :data:`NULLS` that is best without any more."""
        return NULLS[int(self.values["parts.null"].nan_to_num().clamp(0, len(NULLS) - 1))]

    def nulls(self) -> Tensor:
        """The log densities of what has entered under each of :data:`NULLS`, less that under the first: (S, G)."""
        densities = torch.cat([self.densities(SCALES, moved) for moved in (False, True)])
        return (densities - densities[0]).mT

    def density(self, scale: float, moved: bool, asked: str = "", expected: bool = False) -> Tensor:
        """The log density at outputs that are multiplied by ``scale``, but for the shares' offset, (S,)."""
        return self.densities((scale,), moved, asked, expected)[0]

    def densities(self, scales: Sequence[float], moved: bool, asked: str = "", expected: bool = False) -> Tensor:
        """Log densities at some scales, (G, S); with ``expected`` at the population's mean confusion or adapters."""
        off = torch.where(self.has("shares") | (asked == "shares"), self.offset, 0.0)
        outputs = self.outputs(asked, moved, expected)  # ([K,] S, n, C)
        by = torch.tensor(scales).to(outputs).view(-1, *[1] * outputs.dim())
        f = by * outputs
        if self.method.meanings:
            b_j = self.centre["b_j"]
            if expected and asked == "confusion":
                prior = LabelConfusion(self.values["confusion.numbers"], f.shape[-1])
                b_j = prior.expected.flatten().expand(b_j.shape)
            on = self.has("confusion") | (asked == "confusion")
            f = torch.where(on, confused(f, b_j.double(), self.values["shares.log_pooled"]), f)
        log_p = Softmax(logits=f + off, validate_args=False).log_prob(self.batch.y)  # (G, [K,] S, n)
        log_p = log_p.logsumexp(1) - math.log(log_p.shape[1]) if log_p.dim() == 4 else log_p
        mask = self.batch.mask
        return (log_p if mask is None else torch.where(mask, log_p, 0.0)).sum(-1)

    def has(self, part: str) -> Tensor:
        """Whether a part is in the model, (1,)."""
        if part in self.method.auto:
            return self.values[f"parts.{part}"] > 0
        return self.values["parts.null"].new_tensor([self.method.switches[part] == "on"]) > 0

    @cached_property
    def offset(self) -> Tensor:
        """The offset of the shares, (S, 1, C)."""
        with Restrict(self.values):
            offset: Tensor = self.method.offset(self.centre["pi_j"]).double()
        return offset

    def outputs(self, asked: str, moved: bool, expected: bool = False) -> Tensor:
        """The network's, with heads, features and adapters that are in or asked, at draws of that: ([K,] S, n, C)."""
        asked = "" if asked in ("shares", "confusion") else asked
        key = asked, moved and "common" in self.values, expected and asked == "adapters"
        if key not in self._outputs:
            on = {f"parts.{asked}": self.values["parts.null"].new_ones(1)} if asked else {}
            w = {"w": self.values["w"] + self.values["common"]} if key[1] else {}
            latents = dict(self.centre)
            if asked:  # (S, 1, 1, K, d) become (K, S, 1, d)
                latents[DRAWN[asked]] = self.values[f"{DRAWN[asked]}_draws"].squeeze(2).movedim(2, 0)
            if key[2]:
                latents["a_j"] = self.values["common_adapters"].to(self.centre["a_j"]).expand_as(self.centre["a_j"])
            with Restrict({**self.values, **w, **on}, latents=latents) as restricted:
                self.method.unconfused.model(self.batch)
            logits = restricted.sites["y"].fn.logits.double()
            self._outputs[key] = logits - torch.where(self.has("shares"), self.offset, 0)
        return self._outputs[key]

    @cached_property
    def _outputs(self) -> dict[tuple[str, bool, bool], Tensor]:
        return {}

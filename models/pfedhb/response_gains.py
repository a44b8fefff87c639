"""What each part of PFedHB gains of a regression on rows that nothing was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.ppl.restrict import Restrict

from .parts import DRAWN, Judge


class ResponseJudge(Judge):
    """Log densities of some rows' held folds, (S,), of responses that are numbers.

    In each version of the model without a part the noise is divided by one of the scales, and not the outputs
    multiplied: a network that has learned its rows by heart is too sure in that it spreads too little. An outcome's
    scale is taken beside the population's, and its shift has to beat both none and the population's: what all clients
    have in common is no difference between them.
    """

    def gain(self, part: str) -> Tensor:
        """What a part adds; zero where it has entered."""
        scale, moved = self.version
        before = self.density(scale, moved)
        if part in ("outcome", "adapters"):
            before = torch.maximum(before, self.density(scale, moved, part, expected=True))
        return torch.where(self.has(part), 0.0, self.density(scale, moved, part) - before)

    def densities(self, scales: Sequence[float], moved: bool, asked: str = "", expected: bool = False) -> Tensor:
        """Log densities at some scales, (G, S); with ``expected`` at the population's mean shift or adapters."""
        fn = self.at(asked, moved, expected)  # ([K,] S, n)
        by = torch.tensor(scales).to(fn.loc).view(-1, *[1] * fn.loc.dim())
        log_p = Normal(fn.loc, fn.scale / by, validate_args=False).log_prob(self.batch.y)  # (G, [K,] S, n)
        log_p = log_p.logsumexp(1) - math.log(log_p.shape[1]) if log_p.dim() == 4 else log_p
        mask = self.batch.mask
        return (log_p if mask is None else torch.where(mask, log_p, 0.0)).sum(-1)

    def at(self, asked: str, moved: bool, expected: bool) -> Normal:
        """The response with what is in, or asked, the latter at its draws: ([K,] S, n)."""
        on = {f"parts.{asked}": self.values["parts.null"].new_ones(1)} if asked else {}
        w = {"w": self.values["w"] + self.values["common"]} if moved and "common" in self.values else {}
        latents = dict(self.centre)
        if asked:  # (S, 1, 1, K, d) become (K, S, 1, d)
            latents[DRAWN[asked]] = self.values[f"{DRAWN[asked]}_draws"].squeeze(2).movedim(2, 0)
        if asked == "adapters" and expected:
            latents["a_j"] = self.values["common_adapters"].to(self.centre["a_j"]).expand_as(self.centre["a_j"])
        if asked == "outcome":
            nu, mu = self.values["outcome.location"].to(latents["o_j"]).unbind()
            none = torch.zeros_like(nu)
            common = torch.stack([nu, none]).expand_as(self.centre["o_j"])
            latents["o_j"] = common if expected else latents["o_j"] - torch.stack([none, mu])
        with Restrict({**self.values, **w, **on}, latents=latents) as restricted:
            self.method.model(self.batch)
        fn = restricted.sites["y"].fn
        return Normal(fn.loc.double(), fn.scale.double(), validate_args=False)

"""The spread of a client about the population, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

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

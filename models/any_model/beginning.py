"""First values of a plain model's server and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hierfl.inference.state import State

from .by_rows.layout import begun
from .low_rank.precision import LowRank
from .marginals.transform import Marginals
from .names import (
    ACCEPTED,
    AROUND,
    BOUND,
    CENTRING,
    DRAWS,
    INNER,
    KEPT,
    MEAN,
    OWN_ACCEPTED,
    OWN_DRAWS,
    OWN_MEAN,
    OWN_ROOT,
    OWN_SENT,
    OWN_SLOPE,
    OWN_VALUES,
    PHASE,
    POINTS,
    PRECISION,
    SHAPE,
    TRACE,
    VERDICT,
    WORTH,
    Phase,
)
from .trace import no_trace
from .verdict import Verdict

if TYPE_CHECKING:
    from .plain import GaussianModel

#: standard deviation with which a guide begins
FIRST_SD = 0.1


def first_shared(method: GaussianModel) -> State:
    """The first shared values, at the server."""
    p, s = len(method.sites.start), method.settings
    precision = torch.ones(p) / FIRST_SD**2
    if method.rank:
        packed = LowRank(precision, precision.new_zeros(p, 0), precision.new_zeros(0)).padded(method.rank).packed
    values = {
        MEAN: method.sites.start, PRECISION: packed if method.rank else precision.diag(),
        PHASE: torch.tensor(float(Phase.ROUGH)),
        POINTS: torch.zeros(s.points if method.explores else 0, p), DRAWS: torch.zeros(s.draws, p),
        BOUND: torch.tensor(0.0), WORTH: torch.tensor(0.0), ACCEPTED: torch.tensor(1.0),
        INNER: torch.tensor(float(s.inner)), VERDICT: Verdict().values, TRACE: no_trace(),
    }  # fmt: skip
    values |= {SHAPE: Marginals.none(p)} if method.shaped else {}
    return {name: value.double() for name, value in values.items()}


def first_personal(method: GaussianModel) -> State:
    """The first personal values of a client."""
    sites, p, q = method.sites, len(method.sites.start), method.q
    centred = torch.cat(
        [torch.full((latent.numel,), float(latent.name not in sites.centred)) for latent in sites.clients]
        or [torch.zeros(0)]
    )
    slope, root = torch.zeros(q, p), FIRST_SD * torch.eye(q)
    if method.layout is not None:
        centred, slope, root = begun(method.layout, sites, p)
    values = {
        OWN_MEAN: sites.client_start, OWN_SLOPE: slope, OWN_ROOT: root,
        AROUND: sites.start, CENTRING: centred, OWN_DRAWS: torch.zeros(0, q),
        OWN_SENT: torch.zeros(1 + p + sum(method.curvature.values())),
    }  # fmt: skip
    values |= {kept: values[name] for name, kept in zip(OWN_VALUES, KEPT, strict=True)}
    return {name: value.double() for name, value in {**values, OWN_ACCEPTED: torch.tensor(0.0)}.items()}

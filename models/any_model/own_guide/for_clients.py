r"""Guides by name for a client's own part: normal, multivariate, of low rank, or a flow; everyone's is Gaussian.

    x ~ N(m, R R^T)                                              globals, unconstrained
    v_j = a_j + C_j (x - m) + L_j w_j(e; x - m),   e ~ N(0, 1)   a client's latents, unconstrained

w(e) is e itself, or two inverse autoregressive layers (Kingma et al., 2016), the second in reverse order, whose weights
are the client's own: w_k = t_k(e_<k, x) + exp(s_k(e_<k, x)) e_k. With one latent w is Gaussian given x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.distributions import Delta, LowRankMultivariateNormal, MultivariateNormal, Normal
from pyro.infer.autoguide import AutoGuide
from torch import Tensor
from torch.distributions import constraints

from hierfl.data.column_batch import ColumnBatch
from hierfl.errors import UserError, unknown

from ..levels import Model
from ..sites import Coordinates, Latent, Sites

#: names of the forms, and Pyro's classes of the same
FORMS = {
    "AutoNormal": "normal", "AutoDiagonalNormal": "normal", "AutoMultivariateNormal": "multivariate",
    "AutoLowRankMultivariateNormal": "low-rank", "AutoIAFNormal": "iaf",
}  # fmt: skip
#: standard deviation with which everything begins, and of a flow's first weights
FIRST_SD, FIRST_WEIGHT = 0.1, 0.01
#: numbers of a flow's hidden layer for each of a client's latents
HIDDEN = 8


def form_of(form: Any) -> str:
    """The form that a name, or a class of Pyro's, represents.

    Raises:
        UserError: for another.
    """
    name = form if isinstance(form, str) else getattr(form, "__name__", type(form).__name__)
    name = FORMS.get(name, name)
    if name not in FORMS.values():
        raise unknown("client guide", name, sorted(set(FORMS.values())))
    return name


def refuse_automatic(guide: Any) -> None:
    """A class of Pyro's AutoGuides, or one of it, as the guide of a whole model.

    Raises:
        UserError: which says what to write instead.
    """
    guide_class = guide if isinstance(guide, type) else type(guide)
    if issubclass(guide_class, AutoGuide):
        same = {"AutoDelta": "guide='point'"}
        if guide_class.__name__ in FORMS:
            same[guide_class.__name__] = f"client_guide={FORMS[guide_class.__name__]!r}"
        raise UserError(
            f"{guide_class.__name__} is a guide of pooled rows: "
            + "say "
            + same.get(guide_class.__name__, f"guide= full, diagonal or point, or client_guide= {_names()}")
        )


def _names() -> str:
    return ", ".join(sorted(set(FORMS.values())))


@dataclass(frozen=True)
class ForClients:
    """A guide of this form.

    Attributes:
        form: one of the values of :data:`FORMS`.
    """

    form: str

    def for_sites(self, sites: Sites) -> Model:
        """Returns the guide for the sites of a model.

        Raises:
            UserError: for a model whose clients have no latents, or latents of rows.
        """
        by_row = next((latent.name for latent in sites.clients if latent.level == "data"), None)
        if by_row is not None:
            raise UserError(
                f"site {by_row!r} is a latent of every row: client_guide={self.form!r} is for what a client has once; "
                "leave it out, or give a guide of your own"
            )
        if not sites.clients:
            raise UserError(f"clients have no continuous latents: client_guide={self.form!r} would have no use")

        def guide(batch: ColumnBatch) -> None:
            moved = _everyone(sites)
            with batch.clients():
                _clients(sites, self.form, moved, batch)

        return guide


def _everyone(sites: Sites) -> Tensor:
    """Samples the globals; x - m, (p,)."""
    p = len(sites.start)
    if not p:
        return sites.start
    m = pyro.param("everyone.mean", sites.start)
    root = pyro.param("everyone.root", FIRST_SD * torch.eye(p), constraint=constraints.lower_cholesky)
    x = pyro.sample("everyone", MultivariateNormal(m, scale_tril=root), infer={"is_auxiliary": True})
    for name, part in Coordinates(sites.globals).split(x).items():
        site = next(latent for latent in sites.globals if latent.name == name)
        value = site.transform(part)
        log_det = site.transform.log_abs_det_jacobian(part, value).sum()
        pyro.sample(name, Delta(value, log_density=-log_det, event_dim=value.dim()))
    return x - m


def _clients(sites: Sites, form: str, moved: Tensor, batch: ColumnBatch) -> None:
    """Samples the clients' latents."""
    count, p, q = batch.num_clients, len(sites.start), len(sites.client_start)

    def own(name: str, first: Tensor, constraint: Any = constraints.real) -> Tensor:
        return pyro.param(f"own.{name}", first.expand(count, 1, *first.shape).clone(), constraint=constraint)

    loc = own("mean", sites.client_start) + (own("slope", torch.zeros(q, p)) * moved).sum(-1)
    aside = {"is_auxiliary": True}
    log_det: Tensor | float = 0.0
    if form == "normal":
        scale = own("scale", torch.full((q,), FIRST_SD), constraints.positive)
        v = pyro.sample("own", Normal(loc, scale).to_event(1), infer=aside)
    elif form == "multivariate":
        root = own("root", FIRST_SD * torch.eye(q), constraints.lower_cholesky)
        v = pyro.sample("own", MultivariateNormal(loc, scale_tril=root), infer=aside)
    elif form == "low-rank":
        rank = math.ceil(math.sqrt(q))
        factor = own("factor", 0.1 * FIRST_SD * torch.eye(q)[:, :rank])
        diagonal = own("diagonal", torch.full((q,), FIRST_SD**2), constraints.positive)
        v = pyro.sample("own", LowRankMultivariateNormal(loc, factor, diagonal), infer=aside)
    else:
        root = own("root", FIRST_SD * torch.eye(q), constraints.lower_cholesky)
        e = pyro.sample("own", Normal(torch.zeros(count, 1, q), 1.0).to_event(1), infer=aside)
        w, log_det = _flow(e, moved, own)
        v = loc + (root @ w[..., None]).squeeze(-1)
        log_det = log_det + root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    first = 0
    for latent in sites.clients:
        part = v[..., first : first + latent.numel]
        first += latent.numel
        log_det = _site(latent, part, log_det)


def _site(latent: Latent, part: Tensor, log_det: Tensor | float) -> float:
    """A client's site from its unconstrained numbers (S, 1, n); the first one takes the flow's determinant."""
    assert latent.axis is not None
    free = torch.cat([row.reshape(latent.free) for row in part], latent.axis)
    value = latent.transform(free)
    mine = latent.transform.log_abs_det_jacobian(free, value)
    while mine.dim() > latent.axis + 2:
        mine = mine.sum(-1)
    pyro.sample(latent.name, Delta(value, log_density=-mine - log_det, event_dim=value.dim() - latent.axis - 2))
    return 0.0


def _flow(e: Tensor, moved: Tensor, own: Any) -> tuple[Tensor, Tensor]:
    """Two layers: w (S, 1, q), and log |dw / de|, (S, 1)."""
    total = e.new_zeros(e.shape[:-1])
    for layer in (1, 2):
        e, log_scale = _layer(e, moved, own, layer)
        total = total + log_scale.sum(-1)
        e = e.flip(-1)
    return e, total


def _layer(e: Tensor, moved: Tensor, own: Any, number: int) -> tuple[Tensor, Tensor]:
    q, p, hidden = e.shape[-1], len(moved), HIDDEN * e.shape[-1]
    degree = torch.arange(hidden) % max(1, q - 1)  # a hidden number sees e_0 .. e_degree, and an output less
    sees = torch.cat([torch.arange(q) <= degree[:, None], torch.ones(hidden, p, dtype=torch.bool)], 1)
    reaches = (degree < torch.arange(q)[:, None]).repeat(2, 1)
    generator = torch.Generator().manual_seed(number)
    spread = 1 / math.sqrt(q + p)
    into = own(f"flow{number}.into", spread * torch.randn(hidden, q + p, generator=generator, dtype=torch.float64))
    shift = own(f"flow{number}.shift", torch.zeros(hidden))
    out = own(f"flow{number}.out", FIRST_WEIGHT * torch.randn(2 * q, hidden, generator=generator, dtype=torch.float64))
    by_x = own(f"flow{number}.by_x", torch.zeros(2 * q, p))
    both = torch.cat([e, moved.expand(*e.shape[:-1], p)], -1)
    inner = torch.tanh(((into * sees) @ both[..., None]).squeeze(-1) + shift)
    output = ((out * reaches) @ inner[..., None]).squeeze(-1) + (by_x * moved).sum(-1)
    location, log_scale = output.split(q, -1)
    return location + log_scale.exp() * e, log_scale

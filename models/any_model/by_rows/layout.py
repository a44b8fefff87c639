"""Which of a client's numbers are its own, and which are of one of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl.errors import UserError

from ..log_joint import client_log_joint
from ..sites import MOST_BY_ROWS, Sites

if TYPE_CHECKING:
    from ..look import Look

#: standard deviation with which a client's part begins
FIRST_SD = 0.1


@dataclass(frozen=True)
class Layout:
    """Places in a client's vector of q numbers.

    Attributes:
        own: of what it has once, (c,).
        rows: of what it has for each row, (n, r).
    """

    own: Tensor
    rows: Tensor

    @classmethod
    def from_sites(cls, sites: Sites) -> Layout | None:
        """Returns the rows' latents of a model with more numbers of a client than a guide of full covariance can
        have.
        """
        own, rows, first = list[Tensor](), list[Tensor](), 0
        for latent in sites.clients:
            places = first + torch.arange(latent.numel)
            first += latent.numel
            if latent.level == "data":
                assert latent.axis is not None
                by_row = places.reshape(latent.free).movedim(latent.axis + 1, 0)
                rows.append(by_row.reshape(len(by_row), -1))
            else:
                own.append(places)
        if not rows or first <= MOST_BY_ROWS:
            return None
        return cls(torch.cat(own) if own else torch.zeros(0, dtype=torch.long), torch.cat(rows, 1))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """c, n and r."""
        return len(self.own), *self.rows.shape

    def slope_size(self, p: int) -> int:
        """Numbers of how latents depend on the globals, and rows' on the client's own."""
        c, n, r = self.sizes
        return c * p + n * r * (p + c)

    @property
    def root_size(self) -> int:
        """Numbers of the roots of covariances."""
        c, n, r = self.sizes
        return c * c + n * r * r

    def joined(self, own: Tensor, rows: Tensor) -> Tensor:
        """Vectors (..., q) from a client's own numbers (..., c) and its rows' (..., n, r)."""
        both = torch.cat([own, rows.flatten(-2)], -1)
        order = torch.cat([self.own, self.rows.flatten()]).to(both.device)
        return both[..., order.argsort()]


def begun(layout: Layout, sites: Sites, p: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centring (q,), slopes and roots with which a client begins: its rows are many, so its own latents are centred.

    Rows' latents begin in their non-centred form.
    """
    c, n, r = layout.sizes
    ones = [
        torch.full((latent.numel,), float(latent.level != "data" or latent.name not in sites.centred))
        for latent in sites.clients
    ]
    roots = torch.cat([torch.eye(c).flatten(), torch.eye(r).expand(n, r, r).flatten()])
    return torch.cat(ones), torch.zeros(layout.slope_size(p)), FIRST_SD * roots


def refuse_coupled_rows(look: Look, layout: Layout) -> None:
    """Rows whose latents depend on one another, given globals and the client's own latents.

    Latents of half of the rows are changed; the slopes by those of the other half may not move.

    Raises:
        UserError: which names a site of rows.
    """
    name = next(latent.name for latent in look.sites.clients if latent.level == "data")
    v, n = look.v[0], len(layout.rows)
    generator = torch.Generator().manual_seed(0)
    halves = [torch.arange(n) % 2 == 0, torch.arange(n) < n // 2, torch.rand(n, generator=generator) < 0.5]
    ones = torch.ones_like(v)

    def slopes(at: Tensor) -> Tensor:
        at = at.detach().requires_grad_()
        h = client_log_joint(look.model, look.sites, look.x, at, look.client_alone(0), ones)
        return torch.autograd.grad(h, at, materialize_grads=True)[0] if h.requires_grad else torch.zeros_like(at)

    before = slopes(v)
    for half in halves:
        moved = v.clone()
        moved[layout.rows[half]] += 0.5
        rest = layout.rows[~half]
        if not torch.allclose(slopes(moved)[rest], before[rest], rtol=1e-8, atol=1e-8):
            raise UserError(
                f"site {name!r} is a latent of every row, a client has {len(v)} numbers, beyond {MOST_BY_ROWS}, and "
                "its rows depend on one another given the client's latents: a chain of so many is not fitted; write "
                "its integral, or give a guide of your own"
            )

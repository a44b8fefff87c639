"""The likelihood of a gaussian response whose residuals have a standard deviation of each client's own.

    log s_ij = d_ij^T gamma + e_j,    e_j = omega t_j,    t_j ~ N(0, 1)

Given t_j the client's likelihood l_j(theta, t_j) is that of a dispersion formula in closed form
(:mod:`.row_variances`), with G over exp(2 e_j). What is left is one integral,

    log p(D_j | theta) = log integral exp l_j(theta, t) N(t | 0, 1) dt,

by Gauss-Hermite quadrature around the client's mode in t. With pi_k a node's share of the integral, and nodes held,

    gradient = sum pi_k g_k,    second derivatives = sum pi_k (B_k + g_k g_k^T) - gradient gradient^T.

It is even in omega, and at omega = 0 that of the formula alone. A lognormal response is this of log y, over y.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.arithmetic import IMPOSSIBLE, sound
from ...model.equations import MixedModel
from ..moments import cholesky
from ..quadrature.likelihood import Quadrature
from .draws import Effects, effects_at, joined
from .effects import conditional_of, joint_of
from .given_spread import GivenSpread
from .row_variances import GAMMA, Products, parts_of, without_gamma
from .spread_nodes import LEAST_NODES, MOMENTS, derivatives, drawn_spreads, nodes_around, nodes_of


@dataclass(frozen=True)
class OwnSpreads(Quadrature):
    """See :class:`..quadrature.likelihood.Quadrature`; of its random effects all but t_j are in closed form."""

    method: MixedModel
    newton_steps: ClassVar[int] = 1

    def check(self) -> None:
        """Refuses settings that are of a residual whose standard deviation clients share.

        Raises:
            UserError: for one.
        """
        s = self.method.settings
        for name in ("kenward_roger", "one_round"):
            if getattr(s, name):
                raise UserError(f"{name} is of one residual deviation: no dispersion of each client beside it")
        if s.prior == "fixed":
            raise UserError(
                "prior=fixed holds standard deviations in the response's units: no dispersion of each client"
            )
        if 0 < s.nodes < LEAST_NODES:
            raise UserError(
                f"a client's own dispersion is integrated out by at least {LEAST_NODES} nodes, not {s.nodes}"
            )
        super().check()

    def personal(self) -> State:
        """Nothing."""
        return {}

    @property
    def searched(self) -> Sequence[str]:
        """Nothing: the mode is searched from the formula's value."""
        return ()

    def around(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> State:
        """Height, slope and curvature."""
        numbers, parts = shared["effects.at"], []
        for part in parts_of(rows):
            products, jacobian = self.products(part.batch())
            given = GivenSpread(self.method, products)
            t, log_weight = nodes_around(given, numbers[None], nodes_of(self.method))
            parts.append(derivatives(given, numbers, t[:, 0], log_weight[:, 0]))
            parts[-1]["height"] = parts[-1]["height"] - jacobian
        return within({name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def at_points(self, rows: ClientChunk, shared: Mapping[str, Tensor]) -> Tensor:
        """Heights alone."""
        points, parts = shared["effects.points"], []
        for part in parts_of(rows):
            products, jacobian = self.products(part.batch())
            given, nodes = GivenSpread(self.method, products), nodes_of(self.method)
            of_part = []
            for some in points.split(given.points(nodes)):
                t, log_weight = nodes_around(given, some, nodes)
                of_part.append((given.heights(some, t) + log_weight).logsumexp(0).mT - jacobian[:, None])
            parts.append(torch.cat(of_part, 1))
        heights = torch.cat(parts)
        return torch.where(sound(heights), heights, IMPOSSIBLE)

    def products(self, batch: Batch) -> tuple[Products, Tensor]:
        """The products of normal residuals, and how much the products' log density exceeds that of the rows, (S,)."""
        if self.method.network.family == "gaussian":
            return Products.from_batch(self.method, batch), torch.zeros_like(batch.y[:, 0])
        mask = torch.ones_like(batch.y) if batch.mask is None else batch.mask.to(batch.y)
        log_y = torch.where(mask > 0, batch.y, 1.0).log()
        products = Products.from_batch(self.method, replace(batch, y=log_y))
        weight = self.method.network.split(batch.x).weight
        return products, (log_y * mask * (1.0 if weight is None else weight)).sum(-1)

    # -- what clients know in the end ---------------------------------------------------------------------------------

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Not asked for: tables of clients' coefficients alone have no spread of their own."""
        raise UserError("coefficients of clients by their rows alone have one residual deviation: see ranef()")

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """Moments of the mixture over t."""
        parts = []
        for part in parts_of(chunk):
            given = GivenSpread(self.method, self.products(part.batch())[0])
            parts.append(self._mixed(given, shared))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _mixed(self, given: GivenSpread, shared: State) -> State:
        """Means and roots of covariances of the effects, {name: (S, 1, *shape)}."""
        numbers = self.method.numbers(shared)[None]
        t, log_weight = nodes_around(given, numbers, MOMENTS)
        share = (given.heights(numbers, t) + log_weight).softmax(0)[:, 0]  # (K, S)
        omega, rows = given.omega(numbers)[0], given.products.rows.mT.unsqueeze(1)
        gram, _ = given.products.at(shared[GAMMA][None])
        first, second = dict[str, Tensor](), dict[str, Tensor]()
        for k, weight in enumerate(share):
            own = conditional_of(self.method, given.over(gram, omega * t[k])[0], rows, without_gamma(shared))
            own["b_mean"][..., -1] = omega * self.method.network.scale * t[k, 0, :, None]
            own["b_root"][..., -1, :] = 0.0
            for name in [name.removesuffix("_mean") for name in own if name.endswith("_mean")]:
                mean, root = own[f"{name}_mean"], own[f"{name}_root"]
                own_share = weight.view(-1, *[1] * (mean.dim() - 1))
                square = root @ root.mT + mean[..., None] * mean[..., None, :]
                first[name] = first.get(name, 0.0) + own_share * mean
                second[name] = second.get(name, 0.0) + own_share[..., None] * square
        values = {f"{name}_mean": mean for name, mean in first.items()}
        for name, mean in first.items():
            values[f"{name}_root"] = cholesky(second[name] - mean[..., None] * mean[..., None, :])
        return values

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Draws of t, and of the others given t."""
        parts = []
        for part in parts_of(chunk):
            given = GivenSpread(self.method, self.products(part.batch())[0])

            def drawn(z: Mapping[str, Tensor], given: GivenSpread = given) -> tuple[Effects, Effects | None]:
                return self._drawn(given, draws, z)

            parts.append(joint_of(self.method, part, draws, phase, drawn))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _drawn(
        self, given: GivenSpread, draws: State, z: Mapping[str, Tensor]
    ) -> tuple[Effects, Effects | None]:  # fmt: skip
        """Effects at draws, some at a time."""
        size, parts = given.points(nodes_of(self.method)), list[tuple[Effects, Effects | None]]()
        numbers, rows = self.method.numbers(draws), given.products.rows.mT.unsqueeze(1)
        for first in range(0, len(numbers), size):
            some = {k: v[first : first + size] for k, v in draws.items()}
            own = {k: v[first : first + size] for k, v in z.items()}
            some_numbers = numbers[first : first + size]
            e = given.omega(some_numbers)[:, None] * drawn_spreads(given, some_numbers, own["root"][..., -1])
            gram, _ = given.products.at(some[GAMMA])
            clients, inner = effects_at(self.method, given.over(gram, e), rows, without_gamma(some), own)
            for values in (clients.means, clients.draws):
                values[..., -1] = e * self.method.network.scale
            clients.within[:, -1], clients.within[:, :, -1] = 0.0, 0.0
            parts.append((clients, inner))
        groups = [of_groups for _, of_groups in parts if of_groups is not None]
        return joined([own_effects for own_effects, _ in parts]), joined(groups) if groups else None


def within(values: State) -> State:
    """Numbers that can be sent."""
    fine = torch.stack([sound(v).reshape(len(v), -1).all(1) for v in values.values()]).all(0)
    return {
        k: torch.where(fine.view(-1, *[1] * (v.dim() - 1)), v, IMPOSSIBLE if k == "height" else 0.0)
        for k, v in values.items()
    }

"""Random effects of a gaussian response given the population: normal, from sums over rows.

Of a client, (15), b = L u has mean L F^-T v and covariance L (F F^T)^-1 L^T, v = F^-1 L^T G_z[y - X beta] / s^2
(:mod:`.elimination`). Those of groups inside it have the same form given b, with b among the coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hierfl.inference.state import State

from ...model.covariance import Covariance
from ...model.equations import MixedModel
from .closed import without_inside
from .entrywise import Entrywise, back, forward, sum_of, turned
from .serial_sums import at_population

#: draws x groups x entries of their matrices that are held at a time
NUMBERS_PER_PASS = 20_000_000


class Effects(NamedTuple):
    """Random effects of clients at D draws of the population.

    Attributes:
        means: given the population, (D, S, q).
        within: their covariance given the population, averaged over the draws, (S, q, q).
        draws: (D, S, q).
    """

    means: Tensor
    within: Tensor
    draws: Tensor


def gaussian_effects(
    method: MixedModel, gram: Any, rows: Tensor, shared: Mapping[str, Tensor], z: Mapping[str, Tensor]
) -> tuple[Effects, Effects | None]:
    """Clients' effects, and those of their groups, (D, groups S, q), group by group.

    Args:
        method: whose model.
        gram: G, (m, m, S), or :class:`.serial_sums.SerialSums`.
        rows: as :class:`.row_sums.RowSums` has them, of S clients.
        shared: of the population, {name: (D, *shape)}.
        z: standard normals by level, (D, S, q) and (D, groups S, q).
    """
    number, numbers_each = len(shared["beta"]), gram.shape.numel()
    own = method.inside or not isinstance(gram, Tensor)  # a matrix for each draw
    size = max(1, NUMBERS_PER_PASS // numbers_each) if own else number
    parts: list[tuple[Effects, Effects | None]] = []
    for first in range(0, number, size):
        some = slice(first, first + size)
        part, z_part = {k: v[some] for k, v in shared.items()}, {k: v[some] for k, v in z.items()}
        parts.append(effects_at(method, at_population(gram, part), rows, part, z_part))
    clients = joined([own_effects for own_effects, _ in parts])
    return clients, joined([inner for _, inner in parts if inner is not None]) if method.inside else None


def joined(parts: Sequence[Effects]) -> Effects:
    """The effects at all draws together."""
    if len(parts) == 1:
        return parts[0]
    means, draws = (torch.cat([getattr(part, name) for part in parts]) for name in ("means", "draws"))
    within = torch.stack([part.within * len(part.means) for part in parts]).sum(0) / len(means)
    return Effects(means, within, draws)


def effects_at(
    method: MixedModel, last: Tensor, rows: Tensor, shared: State, z: Mapping[str, Tensor]
) -> tuple[Effects, Effects | None]:
    """See :func:`gaussian_effects`; G is (m, m, S), or (D, m, m, S) where each draw has its own."""
    log_s, shape = _log_s(shared), (len(shared["beta"]), rows.shape[0])
    others = coefficients(method, rows, shared)
    left = of_clients(method, last, shared, log_s)
    root = method.covariance.matrix(shared["root"])
    factor, v = whitened(method.covariance, left, entries(shared, "root"), log_s, others, shape)
    drawn = _drawn(root, factor, v, z["root"])
    if not method.inside:
        return drawn, None
    (level,) = method.inside
    own = [*(drawn.draws[..., k] for k in range(root.shape[-1])), *others]
    inner_shape = (shape[0], shape[1] * level.size)
    of_groups = [number.expand(shape).repeat(1, level.size) for number in own]
    factor, v = whitened(level.covariance, last, entries(shared, level.name), log_s, of_groups, inner_shape)
    return drawn, _drawn(level.root(shared[level.name]), factor, v, z[level.name])


def of_clients(method: MixedModel, last: Tensor, shared: State, log_s: Tensor | None) -> Tensor:
    """G of clients, (D, m, m, S) or (m, m, S), of that of their groups."""
    left: Tensor = without_inside(
        method.inside, last, {level.name: entries(shared, level.name) for level in method.inside}, log_s
    )[0]
    return left


def _drawn(root: Tensor, factor: list[list[Tensor]], v: list[Tensor], z: Tensor) -> Effects:
    """Entry by entry, as :func:`.cross_products.packed` is: of many draws and clients an order of magnitude faster."""
    q = len(v)
    u, moved = back(factor, v), back(factor, [v[a] + z[..., a] for a in range(q)])
    means, draws = (torch.stack(turned(root, column), -1) for column in (u, moved))
    # L (F F^T)^-1 L^T of F^-1 L^T, column by column
    columns = [forward(factor, [root[:, i, a, None] for a in range(q)]) for i in range(q)]
    within = [
        [sum_of([a * c for a, c in zip(column, other, strict=True)]).mean(0) for other in columns] for column in columns
    ]
    groups = means.shape[1]
    return Effects(means, torch.stack([torch.stack([e.expand(groups) for e in row], -1) for row in within], -2), draws)


def moments(effects: Effects) -> tuple[Tensor, Tensor]:
    """Mean (S, q) and covariance (S, q, q) of the mixture over draws of the population."""
    gap = effects.means - effects.means.mean(0)
    between = torch.einsum("dsi,dsj->sij", gap, gap) / len(gap)
    return effects.means.mean(0), effects.within + between


def entries(shared: Mapping[str, Tensor], level: str) -> Sequence[Tensor]:
    """The entries of a level's L, (D, 1) each."""
    return shared[level].T[..., None].unbind()


def _log_s(shared: Mapping[str, Tensor]) -> Tensor | None:
    log_noise = shared.get("log_noise")
    return None if log_noise is None else log_noise[:, None]


def coefficients(method: MixedModel, rows: Tensor, shared: Mapping[str, Tensor]) -> list[Tensor]:
    """The coefficients of the columns [Z_out X]: their clients' region's effects, (D, S) each, or all crossing groups',
    (D, 1) each; and beta, (D, 1) each.
    """
    beta = [coefficient[:, None] for coefficient in shared["beta"].unbind(-1)]
    above = [
        [coefficient[:, None] for coefficient in shared[level.effects][:, 1:].flatten(1).unbind(-1)] if level.crossed
        else shared[level.effects][:, rows[:, 0, 2].long()].unbind(-1)
        for level in method.above
    ]  # fmt: skip
    return [*(coefficient for effects in above for coefficient in effects), *beta]


def whitened(
    covariance: Covariance, gram: Any, entries: Sequence[Tensor], log_s: Any, others: Sequence[Tensor],
    shape: tuple[int, int],
) -> tuple[list[list[Tensor]], list[Tensor]]:  # fmt: skip
    """F, and v = F^T E[u], entry by entry, (D, S) each.

    Args:
        covariance: of the effects.
        gram: G, (..., m, m, S).
        entries: of L, (D, 1) each.
        log_s: (D, 1), or None for 0.
        others: coefficients of the other columns than the effects' and the response, (D, S or 1) each.
        shape: (D, S).
    """
    level = Entrywise(covariance, gram, entries, log_s)
    factor, v = level.factor(), []
    for column in level.half(factor):
        gap = column[..., -1, :] - sum_of([column[..., k, :] * other for k, other in enumerate(others)])
        v.append((gap * level.inverse).expand(shape))
    return [[entry.expand(shape) for entry in row] for row in factor], v


def gaussian_mode(method: MixedModel, gram: Any, rows: Tensor, shared: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """u's mean (S, q), and F (S, q, q), at shared values {name: (*shape)}; others as of :func:`gaussian_effects`."""
    at = {k: value[None] for k, value in shared.items()}
    last, log_s = at_population(gram, at), _log_s(at)
    last = of_clients(method, last, at, log_s)
    shape = (1, rows.shape[0])
    factor, v = whitened(method.covariance, last, entries(at, "root"), log_s, coefficients(method, rows, at), shape)
    nothing = torch.zeros_like(v[0][0])
    lower = [torch.stack([*(e[0] for e in row), *[nothing] * (len(v) - len(row))], -1) for row in factor]
    return torch.stack([u[0] for u in back(factor, v)], -1), torch.stack(lower, -2)


def gaussian_groups(
    method: MixedModel, gram: Any, rows: Tensor, shared: Mapping[str, Tensor], b: Tensor, b_root: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean (S, G, q_in) and covariance of the effects of groups inside clients, at shared values {name: (*shape)}.

    Args:
        method: whose model.
        gram, rows: as of :func:`gaussian_effects`.
        shared: of the population.
        b, b_root: mean (S, q) and a root of the covariance of the client's effects, which the groups' follow.
    """
    q, (level,) = b.shape[-1], method.inside
    # at b, and one step along each of its numbers: the mean is a linear function of b
    points = torch.cat([b[None], b + torch.eye(q).to(b)[:, None]])
    at = {k: value[None].expand(1 + q, *value.shape) for k, value in shared.items()}
    own = [*points.unbind(-1), *(number.expand(1 + q, len(b)) for number in coefficients(method, rows, at))]
    of_groups = [number.repeat(1, level.size) for number in own]
    shape, root = (1 + q, len(b) * level.size), level.root(at[level.name])
    factor, v = whitened(
        level.covariance, at_population(gram, at), entries(at, level.name), _log_s(at), of_groups, shape
    )
    drawn = _drawn(root, factor, v, b.new_zeros(*shape, level.q))
    size = (level.size, len(b))
    means, within = drawn.means.unflatten(1, size).transpose(1, 2), drawn.within.unflatten(0, size).transpose(0, 1)
    follow = (means[1:] - means[0]).movedim(0, -1) @ b_root[:, None]  # (S, G, q_in, q)
    return means[0], within + follow @ follow.mT

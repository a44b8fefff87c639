"""What a client of another response says of effects w that all clients share: of items that cross them, and of curves.

Its log likelihood l_j(theta, w), its own effects integrated out, with two derivatives in w. With s and W the first and
minus the second derivatives of log p(y | eta), and expectations over the client's effects u given theta, w and its
rows,

    dl_j/dw = E Z^T s,    -d2l_j/dw2 = E Z^T W Z - Cov(Z^T s)

by the nodes of its integral. With one node l_j is Laplace's approximation, and the derivatives are those of the height
at the mode, which follows w: together with the server's step that is Laplace's approximation of all effects at once,

    dh_j/dw = Z^T s,    -d2h_j/dw2 = Z^T W Z - Z^T W A (I + A^T W A)^-1 A^T W Z,    A = Z_u L

With levels inside clients that is what is done, u the effects of all levels (:mod:`..joint.problem`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pyro
import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk

from ...model.arithmetic import IMPOSSIBLE, sound
from ...model.equations import MixedModel
from ...model.levels import Level
from ..gaussian.crossed import by_level, shared_columns
from ..gaussian.elimination import symmetric
from ..joint.arrow import Arrow
from ..joint.layout import Layout
from ..joint.problem import JointProblem
from ..joint.products import own_sums
from .integral import EXAMPLES_PER_PASS, passes
from .newton import Problem
from .nodes import away, log_volume, nodes_of, nodes_per_row
from .stencil import derivatives


def cells(effects: int) -> int:
    """Numbers at a point: l, its slope, and minus its second derivatives, an upper triangle row by row."""
    return 1 + effects + effects * (effects + 1) // 2


@torch.no_grad()
def cells_at(method: MixedModel, chunk: ClientChunk, points: Mapping[str, Tensor], w: Tensor) -> Tensor:
    """Each client's :func:`cells` at points, (S, M, cells).

    Args:
        method: whose model.
        chunk: whose data; modes start from its ``u_mode``.
        points: shared values, {name: (M, *shape)}.
        w: effects of the groups that have names, (M, I q).
    """
    # 0 of a group that has none.
    effects = {
        level: torch.nn.functional.pad(effects_of_level, (0, 0, 1, 0))
        for level, effects_of_level in by_level(method, w).items()
    }
    parts = []
    for part in passes(method, chunk, 1):
        batch = part.batch()
        columns = shared_columns(method, method.network.split(batch.x))
        inside = Layout.for_method(method).numbers + batch.width * w.shape[-1] if method.inside else 0
        numbers_each = len(part.clients) * max(batch.width * nodes_per_row(method), w.shape[-1] ** 2, inside)
        size, pieces = max(1, EXAMPLES_PER_PASS // numbers_each), []
        for first in range(0, len(w), size):
            some = {k: v[first : first + size, None, None] for k, v in points.items()}
            some |= {
                level.effects: effects_of_level[first : first + size, None, None]
                for level, effects_of_level in effects.items()
            }
            start = part.values["u_mode"].squeeze(1)
            with pyro.validation_enabled(False):
                if method.inside:
                    pieces.append(_of_levels(JointProblem.of_levels(method, batch, some), columns, start))
                else:
                    pieces.append(_cells(Problem.from_batch(method, batch, some), columns, start))
        parts.append(torch.cat(pieces).transpose(0, 1))
    return torch.cat(parts)


def _of_levels(problem: JointProblem, columns: Tensor, start: Tensor) -> Tensor:
    """Likewise as :func:`_cells`, of clients with levels inside."""
    layout = problem.layout
    assert layout is not None
    mode, factors = problem.mode(start)
    slope, weight = problem.slope_and_weight(mode, safe=False)
    weighted = columns * weight[..., None]
    across = [
        own_sums(zl, group, part.groups, weighted) for part, (zl, group) in zip(layout.parts, problem.each, strict=True)
    ]  # A^T W Z, level by level
    first = across.pop(layout.eliminated)
    own_half, other = Arrow(*factors).forward(first, torch.cat([block.flatten(-3, -2) for block in across], -2))
    half = torch.cat([own_half.flatten(-3, -2), other], -2)
    return _sent(problem, problem.laplace(mode, factors), slope, weight, columns, half.mT @ half)


def _cells(problem: Problem, columns: Tensor, start: Tensor) -> Tensor:
    """(M, S, cells), of columns (S, n, I q) of all groups."""
    mode, (factor, *_) = problem.mode(start)
    nodes = nodes_of(problem.method)
    if nodes == 1:
        slope, weight = problem.slope_and_weight(mode, safe=False)
        height = problem.heights(mode) - log_volume(factor)
        turned = over_rows((problem.zl * weight[..., None]).movedim(-1, 0), columns).movedim(0, -2)
        across = torch.linalg.solve_triangular(factor, turned, upper=False)  # F^-1 A^T W Z, (M, S, q, I q)
        return _sent(problem, height, slope, weight, columns, across.mT @ across)
    far, log_weight = away(factor, nodes, mode)
    u = mode + far.movedim(-1, 0)  # (K, M, S, q)
    logs = problem.heights(u) + log_weight[:, None, None]
    height = logs.logsumexp(0) - log_volume(factor)
    height = height - 0.5 * factor.shape[-1] * math.log(2 * math.pi)
    share = logs.softmax(0)[..., None]
    slope, weight = problem.slope_and_weight(u, safe=False)
    weight = (share * weight).sum(0)
    slopes = over_rows(slope, columns)  # Z^T s at each node, (K, M, S, I q)
    first = (share * slopes).sum(0)
    gap = (share.sqrt() * (slopes - first)).movedim(0, -2)
    less = gap.mT @ gap
    return _packed(height, first, _blocks(problem.method.above, columns, weight) - less)


def _sent(problem: Problem, height: Tensor, slope: Tensor, weight: Tensor, columns: Tensor, less: Tensor) -> Tensor:
    """Cells at a mode: derivatives of the height there, whose curvature is less by what the mode follows."""
    first = over_rows(slope, columns)
    return _packed(height, first, _blocks(problem.method.above, columns, weight) - less)


def _packed(height: Tensor, first: Tensor, bend: Tensor) -> Tensor:
    up, over = torch.triu_indices(bend.shape[-1], bend.shape[-1], device=bend.device)
    cells = torch.cat([height[..., None], first, bend[..., up, over]], -1)
    fine, nowhere = sound(cells).all(-1, keepdim=True), torch.zeros_like(cells)
    nowhere[..., 0] = IMPOSSIBLE
    return torch.where(fine, cells, nowhere)


def _blocks(levels: Sequence[Level], columns: Tensor, weight: Tensor) -> Tensor:
    """Z^T W Z, (M, S, I q, I q): of one factor zero but for blocks of q, since a row is of one group."""
    if len(levels) > 1 or levels[0].smooth:  # of a curve a row has all
        return (columns.mT * weight[..., None, :]) @ columns
    (level,) = levels
    apart = columns.unflatten(-1, (level.groups, level.q))  # (S, n, I, q)
    products = (apart[..., :, None] * apart[..., None, :]).flatten(-3)  # (S, n, I q q)
    block = over_rows(weight, products).unflatten(-1, (level.groups, level.q, level.q))
    identity = torch.eye(level.groups, dtype=block.dtype, device=block.device)
    return (identity[:, None, :, None] * block[..., :, :, None, :]).flatten(-2).flatten(-3, -2)


def over_rows(values: Tensor, columns: Tensor) -> Tensor:
    """Sums over rows of values (..., S, n) times columns (S, n, c), (..., S, c): columns are not copied for each."""
    lead = values.shape[:-2]
    return (values.flatten(0, -3).transpose(0, 1) @ columns).transpose(0, 1).unflatten(0, lead)


def given_effects(many: Tensor, w: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Slope (..., k) and curvature (..., k, k) of l_j in theta, the effects as in the stencil's middle.

    Args:
        many: of clients at the stencil's points, (..., T, cells).
        w: at which they were, (T, I q).
        k: numbers of theta.
    """
    m = w.shape[-1]
    height, slope, upper = many.split([1, m, m * (m + 1) // 2], -1)
    back = w[0] - w
    bent = (symmetric(upper, m) @ back[..., None]).squeeze(-1)
    same = height.squeeze(-1) + (back * (slope - 0.5 * bent)).sum(-1)
    _, first, second = derivatives(same.movedim(-1, 0), k)
    return first, -second

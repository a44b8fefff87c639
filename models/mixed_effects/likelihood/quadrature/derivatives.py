"""Two derivatives of a client's log marginal likelihood, from sums over its rows alone.

Of responses that depend on the coefficients beta and the effects b = L u by eta = c^T (b, beta), c = (z, x), only. With
g = sum z l'(eta), A = sum w z z^T, B = sum w z x^T, w = -l'', and Sigma = L L^T, the mode and its derivatives by the
numbers theta = (L's entries, beta) are, a row's c^T d(b, beta) / d theta_i being e_i,

    b = Sigma g
    (I + Sigma A) b_i  = Sigma_i g - Sigma B beta_i                                                         (a)
    (I + Sigma A) b_ij = Sigma_ij g + Sigma_i g_j + Sigma_j g_i - Sigma sum w' z e_i e_j                    (b)

So those of A, of F F^T = I + L^T A L, and of the nodes follow; at a node the log density has a gradient and a curvature
in (b, beta). Nothing but these sums is differentiated row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...model.equations import MixedModel
from ..gaussian.entrywise import Entrywise, back, sum_of
from ..gaussian.taylor import Taylor
from .newton import Problem
from .nodes import nodes_of, rule


def in_closed_form(method: MixedModel, names: Sequence[str]) -> bool:
    """Whether these are all numbers of a client's likelihood: neither groups, nor numbers of the response's own."""
    plain = not (method.inside or method.above or method.network.own or method.response_family.starts)
    return plain and set(names) <= {"root", "beta"}


def expanded(problem: Problem, names: Sequence[str], root: Tensor, mode: Tensor) -> Taylor:
    """Each client's log marginal likelihood (S,) as a function of the numbers.

    Args:
        problem: of the clients, without groups.
        names: of the numbers, "root" and "beta" or one of them, one after the other.
        root: L, (q, q).
        mode: u, (S, q), to Newton's tolerance; here it is taken a step further.
    """
    mode = mode + problem.step(mode)[0]
    numbers = Numbers(problem.method, names, root)
    u, factor = around_mode(problem, numbers, mode)
    q, nodes = len(u), nodes_of(problem.method)
    v, log_weight = rule(nodes, q, mode)
    at = [own + far for own, far in zip(u, back(factor, list(v.mT[..., None].unbind())), strict=True)]
    log_terms = heights_at_nodes(problem, numbers, at) + log_weight[:, None]
    most = log_terms.value.amax(0)
    weights = (log_terms - most).exp()
    total = Taylor(weights.value.sum(0), weights.slope.sum(1), weights.bend.sum(2)).log() + most
    return total - sum_of([row[-1].log() for row in factor]) - 0.5 * q * math.log(2 * math.pi)


class Numbers:
    """The k numbers as directions of L and of beta.

    Args:
        method: whose covariance.
        names: as of :func:`expanded`.
        root: L, (q, q).

    Attributes:
        lower: L's derivatives, (k, q, q).
        beta: those of the coefficients, (p, k).
    """

    def __init__(self, method: MixedModel, names: Sequence[str], root: Tensor) -> None:
        self.method, self.root = method, root
        r, p, q = method.covariance.entries, len(method.network.fixed), len(root)
        sizes = {"root": r, "beta": p}
        self.k = sum(sizes[name] for name in names)
        self.lower, self.beta, first = root.new_zeros(self.k, q, q), root.new_zeros(p, self.k), 0
        for name in names:
            own = slice(first, first + sizes[name])
            if name == "root":
                self.lower[own] = method.covariance.matrix(torch.eye(r).to(root))
            else:
                self.beta[:, own] = torch.eye(p).to(root)
            first += sizes[name]

    @property
    def entries(self) -> list[Taylor]:
        """L's, as functions of the numbers."""
        flat = self.root.new_zeros(self.k, self.k)
        return [Taylor(self.root[i, j], self.lower[:, i, j], flat) for i, j in self.method.covariance.places]

    def of_root(self, u: Sequence[Taylor]) -> list[Taylor]:
        """b = L u."""
        rows: list[list[Taylor]] = [[] for _ in u]
        for (i, j), entry in zip(self.method.covariance.places, self.entries, strict=True):
            rows[i].append(u[j] * entry)
        return [sum_of(row) for row in rows]


def around_mode(problem: Problem, numbers: Numbers, mode: Tensor) -> tuple[list[Taylor], list[list[Taylor]]]:
    """u, and F row by row, (S,) each, as functions of the numbers."""
    columns, root, lower = problem.columns, numbers.root, numbers.lower
    z, c = columns.z, torch.cat([columns.z, columns.x], -1)
    s, q = mode.shape
    slope, weights = row_derivatives(problem, mode)
    g, a = (z.mT @ slope[..., None]).squeeze(-1), (z * weights[0][..., None]).mT @ c  # (S, q), [A B] (S, q, m)
    sigma, product = root @ root.mT, lower @ root.mT
    sigma_1 = product + product.mT  # (k, q, q)
    across = lower[:, None] @ lower.mT
    sigma_2 = across + across.mT  # (k, k, q, q)
    step = torch.linalg.inv_ex(torch.eye(q).to(z) + sigma @ a[..., :q]).inverse
    b_1 = step @ (torch.einsum("ipr,sr->spi", sigma_1, g) - sigma @ a[..., q:] @ numbers.beta)  # (S, q, k), by (a)
    d_1 = torch.cat([b_1, numbers.beta.expand(s, -1, -1)], 1)
    g_1 = -a @ d_1
    row_1 = c @ d_1
    squares = (z[..., :, None] * z[..., None, :]).flatten(-2)  # (S, n, q^2)
    both = torch.cat([z * weights[1][..., None], squares * weights[2][..., None]], -1)
    pairs = ((both[..., None] * row_1[..., None, :]).flatten(-2).mT @ row_1).unflatten(1, (q + q * q, -1))
    mixed = torch.einsum("ipr,srj->spij", sigma_1, g_1)
    right = torch.einsum("ijpr,sr->spij", sigma_2, g) + mixed + mixed.mT
    b_2 = torch.einsum("spr,srij->spij", step, right - torch.einsum("pr,srij->spij", sigma, pairs[:, :q]))  # by (b)
    g_2 = -torch.einsum("spr,srij->spij", a[..., :q], b_2) - pairs[:, :q]
    bent = (squares * weights[1][..., None]).mT @ c
    a_1 = bent @ d_1
    a_2 = pairs[:, q:] + torch.einsum("spr,srij->spij", bent[..., :q], b_2)
    of_g = Taylor(g.mT, g_1.permute(2, 1, 0), g_2.permute(2, 3, 1, 0))
    shape = (q, q, s)
    of_a = Taylor(
        a[..., :q].permute(1, 2, 0), a_1.permute(2, 1, 0).unflatten(1, (q, q)),
        a_2.permute(2, 3, 1, 0).reshape(numbers.k, numbers.k, *shape),
    )  # fmt: skip
    level = Entrywise(problem.method.covariance, of_a, numbers.entries, None)
    u = [sum_of([of_g[i] * entry for i, entry in column]) for column in level.lower]
    exact = [Taylor(at, number.slope, number.bend) for at, number in zip(mode.unbind(-1), u, strict=True)]
    return exact, level.factor()


def row_derivatives(problem: Problem, mode: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The derivatives of the rows' log densities in eta: l', and -l'' with its own two derivatives, (S, n) each."""
    family, values, columns = problem.method.response_family, problem.values, problem.columns
    with torch.enable_grad():
        eta = problem.eta(mode).detach().requires_grad_()
        slope, weight = family.slope_and_weight(eta, problem.y, values, columns)
        orders = [weight]
        for _ in range(2):
            made = torch.autograd.grad(
                orders[-1].sum(), eta, create_graph=True, allow_unused=True, materialize_grads=True
            )
            orders.append(made[0])
    return problem.counted(slope.detach()), [problem.counted(order.detach()) for order in orders]


def heights_at_nodes(problem: Problem, numbers: Numbers, u: Sequence[Taylor]) -> Taylor:
    """log p(D_j | u) + log N(u | 0, I) but for its constant, (K, S), of nodes u (K, S) each."""
    c, at = torch.cat([problem.columns.z, problem.columns.x], -1), torch.stack([number.value for number in u], -1)
    b, prior = numbers.of_root(u), sum_of([number * number for number in u]) * -0.5
    s = len(c)
    values, slopes, bends = [], [], []
    for k, node in enumerate(at):
        values.append(problem.heights(node))
        slope, weight = problem.slope_and_weight(node, safe=False)
        g, h = (c.mT @ slope[..., None]).squeeze(-1), (c * weight[..., None]).mT @ c
        b_1 = torch.stack([number.slope[:, k] for number in b], 1).permute(2, 1, 0)  # (S, q, k)
        d_1 = torch.cat([b_1, numbers.beta.expand(s, -1, -1)], 1)
        slopes.append((d_1.mT @ g[..., None]).squeeze(-1).mT)
        of_b = sum_of([number.bend[:, :, k] * g[:, i] for i, number in enumerate(b)])
        bends.append(of_b - (d_1.mT @ h @ d_1).permute(1, 2, 0))
    return Taylor(torch.stack(values), torch.stack(slopes, 1) + prior.slope, torch.stack(bends, 2) + prior.bend)

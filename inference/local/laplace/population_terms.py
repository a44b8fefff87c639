"""What a client's likelihood, its head integrated out, says of the population that the head comes from.

With w_j | w ~ N(w, D), D = diag(r)^2, and the client's likelihood of w_j as its expansion has it (g, H at mu_j), its
likelihood of w is Gaussian with the natural parameters

    A_j = H (I + D H)^-1 = D^-1 - D^-1 P^-1 D^-1,       b_j = (I + H D)^-1 (H mu_j + g),

exact where the likelihood is Gaussian. Sent is u_j = b_j - A_j m = D^-1 (E[w_j | m] - m), the gradient at the broadcast
m: it is exact at the mode whatever A_j leaves out, and so is the point at which all u_j and the prior's gradient add up
to zero. In the spreads, one for each block of numbers, its log marginal likelihood has the gradient

    d l_j / d log rho_b = |E[w_j | m] - m|_b^2 / rho_b^2  -  gamma_jb  +  rho_b^2 tr_b(A_j S A_j)

with gamma_jb = tr_b(H P^-1), the effective number of parameters, and S the posterior covariance of w; the expected
information is 2 tr_bb'((rho^2 A_j)^2), w's own share left out. Where g and H are averages over q(w_j) this gradient is
exactly that of the evidence lower bound, whose share of a client is

    E_q log p(D_j | w_j) - E_q(w) KL(q(w_j | w) || p(w_j | w))
        = E_q log p(D_j | w_j) + (gamma_j - log |B| - |E[w_j | m] - m|^2 / rho^2 - rho^2 tr(A_j S A_j)) / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hierfl.ppl.gaussian_factors import Gaussian

from ...state import State
from .forms import Curvature, Scaled
from .newton import NEAR_MODE_NATS
from .target import Expansion, Target


@dataclass(frozen=True)
class Groups:
    """Which of a head's numbers a precision connects: groups of equal size, in the order of the weight matrix.

    Groups of one number are a diagonal, a single one is a full matrix, and between them are the rows of the weight
    matrix, one for each output.

    Attributes:
        number, size: G groups of p numbers.
    """

    number: int
    size: int

    @property
    def packed_size(self) -> int:
        """How many numbers a precision has."""
        return self.number * self.size * (self.size + 1) // 2

    def split(self, vector: Tensor) -> Tensor:
        """(..., d) to (..., G, p)."""
        return vector.unflatten(-1, (self.number, self.size))

    def packed(self, precision: Tensor) -> Tensor:
        """(..., G, p, p) to (..., packed_size)."""
        return Gaussian(precision[..., 0], precision, "full").packed().flatten(-2)

    def positive(self, packed: Tensor) -> Tensor:
        """Whether variances are none below zero, (..., G, p) booleans, of what :meth:`packed` gave."""
        k = torch.arange(self.size, device=packed.device)  # where they are in a lower triangle, row by row
        return packed.unflatten(-1, (self.number, -1))[..., k * (k + 3) // 2] >= 0

    def root(self, packed: Tensor) -> Tensor:
        """The symmetric root of a covariance, (..., G, p, p): it moves as little as that does, unlike eigenvectors."""
        values, vectors = torch.linalg.eigh(self.unpacked(packed).double())
        return (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT

    def unpacked(self, packed: Tensor) -> Tensor:
        """The inverse of :meth:`packed`."""
        of_groups = packed.unflatten(-1, (self.number, -1))
        return Gaussian.unpacked(of_groups.new_empty((*of_groups.shape[:-1], self.size)), of_groups, "full").precision


@dataclass(frozen=True)
class PopulationTerms:
    """The sums that a population needs of its clients.

    Args:
        blocks: to which block of spreads each of the head's numbers belongs, (d,), in the order of the weight matrix.
        groups: what of A_j is sent.
        covariance: the shared value that has S, packed as A_j is; "" where w is a point.
        summary: the personal value for gamma_jb and, after them, tr(S A_j) / d, the client's weight in w: (B + 1,).
        own: the personal value of a client's own log rho_j, (B,), and NAME_sd, its posterior standard deviation; ""
            where one is shared.
        centre, varies: shared values, log rho and log s of the prior log rho_j ~ N(log rho, s^2) of one's own.
        beside_none: whether to say what heads gain over rho = 0, in log evidence, where w is a point: "" for no, or
            what the evidence is made of, probabilities of labels or densities.
    """

    blocks: Tensor
    groups: Groups
    covariance: str
    summary: str
    own: str = ""
    centre: str = ""
    varies: str = ""
    beside_none: Literal["", "probabilities", "densities"] = ""

    @property
    def stretched(self) -> bool:
        """Whether the groups leave out some of A_j."""
        return self.groups.number > 1

    @property
    def trains(self) -> Sequence[str]:
        """The summary, and a client's own spreads."""
        return (self.summary, *((self.own, f"{self.own}_sd") if self.own else ()))

    def row_messages(self, target: Target, at: Expansion, h: Curvature, scaled: Scaled) -> State:
        """What each row says, {key: (S, ...)}; vectors and matrices of the head are in the order of its weight matrix.

        Args:
            target: the rows.
            at, h, scaled: the expansion, and its curvature.
        """
        values, groups, offset = target.values, self.groups, at.offset(h, scaled)
        # A mean that Newton's steps have not brought near its end is what it is, not what a further step promises.
        promised = ((at.m + offset - at.mu) * at.slope).sum(-1, keepdim=True)
        offset = torch.where(promised < NEAR_MODE_NATS, offset, at.mu - at.m)
        member = torch.nn.functional.one_hot(self.blocks.to(at.r.device)).to(at.r)  # (d, B)
        shrinkage = scaled.data_share(groups.number).clone()
        shrinkage.diagonal(dim1=-2, dim2=-1).clamp_(min=0)  # rounding errors
        gamma = shrinkage.diagonal(dim1=-2, dim2=-1).flatten(-2)
        r = groups.split(at.r)
        a = shrinkage / (r[..., :, None] * r[..., None, :])
        s = groups.unpacked(values[self.covariance]) if self.covariance else torch.zeros_like(a[:1])
        inner = ((a @ s) * a).sum(-1).flatten(-2) * at.r.square()  # the diagonal of A S A
        inside = groups.split(member.mT).movedim(0, -1)  # (G, p, B)
        information = 2 * (inside.mT @ (shrinkage.square() @ inside)).sum(-3)
        score = ((offset / at.r).square() - gamma + inner) @ member
        away = (offset / at.r).square()
        # E_q log p(D_j | w_j) is its average over the draws, their second moment replaced by the exact one; then the
        # bound's terms in gamma_j and rho^2 tr(A_j S A_j) cancel.
        likelihood = at.log_likelihood + 0.5 * at.drawn_curvature(h)
        evidence = likelihood - 0.5 * (away.sum(-1) + (a * s).sum((-3, -2, -1)) + scaled.log_det)
        terms = {
            "gradient": offset / at.r.square(),
            "precision": groups.packed(a),
            self.summary: torch.cat([gamma @ member, (a * s).sum((-3, -2, -1))[:, None] / gamma.shape[-1]], -1),
            "log_evidence": evidence[:, None],
        }
        if self.beside_none:
            # Of labels none is above zero: one that is, of a posterior that has not settled, is as far off below.
            whole = -evidence.abs() if self.beside_none == "probabilities" else evidence
            terms["gain"] = whole[:, None] - target.at(at.m).log_likelihood[:, None]
        if self.stretched:
            size = gamma.sum(-1)
            terms["stretch"] = torch.stack(
                [size * stretch(scaled.data_share_times, shrinkage, groups, member), size], -1
            )
        if not self.own:
            return {**terms, "score": score, "information": information}
        return {**terms, **self._own(values, score, information.diagonal(dim1=-2, dim2=-1))}

    def _own(self, values: State, score: Tensor, information: Tensor) -> State:
        """A step of one's own log rho_j, and what its estimate, with variance 1 / information, says of its prior."""
        own = values[self.own].squeeze(1)
        away, s2 = own - values[self.centre], (2 * values[self.varies]).exp()
        precision = information / (1 + s2 * information)  # of the estimate around log rho
        pull = (information * away + score) / (1 + s2 * information)
        step = (score - away / s2) / (information + 1 / s2)
        return {
            self.own: own + step.clamp(-1, 1),
            f"{self.own}_sd": (information + 1 / s2).rsqrt(),
            "score": pull,
            "information": torch.diag_embed(precision),
            "varies_score": s2 * (pull.square() - precision),
            "varies_information": 2 * (s2 * precision).square(),
        }


#: turns of the power iteration, and what is added to its result, which comes from below
POWER_TURNS, MARGIN = 12, 1.1


def stretch(whole: Callable[[Tensor], Tensor], blocks: Tensor, groups: Groups, member: Tensor) -> Tensor:
    """The least c with whole <= c blocks, about: (S,). Newton's step with the blocks alone is too long by it at most.

    Args:
        whole: a matrix (S, d, d) times vectors (S, d).
        blocks: its blocks, (S, G, p, p).
        groups: of the blocks.
        member: which numbers have which spread, (d, B), 0 or 1.
    """
    # Directions of which next to nothing is said do not count, those of each spread by themselves: where one is far
    # smaller than another, so are its numbers in the matrix.
    most = (blocks.diagonal(dim1=-2, dim2=-1).flatten(-2)[..., None] * member).amax(-2)  # (S, B)
    little = groups.split(1e-3 * most @ member.mT) + torch.finfo(blocks.dtype).tiny
    factor, _ = torch.linalg.cholesky_ex(blocks + torch.diag_embed(little))
    # No eigenvector of a structured matrix is orthogonal to irregular numbers.
    d = groups.number * groups.size
    v = torch.sin(torch.arange(1, d + 1, dtype=blocks.dtype, device=blocks.device).square())
    v, largest = v.expand(len(blocks), d), blocks.new_ones(len(blocks))
    for _ in range(POWER_TURNS):
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        # L^-1 whole L^-T, the same whatever the spreads.
        u = torch.linalg.solve_triangular(factor.mT, groups.split(v)[..., None], upper=True).squeeze(-1).flatten(-2)
        split = groups.split(whole(u))[..., None]
        v = torch.linalg.solve_triangular(factor, split, upper=False).squeeze(-1).flatten(-2)
        largest = v.norm(dim=-1)
    return (MARGIN * largest).clamp(1.0, groups.number)

"""What follows from the settings of PFedEB and the head of its network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.inference.local.laplace.curvature import Covariance
from hierfl.inference.local.laplace.points import EXACT
from hierfl.inference.local.laplace.population_terms import Groups, PopulationTerms
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.nn.head import LinearHead

from .settings import PFedEBSettings

#: numbers of a head whose matrices can be sent
MEDIUM = 600


@dataclass(frozen=True, kw_only=True, eq=False)
class Config:
    """One configuration of PFedEB: made once, by :meth:`from_settings`, and read everywhere.

    Attributes:
        learned: whether q(w) and rho are learned (prior=hierarchical).
        blocks: the block of each of the head's numbers, (d,).
        order: of the weight matrix, in which covariances are, (d,).
        groups: which numbers a client's precision of w, and so q(w)'s covariance, connects.
        covariance: the form of a head's posterior.
        rank: of covariance=low_rank.
        points: of each example's predictor, over which its likelihood is averaged.
        newton: the most steps on the head in a round.
        draws: of each client's posterior in the end.
        small: whether exact treatment of the head is cheap.
        own_spreads: whether clients have log rho of their own.
        nodes: whether log rho is integrated over, with q(w) at each of several nodes.
    """

    learned: bool
    blocks: Tensor
    order: Tensor
    groups: Groups
    covariance: Covariance
    rank: int
    points: int
    newton: int
    draws: int
    small: bool
    own_spreads: bool
    nodes: bool

    @classmethod
    def from_settings(cls, s: PFedEBSettings, head: LinearHead) -> Config:
        """The configuration of these settings, for this head."""
        small, medium, learned = head.d <= EXACT, head.d <= MEDIUM, s.prior == "hierarchical"
        groups = {
            "diagonal": Groups(head.d, 1), "outputs": Groups(head.rows, head.features + head.bias),
            "full": Groups(1, head.d),
        }  # fmt: skip
        own = s.spreads == "clients" and learned
        return cls(
            learned=learned,
            blocks=block_numbers(head, s.spreads != "pooled"),
            order=head.matrix_order,
            groups=groups[s.exchange if s.exchange != "auto" else "full" if medium else "outputs"],
            covariance=s.covariance if s.covariance != "auto" else "full" if medium else "low_rank",
            rank=s.rank,
            points=s.points or (64 if small else 16),
            newton=s.newton,
            draws=s.draws,
            small=small,
            own_spreads=own,
            nodes=learned and not own and (s.nodes == "on" or (s.nodes == "auto" and small)),
        )

    @property
    def blocks_in_order(self) -> Tensor:
        """The block of each of the head's numbers in the order of the weight matrix, (d,)."""
        return self.blocks[self.order]

    @property
    def number_of_blocks(self) -> int:
        """Number of spreads B."""
        return int(self.blocks.max()) + 1

    def terms(self) -> PopulationTerms:
        """Terms of a head's marginal likelihood for its population."""
        own = ("log_rho", "w.log_rho", "w.log_varies") if self.own_spreads else ("", "", "")
        return PopulationTerms(
            blocks=self.blocks_in_order, groups=self.groups, covariance="w.covariance", summary="seen",
            own=own[0], centre=own[1], varies=own[2],
        )  # fmt: skip

    def posterior(self, terms: PopulationTerms | None = None, final: bool = False) -> GaussianHead:
        """The step on q(w_j).

        Args:
            terms: what it leaves for the population.
            final: whether it is the step after the last round, which also draws.
        """
        turns, newton = ((3, 20) if self.small else (2, 5)) if final else (1, self.newton)
        return GaussianHead(
            "w_j", "mu", covariance=self.covariance, newton=newton, turns=turns, rank=self.rank, terms=terms,
            population="w" if self.learned else "", groups=self.groups if self.learned else None,
            final=self.draws if final else 0, own="log_rho" if self.own_spreads else "", refit=self.nodes,
            points=self.points,
        )  # fmt: skip


def block_numbers(head: LinearHead, apart: bool) -> Tensor:
    """The block of each of a head's numbers, (d,): weights 0, and biases 1 where they are apart."""
    blocks = torch.zeros(head.d, dtype=torch.long)
    if apart and head.bias:
        blocks[head.rows * head.features :] = 1
    return blocks

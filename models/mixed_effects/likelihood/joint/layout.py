"""Layout of a client's effects with several levels inside: v = (b, c_1 of each group, c_2 of each group, ...).

No two groups of one level share a row, so that each level's own part of Z^T W Z is made of small blocks along the
diagonal. The level with the most effects is eliminated block by block; what is left, of the client and of the other
levels, is a dense matrix of R numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.errors import UserError

from ...model.equations import MixedModel
from ...model.levels import Level

#: R at most: a dense matrix of so many rows is factored at each point
MOST_DENSE = 5000


@dataclass(frozen=True)
class Part:
    """The effects of one level.

    Attributes:
        level: whose.
        groups: places for groups; 1 of the client itself.
    """

    level: Level
    groups: int

    @property
    def size(self) -> int:
        """Numbers."""
        return self.groups * self.level.q


@dataclass(frozen=True)
class Layout:
    """Parts of v.

    Attributes:
        parts: of all levels, the client's first.
        eliminated: which of them is eliminated first.
    """

    parts: tuple[Part, ...]
    eliminated: int

    @classmethod
    def for_method(cls, method: MixedModel) -> Layout:
        """Returns the layout of a model with levels inside.

        Raises:
            UserError: for more effects than a dense matrix can have.
        """
        parts = tuple(Part(level, level.size if level.inside else 1) for level in method.at_site)
        eliminated = max(range(1, len(parts)), key=lambda k: parts[k].size)
        layout = cls(parts, eliminated)
        if (dense := sum(part.size for part in layout.rest)) > MOST_DENSE:
            raise UserError(
                f"a client has {dense:,} random effects beside those of {parts[eliminated].level.grouping.factor!r}: "
                f"crossed or nested factors have at most {MOST_DENSE:,} such effects in one client"
            )
        return layout

    @property
    def first(self) -> Part:
        """That which is eliminated."""
        return self.parts[self.eliminated]

    @property
    def rest(self) -> tuple[Part, ...]:
        """The others, in order."""
        return tuple(part for k, part in enumerate(self.parts) if k != self.eliminated)

    @property
    def dense(self) -> int:
        """R."""
        return sum(part.size for part in self.rest)

    @property
    def numbers(self) -> int:
        """The approximate count of numbers of a factored curvature."""
        return self.dense * (self.dense + self.first.size)

    def of_parts(self, v: Tensor) -> list[Tensor]:
        """Each level's (..., groups, q), of v (..., all)."""
        pieces = v.split([part.size for part in self.parts], -1)
        return [piece.unflatten(-1, (part.groups, -1)) for piece, part in zip(pieces, self.parts, strict=True)]

    def joined(self, parts: list[Tensor]) -> Tensor:
        """v, of each level's."""
        return torch.cat([part.flatten(-2) for part in parts], -1)

    def split(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Those that are eliminated first, (..., groups, q), and the others, (..., R)."""
        parts = self.of_parts(v)
        first = parts.pop(self.eliminated)
        return first, self.joined(parts)

    def together(self, first: Tensor, rest: Tensor) -> Tensor:
        """The reverse of :meth:`split`."""
        pieces = list(rest.split([part.size for part in self.rest], -1))
        pieces.insert(self.eliminated, first.flatten(-2))
        return torch.cat(pieces, -1)

    def columns(self, columns: Columns) -> list[tuple[Tensor, Tensor]]:
        """The columns of each level's effects (S, n, q), and each row's group (S, n), 0 of the client."""
        of_levels = []
        for part in self.parts:
            z, group = columns.for_level(part.level.kind)
            of_levels.append((z, torch.zeros_like(z[..., 0]) if group is None else group))
        return of_levels

    def along_rest(self, x: Tensor, roots: list[Tensor]) -> Tensor:
        """x Lambda: matrices (..., r, R), columns of the rest, times each level's L (..., q, q), by part in order."""
        products = []
        for piece, part, root in zip(x.split([part.size for part in self.rest], -1), self.rest, roots, strict=True):
            if part.level.q == 1:
                products.append(piece * root)
            else:
                products.append((piece.unflatten(-1, (part.groups, -1)) @ root.unsqueeze(-3)).flatten(-2))
        return torch.cat(products, -1)

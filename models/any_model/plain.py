"""What the parts of a fit know of their method, so that none of them imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from hierfl.data.column_design import ColumnDesign

from .by_rows.layout import Layout
from .family import Family
from .graphs.graphs import Graphs
from .sites import Model, Sites

if TYPE_CHECKING:
    from hierfl.inference.clients.chunk import ClientChunk
    from hierfl.inference.evaluation.fitted import Fitted


class PlainModel(Protocol):
    """See :class:`.method.AnyModel`.

    Attributes:
        program: the model.
        network: the table's columns.
        sites: of the model.
        settings: of the fit.
    """

    program: Model
    network: ColumnDesign
    sites: Sites
    settings: Any

    @property
    def q(self) -> int:
        """Unconstrained numbers of a client's latents."""
        ...

    @property
    def explores(self) -> bool:
        """Whether the posterior of the globals is explored beyond the guide."""
        ...

    def draws_of_round(self, *, fine: bool) -> int:
        """Draws of the guide in a round."""
        ...

    def learned(self, chunk: ClientChunk) -> ClientChunk:
        """A client that was not fitted, with its part of the guide at the final guide of the globals."""
        ...

    def heights_at_draws(self, chunk: ClientChunk, draws: int, purpose: str) -> tuple[Tensor, Tensor]:
        """The heights of clients at the first kept draws of the globals: log p(y_j | x) (D, S), and latents (D, S,
        q).
        """
        ...

    def notes(self, fitted: Fitted, rounds: int) -> list[str]:
        """What a reader has to know of a fit of so many rounds, a line each."""
        ...


class GaussianModel(PlainModel, Protocol):
    """One whose guide of the globals is Gaussian.

    Attributes:
        graphs: of the model's log joint.
        layout: of a client's numbers, where those of its rows are many; else None.
    """

    graphs: Graphs
    layout: Layout | None

    @property
    def family(self) -> Family:
        """The family of the guide of the globals."""
        ...

    @property
    def own_spread(self) -> Tensor:
        """Which of a client's numbers are no points, (q,)."""
        ...

    @property
    def rank(self) -> int:
        """Columns of the matrix by which clients sketch their curvature; 0 where they send all of it."""
        ...

    @property
    def curvature(self) -> Mapping[str, int]:
        """Fields of a message with numbers of the curvature, and how many each has."""
        ...

    @property
    def shaped(self) -> bool:
        """Whether each global's marginal has a skew and a tail."""
        ...

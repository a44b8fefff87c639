"""Protocol of likelihoods: the clients' messages, and what the server computes from the sums.

A client's likelihood p(D_j | theta) is a function of the k numbers theta of the population. A gaussian response has
it in closed form (:mod:`.gaussian.likelihood`), others by quadrature (:mod:`.quadrature.likelihood`).
:func:`.choice.likelihood_of` chooses once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.state import State

#: standard normals of the server by name, of the shape of a tensor
Normals = Callable[[str, Tensor], Tensor]


class Coefficients(NamedTuple):
    """What a criterion does with coefficients in which sums are quadratic.

    Attributes:
        integrated: whether they are integrated out; else the criterion is the maximum over them.
        prior: their prior's means and standard deviations, (p,) each; None for a flat one.
        mixing: whether the criterion is the density from which numbers are drawn.
    """

    integrated: bool = False
    prior: tuple[Tensor, Tensor] | None = None
    mixing: bool = False


class Drawn(NamedTuple):
    """Draws of the population.

    Attributes:
        draws: (D, .).
        middle: (.,).
    """

    draws: Tensor
    middle: Tensor


class Likelihood(Protocol):
    """The marginal likelihoods of clients, as functions of the population's k numbers."""

    #: whether coefficients are among the k numbers; else sums are quadratic in them, and the others say what they are
    searches_beta: ClassVar[bool]
    #: what population="auto" is
    automatic: ClassVar[Literal["reml", "auto"]]
    #: points of a round at most
    most_points: ClassVar[int]
    #: Newton steps to a maximum in coefficients, at most
    newton_steps: ClassVar[int]
    #: whether the server keeps all sums at many points until the population is drawn
    keeps_points: ClassVar[bool]
    #: whether a round of many points may be around one point, too
    both_at_once: ClassVar[bool] = True
    #: to which heights at different points can be compared, relative to them; zero for rounding alone
    digits: ClassVar[float] = 0.0

    def check(self) -> None:
        """Refuses settings that belong to another likelihood.

        Raises:
            UserError: for one.
        """
        return

    # -- what clients keep and send -----------------------------------------------------------------------------------

    def personal(self) -> State:
        """First values of what a client keeps for its likelihood, {name: (*shape)}."""
        ...

    def steps(self) -> list[LocalStep]:
        """Local steps before a client sends."""
        return []

    @property
    def cells(self) -> int:
        """Numbers of a client's likelihood at one point."""
        ...

    def form(self, points: int) -> dict[str, tuple[int, ...]]:
        """Shapes of what is sent around one point, and at many: "many" is (points, cells), or (points,)."""
        ...

    def rows(self, chunk: ClientChunk) -> Any:
        """What clients' likelihoods are computed from."""
        ...

    def counts(self, chunk: ClientChunk) -> Tensor:
        """1, n, and how many groups are inside where there is such a level, (S, 2 or 3)."""
        ...

    def around(self, rows: Any, shared: Mapping[str, Tensor]) -> State:
        """Likelihoods around the point "effects.at", with two derivatives, {name: (S, *shape)}.

        Args:
            rows: see :meth:`rows`.
            shared: as broadcast.
        """
        ...

    def at_points(self, rows: Any, shared: Mapping[str, Tensor]) -> Tensor:
        """Likelihoods at "effects.points", (S, points, cells) or (S, points); arguments as of :meth:`around`."""
        ...

    # -- what the server makes of sums --------------------------------------------------------------------------------

    def kept(self) -> State:
        """First values of the sums around the estimates that are kept with them, {name: (*shape)}."""
        return {}

    def height(
        self, sums: Mapping[str, Tensor], start: Tensor, step: Tensor, nodes: Any, coefficients: Coefficients
    ) -> Tensor:
        """The criterion a step from where clients were, (), by Taylor polynomials of second degree.

        Args:
            sums: of :meth:`around`.
            start: where clients were, (k,).
            step: (k,).
            nodes: see :meth:`known`.
            coefficients: what the criterion does with them.
        """
        ...

    def derivatives(
        self, sums: Mapping[str, Tensor], coefficients: Coefficients
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """The derivatives of :meth:`height` where clients were, in closed form: itself (), gradient (k,) and
        curvature (k, k).

        None without a closed form: then :meth:`height` is differentiated.
        """
        return None

    def heights(self, many: Tensor, numbers: Tensor, nodes: Any, coefficients: Coefficients) -> Tensor:
        """The criterion at points (M, k), of sums there, (M,); others as of :meth:`height`."""
        ...

    def estimated(self, sums: Mapping[str, Tensor], numbers: Tensor, nodes: Any, coefficients: Coefficients) -> State:
        """Shared values that follow from the sums at the estimates (k,), by short names."""
        return {}

    def drawn(
        self, many: Tensor, points: Tensor, at: Tensor, drawn: Drawn, nodes: Any, coefficients: Coefficients,
        normals: Normals,
    ) -> Drawn:  # fmt: skip
        """Draws of the population, with what follows from the numbers.

        Args:
            many: sums at points, (P, .).
            points: their numbers, (P, k).
            at: the point of each draw, (D,).
            drawn: the k numbers alone.
            nodes: what nodes are placed by now, see :meth:`known`.
            coefficients: as of :meth:`height`.
            normals: of the server.
        """
        ...

    # -- where clients are asked beside the point itself --------------------------------------------------------------

    def questions(self, memory: Mapping[str, Tensor], at: Tensor, points: Tensor) -> State:
        """Values to broadcast beside a point (k,) and points (M, k), by short names."""
        return {}

    def moved(self, state: State, total: State, memory: State) -> bool:
        """Whether the same point is evaluated once more, because its nodes have moved. Changes memory."""
        return False

    def known(self, memory: Mapping[str, Tensor], *, before: bool) -> Any:
        """What placed the last round's nodes, or with ``before=False`` places them now; None without nodes."""
        return None

    # -- what clients know in the end ---------------------------------------------------------------------------------

    def modes(self, batch: Batch, values: State, shared: State) -> tuple[Tensor, Tensor]:
        """Modes u (S, q), b = L u, and F (S, q, q) of their curvature F F^T, at shared values by short names."""
        ...

    def conditional(self, chunk: ClientChunk, shared: State) -> State:
        """Effects' means and roots of their covariances given shared values by short names, {name: (S, 1, *shape)}."""
        ...

    @property
    def searched(self) -> Sequence[str]:
        """Personal values that :meth:`conditional` has beside means and roots."""
        return ()

    def joint(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Effects at draws of the population {name: (D, *shape)}: draws, means and roots, {name: (S, 1, *shape)}."""
        ...

    def damping(self, far: Tensor) -> Tensor | float:
        """Share of a Newton step that is taken where the step moves eta by so much."""
        ...

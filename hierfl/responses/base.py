"""What a response of a generalised linear mixed model says of itself.

    y_ij ~ p(y | eta_ij, own numbers)

A response is one file of this room with a subclass of :class:`Response`: its distribution, derivatives of its log
density, what y may be, where a fit begins, its own numbers, and how they are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from ..errors import UserError
from .reading import Cells, Label, Observed
from .words import no_numbers


class Rows(Protocol):
    """Columns that rows have beside effects, (S, n) each, None where there are none.

    :class:`~hierfl.data.formula.design.Columns` has them.
    """

    @property
    def trials(self) -> Tensor | None:
        """The trials of which the response counts the successes."""

    @property
    def known(self) -> Tensor | None:
        """Standard errors of the response."""

    @property
    def event(self) -> Tensor | None:
        """Whether a time ended with one (1), or was cut off (0)."""

    @property
    def precision(self) -> Tensor | None:
        """What the residual's variance is divided by."""


class Response:
    """A response with a linear predictor eta and a few numbers of its own.

    Where its log density is concave in eta it is generalised self-concordant, too: a Newton step can be damped so that
    it always climbs.

    Attributes:
        name: of the family, as ``--family`` has it.
        about: its log density and what is learned beside, as the documentation lists it.
        ratio: what exp(beta) is; empty where it is nothing of the kind.
        order: its position in lists.
        columns: of rows, which only some responses have: "known", "event", "precision".
        formulas: which of its own numbers may have a formula, by what the formula is called.
        settings: of the method, texts that are its own: help, and the beginning of what refuses them elsewhere.
        ordered: whether y is a level, 1, ..., K.
        closed_form: whether given the population a client's random effects are normal, of known mean and covariance.
        residual: whether its spread is a residual's: a fit begins with that of y, and y has to vary.
        concave: whether log p(y | eta) is concave in eta wherever its own numbers are.
        chain_steps: of the Metropolis chains that draw a client's effects: more where one tail may be much longer.
        own_prior: the setting with the prior of its own numbers.
        bins: of :meth:`histogram`.
    """

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""
    ratio: ClassVar[str] = ""
    order: ClassVar[int] = 100
    columns: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[Mapping[str, tuple[str, str]]] = {}
    ordered: ClassVar[bool] = False
    formulas: ClassVar[Mapping[str, str]] = {}
    closed_form: ClassVar[bool] = False
    residual: ClassVar[bool] = False
    concave: ClassVar[bool] = True
    chain_steps: ClassVar[int] = 6
    own_prior: ClassVar[str] = "family_prior"
    bins: ClassVar[int] = 0

    # -- what y may be ------------------------------------------------------------------------------------------------

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A total is of the density that its class has: of another one there is none until it is defined."""
        super().__init_subclass__(**kwargs)
        if "distribution" in vars(cls) and "log_total" not in vars(cls):
            cls.log_total = Response.log_total  # type: ignore[method-assign]

    @classmethod
    def read(cls, cells: Cells) -> Observed:
        """A table's response, as numbers.

        Raises:
            UserError: for one that this response cannot have.
        """
        if cells.kind == "proportion":
            raise UserError(f"{cells.name} is successes among trials, which a {cls.name} response is not")
        if cells.kind == "categoric":
            raise cls.no_numbers(cells)
        y = cells.numbers(cls.name)
        cls.check(cells.name, y)
        return Observed(y)

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """Refuses finite numbers (n,) of a column ``name`` that y cannot be.

        Raises:
            UserError: for them.
        """

    @classmethod
    def no_numbers(cls, cells: Cells) -> UserError:
        """The error for text or categories where numbers belong."""
        return no_numbers(cells.name, cells.levels, cls.name)

    @classmethod
    def check_levels(cls, name: str, counts: np.ndarray, labels: Sequence[Label] = ()) -> None:
        """Refuses levels from which nothing can be learned.

        Args:
            name: of the response.
            counts: rows of each level.
            labels: what the table calls them.

        Raises:
            UserError: for them.
        """

    @classmethod
    def check_fixed(cls, intercept: bool) -> None:
        """Refuses fixed effects with or without an intercept.

        Raises:
            UserError: for them.
        """

    # -- where a fit begins -------------------------------------------------------------------------------------------

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Two numbers of each row, (n, 2), the ratio of whose sums is about the response's mean.

        Args:
            y: the response.
            rows: what rows have beside it, by the names of :class:`~hierfl.data.formula.design.Columns`.
        """
        return np.stack([y - rows.get("offset", np.zeros_like(y)), np.ones_like(y)], 1)

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """The linear predictor of a mean (inside, where all successes or all zeros are alike).

        Args:
            total, of: the sums of :meth:`centre_parts`.

        Raises:
            UserError: where nothing can be learned.
        """
        return total / count

    @classmethod
    def near(cls, centre: float) -> float:
        """A number near the first of :meth:`centre_parts`, around which sites add squares.

        Args:
            centre: of the response's column, of the data dictionary.
        """
        return 0.0

    @classmethod
    def histogram(cls, y: np.ndarray, rows: Mapping[str, np.ndarray], who: np.ndarray) -> np.ndarray:
        """Counts of rows by their response, (bins,), for :meth:`from_design`; they add up over clients.

        Args:
            y: the response, (n,).
            rows: as of :meth:`centre_parts`.
            who: each row's client, (n,).
        """
        return np.zeros(0)

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """The response of a design.

        Args:
            design: a :class:`~hierfl.data.formula.design.Design`.
            settings: of the method.
        """
        return cls()

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """Its own numbers, and where they begin: logarithms or the like, on the real line; () or (m,)."""
        return {}

    @property
    def unit(self) -> float:
        """How far the linear predictor spreads, where it has the response's units; 1 where it has none."""
        return 1.0

    def width(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """How far eta moves until the log density is another one, (...), where the linear predictor has units.

        Sites compare their rows with it; None where eta has no units.
        """
        return None

    @property
    def slopes(self) -> tuple[int, ...]:
        """Places among its own numbers, one after the other, of coefficients that are no logarithms of them."""
        return ()

    def for_means(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Own numbers at which means may be taken where no formula that they have changes a mean."""
        return values

    # -- its density --------------------------------------------------------------------------------------------------

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """p(y | eta), (..., S, n), as a Pyro distribution.

        Args:
            eta: (..., S, n).
            values: its own numbers.
            rows: columns of its own.
        """
        raise NotImplementedError

    def log_total(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows, mask: Tensor | None
    ) -> Tensor | None:
        """The sum of log p(y | eta) over rows, (..., S) of eta (..., S, n), where that is quicker than term by term.

        Without derivatives. None where :meth:`distribution` says it. A class with another density does not inherit it.
        """
        return None

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """The derivative of log p(y | eta) in eta, and minus its second one."""
        raise NotImplementedError

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """A nonnegative weight, also where log p is not concave: that of a concave function that touches it in eta and
        lies below it. A step that raises that function raises log p (Dempster, Laird and Rubin, 1977).
        """
        return self.slope_and_weight(eta, y, values, rows)[1]

    # -- how it is printed --------------------------------------------------------------------------------------------

    def coefficients(
        self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]
    ) -> tuple[Sequence[str], Tensor]:
        """What a table of effects has of coefficients (D, p): names and values."""
        return names, beta

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """And of its own numbers, (D,) each."""
        return {}

    def at_bound(self, name: str, value: float) -> str:
        """What is to know where an own number has run into its bound."""
        return ""

    def end(self, name: str, value: float) -> float:
        """The limit to which an own number without a maximum diverges: infinity, or its lowest value."""
        return float("inf") if value > 1 else 0.0

    @property
    def level_names(self) -> tuple[Any, ...]:
        """What a table calls the levels 1, ..., K of a response; empty where it has none."""
        return ()

    def mean_of(self, fn: Any) -> Tensor:
        """The mean of p(y | eta) in the table's own numbers."""
        mean: Tensor = fn.mean
        return mean

    def level_probabilities(self, fn: Any) -> Tensor:
        """The probability of each level under p(y | eta), (..., K)."""
        raise NotImplementedError

    def in_table_numbers(self, y: Tensor) -> Tensor:
        """Responses as the table has them."""
        return y

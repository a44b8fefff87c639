"""What some methods can do beside what every method declares.

A capability is a protocol. A method has it where it has its attribute or its methods; nothing is registered. Callers
ask ``isinstance(method, UsersUnits)``, or a function below, which gives the answer for methods without it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from ..noise.accounting import Mechanism
from ..state import State

if TYPE_CHECKING:
    from ..options import Options


@runtime_checkable
class Tabular(Protocol):
    """A method that is made from a table's design (a formula), not from a network; see :func:`is_tabular`."""

    tabular: ClassVar[bool]


@runtime_checkable
class NeedsEveryone(Protocol):
    """A method whose round counts only with a message of every client; see :func:`needs_everyone`."""

    needs_everyone: ClassVar[bool]


@runtime_checkable
class Converges(Protocol):
    """A method that ends a fit before its rounds are used up; see :func:`has_converged`."""

    def finished(self, shared: State) -> bool:
        """Whether the estimates are found, by the shared values after a round."""
        ...


@runtime_checkable
class PredictionDraws(Protocol):
    """A method whose predictions for a client are averages over draws; see :func:`prediction_draws`."""

    @property
    def prediction_draws(self) -> int:
        """Number of draws where the caller states none; 0 predicts at the posterior mean."""
        ...


@runtime_checkable
class GlobalMoments(Protocol):
    """A method whose global model may be Gaussian; see :func:`has_global_moments`."""

    @property
    def global_moments(self) -> bool:
        """Whether the response is Gaussian, and its mean linear in one personal latent with a Gaussian prior.

        Then the global model's predictions are Gaussian. Mean and variance determine them, and no draws are needed.
        """
        ...


@runtime_checkable
class UsersUnits(Protocol):
    """A method that computes in other units than its user's; see :func:`in_users_units`."""

    def in_users_units(self, name: str, values: Tensor) -> Tensor:
        """Values in the units in which they are reported.

        Args:
            name: a latent, or "y" for responses.
            values: draws of the latent (..., *event), or responses (...).
        """
        ...


@runtime_checkable
class OrderedLevels(Protocol):
    """A method whose response may have ordered levels; see :func:`level_names`."""

    @property
    def level_names(self) -> Sequence[Any]:
        """What the data call the levels 1, ..., K; empty for another response."""
        ...


@runtime_checkable
class NamedCoordinates(Protocol):
    """A method that names the entries of its latents; see :func:`coordinates`."""

    @property
    def coordinates(self) -> Mapping[str, Sequence[str]]:
        """Names along a latent's dimensions in ArviZ, {"LATENT_dim_K": names}."""
        ...


@runtime_checkable
class ShrinkageTable(Protocol):
    """A method that compares estimates with and without pooling; see :func:`shrinkage_table`."""

    def shrinkage_table(self, fitted: Any) -> Any:
        """A client's numbers from its own data alone, from all data as one, and from the hierarchical model.

        Args:
            fitted: a :class:`~hierfl.inference.evaluation.fitted.Fitted`.

        Returns:
            A data frame with columns client, n, effect, local (NaN where the client's data do not determine it),
            population (what the hierarchical estimates are shrunk to), pooled, hierarchical; None without an estimate.
        """
        ...


@runtime_checkable
class ReadsColumns(Protocol):
    """A method that is made from a table's columns by name, without a formula; see :func:`reads_columns`."""

    reads_columns: ClassVar[bool]
    usual_rounds: ClassVar[int]


@runtime_checkable
class JointPosterior(Protocol):
    """A method that keeps draws of the joint posterior of globals and clients; see :func:`joint_posterior`."""

    def joint_posterior(self, fitted: Any) -> Any:
        """Those draws.

        Args:
            fitted: a :class:`~hierfl.inference.evaluation.fitted.Fitted`.

        Returns:
            An object with ``globals_table()``, ``client_table()`` and ``trace_table()``, data frames;
            ``notes(rounds)``, lines for a reader; ``kept``, how many draws; ``some(draws, rows)``, the first draws of
            some clients; ``bytes_per_draw(rows=)``; ``inference_data(rows=, observed=)``.
        """
        ...


@runtime_checkable
class EvaluatesPoints(Protocol):
    """A method whose round may ask about many points at once; see :func:`evaluated_points`."""

    def evaluated_points(self, shared: State) -> int:
        """The number of points at which a round evaluates the likelihood of a client's rows.

        Args:
            shared: as broadcast.
        """
        ...

    def explored_points(self, shared: State) -> int:
        """How many of them are heights alone, of an exploration."""
        ...

    @property
    def fixed_sums(self) -> bool:
        """Whether all that a client ever sends is made of the same few sums over its rows, whatever the points."""
        ...


@runtime_checkable
class BoundsExploration(Protocol):
    """A method whose settings say at how many points it explores; see :func:`most_explored`."""

    @property
    def most_explored(self) -> int:
        """Points of the explorations of a whole fit, at most."""
        ...


@runtime_checkable
class ChecksBroadcasts(Protocol):
    """A method that knows which broadcasts an honest fit never makes; see :func:`broadcast_error`."""

    def broadcast_error(self, shared: State, inputs: Tensor) -> str:
        """What is wrong with a broadcast, without its values; empty where nothing is.

        Args:
            shared: as broadcast, finite and of the right form.
            inputs: of the client's training examples, (n, ...).
        """
        ...


@runtime_checkable
class AddsNoise(Protocol):
    """A method whose messages can have noise for differential privacy; see :mod:`hierfl.inference.noise`."""

    def mechanisms(self, options: Options) -> Sequence[Mechanism]:
        """All that leaves a client in a fit with noise; the method adds it by ``chunk.privacy``.

        Args:
            options: of the fit; ``options.dp`` is "site" or "client".

        Raises:
            UserError: in one line, for a level or settings with which its messages cannot have noise.
        """
        ...


@runtime_checkable
class ChangesUnderNoise(Protocol):
    """A method that is another one in a fit with noise: its units, messages and what the server makes of them."""

    def under_noise(self, options: Options, federation: Any) -> Any:
        """The method of such a fit.

        Args:
            options: of the fit; ``options.dp`` is not "none".
            federation: whose declared ranges are used, and no row.

        Raises:
            UserError: in one line, for a model that has no such fit.
        """
        ...


def is_tabular(method: object) -> bool:
    """Whether a method, or a class of methods, is made from a table's design."""
    return isinstance(method, Tabular) and method.tabular


def needs_everyone(method: object) -> bool:
    """Whether a round of a method, or of a class of methods, counts only with all clients' message."""
    return isinstance(method, NeedsEveryone) and bool(method.needs_everyone)  # of a class it may be a property


def has_converged(method: object, shared: State) -> bool:
    """Whether a method has found its estimates; False for one that uses all of its rounds."""
    return isinstance(method, Converges) and method.finished(shared)


def prediction_draws(method: object) -> int:
    """Number of draws over which predictions for a client are averaged where the caller states none; 0 by default."""
    return method.prediction_draws if isinstance(method, PredictionDraws) else 0


def has_global_moments(method: object) -> bool:
    """Whether mean and variance determine the global model's predictions."""
    return isinstance(method, GlobalMoments) and method.global_moments


def in_users_units(method: object, name: str, values: Tensor) -> Tensor:
    """Draws of a latent (..., *event), or responses (called y), as they are reported; by default as they are."""
    return method.in_users_units(name, values) if isinstance(method, UsersUnits) else values


def level_names(method: object) -> Sequence[Any]:
    """What the data call the levels of an ordinal response; empty for another one."""
    return method.level_names if isinstance(method, OrderedLevels) else ()


def coordinates(method: object) -> Mapping[str, Sequence[str]]:
    """Names along latents' dimensions; without an entry for dimensions that have numbers."""
    return method.coordinates if isinstance(method, NamedCoordinates) else {}


def shrinkage_table(method: object, fitted: Any) -> Any:
    """The comparison of a client's estimates as a data frame; None for a method that has none."""
    return method.shrinkage_table(fitted) if isinstance(method, ShrinkageTable) else None


def reads_columns(method: object) -> bool:
    """Whether a method, or a class of methods, reads a table's columns by name."""
    return isinstance(method, ReadsColumns) and method.reads_columns


def joint_posterior(method: object, fitted: Any) -> Any:
    """Draws of the joint posterior; None for a method that keeps none."""
    return method.joint_posterior(fitted) if isinstance(method, JointPosterior) else None


def evaluated_points(method: object, shared: State) -> int:
    """The number of points at which a round evaluates the likelihood of a client's rows; 1 by default."""
    return method.evaluated_points(shared) if isinstance(method, EvaluatesPoints) else 1


def explored_points(method: object, shared: State) -> int:
    """How many of a round's points are heights alone, of an exploration; 0 by default."""
    return method.explored_points(shared) if isinstance(method, EvaluatesPoints) else 0


def most_explored(method: object) -> int | None:
    """The largest number of points that a whole fit explores; None where the method's settings do not say it."""
    return method.most_explored if isinstance(method, BoundsExploration) else None


def has_fixed_sums(method: object) -> bool:
    """Whether all that a client ever sends is made of the same few sums over its rows; False by default."""
    return isinstance(method, EvaluatesPoints) and method.fixed_sums


def broadcast_error(method: object, shared: State, inputs: Tensor) -> str:
    """Why no honest fit makes a broadcast; empty where it may, and for a method that does not know."""
    return method.broadcast_error(shared, inputs) if isinstance(method, ChecksBroadcasts) else ""

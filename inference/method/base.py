"""What a method file declares: state, model, guide, local steps, exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from hierfl.calls import checked_call
from hierfl.data.batch import Batch
from hierfl.errors import UserError, unknown
from hierfl.nn.architecture import Architecture, check_architecture

if TYPE_CHECKING:
    import pandas as pd

    from ..evaluation.fitted import Fitted
from ..local.base import LocalStep
from ..messages.pipeline import Stage
from ..server.rules.base import AggregationRule
from ..state import State
from .about import About
from .initial import InitialWeights
from .schedule import Schedule
from .settings import Configurable, make_settings


class Method(Configurable):
    """One joint model of three levels, and how it is fitted where the data may not be pooled.

    A subclass declares, in this order: its settings, its state, model, guide, local steps, exchange. A *shared* value
    is the server's, and is broadcast; a *personal* one is a row that never leaves its client. A latent of the model
    that ``shared()`` names is conditioned on; a latent in the client plate is what the guide is for. What only some
    methods can do is in :mod:`.capabilities`.

    Args:
        network: base network, head and likelihood.
        settings: values for the fields of ``Settings``.

    Raises:
        UserError: for a setting that the method does not have, or a value that it cannot take.
    """

    #: what it is; a file of your own may go without it, and is called by its file
    about: ClassVar[About] = About(name="")
    #: shared values of which a client uses its own locally trained copy when it predicts
    local_copies: ClassVar[tuple[str, ...]] = ()
    #: personal values that the server makes in each round, each client its own: a rule puts them into ``replies``
    replies: ClassVar[tuple[str, ...]] = ()
    #: draws of personal latents from their prior over which the global model's predictions are averaged, as those for a
    #: client that was never seen; 0 puts them at the prior's mean, as the papers on neural networks do
    global_draws: int = 0
    #: the draws that a client keeps are independent ones of its posterior, not a chain's
    independent_draws: ClassVar[bool] = False
    #: what clients' latents are drawn from in predictions is a posterior given all clients' data: posterior.nc has
    #: no prior of them, and no log joint
    prior_has_seen_data: ClassVar[bool] = False
    #: its network is cut into an encoder of latent features and the rest;
    #: see :func:`hierfl.nn.networks.build.architecture`
    latent: ClassVar[bool] = False
    #: it takes a head with adapters (:mod:`hierfl.nn.adapters`): its model uses ``net.head(w_j, net.base(batch.x))``,
    #: and nothing else of the head; each class says so itself
    takes_adapters: ClassVar[bool] = False
    #: predictions are conditioned on the client's training data, which a batch then has as
    #: :attr:`hierfl.data.batch.Batch.given`
    conditions: ClassVar[bool] = False

    #: the values of ``Settings``; a method that declares some says so, so that a typing error is found:
    #: ``settings: Settings``
    settings: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A method that is made wrongly says how it is made; what it is, its About says."""
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "__init__" in own:
            cls.__init__ = checked_call(cls.__init__)  # type: ignore[method-assign]
        if isinstance(own.get("about"), About):
            if "name" in own:
                raise UserError(f"{cls.__name__} has a name in its About, {cls.about.name!r}: leave out name = ...")
            cls.name = cls.about.name

    @checked_call
    def __init__(self, network: Architecture, **settings: Any) -> None:
        # A method made from another may read the head as a matrix.
        check_architecture(self.name or type(self).__name__, network, vars(type(self)).get("takes_adapters", False))
        #: the network as it was given, whatever a method makes of it
        self.given_network = self.network = network
        self.settings = make_settings(type(self), settings)

    def shared(self, start: InitialWeights) -> State:
        """Initial values of what the server owns, {name: (*shape)}."""
        return {}

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raises a UserError where clients have more training examples, or fewer, than the method can take."""

    def personal(self, start: InitialWeights) -> State:
        """Initial values of a client's own state, {name: (*shape)}: everyone starts with the same."""
        return {}

    def model(self, batch: Batch) -> None:
        """The joint model of the clients in ``batch``."""
        raise TypeError(f"{type(self).__name__} declares no model")

    def guide(self, batch: Batch) -> None:
        """The clients' approximate posterior; empty where no latent is personal."""

    def local(self) -> Sequence[LocalStep]:
        """What a client does in a round, in order."""
        return []

    def schedule(self) -> Schedule:
        """Who trains when, when what was trained counts, and what happens at the end."""
        return Schedule()

    def exchange(self) -> Mapping[str, AggregationRule]:
        """How the server updates each shared value (or group of values) from the sum of the messages."""
        return {}

    def pipeline(self) -> Mapping[str, Sequence[Stage]]:
        """What a message passes on its way to the server, {group of :meth:`exchange`: stages}."""
        return {}

    def new_client_steps(self) -> Sequence[LocalStep]:
        """What a client that was never seen does with a few examples of its own; see :meth:`schedule`."""
        schedule = self.schedule()
        if schedule.new_client_steps is not None:
            return schedule.new_client_steps
        personal = self.personal(InitialWeights.for_network(self.network, 0))
        return [*schedule.final_steps] or [step for step in self.local() if set(step.trains) <= set(personal)]

    @property
    def has_global_model(self) -> bool:
        """Whether the shared state alone predicts (personal latents from their prior alone)."""
        return True

    def prediction_params(self, shared: State) -> State:
        """The shared values that predictions are made with; by default as they are."""
        return shared

    def shared_draws(self, shared: State, number: int) -> State:
        """The shared values at so many draws of their own posterior, {name: (number, 1, 1, *shape)}.

        They go with the guide's draws, one by one; empty where the shared values are points.
        """
        return {}

    def population_draws(self, shared: State, number: int) -> tuple[Sequence[str], Tensor] | None:
        """What is reported of the shared values at the same draws: names, and values (number, m); None for points."""
        return None

    def new_client_terms(self, personal: State) -> State:
        """What a new client's values are made from, {name: (S, *shape)}: of each client, and used as a mean over all.

        Args:
            personal: some clients' rows, {name: (S, *shape)}.
        """
        return {}

    def init_new_client(self, means: State, initial: State, personal: State) -> State:
        """Personal values of a client that was never seen, {name: (*shape)}.

        By default the means, and what everyone started from where there is none.

        Args:
            means: of :meth:`new_client_terms` over all clients, {name: (*shape)}.
            initial: what each of them started from, {name: (*shape)}.
            personal: rows of the clients that are here, for what is no mean; empty where there are none.
        """
        return {**initial, **means}

    def client_summary(self, values: State) -> State:
        """Numbers worth a column in clients.csv, {name: (S,)}, from {name: (*shape) or (S, 1, *shape)}."""
        return {}

    def summary_terms(self, fitted: Fitted) -> State:
        """Sums over the clients that are here, {name: tensor}: of all clients :meth:`population_summary` needs them."""
        return {}

    def population_summary(self, fitted: Fitted) -> tuple[pd.DataFrame | None, dict[str, float]]:
        """What there is to say of the shared values after the last round: a table of effects, and numbers by name.

        What it needs of the clients is in ``fitted.summary_sums``, wherever they are.
        """
        return None, {}

    # -- names ----------------------------------------------------------------------------------------------------

    def expand(self, name: str, all_names: Iterable[str]) -> tuple[str, ...]:
        """All values called ``name`` or ``name.something``; a base network without weights has none.

        Raises:
            UserError: if there is no such value.
        """
        all_names = list(all_names)
        names = tuple(k for k in all_names if k == name or k.startswith(name + "."))
        if not names and all(name != net.name for net in self.network.networks):
            raise unknown("value", name, all_names)
        return names

"""What a method file declares: state, model, guide, local steps, exchange."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.chunk_data import ChunkData
from hierfl.data.federation import Federation
from hierfl.errors import UserError, unknown
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import BROADCAST_PREFIX
from hierfl.rng import ClientNoise, generator

from .forms import Form, values_form
from .options import MOST

if TYPE_CHECKING:
    import pandas as pd

    from .predict import Fitted

State = dict[str, Tensor]

#: numbers of settings become single precision in most fits
SINGLE = torch.finfo(torch.float32)


def visible(shared: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> State:
    """What clients see: rows hide shared values of the same name, which stay visible as they were broadcast.

    Args:
        shared: {name: (*shape)}.
        rows: {name: (S, 1, *shape)}.

    Returns:
        All of them by name, and the shared ones once more under "broadcast.NAME".
    """
    return {**{f"{BROADCAST_PREFIX}{k}": v for k, v in shared.items()}, **shared, **rows}


@dataclass(frozen=True)
class Start:
    """Where every method starts from with this network and seed, so that comparisons are of the methods alone.

    A network that is cut into encoder and base starts from other weights than the same in one piece.

    Attributes:
        base: fresh weights of the base network (and of the encoder, where there is one), {name: (*shape)}.
        head: standard normals, one for each of the head's parameters, (d,); float64.
        rng: for anything else that a method starts with.
    """

    base: State
    head: Tensor
    rng: torch.Generator

    @classmethod
    def of(cls, network: Architecture, seed: int) -> Start:
        """The start that belongs to a seed."""
        head = torch.randn(network.head.d, generator=generator(seed, "initial head"), dtype=torch.float64)
        base = {k: v for net in network.networks for k, v in net.init(generator(seed, f"initial {net.name}")).items()}
        return cls(base, head, generator(seed, "initial values"))


def setting(
    default: Any,
    about: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    unless: Mapping[str, Collection[Any]] | None = None,
    scale_of: Collection[str] = (),
) -> Any:
    """A field of a method's settings.

    Args:
        default: its value where nothing is said.
        about: what it means.
        above, at_least, below: the range it must lie in.
        unless: values of other settings under which it changes nothing; a range for all from a number on.
        scale_of: priors of which it says how strongly they pull; where priors are compared it is chosen anew for each.
    """
    limits = {"above": above, "at_least": at_least, "below": below}
    return field(default=default, metadata={"about": about, **limits, "unless": unless or {}, "scale_of": scale_of})


class Method:
    """One joint model of three levels, and how it is fitted where the data may not be pooled.

    A subclass declares, in this order: its settings, its state, model, guide, local steps, exchange. A *shared* value
    is the server's, and is broadcast; a *personal* one is a row that never leaves its client. A latent of the model
    that ``shared()`` names is conditioned on; a latent in the client plate is what the guide is for.

    Args:
        network: base network, head and likelihood.
        settings: values for the fields of ``Settings``.

    Raises:
        UserError: for a setting that the method does not have, or a value that it cannot take.
    """

    #: the name on the command line; a file of your own is called by its class
    name: ClassVar[str] = ""
    #: shared values of which a client uses its own locally trained copy when it predicts
    copies: ClassVar[tuple[str, ...]] = ()
    #: draws of personal latents from their prior over which the global model's predictions are averaged, as those for a
    #: client that was never seen; 0 puts them at the prior's mean, as the papers on neural networks do
    global_draws: ClassVar[int] = 0
    #: its network is cut into an encoder of latent features and the rest; see
    #: :func:`hierfl.nn.networks.build.architecture`
    latent: ClassVar[bool] = False
    #: made from a table's design (a formula), not from a network
    tabular: ClassVar[bool] = False
    #: what becomes of personal values between rounds, and so who must train: they are "kept", everybody trains on
    #: (unless told to rest); "fresh", begun anew from what is broadcast, and trained only where they are heard or
    #: looked at; "heard", moved only by those who report
    state: ClassVar[Literal["kept", "fresh", "heard"]] = "kept"
    #: the posterior steps come before every evaluation, not only after the last round
    adapts: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Settings:
        """No settings."""

    def __init__(self, network: Architecture, **settings: Any) -> None:
        self.network = network
        self.settings: Any = make_settings(type(self), settings)

    def shared(self, start: Start) -> State:
        """Initial values of what the server owns, {name: (*shape)}."""
        return {}

    def personal(self, start: Start) -> State:
        """Initial values of a client's own state, {name: (*shape)}: everybody starts with the same."""
        return {}

    def model(self, batch: Batch) -> None:
        """The joint model of the clients in ``batch``."""
        raise TypeError(f"{type(self).__name__} declares no model")

    def guide(self, batch: Batch) -> None:
        """The clients' approximate posterior; empty where no latent is personal."""

    def local(self) -> Sequence[LocalStep]:
        """What a client does in a round, in order."""
        return []

    def posterior(self) -> Sequence[LocalStep]:
        """What every client does once after the last round, the shared values held: chains, for its posterior.

        Nothing is sent, and personal values may change their shape.
        """
        return []

    def adaptation(self) -> Sequence[LocalStep]:
        """What a client that was never seen does with a few examples of its own; it sends nothing.

        By default what all do after the last round, or else those of a round's steps that train personal values alone.
        """
        personal = self.personal(Start.of(self.network, 0))
        return [*self.posterior()] or [s for s in self.local() if set(s.trains) <= set(personal)]

    def exchange(self) -> Mapping[str, Rule]:
        """How the server updates each shared value (or group of values) from the sum of the messages."""
        return {}

    @property
    def has_global_model(self) -> bool:
        """Whether the shared state alone predicts (personal latents from their prior alone)."""
        return True

    @property
    def global_moments(self) -> bool:
        """Whether the response is Gaussian and its mean linear in the one personal latent, whose prior is Gaussian.

        Then so are the global model's predictions, and mean and variance say all of them: no draws are needed.
        """
        return False

    def settled(self, shared: State) -> State:
        """The shared values that predictions are made with; by default as they are."""
        return shared

    def newcomer(self, personal: State, initial: State) -> State:
        """Personal values of a client that was never seen, {name: (*shape)}; by default what everybody started from.

        Args:
            personal: the clients' rows, {name: (J, *shape)}.
            initial: what each of them started from, {name: (*shape)}.
        """
        return initial

    def per_client(self, values: State) -> State:
        """Numbers worth a column in clients.csv, {name: (S,)}, from {name: (*shape) or (S, 1, *shape)}."""
        return {}

    def report(self, fitted: Fitted) -> tuple[pd.DataFrame | None, dict[str, float]]:
        """What there is to say of the shared values after the last round: a table of effects, and numbers by name."""
        return None, {}

    @property
    def coordinates(self) -> Mapping[str, Sequence[str]]:
        """Names of what stands along a latent's dimensions in ArviZ, {"LATENT_dim_K": names}; numbers where none."""
        return {}

    def estimates(self, fitted: Fitted) -> pd.DataFrame | None:
        """What each client alone, all data as one, and the hierarchical model say of a client's numbers.

        Columns client, n, effect, local (NaN where a client's own data do not say), population (what the hierarchical
        ones are shrunk to), pooled, hierarchical; None where there is no such estimate.
        """
        return None

    # -- names ----------------------------------------------------------------------------------------------------

    def expand(self, name: str, known: Iterable[str]) -> tuple[str, ...]:
        """All values called ``name`` or ``name.something``; a base network without weights has none.

        Raises:
            UserError: if there is no such value.
        """
        known = list(known)
        found = tuple(k for k in known if k == name or k.startswith(name + "."))
        if not found and all(name != net.name for net in self.network.networks):
            raise unknown("value", name, known)
        return found


def make_settings(method: type[Method], given: Mapping[str, Any]) -> Any:
    """The method's settings from values that may be strings (the command line) or already typed (Python, TOML).

    Raises:
        UserError: for unknown names, values of the wrong type or out of range, or that change nothing beside others.
    """
    values = _all_typed(method, given)
    for f in dataclasses.fields(method.Settings):
        silent = _silenced(f, values)
        if silent and values[f.name] != f.default:
            raise UserError(f"{f.name}={values[f.name]} changes nothing with {silent}")
    return method.Settings(**{name: values[name] for name in given})


def scale_setting(method: type[Method], prior: str) -> str | None:
    """The setting that says how strongly a prior pulls, if there is one."""
    found = (f.name for f in dataclasses.fields(method.Settings) if prior in f.metadata.get("scale_of", ()))
    return next(found, None)


def applicable(method: type[Method], given: Mapping[str, Any], rest: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Those of some settings that change something beside the others.

    Args:
        method: whose.
        given: the settings.
        rest: settings that stand beside them, and before them where both name one.

    Raises:
        UserError: as :func:`make_settings`.
    """
    values = _all_typed(method, {**given, **(rest or {})})
    silent = {f.name for f in dataclasses.fields(method.Settings) if _silenced(f, values)}
    return {name: value for name, value in given.items() if name not in silent}


def _all_typed(method: type[Method], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings by name, defaults included."""
    fields = {f.name: f for f in dataclasses.fields(method.Settings)}
    types = typing.get_type_hints(method.Settings)
    values = {name: f.default for name, f in fields.items()}
    for name, value in given.items():
        if name not in fields:
            raise unknown(f"setting of {method.name or method.__name__}", name, fields or ["none"])
        values[name] = _typed(name, value, types[name], fields[name].metadata)
    return values


def _silenced(f: dataclasses.Field[Any], values: Mapping[str, Any]) -> str:
    """What makes a setting say nothing, as in "prior=flat"; empty if nothing does."""
    unless = f.metadata.get("unless", {})
    return next((f"{k}={values[k]}" for k, silent in unless.items() if values[k] in silent), "")


def _typed(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise unknown(name, value, map(str, choices))
        return value
    if kind is bool:
        words = {"true": True, "false": False}
        if str(value).lower() not in words:
            raise UserError(f"{name} must be true or false, not {value!r}")
        return words[str(value).lower()]
    if kind is str:
        return str(value)
    try:
        number = float(value)
        if kind is int and number != int(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name} must be a {'whole ' * (kind is int)}number, not {value!r}") from error
    if not math.isfinite(number):
        raise UserError(f"{name} must be finite, not {value!r}")
    if kind is int and abs(number) > MOST:
        raise UserError(f"{name} must be at most {MOST} in size, not {value}")
    if abs(number) > SINGLE.max:
        raise UserError(f"{name} must be at most {SINGLE.max:.2g} in size, not {value}")
    if limits.get("above") is not None and number <= limits["above"]:
        raise UserError(f"{name} must be above {limits['above']}, not {value}")
    if limits.get("at_least") is not None and number < limits["at_least"]:
        raise UserError(f"{name} must be at least {limits['at_least']}, not {value}")
    if limits.get("below") is not None and number >= limits["below"]:
        raise UserError(f"{name} must be below {limits['below']}, not {value}")
    return kind(number)


# -- what happens at the clients ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Local:
    """Some clients in the middle of a round: the rows of one plate.

    Attributes:
        method, federation: whose model, whose data.
        clients: which clients of the federation the rows are, largest first.
        round, seed: what noise is keyed by, beside the client.
        shared: as broadcast, {name: (*shape)}.
        rows: personal state and the rows' own copies of shared values, {name: (S, 1, *shape)}; a copy hides the
            broadcast value.
        examples: training data of (at least) these clients, gathered once.
    """

    method: Method
    federation: Federation
    clients: list[int]
    round: int
    seed: int
    shared: State
    rows: State
    examples: ChunkData = field(default=None, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.examples is None:
            object.__setattr__(self, "examples", ChunkData(self.federation, self.clients))

    @property
    def values(self) -> State:
        """What the rows see: {name: (*shape) or (S, 1, *shape)}."""
        return visible(self.shared, self.rows)

    @property
    def sizes(self) -> list[int]:
        """n_j of the rows."""
        return [len(self.federation.train[j]) for j in self.clients]

    @property
    def n(self) -> Tensor:
        """n_j of the rows, (S,)."""
        return torch.tensor(self.sizes, dtype=self.federation.dtype, device=self.federation.device)

    def key(self, phase: object, row: int) -> tuple[object, ...]:
        """What identifies this row's randomness in this phase of this round."""
        return (self.seed, self.round, self.federation.ids[self.clients[row]], phase)

    def batch(self) -> Batch:
        """All examples of the rows, padded to the longest."""
        return self.examples.batch(self.clients)

    def noise(self, phase: object, particles: int, counts: Sequence[int] | None = None) -> ClientNoise:
        """Client-keyed noise for the rows."""
        return ClientNoise(
            [self.key(phase, row) for row in range(len(self.clients))],
            particles,
            counts=counts,
            device=self.federation.device,
            dtype=self.federation.dtype,
        )

    def take(self, rows: Sequence[int]) -> Local:
        """Only these rows."""
        index = torch.tensor(rows, dtype=torch.long, device=self.federation.device)
        return dataclasses.replace(
            self, clients=[self.clients[r] for r in rows], rows={k: v[index] for k, v in self.rows.items()}
        )

    def part(self, first: int, last: int) -> Local:
        """Rows first..last-1, as views: what is changed in place there is changed here."""
        return dataclasses.replace(
            self, clients=self.clients[first:last], rows={k: v[first:last] for k, v in self.rows.items()}
        )

    def put(self, values: Mapping[str, Tensor]) -> Local:
        """With some rows' values replaced."""
        return dataclasses.replace(self, rows={**self.rows, **values})

    def own(self, names: Iterable[str]) -> Local:
        """With a copy of its own of each of these values for every row, so that it can be trained in place."""
        copies = {}
        for name in names:
            if name in self.rows:
                copies[name] = self.rows[name].clone()
            else:
                value = self.shared[name]
                copies[name] = value.expand(len(self.clients), 1, *value.shape).clone()
        return self.put(copies)


class LocalStep(Protocol):
    """One thing that every client does in a round, all rows of the plate at once."""

    @property
    def trains(self) -> Sequence[str]:
        """The values that it changes; shared ones among them become rows."""
        ...

    def run(self, local: Local, phase: object) -> Local:
        """Takes the rows' values, returns new ones; must not change the ones it was given."""
        ...


@dataclass(frozen=True)
class ClosedForm:
    """A personal value that is set by formula.

    Args:
        name: the value.
        formula: from all values, {name: (*shape) or (S, 1, *shape)}, to the new rows (S, 1, *shape).
    """

    name: str
    formula: Callable[[State], Tensor]

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def run(self, local: Local, phase: object) -> Local:
        """Sets the value in every row."""
        if self.name not in local.rows:
            raise UserError(f"ClosedForm sets {self.name!r}, which personal() does not declare")
        new = self.formula(local.values)
        if new.shape != local.rows[self.name].shape:
            raise ValueError(
                f"formula for {self.name}: shape {tuple(new.shape)}, expected {tuple(local.rows[self.name].shape)}"
            )
        return local.put({self.name: new})


class Rule(Protocol):
    """How some shared values are exchanged: a message of which the server needs only the sum, and the update.

    A rule with ``sends = False`` has no message: its values follow from others that the server has.
    """

    @property
    def differentiates(self) -> bool:
        """Whether messages are gradients by the shared values, which then become rows."""
        ...

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """What each client's message holds, for shared values like ``old``.

        A rule may leave this method out: then a message holds finite tensors of the values' names, shapes and dtypes,
        and nothing else.
        """
        return values_form(old)

    def message(self, names: Sequence[str], local: Local) -> State:
        """What each row sends, {key: (S, *shape)}; weights are already inside."""
        ...

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """New shared values from the sum of the valid messages, {name: (*shape)}."""
        ...


def form_of(rule: Rule, old: Mapping[str, Tensor]) -> Form:
    """The form that a rule declares, or the default where it declares none."""
    declared = getattr(rule, "form", None)
    return declared(old) if declared is not None else Rule.form(rule, old)


@dataclass
class Exchange:
    """What a rule may know on the server beside the sum.

    Attributes:
        clients: J, how many there are in all.
        reported: |A|, how many valid messages were summed (a tensor, so that nothing leaves the device).
        round: from 1.
        prior_gradient: names -> gradient of log p(globals) at the current shared values.
        memory: what the rule keeps from round to round, checkpointed with the server.
        shared: all shared values before the update, those of other rules among them.
        seed: of the run.
    """

    clients: int
    reported: Tensor
    round: int
    prior_gradient: Callable[[Sequence[str]], State]
    memory: State = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int = 0

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Standard normals of the server's own for a value, keyed by seed and round."""
        rng = generator(self.seed, self.round, "server", name, device=like.device)
        return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)

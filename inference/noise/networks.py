"""A network's method whose clients send nothing without noise.

What has no noise has no data: every step but SVI, and every rule's message, is given the rows' values without the
examples (:mod:`.dataless`). So whether a method can be private is tried, not listed: one whose message or steps read
data in another way (class means, chains, closed forms over features, a learned response sd) is refused by name.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hierfl.data.federation import Federation
from hierfl.errors import UserError

from ..clients.chunk import ClientChunk
from ..local.base import LocalStep
from ..local.svi import SVI
from ..local.until import Until
from ..method.base import Method
from ..method.capabilities import AddsNoise, ChangesUnderNoise, is_tabular
from ..method.derived import derived
from ..method.initial import InitialWeights
from ..objective.constant_latent import DataAccessed
from ..options import Options
from ..state import State
from .accounting import Mechanism
from .clients import with_client_noise
from .dataless import DatalessFederation, _NoExamples, dataless
from .private_svi import PrivateSVI, refuse_odd

log = logging.getLogger("hierfl")


def with_noise(
    options: Options, method: Method, federation: Federation, *, alone: bool = False, everyone: int = 0
) -> tuple[Method, Federation]:
    """The method with the noise that the options say, and the federation in public units.

    Both are as they were without noise, and for a method that says its own mechanisms, as formulas' methods do.

    Args:
        options: dp, usual_rows, rounds, participation and masked play a part.
        method: of a network.
        federation: its data.
        alone: whether it is one real site's.
        everyone: clients of the whole fit; 0 for those of the federation.

    Raises:
        UserError: for a method of which something would leave without noise.
    """
    if options.dp != "none" and isinstance(method, ChangesUnderNoise):
        return method.under_noise(options, federation), federation
    if options.dp == "none" or isinstance(method, AddsNoise) or (options.dp == "site" and is_tabular(method)):
        return method, federation
    name, elsewhere = method.name or type(method).__name__, alone or federation.outline
    if is_tabular(method):
        raise UserError(f"{name} is fitted to a table: noise on the sum over clients is for networks; dp='none'")
    if not method.exchange():
        raise UserError(f"{name} sends nothing, and needs no noise: dp='none'")
    if any(net.norm_names for net in method.network.networks):
        raise UserError(f"network {method.network.spec} has batch norm, whose statistics have no noise: another one")
    if method.conditions:
        raise UserError(f"{name} predicts given all of a client's rows, which has no noise: another method")
    public = _public_inputs(federation, alone)
    if options.dp == "client":
        if elsewhere and not options.masked:
            raise UserError("noise on the sum over clients needs masked sums: masked = true, or dp = 'site'")
        return with_client_noise(options, method, everyone or max(1, federation.clients)), public
    if not options.usual_rows and elsewhere:
        raise UserError("noise inside a network's sites needs a public number of rows of a site: usual_rows")
    rows = options.usual_rows or max(1, round(sum(federation.sizes()) / federation.clients))
    return _with_site_noise(options, method, public, rows), public


def _public_inputs(federation: Federation, alone: bool) -> Federation:
    """Pixels from -1 to 1 whatever the data are; other inputs as they are, of which a line warns."""
    if federation.mean is None:
        return federation
    image = federation.x.dim() > 2 and federation.x.is_floating_point()
    if federation.x.dtype == torch.uint8 or (image and federation.extent[0] >= 0 and federation.extent[1] <= 1):
        half = torch.full_like(federation.mean, 0.5)
        return replace(federation, mean=half, std=torch.full_like(half, 0.5))
    if not alone:
        log.warning("inputs are standardised by the clients' own rows, which the fit's epsilon does not cover")
    return federation


@dataclass(frozen=True)
class Part:
    """The steps of one SVI of a round.

    Attributes:
        name: in the plan.
        rate: of sampling.
        steps: in each round, from round 1 on.
        turns: gradients with noise in a step.
    """

    name: str
    rate: float
    steps: Sequence[int]
    turns: int

    @property
    def releases(self) -> int:
        """Gradients with noise in the whole fit."""
        return sum(self.steps) * self.turns

    def of_round(self, number: int) -> int:
        """How many steps a round has, counted from 1."""
        return self.steps[number - 1] if number <= len(self.steps) else 0

    def mechanism(self, patient_rows: int) -> Mechanism:
        """The part as a mechanism of the accountant: a patient is in a sample where one of its rows is."""
        rate = 1.0 if self.rate == 1 else -math.expm1(patient_rows * math.log1p(-self.rate))
        return Mechanism(self.name, 1.0, self.releases, rate, max(self.steps) * self.turns)


def _with_site_noise(options: Options, method: Method, federation: Federation, rows: int) -> Method:
    parts: dict[int, Part] = {}
    chunk = _blank(method, federation, rows, options.seed)
    for number, step in enumerate(method.local()):
        chunk = _tried(method, step, chunk, number, rows, options.rounds, parts)
    _try_messages(method, chunk)
    if options.rounds and not any(part.releases for part in parts.values()):
        raise UserError(f"{method.name or type(method).__name__} takes no steps on data: there is no noise to add")
    private = copy.copy(method)
    private.__class__ = derived(type(method), _Private)
    private.plain, private.parts, private.public_rows = method, parts, rows  # type: ignore[attr-defined]
    return private


def _blank(method: Method, federation: Federation, rows: int, seed: int) -> ClientChunk:
    """One client as every fit begins, without data."""
    start, form, examples = InitialWeights.for_network(method.network, 0), _form(federation, rows), _none()

    def on_device(values: State) -> State:
        return {k: v.to(federation.device, federation.dtype) for k, v in values.items()}

    own = {k: v[None, None] for k, v in on_device(method.personal(start)).items()}
    return ClientChunk(method, form, [0], 1, seed, on_device(method.shared(start)), own, examples)


def _form(federation: Federation, rows: int) -> Any:
    return DatalessFederation(federation, rows)


def _none() -> Any:
    return _NoExamples()


def _tried(
    method: Method, step: LocalStep, chunk: ClientChunk, number: int, rows: int, rounds: int, parts: dict[int, Part]
) -> ClientChunk:
    """A blank client after a step; what SVI does goes to ``parts``.

    Raises:
        UserError: for a step that reads data otherwise.
    """
    last, inner = rounds, step
    if isinstance(step, Until):
        last, inner = step.rounds or rounds, step.step
    if not isinstance(inner, SVI):
        try:
            return step.run(chunk, number)
        except DataAccessed as read:
            raise _refused(method, f"the local step {type(step).__name__} of {', '.join(step.trains)}", read) from read
    refuse_odd(inner)
    rate = 1.0 if inner.batch is None else min(1.0, inner.batch / rows)
    turns = sum(block.repeats * block.gradients for block in inner.blocks if block.terms != "prior")
    try:
        steps = [_steps(inner, rate, replace(chunk, round=k)) for k in range(1, min(last, rounds) + 1)]
    except DataAccessed as read:
        raise _refused(method, f"the number of steps of {', '.join(inner.trains)}", read) from read
    parts[number] = Part(f"steps {number + 1} ({', '.join(inner.trains)})", rate, steps, turns)
    return chunk.own(k for name in inner.trains for k in method.expand(name, chunk.view))


def _steps(step: SVI, rate: float, chunk: ClientChunk) -> int:
    """The steps of a round: as said, or as many samples as make so many epochs."""
    if callable(step.steps):
        return step.steps(chunk)
    return step.epochs * math.ceil(1 / rate - 1e-9) if step.steps is None else step.steps


def _try_messages(method: Method, chunk: ClientChunk) -> None:
    for group, rule in method.exchange().items():
        names = method.expand(group, chunk.shared)
        if not names or not getattr(rule, "sends", True):
            continue
        try:
            rule.message(names, chunk)
        except DataAccessed as read:
            raise _refused(method, f"{type(rule).__name__}, the message of {group!r},", read) from read


def _refused(method: Method, what: str, read: DataAccessed) -> UserError:
    name = method.name or type(method).__name__
    return UserError(f"dp='site' with {name}: {what} reads data without noise ({read}); another method, or dp='client'")


class _Private(Method):
    """Noisy steps, and everything else without data."""

    plain: Method
    parts: dict[int, Part]
    public_rows: int

    def mechanisms(self, options: Options) -> Sequence[Mechanism]:
        return [part.mechanism(options.patient_rows) for part in self.parts.values() if part.releases]

    def local(self) -> Sequence[LocalStep]:
        steps = [self._private(number, step) for number, step in enumerate(super().local())]
        return [*steps, _Sealed(self.public_rows)]

    def _private(self, number: int, step: LocalStep) -> LocalStep:
        part = self.parts.get(number)
        if part is None:
            return _Dataless(step, self.public_rows)
        inner: Any = step.step if isinstance(step, Until) else step
        return PrivateSVI(inner, part.of_round, part.name, part.rate, self.public_rows)

    def new_client_steps(self) -> Sequence[LocalStep]:
        return self.plain.new_client_steps()  # nothing of it is sent

    def new_client_terms(self, personal: State) -> State:
        later = {name for step in self.schedule().final_steps for name in step.trains}
        return {k: v for k, v in super().new_client_terms(personal).items() if k not in later}


@dataclass(frozen=True)
class _Dataless:
    """A step without data."""

    inner: LocalStep
    rows: int

    @property
    def trains(self) -> Sequence[str]:
        return self.inner.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        return replace(chunk, values=self.inner.run(dataless(chunk, self.rows), phase).values)


@dataclass(frozen=True)
class _Sealed:
    """The end of a round: what is sent is made without data."""

    rows: int

    @property
    def trains(self) -> Sequence[str]:
        return ()

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        return dataless(chunk, self.rows)

"""Noise that hides a whole client: its change of the broadcast is clipped, and every client adds a share of the noise.

Neighbours differ in one client, whose message is zeros instead: J is public, and the server divides by the expected
number of reporters. Every client answers in every round. Where masks hide which answer is zeros, a secret coin says
who reports, and the accountant counts on it. (McMahan et al., Learning differentially private recurrent language
models, ICLR 2018; Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism, ICML 2021.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hierfl.errors import UserError

from ..clients.chunk import ClientChunk
from ..messages.form import Field, Form
from ..method.base import Method
from ..method.derived import derived
from ..method.initial import InitialWeights
from ..options import Options
from ..server.rules.base import AggregationContext, AggregationRule, form_of
from ..server.rules.weights import append_dims, times_rows
from ..state import State
from .accounting import Mechanism
from .step_noise import step_noise

#: the noise is on a grid of so many steps in the clip and eight standard deviations: single precision holds them
STEPS = 2**23
#: the name of the mechanism
ROUNDS = "rounds"


def noise_shares(clients: int, *, masked: bool) -> int:
    """The number of clients among which the noise is divided.

    Under masks up to a third may drop out of a sum, and a third, or one, may tell the server their share: the others'
    shares are enough. Without masks all of them.
    """
    if not masked:
        return clients
    third = (clients - 1) // 3
    return max(1, clients - third - max(1, third))


def with_client_noise(options: Options, method: Method, everyone: int) -> Method:
    """The method whose clients' changes are clipped, with noise on their sum.

    Args:
        options: participation, masked, mask_groups, robust and dtype play a part.
        method: of a network.
        everyone: J.

    Raises:
        UserError: for messages that are no values over weights, and those that the server gets one by one or in groups.
    """
    if options.mask_groups or options.robust != "none":
        raise UserError(
            "dp='client' hides a client in the sum over all of them; sums of groups and single messages have a part of "
            "the noise: without mask_groups and robust, or dp='site'"
        )
    start = method.shared(InitialWeights.for_network(method.network, 0))
    shared = {k: v.to(options.dtype) if v.is_floating_point() else v for k, v in start.items()}
    parts = {}
    for group, rule in method.exchange().items():
        names = method.expand(group, shared)
        if names and getattr(rule, "sends", True):
            parts[group] = Changes.for_group(group, rule, names, shared)
    if pressed := next(iter(method.pipeline()), None):
        raise UserError(f"dp='client': messages of {pressed!r} pass a pipeline (compression), and noise a sum: without")
    private = copy.copy(method)
    private.__class__ = derived(type(method), _PrivateClients)
    shares = noise_shares(everyone, masked=options.masked)
    private.changes = ClippedChanges(parts, shares, options.participation)  # type: ignore[attr-defined]
    return private


class _Asked(Mapping[str, Tensor]):
    """Ones under every key, and which keys were asked for."""

    def __init__(self, form: Form) -> None:
        self.form, self.keys_asked = form, set[str]()

    def __getitem__(self, key: str) -> Tensor:
        self.keys_asked.add(key)
        return torch.ones((1, *self.form[key].shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self.form)

    def __len__(self) -> int:
        return len(self.form)


@dataclass(frozen=True)
class Changes:
    """One group's message as changes of what was broadcast.

    Attributes:
        rule, names, form: of the group.
        weights: keys of weights, which count as 1.
    """

    rule: AggregationRule
    names: Sequence[str]
    form: Form
    weights: frozenset[str]

    @classmethod
    def for_group(cls, group: str, rule: AggregationRule, names: Sequence[str], shared: State) -> Changes:
        """Returns the noise of a group of an exchange.

        Raises:
            UserError: where a message is no values over weights, or not summed.
        """
        if words := getattr(rule, "no_noise", ""):
            raise UserError(f"dp='client': {words}")
        form = form_of(rule, {k: shared[k] for k in names})
        asked, kind = _Asked(form), type(rule).__name__
        for key, field in form.items():
            if field.individual:
                raise UserError(f"dp='client': {kind} looks at each client's {key!r} by itself, and noise is of a sum")
            if field.value is not None or not field.dtype.is_floating_point:
                raise UserError(f"dp='client': {key!r} of {kind} is no value over a weight; a method that sends means")
            if field.weight is not None and not torch.equal(weight := field.weight(asked), torch.ones_like(weight)):
                raise UserError(f"dp='client': the weight of {key!r} of {kind} is no number of the message")
        return cls(rule, names, form, frozenset(asked.keys_asked))

    @property
    def sent(self) -> Form:
        """What is left of the form."""
        return {k: Field(field.shape, field.dtype) for k, field in self.form.items() if k not in self.weights}

    def relative(self, key: str) -> bool:
        """Whether a number is a value of which the change is meant."""
        return self.form[key].scaled and key in self.names

    def changes(self, chunk: ClientChunk) -> State:
        """Each client's, {key: (S, *shape)}: values over weights less the broadcast ones, other numbers as they are."""
        message, changes = self.rule.message(self.names, chunk), {}
        for key in self.sent:
            value, field = message[key], self.form[key]
            if field.weight is not None:
                weight = append_dims(field.weight(message), value)
                value = value / weight
                if self.relative(key):  # of a value to which a client gives no weight it changes nothing
                    value = torch.where(weight == 0, chunk.shared[key], value)
            changes[key] = value - chunk.shared[key] if self.relative(key) else value
        return changes

    def total(self, total: State, old: State, count: Tensor) -> State:
        """The sum as the rule expects it, each of ``count`` clients with weight 1."""
        whole = {}
        for key, field in self.form.items():
            if key in self.weights:
                whole[key] = count.to(field.dtype).expand(field.shape)
            else:
                whole[key] = total[key] + count.to(field.dtype) * old[key] if self.relative(key) else total[key]
        return whole


@dataclass(frozen=True)
class ClippedChanges:
    """All groups' changes of a round, clipped together, with a share of the noise.

    Attributes:
        parts: by group.
        shares: among how many clients the noise is divided.
        rate: the probability with which a client's change is in the sum.
    """

    parts: Mapping[str, Changes]
    shares: int
    rate: float

    @property
    def entries(self) -> int:
        """Numbers of a client's changes."""
        return sum(field.numel for part in self.parts.values() for field in part.sent.values())

    def grid(self, clip: float, multiplier: float) -> tuple[float, float]:
        """The standard deviation of a share, and the step of its grid, a power of two.

        Args:
            clip: the largest norm of a client's changes, over all groups.
            multiplier: standard deviation of the whole noise / clip.
        """
        step = 2.0 ** math.ceil(math.log2(clip * (1 + 8 * multiplier / math.sqrt(self.shares)) / STEPS))
        # Changes are rounded to the grid.
        longest = clip + math.sqrt(self.entries) * step / 2
        return max(multiplier * longest / math.sqrt(self.shares), step), step

    def messages(self, group: str, chunk: ClientChunk) -> State:
        """What each client sends of one group, {key: (S, *shape)}."""
        privacy = chunk.privacy
        if privacy is None:
            raise ValueError("clipped changes are of a fit with noise")
        drawn, multiplier = step_noise(privacy), privacy.plan.multiplier(ROUNDS)
        changes = {name: part.changes(chunk) for name, part in self.parts.items()}
        flat = torch.cat([v.flatten(1) for part in changes.values() for v in part.values()], 1).double()
        norm = flat.square().sum(1).sqrt()
        factor = (privacy.clip / norm.clamp_min(1e-300)).clamp_max(1)
        reports = norm.isfinite() & chunk.healthy()  # a change that is not finite is zeros
        if self.rate < 1:
            if "reports" not in chunk.drawn:  # one coin for all groups: a round's message is one release
                chunk.drawn["reports"] = drawn.coins(chunk.keys, 1, self.rate, chunk.round, "reports")[:, 0]
            reports &= chunk.drawn["reports"].to(reports.device)
        sent = {}
        for key, value in changes[group].items():
            mine = reports.view(-1, *[1] * (value.dim() - 1))
            clipped = torch.where(mine, times_rows(factor, value.double()), 0.0)
            if multiplier:
                sd, step = self.grid(privacy.clip, multiplier)
                share = drawn.gaussian(chunk.keys, value[0].numel(), sd, step, chunk.round, group, key)
                clipped = (clipped / step).round() * step + share.view(clipped.shape).to(clipped.device)
            sent[key] = clipped.to(value.dtype)
        return sent


@dataclass(frozen=True)
class ClippedChange:
    """A rule whose messages are clipped changes: a sum of them, and the expected number of clients, replace it.

    Args:
        group: whose.
        rule: the method's.
        all: the changes of all groups.
    """

    group: str
    rule: AggregationRule
    all: ClippedChanges

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("group", "rule", "all"):
            raise AttributeError(name)
        return getattr(self.rule, name)

    @property
    def sends_gradients(self) -> bool:
        """Whether the rule sends gradients."""
        return self.rule.sends_gradients

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Changes, and no weights."""
        return self.all.parts[self.group].sent

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Clipped, with a share of the noise."""
        return self.all.messages(self.group, chunk)

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The rule's, of as many clients as report on average."""
        count = torch.full_like(context.reported, context.num_clients * self.all.rate)
        whole = self.all.parts[self.group].total(total, old, count)
        return self.rule.update(old, whole, replace(context, reported=count))


class _PrivateClients(Method):
    """Rules of clipped changes."""

    changes: ClippedChanges

    def mechanisms(self, options: Options) -> Sequence[Mechanism]:
        # A coin counts where masks hide it.
        rate = options.participation if options.masked else 1.0
        return [Mechanism(ROUNDS, 1.0, max(1, options.rounds), rate, 1)]

    def exchange(self) -> Mapping[str, AggregationRule]:
        rules: dict[str, AggregationRule] = {}
        for group, rule in super().exchange().items():
            rules[group] = ClippedChange(group, rule, self.changes) if group in self.changes.parts else rule
        return rules

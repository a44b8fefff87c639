"""Shared values that come as rows, a few at a time: those that a local step trains, or a rule differentiates by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hierfl.errors import UserError
from hierfl.nn.functional import BROADCAST_PREFIX

from ..local.base import LocalStep
from ..method.base import Method
from ..server.exchange import Exchange
from .probe import Probe, SiteNumber, first_difference


def check_rows(method: Method, probe: Probe, steps: Sequence[LocalStep], exchange: Exchange) -> None:
    """Refuses a model that runs with all trained values as rows, and not with those of one step or rule alone.

    Args:
        method: whose model and guide.
        probe: what they are run on.
        steps: the local ones.
        exchange: how shared values are moved.

    Raises:
        UserError: one line, which names the values that are rows, and the others.
    """
    rows = {name: probe.values[f"{BROADCAST_PREFIX}{name}"].expand_as(probe.values[name]) for name in probe.trained}
    every = probe.numbers(probe.batch, leaves=rows)
    checked = [set(probe.trained)]
    for phase, names in _phases(method, probe, steps, exchange):
        if names in checked:
            continue
        checked.append(names)
        _check_phase(probe, every, phase, names)


def _phases(
    method: Method, probe: Probe, steps: Sequence[LocalStep], exchange: Exchange
) -> Iterator[tuple[str, set[str]]]:
    """Each part of a round that takes gradients, and the shared values that are rows in it."""
    values = {*probe.shared, *probe.personal}
    own: set[str] = set()
    for step in steps:
        trained = {name for group in step.trains for name in method.expand(group, values)} & {*probe.shared}
        own = own | trained
        yield f"while clients train {_listed(sorted(step.trains))}", own
    for name, group in exchange.groups.items():
        if group.rule.sends_gradients:
            yield f"in the gradient that clients send for {name!r}", own | {*method.expand(name, values)}


def _check_phase(probe: Probe, every: Sequence[SiteNumber], phase: str, names: set[str]) -> None:
    """Compares a part of a round with all trained values as rows."""
    broadcast = {name: probe.values[f"{BROADCAST_PREFIX}{name}"] for name in probe.trained}
    values = {
        name: value.expand_as(probe.values[name]) if name in names else value for name, value in broadcast.items()
    }
    plain = {name: tuple(value.shape) for name, value in values.items() if name not in names}
    as_rows = {name: ("S", *value.shape[1:]) for name, value in values.items() if name in names}
    where = f"{phase}: {_shapes(as_rows) or 'no shared value'} comes as rows of clients, {_shapes(plain)} does not"
    advice = "let shapes broadcast: x * torch.ones_like(w) in place of x.expand_as(w), and dimensions from the right"
    try:
        numbers = probe.numbers(probe.batch, leaves=values)
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        words = (str(error).splitlines() or [""])[0]
        raise UserError(f"model or guide does not run {where}: {type(error).__name__}: {words}; {advice}") from error
    if label := first_difference(numbers, every):
        raise UserError(f"{label} is another number {where}; {advice}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _shapes(shapes: dict[str, tuple]) -> str:
    """The first three names with their shapes."""
    shown = [f"{name!r} ({', '.join(map(str, shape))}{',' * (len(shape) == 1)})" for name, shape in shapes.items()]
    return ", ".join(shown[:3]) + ", ..." * (len(shown) > 3)

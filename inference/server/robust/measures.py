"""How each client's message of a round lies beside the others'.

Of each client, with u its value less the broadcast one (of sums, the message itself), w its weight, and U the mean:

    norm        |u|, in units of the median client's
    cosine      between u and the mean of all others
    influence   |U - U without it|, in units of the median client's

Groups of shared values count alike. Of a likelihood that is searched its own rule knows more (:mod:`.judged`), and
nothing is measured; nor are messages that a rule says cannot be compared. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ...messages.form import Form
from ...messages.singles import Singles
from ..exchange import Exchange
from ..rules.weights import append_dims
from .judged import Judging
from .totals import weights_of
from .weights import middle

#: what is measured, in order
MEASURES = ("norm", "cosine", "influence")


def measures(singles: Singles, exchange: Exchange, shared: Mapping[str, Tensor]) -> Tensor:
    """(R, 3) in float64, :data:`MEASURES` of each row; not a number where a row does not count.

    Args:
        singles: messages of a round.
        exchange: what they look like.
        shared: as broadcast.
    """
    present = singles.valid
    blocks = [
        torch.stack(block)
        for name, group in exchange.sending.items()
        if group.comparable and not isinstance(group.rule, Judging)
        for block in _blocks(group.form, singles.messages[name], shared, singles.counts)
    ]
    if not blocks:
        return torch.full((len(present), 3), torch.nan, dtype=torch.float64, device=present.device)
    squares, dots, others, moved = torch.stack(blocks).unbind(1)  # (blocks, R) each
    size, shift = _units(torch.stack([squares, moved]), present)
    lengths = (squares * others).sqrt()
    cosines = torch.where(lengths > 0, dots / torch.where(lengths > 0, lengths, 1), 0).mean(0)
    values = torch.stack([size, cosines, shift], 1)
    return torch.where(present[:, None], values, torch.nan)


def _units(squares: Tensor, present: Tensor) -> Tensor:
    """Root mean squares (2, R) over blocks (2, B, R), each in units of its median client's."""
    typical = middle(squares.movedim(-1, 0), present[:, None, None].expand(-1, *squares.shape[:2]))[..., None]
    return (squares / torch.where(typical > 0, typical, 1)).mean(1).sqrt()


def _blocks(
    form: Form, message: Mapping[str, Tensor], shared: Mapping[str, Tensor], counts: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """|u|^2, u' mean of the others, its |.|^2, and |U - U without it|^2, (R,) each: of all values, and of each sum."""
    inside = weights_of(form, message)
    together: list[tuple[Tensor, ...]] = []
    for key, field in form.items():
        value = message[key]
        if field.numel == 0 or (key in inside.values() and key not in inside):
            continue
        weight = append_dims(message[inside[key]] if key in inside else counts, value).double().expand_as(value)
        of_value = key in inside or (field.scaled and field.value is None)
        u = value.double() / torch.where(weight > 0, weight, 1)
        old = shared.get(key)
        if of_value and old is not None and old.shape == u.shape[1:]:
            u = u - old
        comparison = _compared(torch.where(weight > 0, u, 0).unsqueeze(-1).flatten(1), weight.unsqueeze(-1).flatten(1))
        if of_value:
            together.append(comparison)
        else:
            yield comparison
    if together:
        yield tuple(torch.stack(parts).sum(0) for parts in zip(*together, strict=True))


def _compared(u: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    total, weight = (u * w).sum(0), w.sum(0)
    left = weight - w
    others = torch.where(left > 0, (total - u * w) / torch.where(left > 0, left, 1), 0)
    mean = total / torch.where(weight > 0, weight, 1)
    return u.square().sum(1), (u * others).sum(1), others.square().sum(1), (mean - others).square().sum(1)

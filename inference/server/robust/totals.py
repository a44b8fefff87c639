"""What replaces a sum of messages: made of single messages by a robust rule, of the same form.

Of a field with weights inside (:class:`~hierfl.inference.messages.form.Field`) the rule combines the values, which are
the field over its weights; the total is the combined value times the sum of the weights, of which none is more than
three times the median. So a value's lie is bounded by the rule, and a lie about n_j or a precision by the cap. A value
without weights counts once for each client. A slot or coordinate of which fewer than three clients say something has
no weight in the total: the broadcast's stays.

Other fields are sums: gradients, scores, precisions in full. There whole messages count less, as
:meth:`~.rules.RobustRule.shares` says by how far each is from the others, field by field; what counts is scaled back to
the number of clients. Matrices that are sums of positive ones stay positive. Where there are none, as in gradients,
each number is bounded by itself too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...messages.form import Field, Form
from ...state import State
from ..rules.weights import append_dims
from .rules import SMALLEST, RobustRule
from .weights import capped, middle

#: what fewer clients say something of is left out: one of two is in no middle, and no weight is beside a median
FEWEST_VALUES = 3


def group_total(rule: RobustRule, form: Form, message: Mapping[str, Tensor], counts: Tensor) -> State:
    """The total of one group of shared values.

    Args:
        rule: combines.
        form: of a message.
        message: {key: (R, *shape)}, zero where a row does not count.
        counts: messages in each row, (R,).
    """
    weights = weights_of(form, message)
    if all(key in weights or _is_weight(key, weights) or (field.scaled and field.value is None)
           for key, field in form.items()):  # fmt: skip
        return _of_values(rule, form, message, weights, counts)
    points = torch.cat([
        _comparable(_point(field, key, message, counts), counts > 0)
        for key, field in form.items() if field.value is not None or not _described(form)
    ], 1)  # fmt: skip
    share = rule.shares(points, counts > 0)
    size = _size(message, counts)
    share = share * capped(size) / torch.where(size > 0, size, 1)
    share = share * (counts.sum() / (share * counts).sum().clamp_min(SMALLEST))
    messages = message if any(_coupled(field) for field in form.values()) else _bounded(rule, message, counts)
    return {key: torch.einsum("r,r...->...", share.to(value), value) for key, value in messages.items()}


def _coupled(field: Field) -> bool:
    """Whether a field's numbers belong together, as a matrix' do: none of them is changed by itself."""
    return any(says is not None for says in (field.holds, field.value, field.agrees))


def _bounded(rule: RobustRule, message: Mapping[str, Tensor], counts: Tensor) -> State:
    """Messages, of which no number is far from the others' of its position: means over a row's messages are compared.

    A message that is in the middle otherwise would count in full, whatever a single number of it is.
    """
    counts_like = {key: append_dims(counts.to(value), value) for key, value in message.items()}
    return {
        key: rule.bounded((value / counts_like[key].clamp_min(1)).unsqueeze(-1).flatten(1), counts > 0).view_as(value)
        * counts_like[key]
        for key, value in message.items()
    }


def weights_of(form: Form, message: Mapping[str, Tensor]) -> dict[str, str]:
    """{key of a field: key of the weights inside}."""
    weights = {}
    for key, field in form.items():
        if field.weight is not None:
            inside = field.weight(message)
            weights[key] = next(name for name, value in message.items() if value is inside)
    return weights


def _is_weight(key: str, weights: Mapping[str, str]) -> bool:
    return key in weights.values()


def _of_values(
    rule: RobustRule, form: Form, message: Mapping[str, Tensor], weights: Mapping[str, str], counts: Tensor
) -> State:
    total: State = {}

    def field_total(key: str) -> Tensor:
        """The total of one field; those of its weights come first."""
        if key in total:
            return total[key]
        value = message[key]
        if key in weights:
            inside, whole = message[weights[key]], field_total(weights[key])
        elif _is_weight(key, weights):
            total[key] = torch.where(_spoken(value), capped(value).sum(0), 0)
            return total[key]
        else:
            inside = counts.to(value)
            whole = inside.sum()
        weight = append_dims(inside, value).expand_as(value)
        points = torch.where(weight > 0, value / torch.where(weight > 0, weight, 1), 0)
        at = append_dims(capped(inside), value).expand_as(value)
        centre = rule.centre(points.unsqueeze(-1).flatten(1), at.unsqueeze(-1).flatten(1)).view(value.shape[1:])
        total[key] = centre * append_dims(whole, centre)
        return total[key]

    return {key: field_total(key) for key in form}


def _spoken(weights: Tensor) -> Tensor:
    """The slots or coordinates of which enough clients say something; one weight is the whole message's, and counts."""
    spoken = (weights > 0).sum(0) >= FEWEST_VALUES
    return spoken if weights.dim() > 1 else torch.ones_like(spoken)


def _described(form: Form) -> bool:
    """Whether some field says what the message is about; else all of them are compared."""
    return any(field.value is not None for field in form.values())


def _point(field: Field, key: str, message: Mapping[str, Tensor], counts: Tensor) -> Tensor:
    """What is compared of a field, (R, d): its value, or the mean of the messages in a row."""
    if field.value is not None:
        return field.value(message).unsqueeze(-1).flatten(1).nan_to_num(0.0)
    return message[key].unsqueeze(-1).flatten(1) / counts.clamp_min(1)[:, None]


def _comparable(points: Tensor, present: Tensor) -> Tensor:
    """Points (R, d) in units of their median distance from the median, so that fields count alike."""
    centre = middle(points, present[:, None].expand_as(points))
    far = torch.linalg.vector_norm(points - centre, dim=1)
    size = middle(torch.linalg.vector_norm(points, dim=1), present)
    scale = middle(far, present).maximum(SMALLEST * size)
    return torch.where(present[:, None], (points - centre) / torch.where(scale > 0, scale, 1), 0).double()


def _size(message: Mapping[str, Tensor], counts: Tensor) -> Tensor:
    """How large each row's message is beside the others', (R,), per message inside: the largest field says."""
    largest = torch.zeros_like(counts, dtype=torch.float64)
    for value in message.values():
        norm = torch.linalg.vector_norm(value.unsqueeze(-1).flatten(1).double(), dim=1) / counts.clamp_min(1)
        typical = middle(norm, counts > 0)
        largest = largest.maximum(norm / torch.where(typical > 0, typical, 1))
    return largest

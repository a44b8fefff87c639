"""A message of another form than its rules declare is rejected, and the honest ones are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.rounds import Messages, Rounds
from support.senders import (
    SENDING,
    after,
    check_the_others_are_used,
    every,
    every_precision,
    first_of,
    honest,
    ready,
    with_key,
)
from torch import Tensor

from hierfl import models
from hierfl.models import METHODS


def test_every_method_that_sends_is_tried() -> None:
    assert {case[0].name for case in SENDING} | {"local"} >= METHODS.keys()


@every_precision
def test_real_messages_have_the_declared_form(case: tuple, dtype: torch.dtype) -> None:
    server, messages, clients = honest(case, dtype)
    for group, message in messages.items():
        form = server.exchange.groups[group].pipeline.sent
        assert message.keys() == form.keys()
        for key, field in form.items():
            assert (message[key].dtype, tuple(message[key].shape[1:])) == (field.dtype, field.shape)
    after(server, messages, clients)
    assert not server.rejected.any()


def test_who_sends_nothing_is_sent_nothing() -> None:
    ready_fit = ready((models.Local, {}))
    server = Rounds(ready_fit.method, ready_fit.federation, ready_fit.state.shared, ready_fit.initial)
    assert not server.receive({"w": {"w": torch.zeros(1, 3)}}, [0]).any()
    assert server.rejected.tolist() == [1] + [0] * 9


FORMS: dict[str, Callable[[Messages], Any]] = {
    "an extra number": lambda m: with_key(m, "extra", next(iter(m[first_of(m)[0]].values())).new_ones(1)),
    "a key that is no string": lambda m: with_key(m, 7, torch.ones(1)),  # type: ignore[arg-type]
    "another group": lambda m: {**m, "others": m[first_of(m)[0]]},
    "one group less": lambda m: dict(list(m.items())[1:]),
    "nothing": lambda m: {},
    "no mapping": lambda m: [1, 2],
    "no mapping inside": lambda m: dict.fromkeys(m),
    "a list": lambda m: with_key(m, first_of(m)[1], [1.0]),
    "None": lambda m: with_key(m, first_of(m)[1], None),
    "an array": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].numpy()),
    "whole numbers": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].long()),
    "complex numbers": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]] + 0j),
    "sparse": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].to_sparse()),
    "a dimension more": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]][..., None]),
    "a client more": lambda m: with_key(m, first_of(m)[1], m[first_of(m)[0]][first_of(m)[1]].repeat_interleave(2, 0)),
}


@every
@pytest.mark.parametrize("what", FORMS)
def test_a_message_of_another_form_is_rejected_and_the_honest_ones_are_used(case: tuple, what: str) -> None:
    check_the_others_are_used(case, torch.float64, FORMS[what])


@every
def test_a_message_that_lacks_a_key_is_rejected(case: tuple) -> None:
    """Each key in turn, weights, confidences, precisions and outer products among them."""
    _, messages, _ = honest(case)
    for group, message in messages.items():
        for key in message:

            def spoil(m: Messages, group: str = group, key: str = key) -> Messages:
                return {**m, group: {k: v for k, v in m[group].items() if k != key}}

            check_the_others_are_used(case, torch.float64, spoil)


@every_precision
def test_a_message_in_another_precision_is_rejected(case: tuple, dtype: torch.dtype) -> None:
    server, _, _ = honest(case, dtype)
    other = {torch.float32: torch.float64, torch.float64: torch.float32}

    def cast(group: str, key: str, value: Tensor) -> Tensor:
        if value.dtype is not torch.uint8:
            return value.to(other[value.dtype])
        field, codec = server.forms[group][key], server.codec(group)  # bytes that hold a norm in the other precision
        numbers = codec.decode(value, field.numel, field.dtype).to(other[field.dtype])
        return codec.encode(numbers, torch.zeros_like(numbers))

    check_the_others_are_used(
        case, dtype, lambda m: {g: {k: cast(g, k, v) for k, v in x.items()} for g, x in m.items()}
    )

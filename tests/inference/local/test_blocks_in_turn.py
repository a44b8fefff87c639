"""Blocks that go elsewhere than down the gradient, beside others on the same minibatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from support.baselines import rows_of, slope_at
from support.methods import order_of
from torch import Tensor

from hierfl import Federation, UserError
from hierfl.inference import SVI
from hierfl.inference.local.block import Block
from hierfl.inference.local.gradient_transforms import GradientAt
from hierfl.inference.local.optimizers import sgd
from hierfl.models import Ditto, PFedMe
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


@dataclass(frozen=True)
class Doubled:
    """Twice the gradient on the last of so many minibatches."""

    name: str
    batches: int = 1

    def __call__(self, gradient: GradientAt, at: dict, values: Mapping[str, Tensor]) -> dict:
        return {self.name: 2 * gradient(at, self.batches - 1)[self.name]}


@dataclass(frozen=True)
class Elsewhere:
    """The gradient in w where w is v."""

    batches: int = 1

    def __call__(self, gradient: GradientAt, at: dict, values: Mapping[str, Tensor]) -> dict:
        return gradient({"w": values["v"]}, 0)


def minibatches(chunk: object, row: int, size: int, most: int) -> list[Tensor]:
    return [b for e in range(most) for b in order_of(chunk, row, 0, e).split(size)][:most]


@pytest.mark.parametrize("first", [True, False])
def test_a_transform_is_of_its_own_block(first: bool, small: Federation, net: Architecture) -> None:
    """Either block may have it; the other goes down its gradient, on the first of the iteration's minibatches."""
    chunk = rows_of(Ditto(net, lam=1e-12), small)
    doubled = Doubled("w", batches=2)
    w, v = Block(["w"], sgd(0.1), transform=doubled), Block(["v"], sgd(0.2), repeats=2)
    main, other = (w, v) if first else (v, w)
    done = SVI(
        main.names, 0, main.optimizer, 4, per="example", steps=3, repeats=main.repeats, transform=main.transform,
        then=[other],
    ).run(chunk, 0)  # fmt: skip
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        at = {"w": chunk.shared["w"], "v": chunk.values["v"][row, 0]}
        batches = minibatches(chunk, row, 4, 6)
        for own, ahead in zip(batches[::2], batches[1::2], strict=True):
            at["w"] = at["w"] - 0.1 * 2 * slope_at(net, at["w"], x, y, ahead)
            for _ in range(2):
                at["v"] = at["v"] - 0.2 * slope_at(net, at["v"], x, y, own)
        for name, value in at.items():
            torch.testing.assert_close(done.values[name][row, 0], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("transformed", [True, False])
def test_two_blocks_may_move_the_same_values(transformed: bool, small: Federation, net: Architecture) -> None:
    """Each from where the other has left them."""
    chunk = rows_of(Ditto(net), small)
    first = {"transform": Doubled("w")} if transformed else {}
    done = SVI(["w"], 0, sgd(0.1), 4, per="example", steps=3, **first, then=[Block(["w"], sgd(0.05))]).run(chunk, 0)
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        w = chunk.shared["w"]
        for batch in minibatches(chunk, row, 4, 3):
            w = w - (0.2 if transformed else 0.1) * slope_at(net, w, x, y, batch)
            w = w - 0.05 * slope_at(net, w, x, y, batch)
        torch.testing.assert_close(done.values["w"][row, 0], w, rtol=1e-9, atol=1e-11)


def test_a_transform_may_ask_at_values_that_another_block_trains(small: Federation, net: Architecture) -> None:
    chunk = rows_of(Ditto(net, lam=1e-12), small)
    step = SVI(["w"], 0, sgd(0.1), 4, per="example", steps=2, transform=Elsewhere(), then=[Block(["v"], sgd(0.2))])
    done = step.run(chunk, 0)
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        w, v = chunk.shared["w"], chunk.values["v"][row, 0]
        for batch in minibatches(chunk, row, 4, 2):
            w = w - 0.1 * slope_at(net, v, x, y, batch)
            v = v - 0.2 * slope_at(net, v, x, y, batch)
        torch.testing.assert_close(done.values["w"][row, 0], w, rtol=1e-9, atol=1e-10)


def test_draws_of_several_minibatches_are_each_rows_own(small: Federation) -> None:
    """With dropout, and minibatches of unequal sizes, a row trains alone as beside others."""
    net = architecture("mlp:6,dropout=0.5", small)
    chunk = rows_of(PFedMe(net), small)
    copy, again = Block(["w"], sgd(0.1), terms="prior"), Block(["theta"], sgd(0.02), repeats=2)
    step = SVI(["theta"], 0, sgd(0.1), 4, per="example", steps=3, transform=Mixed(), then=[again, copy])
    together = step.run(chunk, 0)
    for row in range(len(chunk.clients)):
        alone = step.run(chunk.take([row]), 0)
        for name in ("theta", "w"):
            torch.testing.assert_close(alone.values[name][0], together.values[name][row], rtol=1e-9, atol=1e-11)


@dataclass(frozen=True)
class Mixed:
    """Gradients on two minibatches, the last one first."""

    batches: int = 2

    def __call__(self, gradient: GradientAt, at: dict, values: Mapping[str, Tensor]) -> dict:
        ahead = gradient(at, 1)
        return gradient({"theta": at["theta"] - 0.1 * ahead["theta"]}, 0)


@dataclass(frozen=True)
class Idle:
    """Asks on two minibatches in some order, and goes nowhere."""

    order: tuple[int, int]
    batches: int = 2

    def __call__(self, gradient: GradientAt, at: dict, values: Mapping[str, Tensor]) -> dict:
        return {k: 0 * v for number in self.order for k, v in gradient(at, number).items()}


def test_what_a_transform_has_asked_for_last_changes_no_other_block(small: Federation) -> None:
    """Whose draws are for the examples of its own minibatch, all of them."""
    net = architecture("mlp:6,dropout=0.5", small)
    chunk = rows_of(PFedMe(net), small)
    values = []
    for order in ((1, 0), (0, 1)):
        first = {"transform": Idle(order), "terms": "data"}
        step = SVI(["theta"], 0, sgd(0.1), 4, per="example", steps=4, **first, then=[Block(["theta"], sgd(0.02))])
        values.append(step.run(chunk, 0).values["theta"])
    assert torch.equal(*values)


def test_several_minibatches_are_counted_in_steps() -> None:
    block = Block(["w"], sgd(0.1), transform=Doubled("w", 2))
    for counted in ({"batch": 4}, {"steps": 3}):
        with pytest.raises(UserError, match="counted in steps"):
            SVI(["v"], 1, sgd(0.1), then=[block], **counted)
    SVI(["v"], 1, sgd(0.1), then=[block], batch=4, steps=3)

"""Which examples a client sees, step by step."""

from __future__ import annotations

import pytest
import torch
from support.federations import blobs
from support.methods import chunk_of, order_of
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.minibatches import plan
from hierfl.models import FedAvg
from hierfl.nn.networks.build import architecture


@pytest.fixture
def chunk() -> ClientChunk:
    federation = blobs([23, 7, 2, 14, 5])
    return chunk_of(FedAvg(architecture("mlp:5", federation)), federation)


def one_by_one(chunk: ClientChunk, row: int, size: int, epochs: int) -> Tensor:
    """A row's minibatches, made without the others: each epoch's order is cut, and its end padded."""
    n = chunk.sizes[row]
    orders = [order_of(chunk, row, "phase", epoch) for epoch in range(epochs)]
    return torch.cat([torch.nn.functional.pad(order, (0, -n % size), value=-1).view(-1, size) for order in orders])


@pytest.mark.parametrize("size", [1, 5, 7, 23, 40])
@pytest.mark.parametrize("epochs", [1, 3])
def test_all_rows_at_once_are_each_row_alone(chunk: ClientChunk, size: int, epochs: int) -> None:
    minibatches = plan(chunk, "phase", size, epochs)
    assert list(minibatches.steps) == [epochs * -(-n // size) for n in chunk.sizes]
    for row, n in enumerate(chunk.sizes):
        own = minibatches.for_row(row)
        assert torch.equal(own, one_by_one(chunk, row, size, epochs))
        assert sorted(own[own >= 0].tolist()) == sorted([*range(n)] * epochs)
        assert (minibatches.position[minibatches.steps[row] :, row] == -1).all()


@pytest.mark.parametrize("most", [1, 4, 11])
def test_so_many_steps_whatever_a_client_has(chunk: ClientChunk, most: int) -> None:
    minibatches = plan(chunk, "phase", 5, 0, most)
    assert list(minibatches.steps) == [most] * len(chunk.sizes)
    for row in range(len(chunk.sizes)):
        assert torch.equal(minibatches.for_row(row), one_by_one(chunk, row, 5, most)[:most])


def test_no_passes_are_no_steps(chunk: ClientChunk) -> None:
    assert plan(chunk, "phase", 5, 0).position.shape == (0, len(chunk.sizes), 5)

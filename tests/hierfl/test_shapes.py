"""Shapes as torch has them, and numbers of a row that are one in memory."""

from __future__ import annotations

import pytest
import torch

from hierfl.shapes import broadcast_shapes, by_row


def test_shapes_broadcast_as_torchs() -> None:
    shapes = [(3, 1), (1, 4), (2, 1, 1), torch.Size([])]
    assert broadcast_shapes(*shapes) == torch.broadcast_shapes(*shapes) == (2, 3, 4)
    assert isinstance(broadcast_shapes((2,), (2,)), torch.Size)
    with pytest.raises(ValueError, match="broadcast"):
        broadcast_shapes((2,), (3,))


@pytest.mark.parametrize("value", [torch.zeros(()).expand(5, 3, 2), torch.arange(5.0)[:, None, None].expand(5, 3, 2)])
def test_rows_of_one_number_are_changed_once(value: torch.Tensor) -> None:
    """What is done sees one number of each row, and what comes of it is of the whole shape."""
    seen = list[tuple[int, ...]]()

    def change(v: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(v.shape))
        return (v + 1).sum(0, keepdim=True)

    assert torch.equal(by_row(value, change), (value + 1).sum(0, keepdim=True))
    assert seen == [(5, 1, 1)]


def test_other_rows_are_changed_whole() -> None:
    value = torch.arange(30.0).view(5, 3, 2)
    for other in (value, value.transpose(1, 2), value[:, :1], value[:0], value[:, 0, 0]):
        assert torch.equal(by_row(other, torch.neg), -other)
    # A view whose first number is another's second is no row of one number.
    assert torch.equal(by_row(value[:, :1].expand(5, 3, 2), torch.neg), -value[:, :1].expand(5, 3, 2))

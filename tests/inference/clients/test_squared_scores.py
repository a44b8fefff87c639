"""The expected Fisher information's diagonal."""

from __future__ import annotations

import pytest
import torch
from support.baselines import Quadratics, linear, rows_of
from support.federations import pictures
from torch import Tensor
from torch.autograd.functional import hessian
from torch.nn.functional import cross_entropy

from hierfl import Federation, UserError
from hierfl.inference.clients import squared_scores
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.squared_scores import mean_squared_scores
from hierfl.models import FedPA
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def information(net: Architecture, chunk: ClientChunk) -> Tensor:
    """The expected Fisher information of all of each row's examples, (S, d)."""
    return chunk.n[:, None] * mean_squared_scores(chunk, net, "w", "model")


@pytest.mark.parametrize("most", [1, 100, 2**22])
def test_of_a_linear_regression_it_is_the_second_derivative(
    most: int, lines: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many examples at a time."""
    monkeypatch.setattr(squared_scores, "HELD", most)
    chunk, quadratics = rows_of(FedPA(linear(lines)), lines).own(["w"]), Quadratics(lines)
    found = information(linear(lines), chunk)
    for row, j in enumerate(chunk.clients):
        torch.testing.assert_close(found[row], quadratics.A[j].diagonal(), rtol=1e-10, atol=1e-12)


def test_of_a_linear_classifier_it_is_the_second_derivative(small: Federation) -> None:
    """Whose labels do not matter; rows have weights of their own."""
    net = architecture("linear", small)
    chunk = rows_of(FedPA(net), small).own(["w"])
    w = torch.randn(7, 1, net.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = information(net, chunk.put({"w": w}))
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        exact = hessian(lambda u: cross_entropy(net(u, x[None])[0], y, reduction="sum"), w[row, 0])  # noqa: B023
        torch.testing.assert_close(found[row], exact.diagonal(), rtol=1e-9, atol=1e-11)


def test_of_a_network_it_is_the_mean_square_of_scores(small: Federation, net: Architecture) -> None:
    chunk = rows_of(FedPA(net), small).own(["w"])
    w = chunk.values["w"] + 0.3
    found = information(net, chunk.put({"w": w}))
    for row, j in enumerate(chunk.clients):
        total = torch.zeros(net.d, dtype=torch.float64)
        for x in small.examples(small.train[j])[0]:
            jacobian = torch.func.jacrev(lambda u: net(u, x[None, None])[0, 0].log_softmax(-1))(w[row, 0])  # noqa: B023
            p = net(w[row, 0], x[None, None])[0, 0].softmax(-1)
            total += (p[:, None] * jacobian.square()).sum(0)
        torch.testing.assert_close(found[row], total, rtol=1e-9, atol=1e-11)


def test_batch_norm_has_none() -> None:
    fed = pictures()
    norm = architecture("bncnn:2:5", fed)
    chunk = rows_of(FedPA(norm), fed).own(["w"])
    with pytest.raises(UserError, match="no batch norm"):
        information(norm, chunk)

"""The expected Fisher information's diagonal."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from support.baselines import Quadratics, linear, rows_of
from support.federations import pictures
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.nn.functional import cross_entropy

from hierfl import Federation
from hierfl.inference.clients import squared_scores
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.squared_scores import mean_squared_scores
from hierfl.models import FedPA
from hierfl.nn import squared_gradients
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.layers.batch_norm import is_statistic
from hierfl.nn.networks.build import architecture
from hierfl.nn.squared_gradients import is_layered


def information(net: Architecture, chunk: ClientChunk) -> Tensor:
    """The expected Fisher information of all of each row's examples, (S, d)."""
    return chunk.n[:, None] * mean_squared_scores(chunk, net, "w", "model")


@pytest.mark.parametrize("most", [1, 100, 2**22])
def test_of_a_linear_regression_it_is_the_second_derivative(
    most: int, lines: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many examples at a time."""
    monkeypatch.setattr(squared_scores, "MAX_NUMBERS_AT_ONCE", most)
    chunk, quadratics = rows_of(FedPA(linear(lines)), lines).own(["w"]), Quadratics(lines)
    diagonals = information(linear(lines), chunk)
    for row, j in enumerate(chunk.clients):
        torch.testing.assert_close(diagonals[row], quadratics.A[j].diagonal(), rtol=1e-10, atol=1e-12)


def test_of_a_linear_classifier_it_is_the_second_derivative(small: Federation) -> None:
    """Whose labels do not matter; rows have weights of their own."""
    net = architecture("linear", small)
    chunk = rows_of(FedPA(net), small).own(["w"])
    w = torch.randn(7, 1, net.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    diagonals = information(net, chunk.put({"w": w}))
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        exact = hessian(lambda u: cross_entropy(net(u, x[None])[0], y, reduction="sum"), w[row, 0])  # noqa: B023
        torch.testing.assert_close(diagonals[row], exact.diagonal(), rtol=1e-9, atol=1e-11)


def test_of_a_network_it_is_the_mean_square_of_scores(small: Federation, net: Architecture) -> None:
    chunk = rows_of(FedPA(net), small).own(["w"])
    w = chunk.values["w"] + 0.3
    mean_squares = information(net, chunk.put({"w": w}))
    for row, j in enumerate(chunk.clients):
        total = torch.zeros(net.d, dtype=torch.float64)
        for x in small.examples(small.train[j])[0]:
            jacobian = torch.func.jacrev(lambda u: net(u, x[None, None])[0, 0].log_softmax(-1))(w[row, 0])  # noqa: B023
            p = net(w[row, 0], x[None, None])[0, 0].softmax(-1)
            total += (p[:, None] * jacobian.square()).sum(0)
        torch.testing.assert_close(mean_squares[row], total, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("labels", ["data", "model"])
@pytest.mark.parametrize(
    "spec", ["linear", "mlp:6,5", "mlp:6,dropout=0.5", "cnn:2,3:5", "cnn:2:5,leaky=0.1", "bncnn:2,3:5"]
)
def test_layer_by_layer_it_is_that_of_single_examples(
    spec: str, labels: str, small: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the layers, with contrasts or not, in clients of unequal size; some examples at a time."""
    fed, rng = pictures() if "cnn" in spec else small, torch.Generator().manual_seed(0)
    plain = architecture(spec, fed)
    for net in (plain, replace(plain, head=replace(plain.head, contrasts=True))):
        chunk = rows_of(FedPA(net), fed).own(["w"])
        w = chunk.values["w"]
        norms = chunk.own(filter(is_statistic, net.base.norm_names)).values.items()
        norms = {k: 0.5 + torch.rand(v.shape, generator=rng, dtype=v.dtype) for k, v in norms if k != "w"}
        chunk = chunk.put({"w": w + 0.3 * torch.randn(w.shape, generator=rng, dtype=torch.float64), **norms})
        assert is_layered(net)
        monkeypatch.setattr(squared_scores, "MAX_NUMBERS_AT_ONCE", 10**9)
        singles = mean_squared_scores(chunk, net, "w", labels)
        monkeypatch.setattr(squared_scores, "MAX_NUMBERS_AT_ONCE", 0)
        monkeypatch.setattr(squared_gradients, "MAX_NUMBERS_AT_ONCE", 200)
        monkeypatch.setattr(squared_scores, "EXAMPLES_PER_PASS", 4)
        for by_layer in (True, False):  # or single examples, one at a time
            monkeypatch.setattr(squared_scores, "is_layered", lambda network, layered=by_layer: layered)
            torch.testing.assert_close(mean_squared_scores(chunk, net, "w", labels), singles, rtol=1e-10, atol=1e-13)
        assert (singles > 0).double().mean() > 0.3


def test_other_layers_go_by_single_examples() -> None:
    fed = pictures()
    assert not is_layered(replace(architecture("cnn:2:5", fed), base=Network(nn.LayerNorm(5), "base", weights="drawn")))


def test_batch_norm_goes_by_running_statistics() -> None:
    """Those of the row, and then of what was broadcast: torch's own modules in evaluation, an example at a time."""
    fed, rng = pictures(), torch.Generator().manual_seed(0)
    net = architecture("bncnn:2,3:5", fed)
    chunk = rows_of(FedPA(net), fed).own(["w"])
    names = [k for k in net.base.norm_names if is_statistic(k)]
    own = {k: 0.5 + torch.rand(v.shape, generator=rng, dtype=v.dtype) for k, v in chunk.own(names).values.items()}
    for rows in (chunk.put({k: v for k, v in own.items() if k in names}), chunk):
        mean_squares = mean_squared_scores(rows, net, "w", "data")
        for row, j in enumerate(chunk.clients):
            module = copy.deepcopy(net.base.module).double().eval().requires_grad_(True)
            weights, head = net.parts(rows.values["w"][row, 0])
            norms = {
                k.removeprefix("base."): (rows.values[k][row, 0] if k in rows.values else rows.shared[k]) for k in names
            }
            module.load_state_dict({**weights, **norms}, strict=False)
            last = head.clone().requires_grad_(True)
            total = torch.zeros(net.d, dtype=torch.float64)
            for x, y in zip(*fed.examples(fed.train[j]), strict=True):
                output = net.head(last, module(x[None])[None])[0]
                parts = torch.autograd.grad(cross_entropy(output, y[None]), [*module.parameters(), last])
                total += torch.cat([part.flatten() for part in parts]).square()
            torch.testing.assert_close(mean_squares[row], total / len(fed.train[j]), rtol=1e-9, atol=1e-12)

"""One vector of weights, and FedProx."""

from __future__ import annotations

import pytest
import torch
from support.baselines import WHOLE, Quadratics, fitted, linear, rows_of, slope_at
from support.federations import blobs, pictures
from support.methods import order_of

from hierfl import Federation, UserError
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import (
    FedAvg,
    FedProx,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.layers.batch_norm import Norms
from hierfl.nn.networks.build import architecture
from hierfl.ppl.restrict import Restrict


@pytest.mark.parametrize("spec", ["mlp:5,4", "cnn:2,3:6", "linear", "bncnn:2:5"])
def test_a_network_is_a_function_of_one_vector(spec: str) -> None:
    fed = blobs([6, 4], features=16) if spec.startswith(("mlp", "lin")) else pictures()
    net = architecture(spec, fed)
    start = InitialWeights.for_network(net, 0)
    base = {k: v.double() for k, v in start.base.items()}
    x = fed.batch([0, 1]).x
    apart = net.head(start.head, net.base.apply(net.base.parameters_from(base), x))
    vector = net.vector(base, start.head)
    assert vector.shape == (net.d,)
    method = FedProx(net)
    with Restrict({**base, "w": vector}):
        together = net(vector, x)
        rows = net(torch.stack([vector, 2 * vector]).unsqueeze(1), x)
        draws = net(torch.stack([vector, 2 * vector])[:, None, None].expand(2, 2, 1, -1), x)
    assert torch.allclose(draws[0], apart, rtol=1e-12)
    assert torch.allclose(draws[1, 1], rows[1], rtol=1e-12)
    if "bn" in spec:  # by running statistics; by a batch's, draws of one client would be one batch
        with (
            Restrict({**base, "w": vector}, norms=Norms(None, frozenset())),
            pytest.raises(UserError, match="batch norm"),
        ):
            net(vector.expand(3, 2, 1, -1), x)
    assert torch.allclose(together, apart, rtol=1e-12)
    assert torch.allclose(rows[0], apart[0], rtol=1e-12)
    assert method.shared(start).keys() == {"w", *net.statistics(start.base)}


def test_a_prior_without_strength_leaves_fedavg(small: Federation, net: Architecture) -> None:
    """mu -> 0: FedProx, written on one vector, takes FedAvg's minibatch steps, layer by layer."""
    common = {"epochs": 2, "lr": 0.05, "batch": 4, "momentum": 0.9}
    prox, avg = fitted(FedProx(net, mu=1e-12, **common), small, 3), fitted(FedAvg(net, **common), small, 3)
    expected = net.vector(avg.shared, avg.shared["w"])
    assert torch.allclose(prox.shared["w"], expected, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(prox.shared["w"], FedProx(net).begin(InitialWeights.for_network(net, 0)), atol=1e-3)


def test_fedprox_is_coordinate_ascent_on_the_hierarchical_model(lines: Federation) -> None:
    """Exact inner solves and n_j weights: w_j and w are set in turn to the maxima of log p(D, w_1..w_J | w)."""
    mu, quadratics = 2.0, Quadratics(lines)
    method = FedProx(linear(lines), mu=mu, epochs=250, lr=0.03, batch=WHOLE, momentum=0.8)
    w = method.begin(InitialWeights.for_network(method.network, 0)).double()
    for _ in range(3):
        own = quadratics.around(w, mu * quadratics.n)
        w = (quadratics.n[:, None] * own).sum(0) / quadratics.n.sum()
    run = fitted(method, lines, 3)
    assert torch.allclose(run.shared["w"], w, rtol=1e-9, atol=1e-10)
    # ... and the maximum in w given the w_j is where the joint's gradient in w vanishes
    chunk = rows_of(method, lines)
    precision = mu * chunk.n[:, None]
    own = own[chunk.clients]
    assert torch.allclose((precision * (own - w)).sum(0), torch.zeros_like(w), atol=1e-10)


def test_fedproxs_steps_are_a_plain_loops(small: Federation, net: Architecture) -> None:
    """v <- v - eta m, m <- 0.9 m + grad f(v) + mu (v - w): the proximal term enters the momentum once a step."""
    method = FedProx(net, mu=0.7, epochs=2, lr=0.05, batch=4)
    chunk = rows_of(method, small)
    trained = method.local()[0].run(chunk, 0).values["w"]
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        v = w = chunk.shared["w"]
        moment = torch.zeros_like(v)
        for epoch in range(2):
            for batch in order_of(chunk, row, 0, epoch).split(4):
                slope = slope_at(net, v, x, y, batch)
                moment = 0.9 * moment + slope + 0.7 * (v - w)
                v = v - 0.05 * moment
        assert torch.allclose(trained[row, 0], v, rtol=1e-9, atol=1e-12)

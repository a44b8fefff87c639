"""Dropout, and networks of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hierfl import Federation, UserError
from hierfl.inference import fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator


def test_dropout_elsewhere_is_refused() -> None:
    with torch.random.fork_rng():
        modules = [
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.MaxPool2d(2), nn.Flatten()),
            nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.5))),
            nn.Sequential(nn.Linear(4, 4), nn.Dropout1d(0.5)),
        ]
    for module in modules:
        with pytest.raises(UserError, match="has dropout whose masks"):
            Network(module)


def test_dropout_acts_where_the_network_is_trained_with_masks_keyed_by_client(small: Federation) -> None:
    net = architecture("mlp:40,dropout=0.3", small)
    weights = {k.removeprefix("base."): v.double() for k, v in InitialWeights.for_network(net, 0).base.items()}
    x = small.batch([0]).x
    plain = net.base.apply(weights, x)
    normals = torch.randn((4000, *plain.shape[1:]), generator=generator("drop"), dtype=torch.float64)
    many = net.base.apply(weights, x.expand(4000, *x.shape[1:]), lambda name, at: normals)
    assert float((many == 0)[:, plain[0] > 0].double().mean()) == pytest.approx(0.3, abs=0.005)
    assert torch.allclose(many.mean(0), plain[0], atol=0.06 * float(plain.max()))
    single, seven, undropped = (
        fit(
            PFedVEM(architecture(spec, small), base_batch=5, head_epochs=1),
            small,
            rounds=2,
            chunk=chunk,
            dtype=torch.float64,
            progress=False,
        )
        for spec, chunk in (("mlp:40,dropout=0.3", 1), ("mlp:40,dropout=0.3", 7), ("mlp:40", 7))
    )
    for name, value in single.shared.items():
        assert torch.allclose(value, seven.shared[name], rtol=1e-6, atol=1e-9), name
    assert not torch.allclose(seven.shared["base.1.weight"], undropped.shared["base.1.weight"])
    x = x[0, :3]
    assert torch.equal(seven.predict(x, client="place-00"), seven.predict(x, client="place-00"))
    for spec, words in (
        ("mlp:4,leaky=1", "leaky is a slope between 0 and 1"),
        ("linear,leaky=0.1", "leaky is for mlp, cnn, convnet, bncnn"),
        ("mlp:4,leaky=0.1,leaky=0.2", "leaky is said twice"),
        ("mlp:4,dropout=0.1,tanh=1", "unknown option of a network 'tanh=1'"),
    ):
        with pytest.raises(UserError, match=words):
            architecture(spec, small)
    both = architecture("mlp:4,leaky=0.2,dropout=0.5", small).base.module
    assert [type(layer).__name__ for layer in both] == ["Flatten", "Linear", "LeakyReLU", "Dropout"]
    assert both[2].negative_slope == 0.2
    for spec in ("mlp:4,dropout=1", "mlp:4,dropout=", "mlp:4,dropout=x", "linear,dropout=0.5"):
        with pytest.raises(UserError, match="dropout is"):
            architecture(spec, small)


def test_a_network_of_ones_own(small: Federation) -> None:
    with torch.random.fork_rng():
        module = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 3))
    net = Architecture(Network(module, weights="drawn"), LinearHead(3, 3))
    a, b = (fit(PFedVEM(net), small, rounds=2, chunk=c, dtype=torch.float64, progress=False) for c in (1, 7))
    for name, value in a.shared.items():
        assert torch.allclose(value, b.shared[name], rtol=1e-6, atol=1e-9)

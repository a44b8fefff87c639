"""Networks from torch modules of a user's own: weights that they came with, constants, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.federations import blobs
from torch import nn

from hierfl import UserError
from hierfl.inference import fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.run.network_check import check_network
from hierfl.models import MOON, FedAvg, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.nn.batch_norm_free import without_batch_norm
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator


@pytest.fixture(autouse=True)
def seeded() -> object:
    """torch makes a module's own weights by its global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


class Shifted(nn.Module):
    """A constant buffer, as positional encodings are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.arange(4.0))
        self.inner = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + self.shift)


class Counting(Shifted):
    """A buffer that is another one after each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shift = self.shift + 1
        return super().forward(x)


class InPlace(Shifted):
    """A buffer that is written to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shift.add_(1)
        return super().forward(x)


class Functional(Shifted):
    """Dropout that is no layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def own(module: nn.Module, features: int = 5) -> Architecture:
    return Architecture(Network(module), LinearHead(features, 3))


def test_a_fit_begins_with_the_weights_that_a_module_came_with() -> None:
    fed, module = blobs([9, 8]), nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    with torch.no_grad():
        module[0].weight.fill_(7.0)
    for dtype in (torch.float32, torch.float64):
        run = fit(PFedVEM(own(module.to(dtype))), fed, rounds=0, progress=False)
        assert (run.shared["base.0.weight"] == 7).all()
    first, second = (Network(module, weights="drawn").init(generator("a")) for _ in range(2))
    assert not (first["base.0.weight"] == 7).any()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert architecture("mlp:5", fed).base.given == frozenset()
    with pytest.raises(UserError, match="unknown value of weights 'keep'; known: given, drawn"):
        Network(module, weights="keep")  # type: ignore[arg-type]


def test_a_projection_head_is_drawn_above_given_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    starts = [InitialWeights.for_network(MOON(own(module), projection=3).network, 0).base for _ in range(2)]
    assert torch.equal(starts[0]["base.0.weight"], module[0].weight)
    assert all(torch.equal(starts[0][k], starts[1][k]) for k in starts[0])  # the others are of the seed
    assert {"base.2.weight", "base.4.weight"} <= starts[0].keys()


def test_frozen_parameters_and_buffers_are_constants() -> None:
    fed, module = blobs([9, 8]), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Shifted())
    module[0].requires_grad_(False)
    net = own(module)
    assert net.base.names == ("base.2.inner.weight", "base.2.inner.bias")
    weights = net.base.parameters_from(net.base.init(generator("a")))
    x = torch.ones(2, 3, 4)
    assert torch.allclose(net.base.apply(weights, x), module(x))
    each = {k: v.expand(2, 1, *v.shape) for k, v in weights.items()}
    assert torch.allclose(net.base.apply(each, x), module(x), atol=1e-6)
    doubled = {k: v.double() for k, v in weights.items()}
    assert net.base.apply(doubled, x.double()).dtype == torch.float64
    run = fit(FedAvg(net), fed, rounds=1, progress=False)
    assert not any("base.0" in name for name in run.shared)


def test_other_weights_are_another_fit(tmp_path) -> None:
    fed, module = blobs([9, 8]), nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    how = {"folder": str(tmp_path / "run"), "progress": False}
    run = fit(PFedVEM(own(module)), fed, rounds=1, **how)
    on = fit(PFedVEM(own(module)), fed, rounds=2, resume=True, **how)
    assert on.rounds == 2
    assert run.rounds == 1
    changed = copy.deepcopy(module)
    changed[0].weight.data += 1
    drawn = Architecture(Network(module, weights="drawn"), LinearHead(5, 3))
    for other in (own(changed), drawn):
        with pytest.raises(UserError, match=r"other weights of the network: .* weights='drawn'"):
            fit(PFedVEM(other), fed, rounds=3, resume=True, **how)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Linear, "is made of a torch module, such as .*, not Linear"),
        (lambda: nn.LazyLinear(3), "'weight' of network 'base' has no shape yet: call the module once"),
        (lambda: nn.Linear(2, 2, device="meta"), "on the device 'meta'"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "weights are real"),
        (lambda: nn.Sequential(nn.BatchNorm1d(3, momentum=None)), r"BatchNorm1d .*without_batch_norm.*FedBN"),
        (lambda: nn.InstanceNorm1d(3, track_running_stats=True), "InstanceNorm1d .*track_running_stats=False"),
        (lambda: nn.TransformerEncoderLayer(4, 1, 8, batch_first=True), "MultiheadAttention .*dropout=0.0"),
        (lambda: nn.LSTM(3, 4, 2, dropout=0.1), "dropout inside LSTM"),
        (lambda: nn.Sequential(nn.Sequential(nn.Dropout(0.5))), "keyed by client: p=0 leaves it out"),
    ],
)  # fmt: skip
def test_modules_that_are_no_network(make, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Network(make())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Functional, "draws random numbers where it is called"),
        (Counting, "changes its buffer 'shift'"),
        (InPlace, "changes its buffer 'shift'"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)), "changes its buffer 'param"),
    ],
)
def test_modules_that_are_no_function_are_refused_before_the_first_round(make, words: str) -> None:
    net, before = own(make()), torch.get_rng_state()
    with pytest.raises(UserError, match=words):
        fit(PFedVEM(net), blobs([9, 8]), rounds=1, progress=False)
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_of_probability_zero_is_none() -> None:
    layer = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True)
    net = Network(nn.Sequential(nn.Unflatten(1, (1, 4)), layer, nn.Flatten(), nn.Dropout1d(0.0)))
    assert not net.drops
    run = fit(PFedVEM(Architecture(net, LinearHead(4, 3))), blobs([9, 8]), rounds=1, progress=False)
    assert run.rounds == 1


def test_pretrained_batch_norm_becomes_what_it_computed() -> None:
    flat = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6))
    module = nn.Sequential(nn.Conv2d(1, 8, 2), nn.BatchNorm2d(8), flat)
    for _ in range(4):
        module(3 * torch.randn(9, 1, 3, 3) + 2)
    module.eval()
    x = torch.randn(5, 1, 3, 3)
    affine, group = (without_batch_norm(module, instead) for instead in ("affine", "group"))
    assert torch.allclose(affine(x), module(x), atol=1e-5)
    assert float(group(x).detach().std(1).min()) > 0.5  # a group of one feature would give the bias alone
    for made in (affine, group):
        net = Network(made)
        assert torch.allclose(net.apply(net.parameters_from(net.init(generator("a"))), x[None])[0], made(x), atol=1e-5)
    frozen = without_batch_norm(module.requires_grad_(False), "affine")
    assert not any(p.requires_grad for p in frozen.parameters())
    with pytest.raises(UserError, match="'group' does"):
        without_batch_norm(nn.BatchNorm1d(3, track_running_stats=False), "affine")


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda: own(nn.Linear(3, 5)), r"network 'base' cannot take float32 inputs of shape \(n, 4\): "),
        (lambda: own(nn.Linear(4, 6)), r"gives \(6,\) for one input, and the head takes \(5,\).*LinearHead\(6, 3\)"),
        (lambda: own(nn.Unflatten(1, (2, 2)), 4), r"gives \(2, 2\) .* end it with nn.Flatten\(\)"),
        (lambda: own(nn.Embedding(9, 5)), r"nn.Embedding reads ids.*inputs='ids'"),
        (lambda: Architecture(Network(nn.Linear(4, 5)), LinearHead(5, 2)), r"2 outputs, and the federation 3 classes"),
        (lambda: Architecture(Network(nn.Linear(4, 5)), LinearHead(5, 3), 1.0), "the federation labels"),
    ],
)  # fmt: skip
def test_a_network_that_does_not_fit_the_data_is_refused(net, words: str) -> None:
    with pytest.raises(UserError, match=words):
        fit(PFedVEM(net()), blobs([9, 8]), rounds=1, progress=False)


def test_a_network_with_latent_features_fits() -> None:
    from hierfl.models import PFedV

    fed = blobs([9, 8])
    net = architecture("mlp:6", fed, latent=True)
    check_network(PFedV(net), fed, fed.template(), InitialWeights.for_network(net, 0).base)


def test_what_is_no_architecture_is_refused() -> None:
    with pytest.raises(UserError, match=r"an architecture's base is Network\(module\), not Linear"):
        Architecture(nn.Linear(4, 5), LinearHead(5, 3))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"pfedvem is made with an architecture: .* not Linear"):
        PFedVEM(nn.Linear(4, 5))  # type: ignore[arg-type]
    assert np.isfinite(float(own(nn.Linear(4, 5)).d))

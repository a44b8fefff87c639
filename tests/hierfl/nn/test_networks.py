"""Networks with a client dimension against a loop; likelihoods against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.distributions import Categorical
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hierfl import Federation, UserError
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.layers.conv import client_convolution
from hierfl.nn.layers.linear import client_linear
from hierfl.nn.likelihoods import Softmax
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5), nn.Tanh())


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 5))


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2, padding=1), nn.Conv2d(4, 5, 2, bias=False),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def leaky() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.LeakyReLU(0.2), nn.MaxPool2d(2, 2, padding=1), nn.Flatten(), nn.Linear(16, 5)
    )


class Own(nn.Module):
    """No chain: what is made of it is torch.func's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(3, 4, 2), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x).sin().flatten(1))


def linear_first() -> nn.Module:
    """A linear layer along the pictures' width, then a convolution."""
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 5))


NETWORKS = {"linear first": linear_first, "mlp": mlp, "cnn": cnn, "pooled": pooled, "leaky": leaky, "own": Own}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def network(request: pytest.FixtureRequest) -> Network:
    with torch.random.fork_rng():
        return Network(request.param(), weights="drawn")


def perturbed(network: Network, rows: int) -> dict[str, torch.Tensor]:
    rng = generator("weights")
    start = network.init(rng)
    return {k: (v + 0.1 * torch.randn((rows, 1, *v.shape), generator=rng)).double() for k, v in start.items()}


def test_one_set_of_weights_per_client_equals_a_loop_over_clients(network: Network) -> None:
    x = torch.randn((4, 6, 3, 2, 2), generator=generator("x"), dtype=torch.float64)
    values = perturbed(network, 4)
    weights = network.parameters_from(values)
    together = network.apply(weights, x)
    assert together.shape == (4, 6, 5)
    for j in range(4):
        module = network.module.double()
        alone = torch.func.functional_call(module, {k: w[j, 0] for k, w in weights.items()}, (x[j],))
        assert torch.allclose(together[j], alone, rtol=1e-12)


def test_shared_weights_equal_the_torch_module(network: Network) -> None:
    x = torch.randn((4, 6, 3, 2, 2), generator=generator("x"), dtype=torch.float64)
    weights = {k: w[0, 0] for k, w in network.parameters_from(perturbed(network, 1)).items()}
    alone = torch.func.functional_call(network.module.double(), weights, (x.flatten(0, 1),))
    assert torch.allclose(network.apply(weights, x).flatten(0, 1), alone, rtol=1e-12)


def test_some_weights_shared_and_some_per_client(network: Network) -> None:
    x = torch.randn((4, 6, 3, 2, 2), generator=generator("x"), dtype=torch.float64)
    weights = network.parameters_from(perturbed(network, 4))
    for name in weights:
        mixed = {**weights, name: weights[name][0, 0].clone().requires_grad_()}
        full = {**weights, name: weights[name][:1].expand_as(weights[name]).clone().requires_grad_()}
        output, other = network.apply(mixed, x), network.apply(full, x)
        assert torch.allclose(output, other, rtol=1e-12)
        ours, theirs = (
            torch.autograd.grad(out.square().sum(), v[name])[0] for out, v in ((output, mixed), (other, full))
        )
        assert torch.allclose(ours, theirs.sum((0, 1)), rtol=1e-10)


def test_gradients_split_by_client(network: Network) -> None:
    x = torch.randn((3, 6, 3, 2, 2), generator=generator("x"), dtype=torch.float64)
    weights = {k: v.requires_grad_() for k, v in network.parameters_from(perturbed(network, 3)).items()}
    out = network.apply(weights, x)
    gradients = torch.autograd.grad(out[1].square().sum(), list(weights.values()))
    for g in gradients:
        assert g[1].abs().sum() > 0
        assert (g[0] == 0).all()
        assert (g[2] == 0).all()


def test_initial_weights_are_torchs_own_and_leave_the_generator_alone(network: Network) -> None:
    with torch.random.fork_rng():
        make = next(make for make in NETWORKS.values() if str(make()) == str(network.module))
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator("a"))))
        fresh = make()
    values = network.init(generator("a"))
    assert values.keys() == set(network.names)
    for name, value in network.parameters_from(values).items():
        assert torch.equal(value, dict(fresh.named_parameters())[name])
    again = network.init(generator("a"))
    assert all(torch.equal(values[k], again[k]) for k in values)


@pytest.mark.parametrize("shared", ["nothing", "weight", "bias"])
def test_a_grouped_convolution_equals_a_loop_over_clients(shared: str) -> None:
    # what a GPU runs; the loop over clients is what a CPU runs
    rng = generator("convolution")
    with torch.random.fork_rng():
        layer = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    x = torch.randn((3, 5, 4, 7, 7), generator=rng, dtype=torch.float64)
    weight = torch.randn((3, 1, 6, 2, 3, 3), generator=rng, dtype=torch.float64)
    bias = torch.randn((3, 1, 6), generator=rng, dtype=torch.float64)
    weight = weight[0, 0] if shared == "weight" else weight
    bias = bias[0, 0] if shared == "bias" else bias
    out = client_convolution(x, weight, bias, layer)
    for j in range(3):
        w, b = (weight if shared == "weight" else weight[j, 0]), (bias if shared == "bias" else bias[j, 0])
        alone = torch.nn.functional.conv2d(x[j], w, b, 2, 1, 1, 2)
        assert torch.allclose(out[j], alone, rtol=1e-12)


def test_a_subclass_of_a_known_layer_is_asked_itself() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    with torch.random.fork_rng():
        plain, doubled = (
            Network(nn.Sequential(nn.Linear(3, 2)), weights="drawn"),
            Network(nn.Sequential(Doubled(3, 2)), weights="drawn"),
        )
    weights = plain.parameters_from(plain.init(generator("a")))
    x = torch.ones(2, 4, 3)
    assert torch.allclose(doubled.apply(weights, x), 2 * plain.apply(weights, x))


@pytest.mark.parametrize(
    ("spec", "event", "features", "parameters"),
    [
        # pFedVEM's: Fashion-MNIST; CIFAR-10 (3-16-32 convolutions, 800-120-84); CIFAR-100 and SUN397
        ("mlp:100", (1, 28, 28), 100, 78_500),
        ("cnn:16,32:120,84", (3, 32, 32), 84, 1_216 + 12_832 + 96_120 + 10_164),
        ("convnet:32,64,128,256,100", (3, 32, 32), 100, 896 + 18_496 + 73_856 + 295_168 + 230_500),
        ("convnet:32,64,128,256,100", (3, 64, 64), 100, 896 + 18_496 + 73_856 + 295_168 + 230_500),
        ("linear", (3, 4), 12, 0),
    ],
)
def test_networks_by_name(spec: str, event: tuple[int, ...], features: int, parameters: int) -> None:
    net = architecture(spec, image_federation(event))
    start = net.base.init(generator("start"))
    assert net.head.features == features
    assert sum(v.numel() for v in start.values()) == parameters
    assert net.base.apply(net.base.parameters_from(start), torch.zeros(2, 3, *event)).shape == (2, 3, features)


@pytest.mark.parametrize(
    ("spec", "event", "words"),
    [
        ("cnn:8", (3, 32, 32), "network cnn is written cnn:C,C,...:H,H,..., with whole numbers above zero; got cnn:8"),
        ("cnn:8:x", (3, 32, 32), "got cnn:8:x"),
        ("convnet:8,0", (3, 32, 32), "got convnet:8,0"),
        ("convnet:8", (12,), "needs images (channels, height, width), and an input is (12,)"),
        ("cnn:8,8:10", (3, 8, 8), "network cnn:8,8:10 does not fit inputs (3, 8, 8)"),
        ("lstm:8", (3, 8, 8), "unknown network 'lstm:8'; known: linear, mlp:H,H,..., projection:D, cnn:C,C"),
    ],
)
def test_a_network_that_cannot_be_is_refused(spec: str, event: tuple[int, ...], words: str) -> None:
    with pytest.raises(UserError) as refused:
        architecture(spec, image_federation(event))
    assert words in str(refused.value)


def image_federation(event: tuple[int, ...]) -> Federation:
    x = np.zeros((8, *event), dtype=np.float32)
    return Federation.from_arrays(x, np.arange(8) % 2, np.repeat(["a", "b"], 4), test=0)


@given(draws=st.integers(1, 4), rows=st.integers(1, 4), n=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_head_weight_comes_before_bias_whatever_leads(draws: int, rows: int, n: int) -> None:
    head = LinearHead(3, 2)
    w = torch.randn((draws, rows, 1, head.d), generator=generator("w"), dtype=torch.float64)
    z = torch.randn((rows, n, 3), generator=generator("z"), dtype=torch.float64)
    out = head(w, z)
    assert out.shape == (draws, rows, n, 2)
    for k in range(draws):
        assert torch.allclose(out[k], head(w[k], z))
        for j in range(rows):
            flat = w[k, j, 0]
            assert torch.allclose(out[k, j], z[j] @ flat[:6].view(2, 3).T + flat[6:])
            assert torch.allclose(head(flat, z)[j], out[k, j])


def test_a_drawn_heads_gradients_are_torchs() -> None:
    rng = generator("gradients")
    z, weight, bias = (
        torch.randn(shape, generator=rng, dtype=torch.float64, requires_grad=True)
        for shape in [(4, 6, 3), (5, 4, 1, 2, 3), (5, 4, 1, 2)]
    )
    weights = torch.randn((5, 4, 6, 2), generator=rng, dtype=torch.float64)
    mine = torch.autograd.grad((client_linear(z, weight, bias) * weights).sum(), [z, weight, bias])
    plain = z @ weight.squeeze(2).mT + bias
    assert torch.allclose(client_linear(z, weight, bias), plain)
    for got, want in zip(mine, torch.autograd.grad((plain * weights).sum(), [z, weight, bias]), strict=True):
        assert torch.allclose(got, want)
    shared = bias[0, 0, 0]
    assert torch.allclose(client_linear(z, weight, shared), z @ weight.squeeze(2).mT + shared)


def test_a_drawn_layer_on_top_of_a_drawn_layer() -> None:
    rng = generator("deep")
    x = torch.randn((5, 4, 6, 3), generator=rng, dtype=torch.float64)
    weight = torch.randn((5, 4, 1, 2, 3), generator=rng, dtype=torch.float64)
    bias = torch.randn((5, 4, 1, 2), generator=rng, dtype=torch.float64)
    out = client_linear(x, weight, bias)
    assert torch.allclose(out[2, 1], x[2, 1] @ weight[2, 1, 0].T + bias[2, 1, 0])


def test_softmax_is_categorical_with_one_fused_density() -> None:
    logits = torch.randn((5, 3, 4, 6), generator=generator("l"), dtype=torch.float64)
    y = torch.randint(6, (3, 4), generator=generator("y"))
    ours, torchs = Softmax(logits), Categorical(logits=logits)
    assert torch.allclose(ours.log_prob(y), torchs.log_prob(y), rtol=1e-12)
    other = Softmax(logits.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2))  # as a head with draws leaves them
    assert torch.allclose(other.log_prob(y), torchs.log_prob(y), rtol=1e-12)
    assert torch.allclose(other.log_probs, torchs.logits, rtol=1e-12)
    assert torch.allclose(ours.probs, torchs.probs)
    assert torch.allclose(ours.log_probs.exp().sum(-1), torch.ones(5, 3, 4, dtype=torch.float64))
    wide = Softmax(logits[0]).expand((5, 3, 4))
    assert wide.batch_shape == (5, 3, 4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = Softmax(torch.tensor([0.0, 1.0, 2.0])).sample((20000,))
    share = torch.bincount(draws, minlength=3) / 20000
    assert torch.allclose(share, torch.tensor([0.0, 1.0, 2.0]).softmax(0), atol=0.015)  # four standard errors


class Operations(TorchDispatchMode):
    """The names of what torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_a_clients_gradient_is_not_as_large_as_all_clients(padding_mode: str) -> None:
    """Weights are taken apart at once, in chains and elsewhere: a row taken by itself has a gradient of them all."""
    with torch.random.fork_rng():
        layer = nn.Conv2d(1, 2, 3, padding=1, padding_mode=padding_mode)
    network = Network(nn.Sequential(layer, nn.ReLU(), nn.Flatten()), weights="drawn")
    assert (network.chain is None) == (padding_mode == "circular")
    weights = {k: torch.ones(4, 1, *shape, requires_grad=True) for k, shape in network.shapes.items()}
    output = network.apply(weights, torch.ones(4, 5, 1, 4, 4)).sum()
    with Operations() as seen:
        torch.autograd.grad(output, [*weights.values()])
    assert any("convolution_backward" in name for name in seen.names)
    assert not any("select_backward" in name for name in seen.names)

"""Batch norm under a client dimension: each client as torch's own layer would have it, padding left out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hierfl import Federation, UserError
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.minibatches import plan
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import FedAvg, FedPop
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.layers.batch_norm import Norms, is_statistic
from hierfl.rng import generator


@pytest.fixture(autouse=True)
def _modules_of_their_own() -> Iterator[None]:
    """Torch draws a module's first weights from the global generator."""
    with torch.random.fork_rng(devices=[]):
        yield


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU(),
    )  # fmt: skip


class Residual(nn.Module):
    """No chain: its input is added to what a block makes of it, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU())
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6, momentum=0.3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.block(x))


def weights_of(network: Network, rows: int) -> dict[str, Tensor]:
    """A set of weights and statistics for each client, all different."""
    made = {}
    for name, value in network.init(generator("weights")).items():
        noise = torch.randn((rows, 1, *value.shape), generator=generator(name), dtype=torch.float64)
        value = value.double() + 0.3 * noise
        made[name.removeprefix("base.")] = value.abs() + 0.1 if name.endswith("running_var") else value
    return made


def torchs_own(network: Network, weights: dict[str, Tensor], row: int) -> nn.Module:
    module = copy.deepcopy(network.module).double().requires_grad_(True)
    module.load_state_dict({k: v[row, 0] for k, v in weights.items()}, strict=False)
    return module


SIZES = (5, 3, 2)


def inputs() -> tuple[Tensor, Tensor]:
    x = torch.randn((3, 5, 2, 4, 4), generator=generator("x"), dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor(SIZES)[:, None]
    return torch.where(mask[..., None, None, None], x, 1e3), mask  # padding would show


@pytest.mark.parametrize("kind", ["looped", "chain", "residual"])
def test_training_is_torchs_own_for_every_client(kind: str) -> None:
    network = Network(Residual() if kind == "residual" else convolutions(), weights="drawn")
    if kind == "chain":  # as on other devices than a CPU
        network._loop = 0
    (x, mask), weights = inputs(), weights_of(network, 3)
    leaves = {k: v if is_statistic(k) else v.requires_grad_() for k, v in weights.items()}
    norms = Norms(mask, frozenset(network.names))
    y = network.apply(leaves, x, norms=norms)
    (torch.where(mask[..., None], y, 0.0).square().sum()).backward()
    for j, n in enumerate(SIZES):
        module = torchs_own(network, weights, j).train()
        theirs = module(x[j, :n])
        assert torch.allclose(y[j, :n], theirs, atol=1e-10)
        theirs.square().sum().backward()
        for name, value in module.named_parameters():
            assert torch.allclose(leaves[name].grad[j, 0], value.grad, atol=1e-8), name
        for name, value in module.named_buffers():
            if is_statistic(name):
                assert torch.allclose(norms.running[f"base.{name}"][j], value, atol=1e-10), name


@pytest.mark.parametrize("kind", ["looped", "chain", "residual"])
def test_predictions_go_by_running_statistics(kind: str) -> None:
    network = Network(Residual() if kind == "residual" else convolutions(), weights="drawn")
    network._loop = 0 if kind == "chain" else network._loop
    (x, _), weights = inputs(), weights_of(network, 3)
    for norms in (None, Norms(None, frozenset({"w"}))):  # nothing is trained, or something else
        y = network.apply(weights, x, norms=norms)
        for j in range(3):
            assert torch.allclose(y[j], torchs_own(network, weights, j).eval()(x[j]), atol=1e-9)
    shared = {k: v[0, 0] for k, v in weights.items()}
    theirs = torchs_own(network, weights, 0).eval()
    assert torch.allclose(network.apply(shared, x)[1], theirs(x[1]), atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 2])
def test_gradients_are_torchs_own_whatever_the_layout(channels: int, n: int) -> None:
    """Pictures go through with channels last; torch's batch norm mistakes the strides of a view with one example."""
    module = convolutions()[:4]
    module[0] = nn.Conv2d(channels, 4, 3, padding=1)
    network = Network(nn.Sequential(*module), weights="drawn")
    weights = weights_of(network, 2)
    x = torch.randn((2, n, channels, 4, 4), generator=generator("x"), dtype=torch.float64)
    leaves = {k: v.requires_grad_(not is_statistic(k)) for k, v in weights.items()}
    y = network.apply(leaves, x, norms=Norms(None, frozenset(network.names)))
    upstream = torch.randn(y.shape, generator=generator("r"), dtype=torch.float64)
    (y * upstream).sum().backward()
    for row in range(2):
        own = torchs_own(network, {k: v.detach() for k, v in weights.items()}, row).train()
        theirs = own(x[row])
        assert torch.allclose(y[row], theirs, atol=1e-12)
        (theirs * upstream[row]).sum().backward()
        for name, p in own.named_parameters():
            assert torch.allclose(leaves[name].grad[row, 0], p.grad, rtol=1e-9, atol=1e-9), name


@pytest.mark.parametrize("masked", [True, False])
def test_shared_weights_still_know_whose_batch_it_is(masked: bool) -> None:
    network = Network(convolutions(), weights="drawn")
    (x, mask), weights = inputs(), weights_of(network, 1)
    shared, norms = {k: v[0, 0] for k, v in weights.items()}, Norms(mask if masked else None, frozenset(network.names))
    y = network.apply(shared, x, norms=norms)
    for j, n in enumerate(SIZES if masked else (5, 5, 5)):
        module = torchs_own(network, weights, 0).train()
        assert torch.allclose(y[j, :n], module(x[j, :n]), atol=1e-9)
        assert torch.allclose(norms.running["base.1.running_var"][j], module[1].running_var, atol=1e-9)


@pytest.mark.parametrize("masked", [True, False])
def test_one_number_has_no_spread(masked: bool) -> None:
    """A last batch of one example: torch refuses it; here that client goes by its running statistics, which stay."""
    network = Network(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), weights="drawn")
    weights = weights_of(network, 2)
    x = torch.randn((2, 3 if masked else 1, 3), generator=generator("x"), dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, False, False]]) if masked else None
    norms = Norms(mask, frozenset(network.names))
    y = network.apply(weights, x, norms=norms)
    assert torch.allclose(y[1, :1], torchs_own(network, weights, 1).eval()(x[1, :1]), atol=1e-10)
    assert torch.equal(norms.running["base.1.running_mean"][1], weights["1.running_mean"][1, 0])
    if masked:
        assert torch.allclose(y[0], torchs_own(network, weights, 0).train()(x[0]), atol=1e-10)


@pytest.mark.parametrize("picture", [[nn.ReLU()], [nn.MaxPool2d(2)], [nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)]])
def test_draws_are_more_examples_of_the_same_client(picture: list[nn.Module]) -> None:
    left = 2 if isinstance(picture[0], nn.MaxPool2d) else 8
    network = Network(
        nn.Sequential(nn.Unflatten(1, (2, 2, 2)), *picture, nn.Flatten(), nn.Linear(left, 3), nn.BatchNorm1d(3)),
        event=1,
        weights="drawn",
    )
    weights = weights_of(network, 2)
    z = torch.randn((4, 2, 5, 8), generator=generator("z"), dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    norms = Norms(mask, frozenset(network.names))
    y = network.apply(weights, z, norms=norms)
    assert y.shape == (4, 2, 5, 3)
    theirs = torchs_own(network, weights, 1).train()(z[:, 1, :3].flatten(0, 1)).unflatten(0, (4, 3))
    assert torch.allclose(y[:, 1, :3], theirs, atol=1e-10)
    assert torch.allclose(network.apply(weights, z)[2], network.apply(weights, z[2]), atol=1e-12)


def federation(sizes: tuple[int, ...] = (23, 12), seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(sizes), 2, 4, 4))
    y = (x[:, 0].mean((1, 2)) > 0).astype(int) + (x[:, 1].mean((1, 2)) > 0)
    who = np.repeat([f"c{j}" for j in range(len(sizes))], sizes)
    return Federation.from_arrays(x, y, who, test=0.0)


@pytest.mark.parametrize("made", [convolutions, Residual])
def test_a_round_is_torchs_own_training(made: Callable[[], nn.Module]) -> None:
    """FedAvg with batch norm, weights and statistics: minibatches of five with a short last one, two clients."""
    fed = federation()
    network = Architecture(Network(made(), weights="drawn"), LinearHead(6, 3))
    method = FedAvg(network, epochs=2, lr=0.1, batch=5, momentum=0.9, init_scale=0.5)
    run = fit(method, fed, rounds=1, chunk=2, dtype=torch.float64, progress=False, seed=4)
    start = InitialWeights.for_network(network, 4)
    totals: dict[str, Tensor] = {}
    for j, n in enumerate(fed.sizes()):
        module = nn.Sequential(copy.deepcopy(network.base.module), nn.Linear(6, 3)).double().requires_grad_(True)
        module[0].load_state_dict({k.removeprefix("base."): v for k, v in start.base.items()}, strict=False)
        w = 0.5 * start.head
        module[1].load_state_dict({"weight": w[:18].view(3, 6), "bias": w[18:]})
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        local = ClientChunk(method, fed.to(dtype=torch.float64), [j], 1, 4, {}, {})
        for step in plan(local, 0, 5, 2).for_row(0):
            index = fed.train[j][step[step >= 0]]
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(fed.x[index].double()), fed.y[index]).backward()
            optimizer.step()
        for name, value in module.state_dict().items():
            if not name.endswith("tracked"):
                totals[name] = totals.get(name, 0) + n / sum(fed.sizes()) * value
    for name, value in totals.items():
        if name.startswith("0."):
            assert torch.allclose(run.shared[f"base.{name[2:]}"], value, atol=1e-9), name
    head = torch.cat([totals["1.weight"].flatten(), totals["1.bias"]])
    assert torch.allclose(run.shared["w"], head, atol=1e-9)


def test_gradients_know_nothing_of_statistics() -> None:
    network = Architecture(Network(convolutions(), weights="drawn"), LinearHead(6, 3))
    with pytest.raises(UserError, match="running statistics have none"):
        fit(FedPop(network), federation(), rounds=1, progress=False)
    run = fit(FedPop(network, inner_phi_steps=1, final_steps=0), federation(), rounds=2, progress=False)
    assert not torch.equal(run.shared["base.1.running_var"], torch.ones(4))


class Shared(nn.Module):
    """One batch norm, so many times."""

    def __init__(self, places: int, calls: int = 1) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(2)
        self.norms, self.calls = nn.ModuleList([norm] * places), calls

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            x = self.norms[0](x)
        return x


def test_a_client_without_an_example_in_a_batch_learns_nothing_of_it() -> None:
    network = Network(Residual(), weights="drawn")
    (x, mask), weights = inputs(), weights_of(network, 3)
    mask[1] = False
    norms = Norms(mask, frozenset(network.names))
    assert network.apply(weights, x, norms=norms).shape == (3, 5, 6)
    for name in ("block.1.running_mean", "last.2.running_var"):
        assert torch.equal(norms.running[f"base.{name}"][1], weights[name][1, 0])
        assert not torch.equal(norms.running[f"base.{name}"][2], weights[name][2, 0])


@pytest.mark.parametrize("calls", [0, 2])
def test_batch_norm_is_called_once(calls: int) -> None:
    network = Network(Shared(1, calls))
    norms = Norms(None, frozenset(network.names))
    with pytest.raises(UserError, match=rf"calls its batch norm 'norms.0' {calls} times a pass"):
        network.apply(weights_of(network, 2), torch.randn(2, 5, 2, dtype=torch.float64), norms=norms)


def test_buffers_that_cannot_be_kept() -> None:
    constant = nn.BatchNorm1d(2).requires_grad_(False)
    for module in (
        Shared(2),
        nn.Sequential(nn.Sequential(constant, nn.Linear(2, 2))),
        nn.Sequential(nn.BatchNorm1d(2, momentum=None)),
        nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True)),
    ):
        with pytest.raises(UserError, match="buffers"):
            Network(module)

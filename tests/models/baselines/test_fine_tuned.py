"""Per-FedAvg, and fits in the end."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.baselines import WHOLE, fitted, rows_of, slope_at
from support.methods import order_of
from torch import Tensor, nn
from torch.func import grad

from hierfl import Federation, Method, UserError
from hierfl.inference.local.gradient_transforms import MetaGradient
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import (
    FedAvg,
    FedAvgFT,
    FedEP,
    FedPA,
    PerFedAvg,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead


@pytest.mark.parametrize("method", [FedPA, FedEP])
def test_a_new_client_learns_where_clients_fit_something(
    method: type[Method], small: Federation, net: Architecture
) -> None:
    """And not where they do not: what it brings would be ignored."""
    x, y = small.examples(small.train[0])
    with pytest.raises(UserError, match="nothing that a new client could learn"):
        fitted(method(net), small, 1).predict_new_client(x, given=(x, y))
    run = fitted(method(net, ft_epochs=2), small, 1)
    assert (run.predict_new_client(x, given=(x, y)) - run.predict_new_client(x)).abs().max() > 1e-3


def test_per_fedavgs_direction_is_the_meta_gradient(small: Federation) -> None:
    """(I - a H'') g'(w - a g(w)) with three minibatches; the finite difference is exact to its square (no ReLUs)."""
    with torch.random.fork_rng():
        net = Architecture(
            Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh()), weights="drawn"), LinearHead(5, 3)
        )
    generator = torch.Generator().manual_seed(0)
    w = net.vector(InitialWeights.for_network(net, 0).base, InitialWeights.for_network(net, 0).head).double()
    w = w + 0.1 * torch.randn(len(w), generator=generator, dtype=torch.float64)
    x, y = small.examples(small.train[0])
    three, a = torch.arange(21).split(7), 0.3
    v = slope_at(net, w - a * slope_at(net, w, x, y, three[0]), x, y, three[1])
    exact = v - a * grad(lambda u: slope_at(net, u, x, y, three[2]) @ v)(w)
    errors = []
    for difference in (2e-3, 1e-3):
        direction = MetaGradient(a, difference)
        estimate = direction(lambda at, k: {"w": slope_at(net, at["w"], x, y, three[k])}, {"w": w}, {})["w"]
        errors.append(float((estimate - exact).abs().max()))
    assert errors[0] < 1e-3
    assert 3 < errors[0] / errors[1] < 5
    assert (exact - v).abs().max() > 1e-2  # the first-order method is another one


def meta_gradient(w: Tensor, slopes_of: list, a: float, d: float) -> Tensor:
    """Per-FedAvg's, HF, from three minibatches' gradients."""
    v = slopes_of[1](w - a * slopes_of[0](w))
    return v - a * (slopes_of[2](w + d * v) - slopes_of[2](w - d * v)) / (2 * d)


def test_per_fedavg_takes_that_direction_with_the_clients_own_minibatches(small: Federation, net: Architecture) -> None:
    method = PerFedAvg(net, steps=2, alpha=0.2, lr=0.1, batch=4, difference=1e-3)
    chunk = rows_of(method, small)
    trained = method.local()[0].run(chunk, 0).values["w"]
    for row, j in enumerate(chunk.clients):
        x, y = small.examples(small.train[j])
        w, epochs = chunk.shared["w"], range(6)
        batches = [b for e in epochs for b in order_of(chunk, row, 0, e).split(4)]
        for number in range(2):
            three = batches[3 * number : 3 * number + 3]
            slopes_of = [partial(slope_at, net, x=x, y=y, batch=b) for b in three]
            w = w - 0.1 * meta_gradient(w, slopes_of, 0.2, 1e-3)
        assert torch.allclose(trained[row, 0], w, rtol=1e-7, atol=1e-9)
    run = fitted(method, small, 1)
    assert torch.allclose(run.shared["w"], trained.mean((0, 1)), rtol=1e-9)  # a plain mean


def test_per_fedavgs_fit_in_the_end_counts_steps_or_epochs(small: Federation, net: Architecture) -> None:
    """One step, as in the paper, or an epoch: on all data at once they are the same."""
    offsets = {}
    for settings in ({"ft_steps": 1}, {"ft_epochs": 1}, {"ft_steps": 3}, {"ft_epochs": 3}):
        run = fitted(PerFedAvg(net, batch=WHOLE, alpha=0.1, **settings), small, 1)
        offsets[str(settings)] = run.personal["offset"]
    step, epoch, steps, epochs = offsets.values()
    torch.testing.assert_close(step, epoch)
    torch.testing.assert_close(steps, epochs)
    assert not torch.allclose(step, steps)
    with pytest.raises(UserError, match="ft_epochs=3 changes nothing with ft_steps=1"):
        PerFedAvg(net, ft_steps=1, ft_epochs=3)


@pytest.mark.parametrize("scope", ["head", "all"])
def test_a_fit_in_the_end_starts_from_w_and_is_never_sent(scope: str, small: Federation, net: Architecture) -> None:
    common = {"epochs": 2, "lr": 0.05, "batch": 4}
    tuned = fitted(FedAvgFT(net, scope=scope, ft_epochs=3, ft_lr=0.05, **common), small, 3)
    avg = fitted(FedAvg(net, **common), small, 3)
    w = net.vector(avg.shared, avg.shared["w"])
    assert torch.allclose(tuned.shared["w"], w, rtol=1e-8, atol=1e-10)
    offset = tuned.personal["offset"]
    assert offset.shape == (7, net.head.d if scope == "head" else net.d)
    assert (offset.abs().sum(1) > 1e-3).all()
    metrics = tuned.metrics
    last = metrics[metrics["split"] == "test"].iloc[-1]
    assert last["pm_nll"] != last["gm_nll"]
    nothing = fitted(FedAvgFT(net, scope=scope, ft_epochs=0, **common), small, 1)
    assert (nothing.personal["offset"] == 0).all()

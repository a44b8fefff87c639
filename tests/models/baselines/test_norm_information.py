"""Networks with batch norm under a posterior of all weights: rounds by torch's own modules, draws, informations."""

from __future__ import annotations

import copy

import pytest
import torch
from support.baselines import WHOLE, fitted
from support.federations import pictures
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hierfl.arviz_data import group_names
from hierfl.inference import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import FOLA, FedEP
from hierfl.nn import functional
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.networks.build import architecture


class Whole(nn.Module):
    """A network and its head as a torch module."""

    def __init__(self, net: Architecture, w: Tensor, statistics: dict[str, Tensor]) -> None:
        super().__init__()
        self.base = copy.deepcopy(net.base.module).double().requires_grad_(True)
        weights, head = net.parts(w)
        self.base.load_state_dict({**weights, **statistics}, strict=False)
        rows, wide = net.head.rows, net.head.features
        self.last = nn.utils.skip_init(nn.Linear, wide, rows, dtype=torch.float64)
        self.last.load_state_dict({"weight": head[: rows * wide].view(rows, wide), "bias": head[rows * wide :]})

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.base(x))

    @property
    def vector(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters()])

    def slope(self, x: Tensor, y: Tensor) -> Tensor:
        parts = torch.autograd.grad(cross_entropy(self(x), y), [*self.parameters()])
        return torch.cat([part.flatten() for part in parts])

    def statistics(self) -> dict[str, Tensor]:
        return {k: v for k, v in self.base.state_dict().items() if "running" in k}


def test_a_round_of_fola_is_torchs_own_training() -> None:
    """Steps by the batch, whose running statistics the information goes by; both are then averaged in their ways."""
    fed = pictures()
    net = architecture("bncnn:2,3:5", fed)
    method = FOLA(net, epochs=3, lr=0.1, batch=WHOLE, momentum=0.0, c=0.7, clip=1e9, epsilon=1e-2)
    begun = {k: v.double() for k, v in method.shared(InitialWeights.for_network(net, 0)).items()}
    w, precision = begun["w.mean"], begun["w.precision"]
    norms = {k.removeprefix("base."): v for k, v in begun.items() if k.startswith("base.")}
    top, bottom, examples, averaged = torch.zeros_like(w), torch.zeros_like(w), 0, dict.fromkeys(norms, 0.0)
    for index in fed.train:
        x, y = fed.examples(index)
        module = Whole(net, w, norms).train()
        for _ in range(3):
            slope = module.slope(x, y) + 0.7 * precision * (module.vector - w)
            nn.utils.vector_to_parameters(module.vector - 0.1 * slope, module.parameters())
        module.eval()
        squares = [module.slope(x[i : i + 1], y[i : i + 1]).square() for i in range(len(y))]
        own = precision + torch.stack(squares).mean(0)
        top, bottom = top + len(y) * own * module.vector, bottom + len(y) * own
        averaged = {k: averaged[k] + len(y) * v for k, v in module.statistics().items()}
        examples += len(y)
    run = fitted(method, fed, 1)
    torch.testing.assert_close(run.shared["w.mean"], top / bottom, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(run.shared["w.precision"], bottom / examples, rtol=1e-8, atol=1e-10)
    for key, total in averaged.items():
        torch.testing.assert_close(run.shared[f"base.{key}"], total / examples, rtol=1e-8, atol=1e-10)
        assert (run.shared[f"base.{key}"] - norms[key]).abs().max() > 1e-3


@pytest.mark.parametrize("method", [FOLA, FedEP])
@pytest.mark.parametrize("limit", [1, 10**9])
def test_draws_go_by_the_running_statistics(method: type[Method], limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw is the network in evaluation under those weights, all together or one after the other."""
    sizes, plain = [], Network._together

    def together(network: Network, *given: object) -> Tensor:
        sizes.append(given[-1])
        return plain(network, *given)

    monkeypatch.setattr(functional, "MAX_NUMBERS_AT_ONCE", limit)
    monkeypatch.setattr(Network, "_together", together)
    fed = pictures()
    net = architecture("bncnn:2,3:5", fed)
    fitting = method(net, epochs=1)
    run = fitted(fitting, fed, 2)
    x, client = fed.examples(fed.train[1])[0], fed.ids[1]
    norms = {k.removeprefix("base."): v for k, v in run.shared.items() if "running" in k}
    (several,) = fitting.shared_draws(run.shared, 5).values()
    drawn = several.flatten(0, 2)
    sizes.clear()
    expected = torch.stack([Whole(net, w, norms).eval()(x).softmax(-1) for w in drawn]).mean(0)
    torch.testing.assert_close(run.predict(x, client, draws=5).double(), expected.detach(), rtol=1e-8, atol=1e-10)
    assert sizes == ([1] * 5 if limit == 1 else [5])
    assert group_names(run.posterior(draws=3))


def test_fedep_adds_information_by_running_statistics() -> None:
    fed = pictures()
    net = architecture("bncnn:2:5", fed)
    plain, more = (
        fitted(FedEP(net, epochs=1, precision=p), fed, 1).shared["precision"] for p in ("identity", "laplace")
    )
    assert (more > plain).double().mean() > 0.5

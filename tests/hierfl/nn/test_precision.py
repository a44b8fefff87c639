"""In bfloat16 networks multiply, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.federations import blobs
from torch import Tensor, nn

from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.inference.evaluation.personal import evaluate_personal
from hierfl.metrics.pooling import over_clients
from hierfl.models import PFedVEM
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.layers.batch_norm import Norms
from hierfl.nn.networks.build import architecture
from hierfl.nn.precision import precision
from hierfl.rng import generator

#: of a number in bfloat16
ROUNDING = 2.0**-8

#: smooth: rounding decides which of two pictures' numbers a ReLU or a maximum lets through.
NETWORKS = {
    "linear": nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.Tanh(), nn.Linear(7, 4)),
    "pictures": nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5)),
    "normed": nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5)
    ),
    "unknown": nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Softsign()),
}


def outputs(net: Network, own: bool, norms: Norms | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Of three clients with weights of their own, or shared ones, and its gradients."""
    rng = generator("precision")
    x = torch.randn((3, 6, 3, 8, 8), generator=rng)
    weights = net.parameters_from(net.init(rng))
    if own:
        weights = {k: v.expand(3, 1, *v.shape).clone() for k, v in weights.items()}
    leaves = {k: v.clone().requires_grad_("running" not in k) for k, v in weights.items()}
    y = net.apply(leaves, x, norms=norms)
    y.square().sum().backward()
    return y.detach(), {k: v.grad for k, v in leaves.items() if v.grad is not None}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_multiply_in_bfloat16(name: str, own: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Network(NETWORKS[name], weights="drawn")
    norms = Norms(None, frozenset(net.names)) if own else None
    exact, slopes = outputs(net, own, norms)
    with precision("bf16"):
        output, rounded = outputs(net, own, norms)
    for value, other in [(exact, output), *((slopes[k], rounded[k]) for k in slopes)]:
        assert other.dtype == torch.float32
        assert 0.01 * ROUNDING < (value - other).norm() / value.norm() < 10 * ROUNDING
    assert torch.equal(outputs(net, own, norms)[0], exact)  # and not for ever


@pytest.mark.parametrize("particles", [(), (5,)])
def test_heads_too(particles: tuple[int, ...]) -> None:
    rng = generator("heads")
    head = LinearHead(7, 4)
    w = torch.randn((*particles, 3, 1, head.d), generator=rng).requires_grad_()
    z = torch.randn((3, 6, 7), generator=rng)
    exact = head(w, z)
    (slope,) = torch.autograd.grad(exact.square().sum(), w)
    with precision("bf16"):
        output = head(w, z)
    (rounded,) = torch.autograd.grad(output.square().sum(), w)
    for value, other in ((exact, output), (slope, rounded)):
        assert other.dtype == torch.float32
        assert 0.01 * ROUNDING < (value - other).abs().max() / value.abs().max() < 10 * ROUNDING


def test_nothing_else_does() -> None:
    a = torch.randn((2, 50, 50), generator=generator("products"))
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    exact = a[0] @ a[1]
    with precision("bf16"):
        assert torch.equal(a[0] @ a[1], exact)
        assert not torch.backends.cudnn.allow_tf32
    with precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)


def test_a_fit_trains_in_it_and_is_evaluated_in_full() -> None:
    federation = blobs([23, 7, 2, 14])
    method = PFedVEM(architecture("mlp:5", federation))
    full, low = (fit(method, federation, rounds=1, precision=name, progress=False) for name in ("full", "bf16"))
    gap = (full.shared["w"] - low.shared["w"]).abs().max()
    assert 0 < gap < 0.02 * full.shared["w"].abs().max()
    (clients,) = evaluate_personal(low.fitted, "test", 4, (0,))
    assert low.last()["pm_nll"] == over_clients(clients, federation.task)["nll"]


def test_such_a_fit_goes_on_and_another_does_not(tmp_path: Path) -> None:
    federation = blobs([23, 7, 2, 14])
    method = PFedVEM(architecture("mlp:5", federation))
    how = {"precision": "bf16", "progress": False}
    whole = fit(method, federation, rounds=2, **how)
    fit(method, federation, rounds=1, folder=tmp_path, **how)
    resumed = fit(method, federation, rounds=2, folder=tmp_path, resume=True, **how)
    assert torch.equal(resumed.shared["w"], whole.shared["w"])
    with pytest.raises(UserError, match="bf16, not torch.float32"):
        fit(method, federation, rounds=3, folder=tmp_path, resume=True, progress=False)

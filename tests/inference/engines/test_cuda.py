"""What must hold on a CUDA device; skipped, with the reason, where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases import METHODS
from support.federations import blobs
from support.methods import case_name, network_for
from torch import nn

from hierfl.experiments.bench.memory import peak_memory
from hierfl.experiments.bench.settings import choose_setting
from hierfl.experiments.bench.timing import measure
from hierfl.inference import Method, fit
from hierfl.models import FedPer, FedPop, PFedVEM
from hierfl.nn.functional import Network
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")


def test_a_point_guide_gives_the_same_state_as_on_the_cpu() -> None:
    fed = blobs([23, 7, 2, 14])
    method = FedPer(architecture("mlp:5", fed))
    here, there = (
        fit(method, fed, rounds=3, device=device, dtype=torch.float64, progress=False) for device in ("cpu", "cuda")
    )
    for name, value in {**here.shared, **here.personal}.items():
        assert torch.allclose(value, {**there.shared, **there.personal}[name].cpu(), rtol=1e-6, atol=1e-8)


def test_the_state_stays_on_the_device_and_does_not_depend_on_the_chunk() -> None:
    fed = blobs([23, 7, 2, 14])
    method = PFedVEM(architecture("mlp:5", fed))
    runs = [fit(method, fed, rounds=3, device="cuda", chunk=c, dtype=torch.float64, progress=False) for c in (0, 1, 3)]
    for name, value in {**runs[0].shared, **runs[0].personal}.items():
        assert value.device.type == "cuda"
        for other in runs[1:]:
            assert torch.allclose(value, {**other.shared, **other.personal}[name], rtol=1e-5, atol=1e-5)
    assert runs[0].posterior(draws=10).posterior["w_j"].shape[2] == 4
    assert runs[0].predict_new_client(fed.x[:3]).device.type == "cuda"


@pytest.mark.parametrize(("cls", "settings"), METHODS, ids=map(case_name, METHODS))
def test_every_method_runs_there(cls: type[Method], settings: dict) -> None:
    fed = blobs([23, 7, 2, 14])
    more = {"final_steps": 12, "final_keep": 4} if cls is FedPop else {}
    method = cls(network_for(cls, fed), **settings, **more)
    run = fit(method, fed, rounds=2, participation=0.6, device="cuda", dtype=torch.float64, progress=False)
    for name, value in {**run.shared, **run.personal}.items():
        assert value.device.type == "cuda", name
        assert bool(value.isfinite().all()), name
    assert bool(np.isfinite(run.posterior(draws=4).log_likelihood["y"].values).all())


def test_convolutions_of_many_clients_equal_those_on_the_cpu() -> None:
    with torch.random.fork_rng():
        net = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)))
    rng = generator("convolutions")
    start = net.init(rng)
    weights = {k: v + torch.randn((4, 1, *v.shape), generator=rng) for k, v in net.parameters_from(start).items()}
    weights = {k: v.double() for k, v in weights.items()}
    x = torch.randn((4, 6, 3, 8, 8), generator=rng, dtype=torch.float64)
    there = net.apply({k: v.cuda() for k, v in weights.items()}, x.cuda())
    assert torch.allclose(net.apply(weights, x), there.cpu(), rtol=1e-9)


def test_a_benchmark_runs_on_the_device() -> None:
    setting = replace(choose_setting("digits", 4), examples=200, network="mlp:5")
    (result,) = measure([setting], device="cuda", repeats=1)
    assert all(row["median_seconds"] > 0 for row in result["rounds"].values())
    assert peak_memory(setting, "cuda") > 0

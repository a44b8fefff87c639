"""What must hold on a CUDA device; skipped, with the reason, where there is none."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases import METHODS
from support.federations import blobs
from support.methods import TUTORIAL, case_name, network_for
from torch import nn

from hierfl import Federation
from hierfl.experiments.bench.memory import peak_memory
from hierfl.experiments.bench.settings import choose_setting
from hierfl.experiments.bench.timing import measure
from hierfl.inference import Method, Run, fit
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedPer, FedPop, PFedEB, PFedVEM
from hierfl.nn.functional import Network
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator

SHORT = {"final_steps": 12, "final_keep": 4}
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")


def test_a_point_guide_gives_the_same_state_as_on_the_cpu() -> None:
    fed = blobs([23, 7, 2, 14])
    method = FedPer(architecture("mlp:5", fed))
    on_cpu, on_cuda = (
        fit(method, fed, rounds=3, device=device, dtype=torch.float64, progress=False) for device in ("cpu", "cuda")
    )
    for name, value in {**on_cpu.shared, **on_cpu.personal}.items():
        assert torch.allclose(value, {**on_cuda.shared, **on_cuda.personal}[name].cpu(), rtol=1e-6, atol=1e-8)


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
    more = SHORT if cls is FedPop else {}
    method = cls(network_for(cls, fed), **settings, **more)
    run = fit(method, fed, rounds=2, participation=0.6, device="cuda", dtype=torch.float64, progress=False)
    for name, value in {**run.shared, **run.personal}.items():
        assert value.device.type == "cuda", name
        assert bool(value.isfinite().all()), name
    assert bool(np.isfinite(run.posterior(draws=4).log_likelihood["y"].values).all())


def test_convolutions_of_many_clients_equal_those_on_the_cpu() -> None:
    with torch.random.fork_rng():
        net = Network(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)),
            weights="drawn",
        )
    rng = generator("convolutions")
    start = net.init(rng)
    weights = {k: v + torch.randn((4, 1, *v.shape), generator=rng) for k, v in net.parameters_from(start).items()}
    weights = {k: v.double() for k, v in weights.items()}
    x = torch.randn((4, 6, 3, 8, 8), generator=rng, dtype=torch.float64)
    on_cuda = net.apply({k: v.cuda() for k, v in weights.items()}, x.cuda())
    assert torch.allclose(net.apply(weights, x), on_cuda.cpu(), rtol=1e-9)


def test_a_benchmark_runs_on_the_device() -> None:
    setting = replace(choose_setting("digits", 4), examples=200, network="mlp:5")
    (result,) = measure([setting], device="cuda", repeats=1)
    assert all(row["median_seconds"] > 0 for row in result["rounds"].values())
    assert peak_memory(setting, "cuda") > 0


def same_values(first: Run, other: Run) -> None:
    """To 1e-8."""
    values = {**other.shared, **other.personal}
    for name, value in {**first.shared, **first.personal}.items():
        torch.testing.assert_close(values[name].cpu(), value.cpu(), rtol=1e-8, atol=1e-8, msg=name)


def small_steps(cls: type[Method], settings: dict) -> dict:
    """So that rounding is not amplified: every step size at most 1e-4."""
    fields = {f.name: f.default for f in dataclasses.fields(cls.Settings)}
    sizes = {k: v for k, v in fields.items() if (k == "lr" or k.endswith("_lr") or k == "step_size") and v is not None}
    return {**{k: min(v, 1e-4) for k, v in sizes.items() if k not in ("server_lr", "inner_lr")}, **settings}


@pytest.mark.parametrize(("cls", "settings"), METHODS, ids=map(case_name, METHODS))
def test_a_round_is_that_of_the_cpu(cls: type[Method], settings: dict) -> None:
    fed = blobs([23, 7, 2, 14])
    method = cls(network_for(cls, fed), **small_steps(cls, settings))
    on_cpu, on_cuda = (
        fit(method, fed, rounds=1, device=device, dtype=torch.float64, progress=False) for device in ("cpu", "cuda")
    )
    same_values(on_cpu, on_cuda)


#: torch's StudentT makes tensors of numbers, and so does pFedEB's population: they wait, and cannot be recorded
WITHOUT_WAITING = [case for case in METHODS if case[0] not in (TUTORIAL, PFedEB)]


def made(cls: type[Method], settings: dict, sizes: list[int]) -> tuple[Method, Federation]:
    """A method with short chains, and its data."""
    fed = blobs(sizes)
    return cls(network_for(cls, fed), **settings, **(SHORT if cls is FedPop else {})), fed


@pytest.mark.parametrize(("cls", "settings"), WITHOUT_WAITING, ids=map(case_name, WITHOUT_WAITING))
def test_recorded_steps_are_those_that_are_not(cls: type[Method], settings: dict) -> None:
    method, fed = made(cls, small_steps(cls, settings), [200, 190, 60, 23])
    plain, recorded = (
        fit(method, fed, rounds=2, device="cuda", cuda_graphs=graphs, dtype=torch.float64, progress=False)
        for graphs in (False, True)
    )
    same_values(plain, recorded)


@pytest.mark.parametrize(("cls", "settings"), WITHOUT_WAITING, ids=map(case_name, WITHOUT_WAITING))
def test_rounds_do_not_wait_for_it(cls: type[Method], settings: dict) -> None:
    """But for one number in each round; as test_any_device counts on a device that is simulated."""
    run = Fit(*made(cls, settings, [23, 7, 2, 14]), Options(device="cuda", dtype=torch.float64))
    run.step()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run.step()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    waits = [str(warning.message) for warning in seen if "synchronizing CUDA operation" in str(warning.message)]
    assert len(waits) <= 1, [f"{warning.filename}:{warning.lineno}" for warning in seen]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_it_trains_in_less_precision(precision: str) -> None:
    fed = blobs([23, 7, 2, 14])
    method = PFedVEM(architecture("mlp:5", fed))
    full, low = (fit(method, fed, rounds=1, device="cuda", precision=p, progress=False) for p in ("full", precision))
    assert (full.shared["w"] - low.shared["w"]).abs().max() < 0.02 * full.shared["w"].abs().max()

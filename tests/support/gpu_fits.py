"""Fits in the check of a GPU: CUDA against the CPU, and streams, graphs and less precision against the plain run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from support.cases import FEW_STEPS, METHODS
from support.engine_cases import small
from support.federations import blobs
from support.gpu_task import Failed, NeedsCuda, Task
from support.methods import case_name, network_for
from support.representatives import representatives
from torch import Tensor

from hierfl import Federation
from hierfl.experiments.bench.clock import seconds
from hierfl.inference import Method, fit
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models import FedPop, PFedVEM
from hierfl.nn.networks.build import architecture

#: what CUDA and a CPU may differ by in float64, as in tests/inference/engines/test_cuda.py
TOLERANCE = 1e-8
#: what tf32 and bf16 may change in a round, likewise
LESS_PRECISE = 0.02
Values = dict[str, Tensor]


def difference(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], by_largest: bool = False
) -> dict[str, Any]:
    """The largest difference of two runs' values, and where it is; not finite where a value is not.

    Args:
        actual, expected: {name: value}.
        by_largest: whether it is relative to the largest number of a value, and not each number to itself.

    Raises:
        Failed: for values of other names or shapes.
    """
    shapes = [{name: tuple(value.shape) for name, value in side.items()} for side in (actual, expected)]
    if shapes[0] != shapes[1]:
        raise Failed(f"values are {shapes[0]}, not {shapes[1]}")
    largest = {}
    for name, value in expected.items():
        a, b = actual[name].double(), value.double()
        if b.numel():
            by = b.abs().max().clamp(min=1e-6) if by_largest else 1 + b.abs()
            largest[name] = float(((a - b).abs() / by).max())
    worst = max(largest, key=lambda name: (largest[name] != largest[name], largest[name]))
    measure = "max |a - b| / max |b| of a value" if by_largest else "|a - b| / (1 + |b|)"
    return {"largest_difference": largest[worst], "where": worst, "measure": measure}


def values_of(shared: Mapping[str, Tensor], personal: Mapping[str, Tensor]) -> Values:
    """Copies in the host's memory."""
    both = {**{f"shared {k}": v for k, v in shared.items()}, **{f"personal {k}": v for k, v in personal.items()}}
    return {name: value.detach().to("cpu", copy=True) for name, value in both.items()}


def compare(task: Task) -> None:
    """Methods that between them use every mechanism, on the CPU and on the device, in float64.

    Steps are small, so that rounding is not amplified. Without CUDA plates of one client are compared with one plate.
    """
    federation = blobs([23, 7, 2, 14])
    cases, rounds = representatives(METHODS), 3
    if task.small:
        cases, rounds = cases[:: len(cases) // 4], 2
    task.figures |= {"rounds": rounds, "dtype": "float64", "methods": [case_name(case) for case in cases]}
    task.figures["other"] = task.device if task.cuda else "cpu, plates of one client"

    def compared(cls: type[Method], settings: dict[str, Any]) -> dict[str, Any]:
        method = small(cls(network_for(cls, federation), **{**FEW_STEPS.get(cls, {}), **settings}))
        sides, taken = [], []
        for how in ({"device": "cpu"}, {"device": task.device, "chunk": 0 if task.cuda else 1}):
            begin = time.perf_counter()
            run = fit(method, federation, rounds, dtype=torch.float64, progress=False, **how)
            sides.append(values_of(run.shared, run.personal))
            taken.append(round(time.perf_counter() - begin, 3))
        return {
            **difference(sides[1], sides[0]),
            "tolerance": TOLERANCE,
            "seconds": {"cpu": taken[0], "other": taken[1]},
        }

    for case in cases:
        task.case(case_name(case), partial(compared, *case))
    done = [result for result in task.figures["cases"].values() if result.get("largest_difference") is not None]
    if done:
        most = max(result["largest_difference"] for result in done)
        task.figures["largest_relative_difference"] = most
        task.short(f"{len(done)} methods, {rounds} rounds: the largest relative difference is {most:.2g}")
    task.conclude()


@dataclass(frozen=True)
class Way:
    """One way in which a fit is run.

    Attributes:
        name: in words.
        options: of the fit.
        against: the name of the run whose numbers it must have; "" for none.
        tolerance: what they may differ by.
        needs_cuda: whether a CPU has none of it.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    against: str = ""
    tolerance: float = TOLERANCE
    needs_cuda: bool = False

    @property
    def low(self) -> bool:
        """Whether it is a run in float32, with the method's own steps, compared after one round."""
        return self.options.get("dtype") != torch.float64


DOUBLE, SINGLE = {"dtype": torch.float64}, {"dtype": torch.float32}
WAYS = (
    Way("plain, float64", DOUBLE),
    Way("rows streamed from the host", {**DOUBLE, "client_state": "host"}, "plain, float64"),
    Way("CUDA graphs", {**DOUBLE, "cuda_graphs": True}, "plain, float64", needs_cuda=True),
    Way("plain, float32", SINGLE),
    Way("tf32", {**SINGLE, "precision": "tf32"}, "plain, float32", LESS_PRECISE, needs_cuda=True),
    Way("bf16", {**SINGLE, "precision": "bf16"}, "plain, float32", LESS_PRECISE),
)


def options(task: Task) -> None:
    """Whether each way gives the plain run's numbers, and the seconds of a round in each.

    In float64 steps are small and numbers are compared after the last round; in float32 steps are the method's own and
    numbers are compared after the first one, since long steps amplify what was rounded. Plates hold a quarter of the
    clients, so that there is something to stream.
    """
    clients, size, rounds = (8, 5, 2) if task.small else (200, 64, 6)
    federation = blobs([40 + 7 * j % 60 for j in range(clients)], classes=10, features=4 if task.small else 64)
    task.figures |= {"clients": clients, "rows_a_plate": clients // 4, "network": f"mlp:{size}", "rounds": rounds}
    for cls in (PFedVEM, FedPop):
        plain: dict[str, Values] = {}
        for way in WAYS:
            name = f"{cls.name}: {way.name}"
            task.case(name, partial(_taken, task, cls, federation, way, plain, size, rounds))
            result = task.figures["cases"][name]
            if "seconds_a_round" in result:
                exact = result.get("largest_difference") == 0
                off = "" if not way.against else ", exact" if exact else f", off by {result['largest_difference']:.2g}"
                task.short(f"{name}: {result['seconds_a_round']:.3g} s a round{off}")
    task.conclude()


def _taken(
    task: Task, cls: type[Method], federation: Federation, way: Way, plain: dict[str, Values], size: int, rounds: int
) -> dict[str, Any]:
    """One way's numbers against the plain run's, and its seconds of a round after the first."""
    if way.needs_cuda and not task.cuda:
        raise NeedsCuda(f"{way.name} is of CUDA devices")
    if way.against and way.against not in plain:
        raise Failed(f"there is no run {way.against!r} to compare with")
    method = cls(architecture(f"mlp:{size}", federation), **FEW_STEPS.get(cls, {}))
    if task.cuda:
        gc.collect()  # a fit that is done holds memory until then
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(task.device)
    how = Options(rounds=rounds + 1, device=task.device, chunk=federation.clients // 4, **way.options)
    run = Fit(method if way.low else small(method), federation, how)
    taken, values = [], Values()
    for number in range(1, rounds + 1):
        taken.append(seconds(run.step, task.device))
        if number == (1 if way.low else rounds):
            state = run.fitted()
            values = values_of(state.shared, state.personal)
    figures: dict[str, Any] = {"seconds_a_round": statistics.median(taken[1:])}
    if task.cuda:
        figures["peak_memory_mib"] = round(torch.cuda.max_memory_allocated(task.device) / 2**20, 1)
    if not way.against:
        plain[way.name] = values
        return figures
    return {**figures, **difference(values, plain[way.against], way.low), "tolerance": way.tolerance}

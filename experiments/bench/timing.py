"""Seconds of a round, contestants in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from hierfl.data.federation import Federation
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.run.fit import Fit

from .clock import seconds
from .host import host_and_device
from .profile import parts
from .references.registry import REFERENCES
from .references.work import Work
from .settings import Setting, prepare


def work_of(fit: Fit, federation: Federation | None = None, rows: slice = slice(None)) -> Work[Any]:
    """What the references start from: where the fit has come to."""
    assert isinstance(fit.engine, PlateEngine)
    personal = {k: v[rows] for k, v in fit.engine.store.personal.items()}
    return Work.for_method(fit.method, federation or fit.federation, fit.state.shared, personal, fit.engine.chunk)


#: options of a fit that a CUDA device has, timed beside the default's
ON_CUDA: dict[str, dict[str, Any]] = {
    "hierfl, CUDA graphs": {"cuda_graphs": True},
    "hierfl, tf32": {"precision": "tf32"},
    "hierfl, bf16": {"precision": "bf16"},
}


def contestants(setting: Setting, fit: Fit, references: bool) -> dict[str, Callable[[], object]]:
    """hierfl, on CUDA its options, the method beside it, and, if wanted, the references on the same work."""
    steps: dict[str, Callable[[], object]] = {"hierfl": fit.step}
    device, chunk = fit.options.device, fit.options.chunk
    if device.startswith("cuda"):
        steps |= {name: prepare(setting, device, chunk, **options).step for name, options in ON_CUDA.items()}
    if setting.beside:
        steps[setting.beside] = prepare(replace(setting, method=setting.beside, settings={}), device, chunk).step
    steps |= {name: prepare(replace(setting, **changed), device, chunk).step for name, changed in setting.more.items()}
    if references:
        work = work_of(fit)
        steps |= {name: lambda run=run: run(work) for name, run in REFERENCES.get(fit.method.name, {}).items()}  # type: ignore[misc]
    return steps


def measure(
    settings: Sequence[Setting], *, device: str = "cpu", chunk: int = 0, repeats: int = 3, references: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Everything about some settings, ready for json; in each turn every contestant of every setting runs once.

    Args:
        settings: what to do.
        device, chunk: as for a run.
        repeats: turns, after one round to warm up.
        references: whether they run too.
        say: called with a line on what is going on.
    """
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):  # the references' noise
        fits = [prepare(setting, device, chunk) for setting in settings]
        running = [contestants(setting, fit, references) for setting, fit in zip(settings, fits, strict=True)]
        times: list[dict[str, list[float]]] = [
            {name: [] for name in contestants_of_setting} for contestants_of_setting in running
        ]
        rates: list[float] = []
        for turn in range(repeats + 1):
            for setting, contestants_of_setting, taken in zip(settings, running, times, strict=True):
                for name, run in contestants_of_setting.items():
                    say(f"{f'turn {turn} of {repeats}' if turn else 'warming up'}: {setting.clients} clients, {name}")
                    several = [seconds(run, device) for _ in range(setting.rounds)]
                    taken[name].append(statistics.mean(several))
            rates.append(matmul_rate(device))
        say("where the time goes")
        return [
            _result(*contestants_of_setting, rates[1:], device)
            for contestants_of_setting in zip(settings, fits, times, strict=True)
        ]


def _result(
    setting: Setting, fit: Fit, times: dict[str, list[float]], rates: list[float], device: str
) -> dict[str, Any]:
    ours = times["hierfl"][1:]
    rounds = {}
    for name, (_, *taken) in times.items():  # the first was to warm up
        median = statistics.median(taken)
        rounds[name] = {
            "seconds": taken,
            "median_seconds": median,
            "clients_per_second": setting.clients / median,
            "times_hierfl": statistics.median(b / a for a, b in zip(ours, taken, strict=True)),
        }
    entries = {"setting": asdict(setting), "chunk": work_of(fit).chunk}
    host = host_and_device(fit, device, statistics.median(ours))
    bound = _bound(work_flops(setting, fit), ours, rates) if fit.method.name in REFERENCES else None
    return {**entries, "rounds": rounds, "bound": bound, "host": host, "parts": parts(fit, device)}


def _bound(flops: float, ours: Sequence[float], rates: Sequence[float]) -> dict[str, float]:
    """How long a round's arithmetic takes at the rate of matrix products."""
    rate = statistics.median(rates)
    return {
        "flops": flops,
        "matmul_flops_per_second": rate,
        "seconds": flops / rate,
        "hierfl_over_bound": statistics.median(t * r for t, r in zip(ours, rates, strict=True)) / flops,
    }


def matmul_rate(device: str, size: int = 2048, repeats: int = 10) -> float:
    """Floating-point operations per second of the best of several float32 matrix products."""
    a, b = torch.randn((2, size, size), device=device)  # products of ones draw less power, and run faster
    best = min(seconds(lambda: a @ b, device) for _ in range(repeats))
    return 2 * size**3 / best


def work_flops(setting: Setting, fit: Fit) -> float:
    """Operations of a round's matrix products and convolutions, nothing padded: counted for one client, then scaled.

    All of them are linear in the number of examples.
    """
    size = setting.batch
    index = fit.federation.train[0]
    single = replace(
        fit.federation.select([0]), train=[index.repeat(-(-size // len(index)))[:size]]
    )  # one full batch of one client
    work, reference = work_of(fit, single, slice(1)), next(iter(REFERENCES[fit.method.name].values()))
    with torch.random.fork_rng(), FlopCounterMode(display=False) as counter:
        reference(work)
    return counter.get_total_flops() / size * sum(fit.federation.sizes())

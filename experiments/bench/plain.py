"""What a plain Pyro model costs: rounds of a fit by phase, and its gradients beside hand-written torch of the same.

The machine may be shared: CPU seconds are counted beside seconds, and contestants take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.distributions import HalfNormal, Normal, Poisson

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.files import check_writable
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.engines.plate import PlateEngine
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.models.any_model.heights import latents_at
from hierfl.models.any_model.in_parts import moments_of, pairs_at_once, parts
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.moments import moments
from hierfl.models.any_model.names import DRAWS, INNER, PHASE, Phase
from hierfl.models.any_model.steps import AtSites

from ..run_folder.files import versions, write_text
from ..run_folder.layout import make_numbered_folder
from .machine import Machine
from .references.plain_model import HandWritten

#: rows of a client
ROWS = (20, 30)
MOST_ROUNDS = 200


def model(batch: ColumnBatch) -> None:
    """Counts whose intercept and slope vary between clients: 4 global numbers, 2 of each client."""
    beta = pyro.sample("beta", Normal(0.0, 5.0).expand([2]).to_event(1))
    tau = pyro.sample("tau", HalfNormal(1.0).expand([2]).to_event(1))
    with pyro.plate("client", batch.num_clients, dim=-2):
        u = pyro.sample("u", Normal(beta, tau).to_event(1))
        with pyro.plate("data", batch.width, dim=-1):
            rate = (u[..., 0] + u[..., 1] * batch["x"]).exp()
            pyro.sample("y", Poisson(rate), obs=batch["y"])


def table(clients: int, seed: int = 0) -> pd.DataFrame:
    """Data of :func:`model`."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(clients), rng.integers(ROWS[0], ROWS[1] + 1, clients))
    u, x = rng.normal([0.5, -0.3], [0.6, 0.3], (clients, 2)), rng.normal(size=len(who))
    y = rng.poisson(np.exp(u[who, 0] + u[who, 1] * x)).astype(float)
    return pd.DataFrame({"site": [f"s{j:06d}" for j in who], "x": x, "y": y})


def run_plain_benchmark(
    sizes: Sequence[int], repeats: int, references: bool, out: Path | None, overwrite: bool, quiet: bool
) -> Path:
    """`hierfl bench plain`: measures, prints, writes json; arguments as on the command line.

    Returns:
        The json file.

    Raises:
        UserError: for anything that cannot be measured, or an ``out`` that exists.
    """
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    if min(sizes) < 2 or repeats < 1:
        raise UserError("clients are at least 2, and repeats at least 1")
    path = out or make_numbered_folder("bench-plain") / "bench.json"
    check_writable(path)
    record: dict[str, Any] = {
        "benchmark": "plain",
        "what": "rounds of a fit of a plain Pyro model by phase; its gradients beside hand-written torch",
        "machine": asdict(Machine.this_machine("cpu")), "versions": versions(), "results": [],
    }  # fmt: skip
    for size in sizes:
        if not quiet:
            print(f"{size} clients", file=sys.stderr, flush=True)
        record["results"].append(measure_plain(size, repeats, references))
        write_text(path, json.dumps(record, indent=1) + "\n")
    if not quiet:
        from .command import heading

        print(heading(record))
        for result in record["results"]:
            _show(result)
        print(f"everything is in {path}")
    return path


def measure_plain(clients: int, repeats: int, references: bool) -> dict[str, Any]:
    """Everything about so many clients, ready for json.

    Args:
        clients: J.
        repeats: turns of each contestant, after one to warm up.
        references: whether gradients are timed beside hand-written torch.
    """
    fit = prepared(clients)
    rounds: dict[str, list[tuple[float, float]]] = {}
    chunks: dict[Phase, ClientChunk] = {}
    while fit.journal.round < MOST_ROUNDS and (stage := Phase(int(fit.state.shared[PHASE]))) != Phase.DONE:
        chunks[stage] = chunk_of(fit)
        rounds.setdefault(stage.name.lower(), []).append(_timed(fit.step))
    method, chunk = fit.method, chunk_of(fit)
    assert isinstance(method, AnyModel)
    points, inner = chunk.shared[DRAWS], int(chunk.shared[INNER])
    rounds["final draws"] = [_timed(lambda: latents_at(method, chunk, points, inner, "posterior"))]
    ratios = {}
    if references:
        for stage in (Phase.ROUGH, Phase.FINE):
            ratios[f"gradients, {stage.name.lower()}"] = _beside_hand(method, chunks[stage], repeats)
    return {
        "clients": clients, "rows": sum(fit.federation.sizes()), "globals": method.p, "latents": method.q,
        "inner": inner, "points": method.settings.points,
        "rounds": {name: _summary(taken) for name, taken in rounds.items()}, "beside": ratios,
    }  # fmt: skip


def prepared(clients: int) -> Fit:
    """A fit before its first round."""
    fed = Federation.from_frame(
        table(clients).assign(_y=0.0), client="site", y="_y", x=["x", "y"], test=0.0, task="regression",
        standardise=False, spellings="keep",
    )  # fmt: skip
    how = Options(rounds=MOST_ROUNDS, dtype=torch.float64, splits=(), evaluate_every=MOST_ROUNDS, chunk=1000)
    return Fit(AnyModel(ColumnDesign.from_columns(["x", "y"]), model), fed, how)


def chunk_of(fit: Fit) -> ClientChunk:
    """All clients, as a round finds them."""
    assert isinstance(fit.engine, PlateEngine)
    values = {name: value.unsqueeze(1) for name, value in fit.engine.store.personal.items()}
    everyone = list(range(fit.federation.clients))
    return ClientChunk(fit.method, fit.federation, everyone, 0, 0, dict(fit.state.shared), values)


def by_hand(at: AtSites, simplified: bool = False) -> HandWritten:
    """The same log joint, of the same data and centring."""
    x, y = at.clients.columns.unbind(1)
    return HandWritten(x.contiguous(), y.contiguous(), at.clients.mask, at.clients.centring, simplified)


def _beside_hand(method: AnyModel, chunk: ClientChunk, repeats: int) -> dict[str, Any]:
    """CPU seconds of expected gradients and Hessians at the draws of a round, and paired ratios.

    By hand as many clients are taken at once as in the fit.
    """
    at = AtSites.for_chunk(method, chunk)
    x, v = at.mean + at.moved, at.guide.draws(at.moved, at.noise)
    clients_at_once = pairs_at_once(at.clients, method.p + method.q) // len(x)

    def hand(*, simplified: bool) -> None:
        for first, last, _ in parts(at.clients, clients_at_once):
            moments(by_hand(at.some(first, last), simplified), x[:, first:last], v[:, first:last])

    contestants: dict[str, Callable[[], object]] = {
        "hierfl": lambda: moments_of(at.clients, x, v),
        "hand-written": lambda: hand(simplified=False),
        "hand-written, log exp(eta) = eta": lambda: hand(simplified=True),
    }
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, contestant in contestants.items():
            taken[name].append(_timed(contestant)[1])
    ours = taken["hierfl"][1:]
    return {
        "draws": len(x), "cpu_seconds": {name: values[1:] for name, values in taken.items()},
        "hierfl_over": {
            name: statistics.median(a / b for a, b in zip(ours, values[1:], strict=True))
            for name, values in taken.items() if name != "hierfl"
        },
    }  # fmt: skip


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds and CPU seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - cpu


def _summary(taken: Sequence[tuple[float, float]]) -> dict[str, Any]:
    seconds, cpu = ([pair[i] for pair in taken] for i in (0, 1))
    return {
        "rounds": len(taken), "seconds": seconds, "cpu_seconds": cpu,
        "median_seconds": statistics.median(seconds), "median_cpu_seconds": statistics.median(cpu),
    }  # fmt: skip


def _show(result: Mapping[str, Any]) -> None:
    print(
        f"{result['clients']} clients, {result['rows']} rows, {result['globals']} globals, {result['latents']} latents"
    )
    for name, row in result["rounds"].items():
        print(
            f"  {name:12} {row['rounds']:3} rounds: median {row['median_seconds']:.2f} s, "
            f"{row['median_cpu_seconds']:.2f} CPU s; most {max(row['seconds']):.2f} s"
        )
    for name, row in result["beside"].items():
        print(f"  {name}:")
        for other, ratio in row["hierfl_over"].items():
            print(f"    {ratio:.2f} times {other}")

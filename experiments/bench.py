"""`hierfl bench`: how long a round of pFedVEM or pFedV takes, beside the same work done otherwise on the same machine.

Contestants take turns, so that a machine whose speed drifts is fair to all of them; ratios are medians over the turns.
Images are noise of the right shape: speed does not ask what is on them.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hierfl.data.arrays import make_pool
from hierfl.data.chunk_data import ChunkData
from hierfl.data.datasets.registry import BN_CNN, CNN
from hierfl.data.federation import Federation
from hierfl.errors import UserError, unknown
from hierfl.files import check_writable
from hierfl.inference.checks import check_device
from hierfl.inference.local import svi
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.nn.functional import Network
from hierfl.nn.head import LinearHead
from hierfl.nn.likelihoods import Softmax
from hierfl.nn.networks.build import architecture
from hierfl.rng import ClientNoise

from . import folder as folders
from .launch import keep_memory
from .methods import load
from .references import REFERENCES, Work


@dataclass(frozen=True)
class Setting:
    """What a round consists of; the method's other settings are its defaults.

    Attributes:
        about: in words.
        event: the shape of an image.
        examples: N, over all clients.
        clients: J.
        network: the base, or encoder and base.
        batch: B of the (base) phase that goes by minibatches.
        method: whose round.
        split: label-skew:5 of ten classes with shared cuts makes sizes differ a hundredfold.
    """

    about: str
    event: tuple[int, ...]
    examples: int
    clients: int
    network: str
    batch: int
    method: str = "pfedvem"
    split: str = "label-skew:5,redraw"


SETTINGS = {
    "digits": Setting("8x8 images, the main job's size", (1, 8, 8), 1_400, 20, "mlp:64", 10),
    "fashion-mnist": Setting("28x28 images, MLP", (1, 28, 28), 60_000, 100, "mlp:100", 50),
    "cifar10": Setting("32x32 colour images, CNN; a fifth of the clients", (3, 32, 32), 10_000, 20, CNN, 10),
    "digit-three": Setting(
        "28x28 colour images, pFedV's network; a fifth of the images", (3, 28, 28), 900, 3, BN_CNN, 32, "pfedv", "equal"
    ),
    "fashion-mnist-fedrep": Setting("28x28 images, MLP: FedRep", (1, 28, 28), 60_000, 100, "mlp:100", 50, "fedrep"),
}
CLASSES = 10


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    processor: str
    cores: int
    threads: int
    device: str
    memory_gib: float

    @classmethod
    def here(cls, device: str) -> Machine:
        """This one."""
        import os

        name, memory = platform.processor() or platform.machine(), float("nan")
        with ExitStack() as stack:
            try:
                lines = stack.enter_context(open("/proc/cpuinfo")).read().splitlines()
                name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
                memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
            except OSError:
                pass  # no Linux: the name that Python knows will do
        on = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
        return cls(name, os.cpu_count() or 1, torch.get_num_threads(), on, round(memory, 1))


def choose(name: str, clients: int | None = None, batch: int | None = None) -> Setting:
    """A named setting, with other sizes where they are said.

    Raises:
        UserError: for an unknown name or a size that cannot be.
    """
    if name not in SETTINGS:
        raise unknown("benchmark", name, SETTINGS)
    setting = SETTINGS[name]
    if clients is not None and clients < 1:
        raise UserError(f"a benchmark needs at least one client, not {clients}")
    if clients is not None and clients % 2 and setting.split.startswith("label-skew"):
        raise UserError(
            f"a benchmark needs an even number of clients (two share a shuffle of the labels), not {clients}"
        )
    if batch is not None and batch < 1:
        raise UserError(f"a batch needs at least one example, not {batch}")
    return replace(setting, clients=clients or setting.clients, batch=batch or setting.batch)


def prepare(setting: Setting, device: str = "cpu", chunk: int = 0) -> Fit:
    """A fit to noise; everybody trains, a tenth reports.

    Raises:
        UserError: for a device that is not there.
    """
    rng = np.random.default_rng(0)
    tests = setting.examples // 6 // CLASSES * CLASSES  # as the true sets have
    total = setting.examples + tests
    x = rng.integers(0, 256, (total, *setting.event), dtype=np.uint8)
    y = np.arange(total) % CLASSES
    pool = make_pool("noise", x[tests:], y[tests:], x[:tests], y[:tests])
    federation = Federation.from_pool(pool, setting.clients, setting.split, validation=0.0)
    loaded = load(setting.method)
    batch = {"base_batch" if setting.method == "pfedvem" else "batch": setting.batch}
    method = loaded.cls(architecture(setting.network, federation, latent=loaded.cls.latent), **batch)
    quorum = min(2, setting.clients)
    return Fit(method, federation, Options(rounds=10**6, participation=0.1, quorum=quorum, device=device, chunk=chunk))


def work_of(fit: Fit, federation: Federation | None = None, rows: slice = slice(None)) -> Work[Any]:
    """What the references start from: where the fit has come to."""
    personal = {k: v[rows] for k, v in fit.fitted().personal.items()}
    return Work.of(fit.method, federation or fit.federation, fit.state.shared, personal, fit.engine.chunk)


def contestants(fit: Fit, references: bool) -> dict[str, Callable[[], object]]:
    """hierfl and, if wanted, the references on the same work."""
    found: dict[str, Callable[[], object]] = {"hierfl": fit.step}
    if references:
        work = work_of(fit)
        found |= {name: lambda run=run: run(work) for name, run in REFERENCES[fit.method.name].items()}  # type: ignore[misc]
    return found


def seconds(run: Callable[[], object], device: str) -> float:
    """How long it takes, the device's work included."""
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


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
        say: told what is going on.
    """
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):  # the references' noise
        fits = [prepare(setting, device, chunk) for setting in settings]
        running = [contestants(fit, references) for fit in fits]
        times: list[dict[str, list[float]]] = [{name: [] for name in each} for each in running]
        rates: list[float] = []
        for turn in range(repeats + 1):
            for setting, each, taken in zip(settings, running, times, strict=True):
                for name, run in each.items():
                    say(f"{f'turn {turn} of {repeats}' if turn else 'warming up'}: {setting.clients} clients, {name}")
                    taken[name].append(seconds(run, device))
            rates.append(matmul_rate(device))
        say("where the time goes")
        return [_result(*each, rates[1:], device) for each in zip(settings, fits, times, strict=True)]


def _result(
    setting: Setting, fit: Fit, times: dict[str, list[float]], rates: list[float], device: str
) -> dict[str, Any]:
    ours, flops = times["hierfl"][1:], work_flops(setting, fit)
    rounds = {}
    for name, (_, *taken) in times.items():  # the first was to warm up
        median = statistics.median(taken)
        rounds[name] = {
            "seconds": taken,
            "median_seconds": median,
            "clients_per_second": setting.clients / median,
            "times_hierfl": statistics.median(b / a for a, b in zip(ours, taken, strict=True)),
        }
    rate = statistics.median(rates)
    bound = {
        "flops": flops,
        "matmul_flops_per_second": rate,
        "seconds": flops / rate,
        "hierfl_over_bound": statistics.median(t * r for t, r in zip(ours, rates, strict=True)) / flops,
    }
    about = {"setting": asdict(setting), "chunk": fit.engine.chunk}
    return {**about, "rounds": rounds, "bound": bound, "parts": parts(fit, device)}


def matmul_rate(device: str, size: int = 2048, repeats: int = 10) -> float:
    """Floating-point operations per second of the best of several float32 matrix products."""
    a, b = torch.randn((2, size, size), device=device)  # (products of ones draw less power, and run faster)
    best = min(seconds(lambda: a @ b, device) for _ in range(repeats))
    return 2 * size**3 / best


def work_flops(setting: Setting, fit: Fit) -> float:
    """Operations of a round's matrix products and convolutions, nothing padded: counted for one client, then scaled.

    All of them are linear in the number of examples.
    """
    size = setting.batch
    index = fit.federation.train[0]
    one = replace(
        fit.federation.select([0]), train=[index.repeat(-(-size // len(index)))[:size]]
    )  # one full batch of one client
    work, reference = work_of(fit, one, slice(1)), next(iter(REFERENCES[fit.method.name].values()))
    with torch.random.fork_rng(), FlopCounterMode(display=False) as counter:
        reference(work)
    return counter.get_total_flops() / size * sum(fit.federation.sizes())


# -- where the time goes -----------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Any, str]] = {
    "gather": (ChunkData, "at"),
    "noise": (ClientNoise, "normal"),
    "network": (Network, "apply"),
    "head": (LinearHead, "__call__"),
    "likelihood": (Softmax, "log_prob"),
    "backward": (Tensor, "backward"),
    "optimiser": (torch.optim.SGD, "step"),
    "Pyro, KL and bookkeeping of the ELBO": (svi, "elbo"),
}


def parts(fit: Fit, device: str) -> dict[str, Any]:
    """Seconds of a round by part, what is inside one part and a part itself not counted twice; and per step."""
    spent = dict.fromkeys(PARTS, 0.0)
    calls = dict.fromkeys(PARTS, 0)
    inner = [0.0]  # seconds of the parts inside each part that is open

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        _wait(device)
        start = time.perf_counter()
        inner.append(0.0)
        yield
        _wait(device)
        taken = time.perf_counter() - start
        spent[name] += taken - inner.pop()
        inner[-1] += taken
        calls[name] += 1

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with timed(name):
                return original(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for name, (owner, attribute) in PARTS.items():
            stack.enter_context(mock.patch.object(owner, attribute, wrapped(name, getattr(owner, attribute))))
        total = seconds(fit.step, device)
    spent["everything else"] = total - sum(spent.values())
    return {"seconds": spent, "total_seconds": total, "steps": calls["optimiser"], "calls": calls}


# -- memory -----------------------------------------------------------------------------------------------------------


def peak_memory(setting: Setting, device: str = "cpu", chunk: int = 0) -> float:
    """MiB at the peak of a round and an evaluation, in a process of its own; on CUDA of the device's memory."""
    task = json.dumps({**asdict(setting), "device": device, "chunk": chunk, "threads": torch.get_num_threads()})
    command = [sys.executable, "-m", "hierfl.experiments.bench", task]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise UserError(f"the process that measures memory failed: {last[0]}")
    return float(done.stdout)


def _alone(task: str) -> None:
    """The process of its own: prints its peak, MiB."""
    import resource

    said = json.loads(task)
    device, chunk, threads = (said.pop(k) for k in ("device", "chunk", "threads"))
    torch.set_num_threads(threads)
    fit = prepare(Setting(**{**said, "event": tuple(said["event"])}), device, chunk)
    fit.step()
    fit.evaluate()
    if device.startswith("cuda"):
        print(torch.cuda.max_memory_allocated(device) / 2**20)
        return
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        unit = 1 if sys.platform == "darwin" else 1024
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20)
        return
    # (not ru_maxrss, which a Linux process inherits from the one that started it)
    print(float(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 2**10)


# -- the command -------------------------------------------------------------------------------------------------------


def main(
    name: str, clients: list[int | None], batch: int | None, device: str, chunk: int, repeats: int, references: bool,
    out: Path | None, overwrite: bool, quiet: bool,
) -> None:  # fmt: skip
    """`hierfl bench`: measures, prints, writes json; arguments as on the command line.

    Raises:
        UserError: for anything that cannot be measured, or an ``out`` that exists.
    """
    if not name:
        raise UserError(f"which benchmark? known: {', '.join(SETTINGS)}")
    if repeats < 1 or chunk < 0:
        raise UserError(f"repeats must be at least 1 and chunk at least 0, not {repeats} and {chunk}")
    check_device(device)
    settings = [choose(name, j, batch) for j in clients]
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    path = out or folders.make(f"bench-{name}") / "bench.json"
    check_writable(path)

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    record: dict[str, Any] = {
        "benchmark": name,
        "what": f"a round of {settings[0].method} at every client; hierfl.experiments.references says what others do",
        "machine": asdict(Machine.here(device)),
        "versions": folders.versions(),
        "results": [],
    }
    if not quiet:
        print(heading(record))
    record["results"] = measure(
        settings, device=device, chunk=chunk, repeats=repeats, references=references, say=say
    )  # fmt: skip
    folders.write_text(path, json.dumps(record, indent=1) + "\n")  # what is measured is kept
    for setting, result in zip(settings, record["results"], strict=True):
        say(f"memory, {setting.clients} clients")
        result["peak_memory_mib"] = peak_memory(setting, device, chunk)
        folders.write_text(path, json.dumps(record, indent=1) + "\n")
        if not quiet:
            show(result)
    if not quiet:
        print(f"everything is in {path}")


def heading(record: Mapping[str, Any]) -> str:
    """Hardware and versions in one line each."""
    machine, versions = record["machine"], record["versions"]
    where = f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, {machine['memory_gib']} GiB"
    on = "" if machine["device"] == "cpu" else f"; on {machine['device']}"
    return f"{where}{on}\n{', '.join(f'{k} {v}' for k, v in versions.items())}"


def show(result: Mapping[str, Any]) -> None:
    """Prints one setting's tables."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    setting, bound, spent = result["setting"], result["bound"], result["parts"]
    console.print(
        f"{setting['clients']} clients, {setting['examples']} examples {tuple(setting['event'])}, "
        f"{setting['network']}, batch {setting['batch']}, {result['chunk']} rows a plate",
        soft_wrap=True,
    )
    table = Table("a round", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("seconds", "clients/s", "times hierfl"):
        table.add_column(column, justify="right")
    for name, row in result["rounds"].items():
        table.add_row(
            name, f"{row['median_seconds']:.3g}", f"{row['clients_per_second']:.3g}", f"{row['times_hierfl']:.2f}"
        )
    table.add_row(
        f"arithmetic at {bound['matmul_flops_per_second'] / 1e9:.0f} GFLOP/s",
        f"{bound['seconds']:.3g}",
        f"{setting['clients'] / bound['seconds']:.3g}",
        f"{1 / bound['hierfl_over_bound']:.2f}",
    )
    console.print(table)
    table = Table("where hierfl's time goes", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("seconds", "%", "ms a step"):
        table.add_column(column, justify="right")
    for name, value in sorted(spent["seconds"].items(), key=lambda item: -item[1]):
        share, step = value / spent["total_seconds"], 1000 * value / spent["steps"]
        table.add_row(name, f"{value:.3f}", f"{100 * share:.0f}", f"{step:.3f}")
    console.print(table)
    console.print(
        f"peak memory {result['peak_memory_mib']:.0f} MiB; "
        f"hierfl takes {bound['hierfl_over_bound']:.1f} times the arithmetic"
    )


if __name__ == "__main__":
    keep_memory()
    _alone(sys.argv[1])

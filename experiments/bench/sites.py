"""What it takes that clients are elsewhere: a round on a plate, over ranks, through bytes, and by files.

All of them do the same work on the same data, shared equally by J clients. What runs in this process takes turns, with
one thread; of processes of their own, the seconds are those of the run's rounds. The CPU seconds of a server and its
sites are a difference of two runs, of few rounds and of many, so that their start is left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.files import check_writable
from hierfl.inference.engines.remote.engine import RemoteEngine
from hierfl.inference.engines.remote.preparation import PreparedSite, numbered, prepare
from hierfl.inference.engines.remote.questions import Questions
from hierfl.inference.run.fit import Fit

from ..federate.draft import draft
from ..federate.guard.ledger import LEDGER, Ledger
from ..federate.guard.simulated import COORDINATOR, add_cards, approve_all
from ..federate.server import Summing
from ..federate.study import Study
from ..federate.study_site import Membership, as_numbers
from ..run_folder.files import versions, write_text
from ..run_folder.layout import make_numbered_folder
from ..run_folder.summary import read_summary
from .clock import seconds
from .machine import Machine

#: rounds of the short and the long run of processes
FEW_ROUNDS, MANY_ROUNDS = 4, 24
EXAMPLES, EVENT, CLASSES, NETWORK = 1_400, (1, 8, 8), 10, "mlp:64"


def run_sites_benchmark(
    sizes: Sequence[int], repeats: int, references: bool, out: Path | None, overwrite: bool, quiet: bool
) -> Path:
    """`hierfl bench sites`: measures, prints, writes json; arguments as on the command line.

    Returns:
        The json file.

    Raises:
        UserError: for anything that cannot be measured, or an ``out`` that exists.
    """
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    if any(not 2 <= size <= EXAMPLES // 10 for size in sizes) or repeats < 1:
        raise UserError(f"sites are from 2 to {EXAMPLES // 10}, and repeats at least 1")
    path = out or make_numbered_folder("bench-sites") / "bench.json"
    check_writable(path)

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    record: dict[str, Any] = {
        "benchmark": "sites",
        "what": "a round of pfedvem at every client, who all report: seconds, bytes, CPU seconds of a message",
        "machine": asdict(Machine.this_machine("cpu")), "versions": versions(), "results": [],
    }  # fmt: skip
    for size in sizes:
        with TemporaryDirectory(prefix="hierfl-bench-") as folder:
            record["results"].append(measure_sites(size, repeats, references, Path(folder), say))
        write_text(path, json.dumps(record, indent=1) + "\n")
    if not quiet:
        from .command import heading

        print(heading(record))
        _show(record["results"])
        print(f"everything is in {path}")
    return path


def measure_sites(
    sites: int, repeats: int, processes: bool, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Everything about so many sites, ready for json.

    Args:
        sites: J.
        repeats: turns of what runs in this process.
        processes: whether processes are started, too: ranks, and a server and its sites.
        folder: an empty one.
        say: called with a line on what is going on.
    """
    say(f"{sites} sites: data")
    study, files = _study(sites, folder)
    method, federation = _plate(study, files)
    counted = {"to": 0, "from": 0}
    options = study.options("cpu")
    fits = {
        "plate": Fit(method, federation, options),
        # As a site computes: each client by itself.
        "plates of one": Fit(method, federation, replace(options, chunk=1)),
        "bytes": _through_bytes(study, files, folder, counted),
    }
    taken: dict[str, list[float]] = {name: [] for name in fits}
    cpu: dict[str, list[float]] = {name: [] for name in fits}
    with one_thread():
        for turn in range(repeats + 1):
            say(f"{sites} sites: turn {turn} of {repeats}")
            for name, fit in fits.items():
                counted |= {"to": 0, "from": 0} if name == "bytes" else {}
                before = time.process_time()
                took = seconds(fit.step, "cpu")
                if turn:
                    taken[name].append(took)
                    cpu[name].append(time.process_time() - before)
    median = {name: statistics.median(values) for name, values in taken.items()}
    spent = {name: statistics.median(values) for name, values in cpu.items()}
    measured: dict[str, Any] = {
        "sites": sites, "seconds_a_round": median, "bytes_a_round": dict(counted),
        "cpu_seconds_a_message": {name: value / sites for name, value in spent.items()},
    }  # fmt: skip
    if processes:
        say(f"{sites} sites: two ranks")
        measured["seconds_a_round"] |= _ranks(study, files, folder)
        say(f"{sites} sites: server and sites, a process each, by files")
        short, long = (
            _by_files(study, files, folder / f"by-files-{rounds}", rounds) for rounds in (FEW_ROUNDS, MANY_ROUNDS)
        )
        measured["seconds_a_round"]["files"] = long["seconds"]
        measured["cpu_seconds_a_message"]["files"] = (long["cpu"] - short["cpu"]) / (MANY_ROUNDS - FEW_ROUNDS) / sites
    return measured


@contextmanager
def one_thread() -> Iterator[None]:
    """So that CPU seconds are those of the work: threads that wait for each other spend some, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _study(sites: int, folder: Path) -> tuple[Study, dict[str, Path]]:
    """study.toml, and every site's file: noise, since speed does not ask what is on an image."""
    rng, files = np.random.default_rng(0), {}
    for j in range(sites):
        n = EXAMPLES // sites
        y = np.arange(n + CLASSES) % CLASSES
        x = rng.integers(0, 256, (len(y), *EVENT), dtype=np.uint8)
        files[f"site-{j:03d}"] = path = folder / f"site-{j:03d}.npz"
        np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    out, sample = folder / "study.toml", next(iter(files.values()))
    options = {"rounds": MANY_ROUNDS, "evaluate_every": MANY_ROUNDS, "network": NETWORK, "validation_fraction": 0.0}
    write_text(
        out, draft("pfedvem", sample, list(files), "bench", options, {"head_lr": 1e-3, "base_lr": 1e-3}, out=out)
    )
    return Study.read(out), files


def _plate(study: Study, files: Mapping[str, Path]) -> tuple[Any, Federation]:
    """The method and all clients' data on one plate."""
    path = next(iter(files.values())).with_name("all.npz")
    arrays: dict[str, list[np.ndarray]] = {}
    for name, own in files.items():
        with np.load(own) as arrays_of_site:
            for key in arrays_of_site:
                arrays.setdefault(key, []).append(arrays_of_site[key])
            for part in ("train", "test"):
                arrays.setdefault(f"client_{part}", []).append(np.full(len(arrays_of_site[f"y_{part}"]), name))
    whole: dict[str, Any] = {key: np.concatenate(values) for key, values in arrays.items()}
    np.savez(path, **whole)
    federation = Federation.from_npz(path, validation=0.0)
    totals = [{"n": np.array(1.0), "total": np.zeros(1), "square": np.ones(1)}]  # constants are the pool's own
    return study.method(study.data.model(totals, False)[1]), federation


def _through_bytes(study: Study, files: Mapping[str, Path], folder: Path, counted: dict[str, int]) -> Fit:
    """A server whose sites are in this process, asked through bytes."""
    sites: dict[str, PreparedSite] = {}
    for name, path in files.items():
        member = Membership(folder / "bytes" / name, study, name, path)
        member.keep()
        sites[name] = member.site()

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {name: sites[name].answer(request) for name, request in requests.items()}
        counted["to"] += sum(map(len, requests.values()))
        counted["from"] += sum(map(len, answers.values()))
        return answers

    questions = Questions(study.clients, ask, study.handshake, torch.device("cpu"))
    server = folder / "bytes" / "server"
    server.mkdir()
    totals = prepare(questions, Summing(study), server)
    outline, network = study.data.model(as_numbers(totals), False)
    engine = partial(
        RemoteEngine, clients=study.clients, ask=ask, handshake=study.handshake, greeting=numbered(totals)
    )  # fmt: skip
    return Fit(study.method(network), outline, study.options("cpu"), engine)


def _ranks(study: Study, files: Mapping[str, Path], folder: Path) -> dict[str, float]:
    """Seconds a round of runs in processes of their own: one plate, and two ranks, with all cores between them."""
    data, seconds = next(iter(files.values())).with_name("all.npz"), {}
    cores = os.cpu_count() or 1
    for name, threads, more in (
        ("plate, a process", cores, []), ("two ranks", max(1, cores // 2), ["--engine", "distributed", "--ranks", "2"]),
    ):  # fmt: skip
        out = folder / name.replace(" ", "-")
        command = [
            sys.executable, "-P", "-m", "hierfl", "run", "pfedvem", "--data", str(data), "--split", "natural",
            "--network", NETWORK, "--validation-fraction", "0", "--rounds", str(MANY_ROUNDS),
            "--evaluate-every", str(MANY_ROUNDS),
            "--quiet", "--out", str(out), "--set", "head_lr=0.001", "--set", "base_lr=0.001", *more,
        ]  # fmt: skip
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True)
        seconds[name] = float(read_summary(out)["seconds_per_round"])
    return seconds


def _by_files(study: Study, files: Mapping[str, Path], folder: Path, rounds: int) -> dict[str, float]:
    """A round's seconds, and the CPU seconds of all, of a server and its sites, each a process with one thread."""
    folder.mkdir()
    path = folder / "study.toml"
    path.write_text(study.path.read_text().replace(f"rounds = {MANY_ROUNDS}", f"rounds = {rounds}", 1))
    state, begin = folder / "state", [sys.executable, "-P", "-m", "hierfl", "federate"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HIERFL_STATE": str(state)}
    add_cards(path, folder, files)
    approve_all(path, files, folder, lambda name: Ledger(state / LEDGER))
    exchange = ["--exchange", str(folder / "exchange"), "--quiet"]
    import resource  # Windows has none

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = [
        subprocess.Popen(
            [
                *begin,
                "server",
                str(path),
                "--home",
                str(folder / COORDINATOR),
                "--out",
                str(folder / "server"),
                *exchange,
            ],
            env=environment,
        )
    ]
    for name in files:
        running.append(subprocess.Popen([*begin, "site", str(folder / name), *exchange], env=environment))
    try:
        if any(process.wait() for process in running):
            raise UserError(f"a process of the benchmark has failed: see {folder}")
    finally:
        for process in running:
            process.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return {"seconds": float(read_summary(folder / "server")["seconds_per_round"]), "cpu": spent}


def _show(results: Sequence[Mapping[str, Any]]) -> None:
    """Prints the tables."""
    from ..cli.screen import console, number_table

    for result in results:
        sent = result["bytes_a_round"]
        table = number_table(f"{result['sites']} sites, a round", "seconds", "CPU seconds a message")
        for name, value in result["seconds_a_round"].items():
            message = result["cpu_seconds_a_message"].get(name)
            table.add_row(name, f"{value:.3g}", "" if message is None else f"{message:.3g}")
        console().print(table)
        console().print(f"{sent['to'] / 1e3:.1f} kB to the sites, {sent['from'] / 1e3:.1f} kB from them")

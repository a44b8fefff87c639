"""`hierfl bench`: how long a round takes, beside the same work done otherwise, or another method, on the same machine.

Contestants take turns, so that a machine whose speed drifts is fair to all of them; ratios are medians over the turns.
Images are noise of the right shape: speed does not ask what is on them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.files import check_writable
from hierfl.inference.checks import check_device

from ..run_folder.files import versions, write_text
from ..run_folder.layout import make_numbered_folder
from .machine import Machine
from .memory import peak_memory
from .settings import SETTINGS, choose_setting
from .timing import measure


def run_benchmark(
    name: str, clients: list[int | None], batch: int | None, device: str, chunk: int, repeats: int, references: bool,
    out: Path | None, overwrite: bool, quiet: bool,
) -> Path:  # fmt: skip
    """`hierfl bench`: measures, prints, writes json; arguments as on the command line.

    Returns:
        The json file.

    Raises:
        UserError: for anything that cannot be measured, or an ``out`` that exists.
    """
    if not name:
        raise UserError(f"which benchmark? known: {', '.join(SETTINGS)}")
    if repeats < 1 or chunk < 0:
        raise UserError(f"repeats must be at least 1 and chunk at least 0, not {repeats} and {chunk}")
    check_device(device)
    settings = [choose_setting(name, j, batch) for j in clients]
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists; choose another --out, or say --overwrite")
    path = out or make_numbered_folder(f"bench-{name}") / "bench.json"
    check_writable(path)

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    record: dict[str, Any] = {
        "benchmark": name,
        "what": f"a round of {settings[0].method} at every client; what others do: hierfl.experiments.bench.references",
        "machine": asdict(Machine.this_machine(device)),
        "versions": versions(),
        "results": [],
    }
    if not quiet:
        print(heading(record))
    record["results"] = measure(
        settings, device=device, chunk=chunk, repeats=repeats, references=references, say=say
    )  # fmt: skip
    write_text(path, json.dumps(record, indent=1) + "\n")  # what is measured is kept
    for setting, result in zip(settings, record["results"], strict=True):
        say(f"memory, {setting.clients} clients")
        result["peak_memory_mib"] = peak_memory(setting, device, chunk)
        write_text(path, json.dumps(record, indent=1) + "\n")
        if not quiet:
            show(result)
    if len(settings) > 1 and not quiet:
        show_by_clients(record["results"])
    if not quiet:
        print(f"everything is in {path}")
    return path


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
    batches = f"batch {setting['batch']}" if setting["batch"] else "each method's own minibatches"
    console.print(
        f"{setting['clients']} clients, {setting['examples']} examples {tuple(setting['event'])}, "
        f"{setting['network']}, {batches}, {result['chunk']} rows a plate",
        soft_wrap=True,
    )
    table = Table("a round", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("seconds", "clients/s", "times hierfl"):
        table.add_column(column, justify="right")
    for name, row in result["rounds"].items():
        table.add_row(
            name, f"{row['median_seconds']:.3g}", f"{row['clients_per_second']:.3g}", f"{row['times_hierfl']:.2f}"
        )
    if bound is not None:
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
    host = result["host"]
    console.print(
        f"{host['host_seconds']:.3g} s are the host's, {host['device_seconds']:.3g} s the device's "
        f"({host['operators']} operators)"
    )
    over = "" if bound is None else f"; hierfl takes {bound['hierfl_over_bound']:.1f} times the arithmetic"
    console.print(f"peak memory {result['peak_memory_mib']:.0f} MiB{over}")


def show_by_clients(results: Sequence[Mapping[str, Any]]) -> None:
    """Prints hierfl's rounds for all numbers of clients."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("clients", title="hierfl, by clients", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("seconds a round", "host's", "device's", "times the first", "peak MiB"):
        table.add_column(column, justify="right")
    first = results[0]["rounds"]["hierfl"]["median_seconds"]
    for result in results:
        taken, host = result["rounds"]["hierfl"]["median_seconds"], result["host"]
        table.add_row(
            str(result["setting"]["clients"]), f"{taken:.3g}", f"{host['host_seconds']:.3g}",
            f"{host['device_seconds']:.3g}", f"{taken / first:.2f}", f"{result['peak_memory_mib']:.0f}",
        )  # fmt: skip
    Console(markup=False, highlight=False).print(table)

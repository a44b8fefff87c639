"""`hierfl bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hierfl.errors import UserError

from .as_json import AsJson, print_json
from .options import Quiet, path_option, whole_numbers


def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="digits, fashion-mnist, fashion-mnist-fedrep, fashion-mnist-pfedeb, fashion-mnist-pfedhb, "
            "fashion-mnist-chosen, cifar10, digit-three, many, sites, plain or mixed."
        ),
    ] = "",
    clients: Annotated[
        str | None, typer.Option("--clients", "-J", metavar="J,J,...", help="Other numbers of clients.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Examples in a minibatch. [default: the benchmark's]")] = None,
    device: Annotated[str, typer.Option(help="Device that computes: cpu, cuda, cuda:1, ...")] = "cpu",
    chunk: Annotated[int, typer.Option(help="Clients computed at once; 0 for what suits the device.")] = 0,
    repeats: Annotated[int, typer.Option(help="Number of rounds of each contestant that are timed, in turns.")] = 3,
    references: Annotated[
        bool, typer.Option(help="Time plain loops of the same work, too; for sites: processes.")
    ] = True,
    out: Annotated[
        Path | None, path_option("FILE", "A json file of all numbers. [default: in a new folder in ./runs]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Time a round of pFedVEM (digit-three: pFedV; ...-fedrep: FedRep), and the same work done in other ways."""
    path = _measured(name, clients, batch, device, chunk, repeats, references, out, overwrite, quiet or as_json)
    if as_json:
        print_json(json.loads(path.read_text(encoding="utf-8")))


def _measured(
    name: str, clients: str | None, batch: int | None, device: str, chunk: int, repeats: int, references: bool,
    out: Path | None, overwrite: bool, quiet: bool,
) -> Path:  # fmt: skip
    """The json file of a benchmark; arguments as on the command line."""
    from ..bench.command import run_benchmark

    if name == "sites":
        from ..bench.sites import run_sites_benchmark

        if batch is not None or device != "cpu" or chunk:
            raise UserError("sites are measured as they are on a CPU: without --batch, --device, --chunk")
        some = whole_numbers("--clients", clients or "4,20")
        return run_sites_benchmark(some, repeats, references, out, overwrite, quiet)
    if name == "plain":
        from ..bench.plain import run_plain_benchmark

        if batch is not None or device != "cpu" or chunk:
            raise UserError("a plain model is measured as it is on a CPU: without --batch, --device, --chunk")
        some = whole_numbers("--clients", clients or "1000")
        return run_plain_benchmark(some, repeats, references, out, overwrite, quiet)
    if name == "mixed":
        from ..bench.mixed import run_mixed_benchmark

        if clients or batch is not None or device != "cpu" or chunk:
            raise UserError(
                "mixed models are measured as they are on a CPU: without --clients, --batch, --device, --chunk"
            )
        return run_mixed_benchmark(repeats, references, out, overwrite, quiet)
    sizes: list[int | None] = [*whole_numbers("--clients", clients)] if clients else [None]
    return run_benchmark(name, sizes, batch, device, chunk, repeats, references, out, overwrite, quiet)

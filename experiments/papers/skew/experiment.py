"""Methods on digits of several domains: accuracy in each, pFedV's Table 2, and which of its claims hold here.

    python -m hierfl.experiments.papers.skew.run --data digit-three --data-root DATA --seeds 3 --out OUT

One run folder for each method and seed, resumed or left alone if it is there; all training data, the last round. Every
client has one domain; a method's number in a domain is the accuracy of its clients' models on the domain's test set.

FedAvg and FedV differ in more than the prior: z is noisy, and has no batch norm. Some rows tell these apart: *flat* has
neither noise nor KL (the plain network, but for that batch norm), *noise only* has noise, and a KL of no weight; *own
batch norm* stays with the client, as in FedBN, and where it is taken *anew* its running statistics are those of the
averaged model, not of the client's last training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

from hierfl.errors import UserError, unknown
from hierfl.files import user_path

from ...configure import parse_settings
from ...grid import run_cell
from ...run_folder.files import write_text
from .markdown import markdown
from .records import differences, records
from .variants import VARIANTS, Cell


def parser_of(module: str, description: str, rows: Iterable[str]) -> argparse.ArgumentParser:
    """What the commands on domains have in common; ``rows`` are the methods by default."""
    parser = argparse.ArgumentParser(prog=f"python -m hierfl.experiments.{module}", description=description)
    parser.add_argument("--data", default="digit-three")
    parser.add_argument("--data-root", type=user_path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(rows), metavar="NAME", help="some of the table's names")
    steps = "steps of all methods, other settings of fedv and pfedv"
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=steps)
    for name in ("split", "network", "device"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=user_path, required=True)
    return parser


def main(arguments: list[str]) -> None:
    """The command; see the module."""
    parser = parser_of("skew", "Accuracy by domain, and pFedV's Table 2.", VARIANTS)
    for name in ("clients", "draws"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--collect", action="store_true", help="only collect what has finished")
    said = parser.parse_args(arguments)
    names = ("data_root", "split", "network", "device", "rounds", "clients", "draws")
    extra = {name: getattr(said, name) for name in names if getattr(said, name) is not None}
    for variant in said.methods:
        if variant not in VARIANTS:
            raise unknown("method of this table", variant, VARIANTS)
    if said.seeds < 1:
        raise UserError("seeds must be at least 1")
    settings = parse_settings(said.set)
    cells = [Cell(v, said.data, s, settings) for s in range(said.seeds) for v in said.methods]
    split = cells[0].config(extra)["run"]["split"]
    if split.partition(":")[0] not in ("domains", "domain-skew", "natural"):
        raise UserError(f"this table is of domains, as digit-three has: {said.data} is split by {split}")
    for cell in [] if said.collect else cells:
        if not (said.out / cell.name / "summary.json").is_file():
            print(cell, file=sys.stderr, flush=True)
        run_cell(cell, said.out / cell.name, extra, progress=False)
    rows = records(said.out, cells)
    if not rows:
        raise UserError(f"no run of this table has finished in {said.out}")
    claims = differences(rows)
    write_text(said.out / "skew.json", json.dumps({"rows": rows, "claims": claims}, indent=1) + "\n")
    write_text(said.out / "skew.md", markdown(rows, claims))
    print(markdown(rows, claims))

"""pFedVMP and its ablations where labels differ between clients: accuracy over rounds, pFedVMP's Tables 1 and 2.

    python -m hierfl.experiments.papers.centroids.run --data fashion-mnist --beta 0.3 --data-root DATA --seeds 3 --out OUT

Training and test files merged, a share of them kept, each class over 50 clients by Dir(beta), 80/20 inside each client,
one epoch a round: the paper's, but for the number of rounds. One run folder for each method and seed, resumed or left
alone if it is there; all training data. Accuracy is the paper's, of all clients' test data together, in the last round.

``--cost 128 256 ...`` instead times rounds with features of these widths, every method and width in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from hierfl.errors import UserError, unknown
from hierfl.files import user_path

from ...bench.machine import Machine
from ...configure import parse_settings
from ...grid import run_cell
from ...run_folder.files import versions, write_text
from .cost import cost_table, time_rounds, with_width
from .markdown import markdown
from .records import differences, records
from .variants import KEPT, NETWORK, PAPERS, VARIANTS, Cell


def main(arguments: list[str]) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m hierfl.experiments.papers.centroids.run", description="pFedVMP's Table 1."
    )
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--data-root", type=user_path)
    parser.add_argument("--beta", type=float, default=0.3, help="of the Dirichlet split")
    parser.add_argument("--keep", type=float, help="share of the data set; by default the paper's")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(PAPERS), metavar="NAME", help="some of the table's names")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all that have them")
    parser.add_argument("--device")
    parser.add_argument("--out", type=user_path, required=True)
    parser.add_argument(
        "--cost", type=int, nargs="+", metavar="WIDTH", help="time rounds with features of these widths"
    )
    parser.add_argument("--turns", type=int, default=3, help="rounds of each that are timed")
    parser.add_argument("--collect", action="store_true", help="only collect what has finished")
    said = parser.parse_args(arguments)
    for variant in said.methods:
        if variant not in VARIANTS:
            raise unknown("method of this table", variant, VARIANTS)
    settings = parse_settings(said.set)
    if mine := [k for k in ("prior", "precision") if k in settings]:
        raise UserError(f"{mine[0]} is what tells the rows of this table apart: choose rows with --methods")
    if said.seeds < 1:
        raise UserError("seeds must be at least 1")
    keep = KEPT.get((said.data, said.beta), 1.0) if said.keep is None else said.keep
    given = {
        "clients": said.clients, "network": said.network, "rounds": said.rounds,
        "split": f"dirichlet:{said.beta:g}{f',keep={keep:g}' if keep != 1 else ''},redraw",
    }  # fmt: skip
    extra = {name: getattr(said, name) for name in ("data_root", "device") if getattr(said, name) is not None}
    if said.cost:
        if min(said.cost) < 1 or said.turns < 1:
            raise UserError("widths and turns must be at least 1")
        by = {
            (v, width): Cell(v, said.data, {**given, "network": with_width(said.network, width)}, 0, settings)
            for width in said.cost
            for v in said.methods
        }
        rows = time_rounds(by, extra, said.turns)
        record = {"machine": asdict(Machine.here(said.device or "cpu")), "versions": versions(), "rows": rows}
        said.out.mkdir(parents=True, exist_ok=True)
        write_text(said.out / "cost.json", json.dumps(record, indent=1) + "\n")
        write_text(said.out / "cost.md", cost_table(rows))
        print(cost_table(rows))
        return
    everything = [
        [Cell(v, said.data, given, s, settings) for s in range(said.seeds) for v in names]
        for names in (said.methods, VARIANTS)
    ]
    for cell in [] if said.collect else everything[0]:
        if not (said.out / cell.name / "summary.json").is_file():
            print(cell, file=sys.stderr, flush=True)
        run_cell(cell, said.out / cell.name, extra, progress=False)
    rows = records(said.out, everything[1])
    if not rows:
        raise UserError(f"no run of this table has finished in {said.out}")
    from hierfl.comparison_plots import curves

    write_text(
        said.out / "centroids.json", json.dumps({"rows": rows, "differences": differences(rows)}, indent=1) + "\n"
    )
    write_text(said.out / "centroids.md", markdown(rows))
    lines = [(row["variant"], run["rounds"], run["pooled_by_round"]) for row in rows for run in row["runs"]]
    curves(lines, "test accuracy, all clients together", f"{said.data}, {given['split']}", said.out / "curve.png")
    print(markdown(rows))

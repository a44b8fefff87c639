"""pFedVMP and its ablations where labels differ between clients: accuracy over rounds, pFedVMP's Tables 1 and 2.

    hierfl papers centroids --data fashion-mnist --beta 0.3 --data-root DATA --seeds 3 --out OUT

Training and test files merged, a share of them kept, each class over 50 clients by Dir(beta), 80/20 inside each client,
one epoch a round: the paper's, but for the number of rounds. One run folder for each method and seed, resumed or left
alone if it is there; all training data. Accuracy is the paper's, of all clients' test data together, in the last round.

``--cost 128,256,...`` instead times rounds with features of these widths, every method and width in turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hierfl.errors import UserError, unknown
from hierfl.plots.comparison import curves

from ...bench.machine import Machine
from ...grid import Cell, run_cells
from ...messages import to_stderr
from ...run_folder.files import versions, write_text
from .cost import cost_table, time_rounds, with_width
from .markdown import markdown
from .records import differences, records
from .variants import KEPT, NETWORK, PAPERS, VARIANTS, table_cell


@dataclass(frozen=True)
class Wanted:
    """What is run.

    Attributes:
        data: the data set.
        options: run options of all rows.
        rows: some of :data:`VARIANTS`.
        settings: of all rows that have them.
    """

    data: str
    options: Mapping[str, Any]
    rows: Sequence[str]
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls, data: str, beta: float, keep: float | None, options: Mapping[str, Any], rows: Sequence[str] | None,
        settings: Mapping[str, Any],
    ) -> Wanted:  # fmt: skip
        """The paper's choices, but for what was said: beta of the split, and the share of the data that is kept.

        Raises:
            UserError: for a row that there is not, or a setting that tells rows apart.
        """
        for variant in rows or ():
            if variant not in VARIANTS:
                raise unknown("row of this table", variant, VARIANTS)
        if mine := [k for k in ("prior", "precision") if k in settings]:
            raise UserError(f"{mine[0]} is what tells the rows of this table apart: choose rows with --row")
        keep = KEPT.get((data, beta), 1.0) if keep is None else keep
        split = f"dirichlet:{beta:g}{f',keep={keep:g}' if keep != 1 else ''},redraw"
        options = {"clients": 50, "network": NETWORK, "rounds": 50, **options, "split": split}
        return cls(data, options, rows or PAPERS, settings)

    def cell(self, row: str, seed: int, **more: Any) -> Cell:
        """One run."""
        return table_cell(row, self.data, {**self.options, **more}, seed, self.settings)


def write_costs(wanted: Wanted, widths: Sequence[int], turns: int, extra: Mapping[str, Any], out: Path) -> str:
    """Times rounds with features of these widths into cost.json and cost.md; the table as markdown.

    Raises:
        UserError: for widths or turns that are none, or a network without a hidden layer.
    """
    if min(widths) < 1 or turns < 1:
        raise UserError("widths and turns must be at least 1")
    network = str(wanted.options["network"])
    cells = {(v, w): wanted.cell(v, 0, network=with_width(network, w)) for w in widths for v in wanted.rows}
    rows = time_rounds(cells, extra, turns)
    record = {"machine": asdict(Machine.here(extra.get("device", "cpu"))), "versions": versions(), "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "cost.json", json.dumps(record, indent=1) + "\n")
    write_text(out / "cost.md", cost_table(rows))
    return cost_table(rows)


def run_table(wanted: Wanted, seeds: int, extra: Mapping[str, Any], out: Path, collect: bool = False) -> str:
    """Runs what is missing of the table, and writes all that has finished; the table as markdown.

    Args:
        wanted: what is run.
        seeds: how many.
        extra: run options that the table leaves open (data_root, device).
        out: the folder of the runs, centroids.json, centroids.md and curve.png.
        collect: only collect what has finished.

    Raises:
        UserError: for a run that cannot be made, or if none has finished.
    """
    if seeds < 1:
        raise UserError("seeds must be at least 1")
    wants, whole = ([wanted.cell(v, s) for s in range(seeds) for v in names] for names in (wanted.rows, VARIANTS))
    run_cells([] if collect else wants, out, extra, say=to_stderr())
    rows = records(out, whole)
    if not rows:
        raise UserError(f"no run of this table has finished in {out}")
    record = {"rows": rows, "differences": differences(rows)}
    write_text(out / "centroids.json", json.dumps(record, indent=1) + "\n")
    write_text(out / "centroids.md", markdown(rows))
    lines = [(row["variant"], run["rounds"], run["pooled_by_round"]) for row in rows for run in row["runs"]]
    title = f"{wanted.data}, {wanted.options['split']}"
    curves(lines, "test accuracy, all clients together", title, out / "curve.png")
    return markdown(rows)

"""Methods on digits of several domains: accuracy in each, pFedV's Table 2, and which of its claims hold here.

    hierfl papers skew --data digit-three --data-root DATA --seeds 3 --out OUT

One run folder for each method and seed, resumed or left alone if it is there; all training data, the last round. Every
client has one domain; a method's number in a domain is the accuracy of its clients' models on the domain's test set.

FedAvg and FedV differ in more than the prior: z is noisy, and has no batch norm. Some rows tell these apart: *flat* has
neither noise nor KL (the plain network, but for that batch norm), *noise only* has noise, and a KL of no weight; *own
batch norm* stays with the client, as in FedBN, and where it is *re-estimated* its running statistics are those of the
averaged model, not of the client's last training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError, unknown

from ...grid import run_cells
from ...messages import to_stderr
from ...run_folder.files import write_text
from .markdown import markdown
from .records import differences, records
from .variants import VARIANTS, table_cell


def run_table(
    data: str, extra: Mapping[str, Any], settings: Mapping[str, Any], out: Path, rows: Sequence[str] | None = None,
    seeds: int = 3, collect: bool = False,
) -> str:  # fmt: skip
    """Runs what is missing of the table, and writes it.

    Args:
        data: a data set of domains.
        extra: run options as said.
        settings: steps of all methods, other settings of fedv and pfedv.
        out: the folder of the runs, skew.json and skew.md.
        rows: some of :data:`VARIANTS`; all by default.
        seeds: how many.
        collect: only collect what has finished.

    Returns:
        The table as markdown.

    Raises:
        UserError: for a row that there is not, data that have no domains, or a run that cannot be made.
    """
    for variant in rows or ():
        if variant not in VARIANTS:
            raise unknown("row of this table", variant, VARIANTS)
    if seeds < 1:
        raise UserError("seeds must be at least 1")
    cells = [table_cell(v, data, s, settings) for s in range(seeds) for v in rows or VARIANTS]
    split = cells[0].config(extra).run.split
    if split.partition(":")[0] not in ("domains", "domain-skew", "natural"):
        raise UserError(f"this table is of domains, as digit-three has: {data} is split by {split}")
    run_cells([] if collect else cells, out, extra, say=to_stderr())
    found = records(out, cells)
    if not found:
        raise UserError(f"no run of this table has finished in {out}")
    claims = differences(found)
    write_text(out / "skew.json", json.dumps({"rows": found, "claims": claims}, indent=1) + "\n")
    write_text(out / "skew.md", markdown(found, claims))
    return markdown(found, claims)

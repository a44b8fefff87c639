"""Differential privacy of a run, as summary.json has it and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hierfl.schema import Number, Schema

if TYPE_CHECKING:
    from hierfl.inference import Run

#: of summary.json
DP_SCHEMA: Schema = {
    "level": str, "unit": str, "simulated": bool, "patient_rows": Number(int, 1), "beyond?": Number(int, 1),
    "again?": Number(int, 1),
    "own?": bool, "loose?": Number(int, 1),
    **dict.fromkeys(("epsilon", "delta"), Number(float, 0)),
    "parts": {"*": {
        "releases": Number(int, 1), **dict.fromkeys(("share", "rate", "multiplier", "epsilon"), Number(float, 0)),
    }},
}  # fmt: skip
#: delta times the patients of a site, or the clients, is at most this: it bounds the chance that anything at all
#: becomes of somebody
MOST_DELTA = 0.1
#: where noise is added, by level
WHERE = {"site": "inside each site", "client": "to each client's whole message"}


def dp_summary(run: Run, *, simulated: bool, again: int = 0, own: bool = False) -> dict[str, Any]:
    """What summary.json says of a fit's noise.

    Args:
        run: with noise.
        simulated: whether the clients were all in this process.
        again: how many rounds were computed once more after restarts: epsilon has their releases.
        own: whether it is what one site of a study keeps for itself.
    """
    assert run.noise is not None  # as of the caller
    beyond = run.fitted.federation.about.get("beyond")
    entries = {**run.noise.summary, "simulated": simulated, "patient_rows": run.options.patient_rows}
    federation = run.fitted.federation
    units = federation.clients if run.options.dp == "client" else 0 if federation.outline else max(federation.sizes())
    if run.options.delta * units > MOST_DELTA:
        entries["loose"] = units
    if own:
        entries["own"] = True
    if again:
        entries |= {"epsilon": run.noise.with_restarts(again), "again": again}
    return {**entries, "beyond": beyond} if beyond else entries


def dp_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a fit's noise hides, and what not, in words; none for a fit without."""
    dp = summary.get("dp")
    if dp is None:
        return []
    parts = ", ".join(
        f"{name} {part['multiplier']:.3g} ({part['releases']} release{'s' * (part['releases'] != 1)})"
        for name, part in dp["parts"].items()
    )
    rows, own = dp["patient_rows"], dp.get("own", False)
    whose = "this site" if own else "the clients"
    rows_words = f" with at most {rows} row{'s' * (rows > 1)}" if dp["unit"] == "patient" else ""
    lines = [
        f"epsilon {dp['epsilon']:.3g}, delta {dp['delta']:g}: everything that left {whose}, together, "
        f"for one {dp['unit']}{rows_words} added or removed",
        f"noise {WHERE[dp['level']]}, in standard deviations by what one {dp['unit']} can change: {parts}",
    ]
    if units := dp.get("loose"):
        many = "patients of a client" if dp["unit"] == "patient" else "clients"
        lines.append(
            f"delta {dp['delta']:g} is too large for {units} {many}: without any noise as many as delta times their "
            f"number could be shown, and a promise has {MOST_DELTA:g} or less"
        )
    if again := dp.get("again"):
        lines.append(
            f"{again} round{'s were' if again > 1 else ' was'} computed once more after restarts, with other noise: "
            "epsilon has that too"
        )
    if dp.get("beyond"):
        left_out = dp["beyond"]
        lines.append(
            f"{left_out} row{'s are' if left_out > 1 else ' is'} left out: of each patient the first "
            f"{f'{rows} rows count' if rows > 1 else 'row counts'}"
        )
    if own:
        lines.append(
            "this folder is the site's own: its model, metrics and pictures are of its rows without noise, and epsilon "
            "does not cover who else gets them"
        )
    elif dp["simulated"]:
        lines.append(
            "this was a simulation: its noise follows from the seed, and metrics and clients' files have none, so that "
            "this folder protects no one"
        )
    else:
        lines.append("metrics are null: scores have no share of epsilon, and no site has sent any")
    return lines


def dp_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Each kind of release: a heading and rows."""
    heading = ["released", "share", "releases", "sampling rate", "noise / sensitivity", "epsilon alone"]
    return heading, [
        [name, f"{part['share']:g}", str(part["releases"]), f"{part['rate']:g}", f"{part['multiplier']:.4g}",
         f"{part['epsilon']:.3g}"]
        for name, part in summary["dp"]["parts"].items()
    ]  # fmt: skip

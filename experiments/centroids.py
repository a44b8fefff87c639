"""pFedVMP and its ablations where labels differ between clients: accuracy over rounds, pFedVMP's Tables 1 and 2.

    python -m hierfl.experiments.centroids --data fashion-mnist --beta 0.3 --data-root DATA --seeds 3 --out OUT

Training and test files merged, a share of them kept, each class over 50 clients by Dir(beta), 80/20 inside each client,
one epoch a round: the paper's, but for the number of rounds. One run folder for each method and seed, resumed or left
alone if it is there; all training data. Accuracy is the paper's, of all clients' test data together, in the last round.

``--cost 128 256 ...`` instead times rounds with features of these widths, every method and width in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hierfl.errors import UserError, unknown
from hierfl.files import user_path
from hierfl.inference.method.settings import applicable
from hierfl.models import PFedVMP

from . import folder as folders
from .bench import Machine, seconds
from .csv_files import read_frame
from .launch import launch
from .runner import build, configure, settings_said
from .skew import mean_and_error, percent
from .tables import finished, published_numbers, run_cell

#: name in the table: settings of pfedvmp, where its number was published (table, method)
VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "FedPer": ({"prior": "flat"}, ("1", "fedper")),
    "centroids at zero": ({"prior": "fixed"}, ("", "")),
    "pFedVMP, equal precisions": ({"precision": "equal"}, ("", "")),
    "pFedVMP-avg": ({"precision": "count"}, ("2", "pfedvmp-avg")),
    "pFedVMP, diagonal": ({"precision": "diagonal"}, ("", "")),
    "pFedVMP, cutoff 1e-3": ({"cutoff": 1e-3}, ("", "")),
    "pFedVMP": ({}, ("1", "pfedvmp")),
}
#: those that the paper compares
PAPERS = ("FedPer", "pFedVMP-avg", "pFedVMP")
#: differences between rows: the first should be better than the second
CLAIMS = (
    ("pFedVMP", "FedPer"), ("pFedVMP", "pFedVMP-avg"), ("pFedVMP-avg", "FedPer"), ("pFedVMP", "centroids at zero"),
    ("pFedVMP", "pFedVMP, equal precisions"), ("pFedVMP", "pFedVMP, diagonal"), ("pFedVMP", "pFedVMP, cutoff 1e-3"),
)  # fmt: skip
STEPS = ("epochs", "lr", "batch", "momentum", "init_scale")
NETWORK = "cnn:32,64:512,leaky=0.1"
#: share of the data set that the paper keeps, by data and beta
KEPT = {
    ("fashion-mnist", 0.1): 0.5, ("fashion-mnist", 0.3): 0.25, ("cifar10", 0.1): 0.5, ("cifar10", 0.3): 0.25,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run."""

    variant: str
    data: str
    given: Mapping[str, Any]
    seed: int
    said: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of its folder."""
        words = "".join(c if c.isalnum() else "-" for c in self.variant.lower())
        return f"{'-'.join(filter(None, words.split('-')))}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.data}, {self.given['split']}, {self.variant}, seed {self.seed}"

    def config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Of the run."""
        own = VARIANTS[self.variant][0]
        settings = {**applicable(PFedVMP, self.said, own), **own}
        given = {"validation": 0.0, "participation": 1.0, "evaluate_every": 5, **self.given, **extra, "seed": self.seed}
        return configure("pfedvmp", self.data, given, settings)


def records(out: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A record for each variant whose runs have finished: numbers by seed, and accuracy over the rounds.

    Raises:
        UserError: for runs of other data, rounds, steps and the like than the first.
    """
    found: dict[str, dict[str, Any]] = {}
    first: dict[str, Any] = {}
    for cell, folder, summary, setting in finished(out, cells):
        told = applicable(PFedVMP, setting["settings"])
        for name in (*STEPS, "distance"):  # (of distance nothing is told without centroids)
            if name in told and first.setdefault(name, told[name]) != told[name]:
                raise UserError(f"the runs in {out} differ in {name}: {cell.name} has {told[name]}")
        metrics = read_frame(folder / "metrics.csv", ("split",))
        metrics = metrics[metrics["split"] == "test"]
        record = found.setdefault(cell.variant, {"variant": cell.variant, "seeds": [], "setting": {}, "runs": []})
        record["seeds"].append(cell.seed)
        record["setting"] = {**setting["run"], **setting["settings"]}
        record["runs"].append(
            {
                "pooled": summary["pm_accuracy_pooled"],
                "accuracy": summary["pm_accuracy"],
                "cv": summary["accuracy_cv"],
                "nll": summary["pm_nll"],
                "ece": summary["pm_ece"],
                "redraws": summary["redraws"],
                "failed": summary["failed_local_steps"],
                "seconds_per_round": summary["seconds_per_round"],
                "bytes_per_message": float(metrics["bytes"].iloc[-1]) / summary["rounds"] / summary["clients"],
                "rounds": metrics["round"].tolist(),
                "pooled_by_round": metrics["pm_accuracy_pooled"].tolist(),
            }
        )
    return [found[name] for name in VARIANTS if name in found]


def differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each claim, in accuracy (pooled, and mean over clients) and NLL, paired by seed: mean and standard error."""
    found, by_name = [], {row["variant"]: row for row in rows}
    for better, worse in CLAIMS:
        if better not in by_name or worse not in by_name:
            continue
        pair = by_name[better], by_name[worse]
        one, two = (dict(zip(row["seeds"], row["runs"], strict=True)) for row in pair)
        if seeds := sorted(one.keys() & two.keys()):
            gaps = {k: mean_and_error([one[s][k] - two[s][k] for s in seeds]) for k in ("pooled", "accuracy", "nll")}
            found.append({"better": better, "worse": worse, "seeds": seeds, **gaps})
    return found


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """What was run, a row for each variant, and the differences."""
    one = rows[0]["setting"]
    theirs: dict[tuple[str, ...], Any] = {}
    split, more = one["split"].partition(",")[::2]
    kept = KEPT.get((one["data"], float(split.partition(":")[2])))
    papers = one["network"] == NETWORK and more == f"keep={kept:g},redraw" if kept else False
    for table in ("1", "2") if papers else ():  # (what was published is of the paper's data and network)
        theirs |= {(table, *map(str, key)): v for key, v in published_numbers("pfedvmp", table, split).items()}
    lines = [
        f"{one['data']}, {one['clients']} clients, {one['split']}, {one['network']}, {one['rounds']} rounds (paper: "
        + f"1,000), {', '.join(f'{k} {one[k]}' for k in STEPS)}, xi of the squared distance's "
        + f"{rows[-1]['setting']['distance']} over features; last round, mean ± standard error over seeds. Accuracy is "
        + "of all clients' test data together; the coefficient of variation is of clients' own.",
        "",
        "| | seeds | accuracy, % | published | mean over clients, % | variation | NLL | ECE | failed "
        "| kB a message | settings |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        runs, (table, method) = row["runs"], VARIANTS[row["variant"]][1]
        published = theirs.get((table, one["data"], str(one["clients"]), method, "PM"))
        shown = [percent(mean_and_error([run[name] for run in runs])) for name in ("pooled", "accuracy")]
        mean = {name: mean_and_error([run[name] for run in runs])[0] for name in ("cv", "nll", "ece")}
        told = applicable(PFedVMP, {k: row["setting"][k] for k in PFedVMP.Settings.__dataclass_fields__})
        beside = "" if published is None else published.accuracy
        cells = [
            row["variant"], len(row["seeds"]), shown[0], beside, shown[1], *(f"{mean[k]:.3f}" for k in mean),
            sum(run["failed"] for run in runs), f"{runs[0]['bytes_per_message'] / 1e3:,.0f}",
            ", ".join(f"{k} {told[k]:g}" for k in ("xi", "alpha", "cutoff") if k in told),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    gaps = differences(rows)
    if gaps:
        lines += ["", "| difference, paired by seed | seeds | accuracy, points | mean over clients, points | NLL |",
                  "|---|---:|---:|---:|---:|"]  # fmt: skip
    for gap in gaps:
        points = [percent(gap[name]) for name in ("pooled", "accuracy")]
        mean, error = gap["nll"]
        nll = f"{mean:.3f}" + ("" if error is None else f" ± {error:.3f}")
        lines.append(f"| {gap['better']} less {gap['worse']} | {len(gap['seeds'])} | {' | '.join(points)} | {nll} |")
    return "\n".join([*lines, ""])


def _wide(network: str, width: int) -> str:
    """A network's name with another width of its last hidden layer.

    Raises:
        UserError: for a network without one.
    """
    name, comma, options = network.partition(",leaky")
    before, mark, last = name.rpartition(":")
    if not mark:
        raise UserError(f"network {network} has no hidden layer whose width could be another")
    widths = [*last.split(",")[:-1], str(width)]
    return f"{before}:{','.join(widths)}{comma}{options}"


def cost(cells: Mapping[tuple[str, int], Cell], extra: dict[str, Any], turns: int) -> list[dict[str, Any]]:
    """Seconds and bytes of a round, every cell in turn, after one to warm up.

    Args:
        cells: by method and width.
        extra: run options.
        turns: rounds of each that are timed.
    """
    fits = {}
    for (name, width), cell in cells.items():
        config = cell.config(extra)
        print(f"{name}, {width} features", file=sys.stderr, flush=True)
        fits[name, width] = build(config)[0]
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in fits}
    for _ in range(turns + 1):
        for key, fit in fits.items():
            taken[key].append(seconds(fit.step, fit.options.device))
    return [
        {
            "variant": name,
            "width": width,
            "seconds": taken[name, width][1:],
            "median_seconds": statistics.median(taken[name, width][1:]),
            "bytes_per_message": fit.state.bytes / fit.journal.round / len(fit.engine.ids),
        }
        for (name, width), fit in fits.items()
    ]


def cost_table(rows: Sequence[dict[str, Any]]) -> str:
    """Widths down, methods across: seconds a round, and kilobytes of a client's message."""
    names, widths = (list(dict.fromkeys(row[k] for row in rows)) for k in ("variant", "width"))
    by = {(row["variant"], row["width"]): row for row in rows}
    columns = [f"{name}: {what}" for name in names for what in ("s a round", "kB a message")]
    lines = [f"| features | {' | '.join(columns)} |", "|---:|" + "---:|" * len(columns)]
    for width in widths:
        cells = [
            cell
            for name in names
            for cell in (
                f"{by[name, width]['median_seconds']:.2f}",
                f"{by[name, width]['bytes_per_message'] / 1e3:,.0f}",
            )
        ]
        lines.append(f"| {width} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m hierfl.experiments.centroids", description="pFedVMP's Table 1.")
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
    settings = settings_said(said.set)
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
            (v, width): Cell(v, said.data, {**given, "network": _wide(said.network, width)}, 0, settings)
            for width in said.cost
            for v in said.methods
        }
        rows = cost(by, extra, said.turns)
        record = {"machine": asdict(Machine.here(said.device or "cpu")), "versions": folders.versions(), "rows": rows}
        said.out.mkdir(parents=True, exist_ok=True)
        folders.write_text(said.out / "cost.json", json.dumps(record, indent=1) + "\n")
        folders.write_text(said.out / "cost.md", cost_table(rows))
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
    from hierfl.plots.comparison import curves

    folders.write_text(
        said.out / "centroids.json", json.dumps({"rows": rows, "differences": differences(rows)}, indent=1) + "\n"
    )
    folders.write_text(said.out / "centroids.md", markdown(rows))
    lines = [(row["variant"], run["rounds"], run["pooled_by_round"]) for row in rows for run in row["runs"]]
    curves(lines, "test accuracy, all clients together", f"{said.data}, {given['split']}", said.out / "curve.png")
    print(markdown(rows))


if __name__ == "__main__":
    launch(main)

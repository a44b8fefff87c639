"""Methods on digits of several domains: accuracy in each, pFedV's Table 2, and which of its claims hold here.

    python -m hierfl.experiments.skew --data digit-three --data-root DATA --seeds 3 --out OUT

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import UserError, unknown
from hierfl.files import user_path
from hierfl.inference.method.settings import applicable

from . import folder as folders
from .csv_files import read_frame
from .launch import launch
from .methods import load
from .runner import configure, settings_said
from .tables import finished, published_numbers, run_cell

SGD = {"epochs": 1, "lr": 0.01, "batch": 32, "momentum": 0.0}
#: name in the table: method, settings, its name in published.csv
VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Local": ("local", SGD, ""),
    "FedAvg": ("fedavg", SGD, "fedavg"),
    "FedBN": ("fedbn", SGD, "fedbn"),
    "FedBN (statistics alone)": ("fedbn", {**SGD, "local_norm": "statistics"}, ""),
    "FedBN (statistics anew)": ("fedbn", {**SGD, "bn_refresh_epochs": 1}, ""),
    "FedV (flat)": ("fedv", {"prior": "flat"}, ""),
    "FedV (Gaussian prior)": ("fedv", {"prior": "fixed"}, "fedv-gaussian-prior"),
    "FedV": ("fedv", {}, "fedv"),
    "pFedV (flat)": ("pfedv", {"prior": "flat"}, ""),
    "pFedV (noise only)": ("pfedv", {"alpha": 1e-9}, ""),
    "pFedV (own batch norm)": ("pfedv", {"local_norm": "all"}, ""),
    "pFedV (own batch norm, anew)": ("pfedv", {"local_norm": "all", "bn_refresh_epochs": 1}, ""),
    "pFedV (Gaussian prior)": ("pfedv", {"prior": "fixed"}, "pfedv-gaussian-prior"),
    "pFedV": ("pfedv", {}, "pfedv"),
}
#: the paper's claims: the first is better than the second; then what they are made of
CLAIMS = (
    ("FedV", "FedV (Gaussian prior)"), ("pFedV", "pFedV (Gaussian prior)"), ("pFedV", "FedV"),
    ("pFedV (Gaussian prior)", "FedV (Gaussian prior)"), ("FedV", "FedAvg"), ("pFedV", "FedAvg"), ("pFedV", "FedBN"),
    ("pFedV", "pFedV (noise only)"), ("pFedV (Gaussian prior)", "pFedV (noise only)"), ("pFedV", "pFedV (flat)"),
    ("pFedV (own batch norm)", "pFedV"), ("pFedV (own batch norm)", "FedBN"), ("pFedV (flat)", "FedV (flat)"),
    ("pFedV (own batch norm, anew)", "pFedV (own batch norm)"), ("pFedV (own batch norm, anew)", "pFedV"),
    ("FedBN (statistics anew)", "FedBN"), ("pFedV (own batch norm, anew)", "FedBN (statistics anew)"),
    ("FedV (flat)", "FedAvg"), ("FedBN (statistics alone)", "FedAvg"),
)  # fmt: skip
#: of summary.json, means over clients
NUMBERS = (
    "pm_nll", "pm_ece", "pm_draws_accuracy", "pm_draws_nll", "pm_draws_ece", "failed_local_steps", "seconds_per_round",
)  # fmt: skip


def settings_of(variant: str, said: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A variant's method and settings.

    What was said of steps holds for all methods, anything else for those with latent features; what makes the variant
    stays.

    Raises:
        UserError: if another prior was asked for.
    """
    if "prior" in said:
        raise UserError("the prior is what tells the rows of this table apart: choose rows with --methods")
    method, own, _ = VARIANTS[variant]
    steps = {k: v for k, v in said.items() if k in SGD}
    latent = applicable(load(method).cls, said, own) if method in ("fedv", "pfedv") else {}
    return method, {**latent, **own, **steps}


@dataclass(frozen=True)
class Cell:
    """One run."""

    variant: str
    data: str
    seed: int
    said: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of its folder."""
        words = "".join(c if c.isalnum() else "-" for c in self.variant.lower()).strip("-")
        return f"{words}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.data}, {self.variant}, seed {self.seed}"

    def config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Of the run."""
        method, settings = settings_of(self.variant, self.said)
        rare = {"evaluate_every": 1000}  # after the first round and the last
        return configure(method, self.data, {"validation": 0.0, **rare, **extra, "seed": self.seed}, settings)


def records(out: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A record for each variant whose runs have finished: accuracy by domain and seed, and means of other numbers.

    Raises:
        UserError: for runs of other data, rounds and the like than the first.
    """
    found: dict[str, dict[str, Any]] = {}
    for cell, folder, summary, setting in finished(out, cells):
        clients = read_frame(folder / "clients.csv", ("client",))
        record = found.setdefault(cell.variant, {"variant": cell.variant, "seeds": [], "accuracy": {}, "numbers": {}})
        record["seeds"].append(cell.seed)
        # (numbered where several share one)
        domain = clients["client"].str.replace(r"-\d+$", "", regex=True)
        for name, accuracy in clients["accuracy"].groupby(domain, sort=False).mean().items():
            record["accuracy"].setdefault(str(name), []).append(float(accuracy))
        for name in NUMBERS:
            record["numbers"].setdefault(name, []).append(summary[name])
        record["setting"] = {**setting["run"], **setting["settings"]}
    return list(found.values())


def differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each claim's difference in accuracy, paired by seed, mean over domains and in each of them."""
    found, by_name = [], {row["variant"]: row for row in rows}
    for first, second in CLAIMS:
        if first not in by_name or second not in by_name:
            continue
        one, two = by_name[first], by_name[second]
        both = [s for s in one["seeds"] if s in two["seeds"]]
        if not both:
            continue
        at = [(one["seeds"].index(s), two["seeds"].index(s)) for s in both]
        by_domain = {d: [a[i] - two["accuracy"][d][k] for i, k in at] for d, a in one["accuracy"].items()}
        means = np.mean(list(by_domain.values()), axis=0)
        draws = [averaged(one)[i] - averaged(two)[k] for i, k in at]
        found.append({"better": first, "worse": second, "seeds": both, "mean": mean_and_error(means),
            "domains": {d: mean_and_error(v) for d, v in by_domain.items()},
            "draws": mean_and_error(draws)})  # fmt: skip
    return found


def averaged(row: dict[str, Any]) -> list[float]:
    """A variant's mean accuracy by seed with averaged draws, or without where it has none."""
    draws = row["numbers"]["pm_draws_accuracy"]
    return list(np.mean(list(row["accuracy"].values()), axis=0)) if None in draws else draws


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float | None]:
    """Mean and standard error."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return float(np.mean(values)), error


def markdown(rows: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]]) -> str:
    """What was run, accuracy in each domain, the differences, and the published table."""
    domains, one = list(rows[0]["accuracy"]), rows[0]["setting"]
    seeds = sorted({len(row["seeds"]) for row in rows})
    of = f"{' or '.join(map(str, seeds))} seed{'s' * (seeds != [1])}"
    lines = [
        f"{one['data']}, {one['clients']} clients, {one['split']}, {one['rounds']} rounds, last round, "
        f"{of}, {one['network']}"
        + (f"; {one['data_origin']}" if one.get("data_origin") else "")
        + ". Mean ± standard error over seeds, where there are several; differences are paired by seed.",
        "",
        f"| accuracy, % | {' | '.join(domains)} | mean | NLL | ECE | averaged draws: mean | NLL | ECE | failed |",
        "|---|" + "---:|" * (len(domains) + 7),
    ]
    for row in rows:
        shown = [percent(mean_and_error(row["accuracy"][domain])) for domain in domains]
        shown.append(percent(mean_and_error(np.mean(list(row["accuracy"].values()), axis=0))))
        numbers = row["numbers"]
        for name in ("pm_nll", "pm_ece", "pm_draws_accuracy", "pm_draws_nll", "pm_draws_ece"):
            if None in numbers[name]:
                shown.append("")
            else:
                value = mean_and_error(numbers[name])
                shown.append(percent(value) if name.endswith("accuracy") else f"{value[0]:.3f}")
        lines.append(f"| {row['variant']} | {' | '.join(shown)} | {sum(numbers['failed_local_steps'])} |")
    columns = ["mean", *domains, "averaged draws: mean"]
    lines += ["", f"| difference, points | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for claim in claims:
        values = [claim["mean"], *(claim["domains"][d] for d in domains), claim["draws"]]
        cells = " | ".join("" if value is None else percent(value) for value in values)
        lines.append(f"| {claim['better']} less {claim['worse']} | {cells} |")
    theirs = published_numbers("pfedv", "2")
    known = [d for d in domains if any(key[0] == d for key in theirs)]
    if not known:
        return "\n".join([*lines, ""])
    lines += [
        "",
        "Published, on Digit-Five: five clients, 7,291 images each, 50 rounds, other data of these domains.",
        "",
    ]
    lines += [f"| published, % | {' | '.join(known)} |", "|---|" + "---:|" * len(known)]
    for name, (_, _, key) in VARIANTS.items():
        found = [theirs.get((d, 5, key, "PM")) for d in known]
        if any(found):
            lines.append(f"| {name} | {' | '.join('' if f is None else f'{f.accuracy:.2f}' for f in found)} |")
    return "\n".join([*lines, ""])


def percent(value: tuple[float, float | None]) -> str:
    """Mean ± standard error, in percent."""
    mean, error = value
    return f"{100 * mean:.2f}" + ("" if error is None else f" ± {100 * error:.2f}")


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
    settings = settings_said(said.set)
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
    folders.write_text(said.out / "skew.json", json.dumps({"rows": rows, "claims": claims}, indent=1) + "\n")
    folders.write_text(said.out / "skew.md", markdown(rows, claims))
    print(markdown(rows, claims))


if __name__ == "__main__":
    launch(main)

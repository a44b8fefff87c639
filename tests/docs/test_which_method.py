"""The figures of "Which method for me?" are those of the committed results."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments/results"
PAGE = (ROOT / "docs/which-method.md").read_text(encoding="utf-8")


def row(start: str) -> str:
    """The row of a table, or the item of a list, that begins with these words."""
    (text,) = [line for line in PAGE.replace("\n  ", " ").splitlines() if line.lstrip("|*- ").startswith(start)]
    return text


def rows(name: str) -> list[dict[str, str]]:
    """Of a committed csv file."""
    with open(RESULTS / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read(name: str) -> Any:
    """A committed json file."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def percent(share: float) -> str:
    """With one digit."""
    return f"{100 * share:.1f}"


def test_fashion_mnist() -> None:
    pfedeb = read("fashion-mnist/pfedeb.json")[0]
    table = {(r["data"], r["clients"], r["method"], r["model"]): r for r in read("pfedvem-1/table.json")["rows"]}
    vem, per, local = (table["fashion-mnist", 100, name, "PM"] for name in ("pfedvem", "fedper", "local"))
    shown = row("differ in which classes they have; some")
    assert f"pFedEB {percent(pfedeb['pm_accuracy'])} %, pFedVEM {vem['ours']:.1f} %" in shown
    assert f"FedPer {per['ours']:.1f} %, Local {local['ours']:.1f} %" in shown
    assert f"NLL {pfedeb['pm_nll']:.3f}, {vem['nll']:.3f} and {per['nll']:.3f} for" in shown


def test_fashion_mnist_by_size() -> None:
    clients = {
        name: rows(f"pfedvem-1/clients/fashion-mnist-100-{name}-0.csv") for name in ("pfedvem", "fedper", "local")
    }
    small, large = (
        [percent(fmean(float(r["accuracy"]) for r in table if low < int(r["n"]) <= high)) for table in clients.values()]
        for low, high in ((0, 50), (600, 10**9))
    )
    shown = row("the same, with very small clients")
    assert f"pFedVEM {small[0]} %, FedPer {small[1]} %, Local {small[2]} % (one seed)" in shown
    assert f"more than 600: {large[0]}, {large[1]} and {large[2]} %" in shown
    assert f"clients of at most 50 Fashion-MNIST images: {small[2]} %" in row("must not send anything")


def test_fedpop() -> None:
    by_method = {r["method"]: r for r in read("fedpop/cifar10/table.json")["rows"] if r["condition"] == "classes:2"}
    pop, rep = by_method["fedpop"], by_method["fedrep"]
    shown = row("have two classes each")
    assert f"FedPop {pop['ours']:.1f} %, FedRep {rep['ours']:.1f} %; ECE {pop['ece']:.3f} and {rep['ece']:.3f}" in shown
    pop, rep = (read(f"fedpop/ood/{name}-summary.json") for name in ("fedpop", "fedrep"))
    mean, draws, other = pop["ood_auroc"], pop["ood_draws_auroc"], rep["ood_auroc"]
    assert f"{mean:.2f} at the posterior mean, {draws:.2f} by averaged draws, FedRep {other:.2f}" in row("must notice")


def test_label_shares() -> None:
    table = {(r["method"], r["model"]): r for r in rows("digits/table/table.csv")}
    protocols = [r for r in rows("shares/protocols.csv") if r["setting"] == "heads=off" and r["predictions"] == "pm"]
    balanced = {
        shares: fmean(float(r["nll"]) for r in protocols if (r["protocol"], r["shares"]) == ("balanced", shares))
        for shares in ("own", "test")
    }
    shown = row("are alike but for label shares")
    hb, avg = (float(table[name, "PM"]["nll"]) for name in ("pfedhb", "fedavg"))
    assert f"digits: NLL {hb:.3f} beside FedAvg's {avg:.3f}" in shown
    large = [r for r in rows("fashion-mnist/pfedhb/runs.csv") if r["method"] == "pfedhb"]
    accuracy, nll = (fmean(float(r[name]) for r in large) for name in ("pm_accuracy", "pm_nll"))
    assert f"100 clients: personal accuracy {percent(accuracy)} %, NLL {nll:.3f}" in shown
    assert f'it is {balanced["own"]:.3f}**: use `shares="test"` ({balanced["test"]:.3f})' in shown


def test_domains() -> None:
    by_variant = {r["variant"]: r["accuracy"] for r in read("pfedv/digit-three/skew.json")["rows"]}

    def shown_mean(name: str) -> str:
        seeds = [100 * fmean(values) for values in zip(*by_variant[name].values(), strict=True)]
        return f"{fmean(seeds):.1f} ± {stdev(seeds) / len(seeds) ** 0.5:.1f} %"

    shown = row("differ in the inputs")
    bn, v = "FedBN (statistics re-estimated)", "pFedV (own batch norm, re-estimated)"
    assert f"FedBN {shown_mean(bn)}, pFedV {shown_mean(v)}; FedAvg {shown_mean('FedAvg')}" in shown
    new, rendered = (
        {cell["method"]: cell["accuracy"] for cell in read(f"pfedv/unseen-{name}/unseen.json")["cells"]}
        for name in ("mnist-m", "synthetic-digits")
    )
    shown = row("will include clients that were never seen")
    assert f"FedV {percent(new['FedV']['0'])} %, FedAvg {percent(new['FedAvg']['0'])} %" in shown
    assert f"pFedV {percent(new['pFedV']['100'])} %, FedBN {percent(new['FedBN']['100'])} %" in shown
    assert f"FedV {percent(rendered['FedV']['0'])} %, FedAvg {percent(rendered['FedAvg']['0'])} %" in shown


def test_digits() -> None:
    methods = ("fedavg", "pfedvem", "fedper", "local")
    runs = {name: [r for r in rows("digits/table/runs.csv") if r["method"] == name] for name in methods}
    accuracies = {name: [float(r["pm_accuracy"]) for r in of] for name, of in runs.items()}
    avg, vem, per, local = (percent(fmean(accuracies[name])) for name in methods)
    error = percent(stdev(accuracies["pfedvem"]) / len(accuracies["pfedvem"]) ** 0.5)
    shown = row("differ only in which classes")
    assert f"FedAvg {avg} %, pFedVEM {vem} ± {error} %, FedPer {per} %, Local {local} %" in shown
    assert "NLL " + ", ".join(f"{fmean(float(r['pm_nll']) for r in runs[name]):.3f}" for name in methods) in shown
    assert f"digits: {local} %" in row("must not send anything")


def test_gains_by_size() -> None:
    sizes = [
        r
        for r in rows("ablations/pfedvem-digits/sizes.csv")
        if r["kind"] == "mean" and r["metric"] == "accuracy" and "fixed" in r["over"]
    ]
    shown = row("Small clients gain")
    small, large = sizes[0], sizes[-1]
    assert f"{100 * float(small['gain']):.1f} points of accuracy better" in shown
    assert f"clients of {small['n_from']} to {small['n_to']} images" in shown
    assert f"For clients of {large['n_from']} to {large['n_to']} it is {100 * float(large['gain']):.1f} points" in shown


@pytest.mark.parametrize("name", ["README.md", "docs/which-method.md"])
def test_intervals_of_clients(name: str) -> None:
    covered = [float(r["client"]) for r in rows("mixed-effects/intervals.csv")]
    text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
    assert f"90 % intervals of clients cover {100 * min(covered):.0f} to {100 * max(covered):.0f} %" in text


def test_gallery() -> None:
    lines = (ROOT / "docs/gallery/index.md").read_text(encoding="utf-8").splitlines()
    models = [line for line in lines if line.startswith("- [")]
    beside = [line.split("|")[3] for line in lines if line.startswith("| [")]
    shown = row("a model that Pyro can express")
    assert f"in {len(beside)} of its {len(models)} models" in shown
    assert f"within {max(float(mean.strip(' *')) for mean in beside)} standard deviations" in shown

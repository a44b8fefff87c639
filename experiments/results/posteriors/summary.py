"""The tables of this folder's csv files: shares with standard errors over data sets.

python experiments/results/posteriors/summary.py > experiments/results/posteriors/summary.txt
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
COVERED = ["w", "w_j", "small", "middle", "large"]


def read(*names: str) -> pd.DataFrame:
    """Files that are there, one below the other."""
    frames = [pd.read_csv(HERE / f"{name}.csv") for name in names if (HERE / f"{name}.csv").is_file()]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def percent(df: pd.DataFrame, by: list[str], columns: list[str]) -> pd.DataFrame:
    """Means and standard errors of shares, as text."""
    groups = df.groupby(by)[columns]
    mean, error, number = 100 * groups.mean(), 100 * groups.sem(), groups.size()
    text = mean.map("{:.1f}".format) + " +- " + error.map("{:.1f}".format)
    return text.where(mean.notna(), "").assign(sets=number)


def recovery() -> None:
    """Intervals, spreads beside the truth and the maximum, predictions."""
    df, best = read("gaussian", "laplace", "variational", "chains", "forms"), read("importance")
    print("Coverage of 90 % intervals, %: of w, of w_j, and of w_j at clients of n < 15, 15 to 49, 50 and more")
    print(percent(df, ["family", "true_rho", "variant"], COVERED).to_string(), end="\n\n")
    keys = ["family", "true_rho", "data_set"]
    if len(best):
        df = df.merge(best[[*keys, "rho"]].rename(columns={"rho": "best"}), on=keys, how="left")
    else:
        df["best"] = float("nan")
    some = df[df["true_rho"] > 0].copy()
    some["off truth"], some["off maximum"] = some["rho"] / some["true_rho"] - 1, some["rho"] / some["best"] - 1
    some["mean off maximum"] = some["rho_mean"] / some["best"] - 1  # of the posterior over nodes
    groups = some.groupby(["family", "true_rho", "variant"])
    table = percent(some, ["family", "true_rho", "variant"], ["off truth", "off maximum", "mean off maximum"])
    table["worst off maximum"] = (100 * groups["off maximum"].apply(lambda v: v.abs().max())).round(1)
    table["sets of that"] = groups["off maximum"].count()
    print("rho: its error against the truth, and against the maximum of the marginal likelihood, %")
    print(table.to_string(), end="\n\n")
    zero = df[df["true_rho"] == 0].copy()
    for name in ("nll", "draws_nll"):
        zero[f"{name} more"] = zero[name] - zero["pooled_nll"]
    columns = ["rho", "rho_mean", "nll more", "draws_nll more"]
    print("True rho 0: rho found, its posterior's mean, and NLL above the pooled model's, mean and largest")
    print(zero.groupby(["family", "variant"])[columns].agg(["mean", "max"]).round(4).to_string(), end="\n\n")


def others() -> None:
    """Small regressions, chains and leave-one-out."""
    small = read("coverage")
    if len(small):
        print("20 clients, rho 0.5: coverage of 90 % intervals, %, and rho found")
        keys = ["n", "correlation", "method"]
        table = percent(small, keys, ["w_j", "w"])
        rho = small.groupby(keys)[["rho", "rho_bias"]].mean().round(3)
        print(pd.concat([table, rho], axis=1).to_string(), end="\n\n")
    chains = read("nuts")
    if len(chains):
        print("Beside NUTS: differences of means (sd), ratios of sds; means, largest and least over data sets")
        by = chains.groupby(["family", "rho", "variant", "n"])
        kept = [k for k in chains.columns[5:] if k not in ("directions", "logits")]
        how = {k: k.rsplit("_", 1)[-1] if k.endswith(("_min", "_max")) else "mean" for k in kept}
        print(by.agg(how).round(3).assign(sets=by.size()).to_string(), end="\n\n")
    pareto = read("loo")
    if len(pareto):
        print("Share of examples with Pareto's k below 0.7")
        print(pareto.to_string(index=False), end="\n\n")
    refits = read("loo-refits")
    if len(refits):
        off, sums = (refits["loo"] - refits["refit"]).abs(), refits[["loo", "refit"]].sum()
        print(f"Leave-one-out beside {len(refits)} refits: the sum {sums['loo']:.2f} against {sums['refit']:.2f}")
        below = off[refits["k"] < 0.7].max()
        print(f"each at most {off.max():.2f} off, {below:.2f} where k is below 0.7; k at most {refits['k'].max():.2f}")


if __name__ == "__main__":
    recovery()
    others()

"""Means over seeds of protocols.csv and concept_drift.csv, as markdown."""

import pandas as pd

METRICS = ["accuracy", "nll", "ece"]


table = pd.read_csv("protocols.csv", keep_default_na=False)
keys = ["method", "setting", "predictions", "shares"]
means = table.groupby([*keys, "protocol"], sort=False)[METRICS].mean().unstack("protocol")
seeds = table.groupby(keys, sort=False)["seed"].nunique().rename("seeds")
means.columns = [f"{protocol} {metric}" for metric, protocol in means.columns]
for column in means:
    means[column] = (100 * means[column]).round(1) if column.endswith("accuracy") else means[column].round(3)
order = [f"{protocol} {metric}" for protocol in ("own", "balanced", "shifted") for metric in METRICS]
print(means[order].join(seeds).reset_index().to_csv(sep="|", index=False))

drift = pd.read_csv("concept_drift.csv", keep_default_na=False)
rows = drift.set_index(["case", "seed", "predictions", "shares"])[METRICS]
fedavg = rows.xs(("gm", ""), level=["predictions", "shares"])
gain = rows - fedavg.reindex(rows.index.droplevel(["predictions", "shares"])).values
print(gain.groupby(["case", "predictions", "shares"]).mean().assign(accuracy=lambda t: 100 * t["accuracy"]).round(4))

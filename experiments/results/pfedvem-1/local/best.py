"""Local's accuracy by setting and size of client, and with the best setting for each client by its own test data.

python best.py RUN RUN ...
"""

import sys
from pathlib import Path

import pandas as pd

clients = {folder.name: pd.read_csv(folder / "clients.csv").set_index("client") for folder in map(Path, sys.argv[1:])}
accuracy = pd.DataFrame({name: frame["accuracy"] for name, frame in clients.items()})
n = next(iter(clients.values()))["n"]
size = pd.cut(n, [0, 50, 200, 600, n.max()])
print(accuracy.groupby(size, observed=True).mean().assign(clients=size.value_counts()).round(4).to_string())
print(f"more than 50 images: {accuracy[n > 50].mean().round(4).to_dict()}")
print(f"all: {accuracy.mean().round(4).to_dict()}, best for each: {accuracy.max(axis=1).mean():.4f}")

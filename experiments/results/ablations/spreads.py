"""Spreads that pFedVEM's runs (folders) have learned, their NLL, and the number of clients on which w rests.

python spreads.py pfedvem-fedpop-synthetic/hierarchical-*
"""

import json
import sys
from pathlib import Path

import pandas as pd

for folder in map(Path, sys.argv[1:]):
    history = pd.read_csv(folder / "history.csv")
    tau = history[history["round"] == history["round"].max()]["tau"]
    share, rho = tau / tau.sum(), tau**-0.5
    nll = json.loads((folder / "summary.json").read_text())["pm_draws_nll"]
    print(f"{folder.name}: NLL {nll:.2f}, rho median {rho.median():.2f} to {rho.max():.2f}, "
          f"w rests on {1 / (share**2).sum():.1f} of {len(tau)} clients")  # fmt: skip

"""Tables of docs/digits.md from the runs of `table`, `more` and `priors`: mean and standard error over seeds 1 to 7.

python tables.py
"""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent
RUNS = pd.concat(
    [pd.read_csv(FOLDER / name / "runs.csv") for name in ("priors", "more", "table")], ignore_index=True
).drop_duplicates(["method", "seed"])

#: methods of each table of the page, with their names there
TABLES = {
    "priors and references": {
        "pfedvem": "**pFedVEM**", "pfedvem-fixed": "pFedVEM, fixed prior", "pfedvem-flat": "pFedVEM, flat prior",
        "fedpop": "**FedPop**", "fedpop-fixed": "FedPop, fixed prior", "fedpop-flat": "FedPop, flat prior",
        "pfedv": "**pFedV**", "pfedv-fixed": "pFedV, fixed prior", "pfedv-flat": "pFedV, flat prior",
        "fedv": "**FedV**", "fedv-fixed": "FedV, fixed prior", "pfedvmp": "**pFedVMP**", "pfedeb": "**pFedEB**",
        "pfedhb": "**pFedHB**", "local": "Local", "fedavg": "FedAvg", "fedper": "FedPer", "fedrep": "FedRep",
    },
    "other baselines": {
        "fedavg-ft": "FedAvg-FT", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "lg-fedavg": "LG-FedAvg",
        "ditto": "Ditto", "apfl": "APFL", "l2gd": "L2GD", "perfedavg": "Per-FedAvg", "ifca": "IFCA",
        "dg-lmc": "DG-LMC",
    },
    "newer baselines": {
        "fedrod": "FedROD", "fedproto": "FedProto", "gpfl": "GPFL", "fedcp": "FedCP", "fedpac": "FedPAC",
        "moon": "MOON", "fedpa": "FedPA", "fedep": "FedEP", "fola": "FOLA", "qlsd": "QLSD", "pfedbred": "pFedBreD",
        "pfedgp": "pFedGP",
    },
}  # fmt: skip
COLUMNS = {
    "personal accuracy, %": "pm_accuracy", "global accuracy, %": "gm_accuracy", "personal NLL": "pm_nll",
    "personal ECE": "pm_ece", "averaged draws: NLL": "pm_draws_nll", "ECE": "pm_draws_ece", "global NLL": "gm_nll",
}  # fmt: skip

SENT = pd.concat([pd.read_csv(FOLDER / name / "table.csv") for name in ("more", "table")]).set_index("method")[
    "bytes_per_message"
]


def kilobytes(method: str) -> str:
    """What a client sends in a round."""
    sent = SENT[method] if method in SENT.index else None
    values = [] if sent is None else [v for v in (sent if isinstance(sent, pd.Series) else [sent]) if v == v]
    return f"{values[0] / 1e3:.1f}" if values else ""


def cell(values: pd.Series, metric: str) -> str:
    """Mean ± standard error, accuracies in percent."""
    values = values.dropna()
    if not len(values):
        return ""
    scale, digits = (100, 1) if metric.endswith("accuracy") else (1, 3)
    error = f" ± {scale * values.std() / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{scale * values.mean():.{digits}f}{error}" + (f" ({len(values)})" if len(values) < 7 else "")


for title, methods in TABLES.items():
    print(f"{title}\n\n| | {' | '.join(COLUMNS)} | kB a message |\n|---|{'---:|' * (len(COLUMNS) + 1)}")
    for method, name in methods.items():
        rows = RUNS[RUNS["method"] == method]
        cells = [*(cell(rows[metric], metric) for metric in COLUMNS.values()), kilobytes(method)]
        print(f"| {name} | {' | '.join(cells)} |")
    print()

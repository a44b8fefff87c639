"""Twenty clients on the classes that the backbone has not seen: personal adapters and heads beside fine-tuning.

    python experiments/results/adapters/compare.py FOLDER METHOD OUT.json

FOLDER is what ``backbone.py`` left; METHOD is one of :data:`METHODS`. It is fitted with each of its settings by seed
100, and the least NLL on validation data (a fifth of the training data) decides. With that setting it is fitted by
seeds 0, 1, 2, with validation data among the training data. OUT.json has NLL and accuracy on test data, unweighted
means over clients, after the last round.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hierfl.models
from hierfl.data.federation import Federation
from hierfl.inference.run.fit import fit
from hierfl.nn.networks.build import architecture

SPEC, LORA = "resnet18-small:8", "lora:4:layer4"
CLIENTS, SPLIT, ROUNDS = 20, "label-skew-equal:3", 8
VEM = {"head_epochs": 6, "base_epochs": 1, "particles": 1, "sigma_0": 0.1}
#: method, head, and the settings among which one is chosen
METHODS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "fedavg": ("FedAvg", "linear", [{"lr": lr, "epochs": 1} for lr in (0.01, 0.03)]),
    "local": ("Local", "linear", [{"lr": lr, "epochs": 1} for lr in (0.003, 0.01, 0.03)]),
    "fedavg-lora": ("FedAvg", LORA, [{"lr": lr, "epochs": 1} for lr in (0.01, 0.03)]),
    "fedper-lora": ("FedPer", LORA, [{"lr": lr, "epochs": 1} for lr in (0.003, 0.01, 0.03)]),
    "pfedvem-lora": ("PFedVEM", LORA, [{**VEM, "head_lr": lr} for lr in (1e-4, 3e-4, 1e-3, 3e-3)]),
}


def federation(folder: Path, seed: int, validation: float) -> Federation:
    """Clients of three of the six classes each."""
    data = Federation.from_npz(folder / "clients.npz", clients=CLIENTS, split=SPLIT, validation=validation, seed=seed)
    return replace(data, mean=None, std=None)  # scaled as the backbone's pictures were


def fitted(folder: Path, name: str, settings: dict[str, Any], seed: int, split: str) -> dict[str, float]:
    """Scores of one fit, after the last round."""
    method, head, _ = METHODS[name]
    began = time.process_time()
    data = federation(folder, seed, 0.2 if split == "validation" else 0.0)
    net = architecture(SPEC, data, head=head, weights=folder / "backbone.safetensors")
    run = fit(getattr(hierfl.models, method)(net, **settings), data, rounds=ROUNDS, seed=seed, draws=5, progress=False,
              evaluate_every=1000, splits=(split,))  # fmt: skip
    last = run.metrics[run.metrics["split"] == split].iloc[-1]
    wanted = [f"pm_{draws}{key}" for draws in ("", "draws_") for key in ("nll", "accuracy", "ece")]
    numbers = {key: float(last[key]) for key in wanted if last.get(key) is not None}
    outcome = {key: round(value, 4) for key, value in numbers.items() if np.isfinite(value)}
    outcome["cpu_seconds"] = round(time.process_time() - began, 1)
    print(name, settings, seed, outcome, flush=True)
    return outcome


def nll(row: dict[str, Any]) -> float:
    """The NLL by which settings are chosen: of predictions over draws, where a method has them."""
    return float(row.get("pm_draws_nll", row["pm_nll"]))


def main() -> None:
    """Fits and writes."""
    torch.set_num_threads(1)
    folder, name, path = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    rows = [{"settings": s, **fitted(folder, name, s, 100, "validation")} for s in METHODS[name][2]]
    record: dict[str, Any] = {"method": name, "validation": rows, "test": []}
    best = min(rows, key=nll)["settings"]
    for seed in (0, 1, 2):
        record["test"].append({"seed": seed, "settings": best, **fitted(folder, name, best, seed, "test")})
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

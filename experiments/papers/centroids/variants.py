"""The rows of the table, and the claims: differences between rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierfl.inference.method.settings import applicable
from hierfl.models import PFedVMP

from ...grid import Cell

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


def table_cell(variant: str, data: str, given: Mapping[str, Any], seed: int, said: Mapping[str, Any]) -> Cell:
    """One run of the table."""
    own = VARIANTS[variant][0]
    settings = {**applicable(PFedVMP, said, own), **own}
    words = "".join(c if c.isalnum() else "-" for c in variant.lower())
    name = "-".join(filter(None, words.split("-")))
    about = f"{data}, {given['split']}, {variant}, seed {seed}"
    given = {"validation_fraction": 0.0, "participation": 1.0, "evaluate_every": 5, **given}
    return Cell(f"{name}-{seed}", about, variant, "pfedvmp", data, given, settings, seed)

"""The rows of the table, and the claims: differences between rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hierfl.inference.method import applicable
from hierfl.models import PFedVMP

from ...configure import configure

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
STEPS = ("epochs", "lr", "batch", "momentum", "w_0")
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

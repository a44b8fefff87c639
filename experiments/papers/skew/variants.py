"""The rows of the table, and the claims: differences between rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.method.settings import applicable

from ...grid import Cell
from ...methods import load

SGD = {"epochs": 1, "lr": 0.01, "batch": 32, "momentum": 0.0}
#: name in the table: method, settings, its name in published.csv
VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Local": ("local", SGD, ""),
    "FedAvg": ("fedavg", SGD, "fedavg"),
    "FedBN": ("fedbn", SGD, "fedbn"),
    "FedBN (statistics alone)": ("fedbn", {**SGD, "local_norm": "statistics"}, ""),
    "FedBN (statistics re-estimated)": ("fedbn", {**SGD, "bn_refresh_epochs": 1}, ""),
    "FOLA": ("fola", {**SGD, "c": 0.5, "sigma": 0.003}, "fola"),
    "FedV (flat)": ("fedv", {"prior": "flat"}, ""),
    "FedV (Gaussian prior)": ("fedv", {"prior": "fixed"}, "fedv-gaussian-prior"),
    "FedV": ("fedv", {}, "fedv"),
    "pFedV (flat)": ("pfedv", {"prior": "flat"}, ""),
    "pFedV (noise only)": ("pfedv", {"alpha": 1e-9}, ""),
    "pFedV (own batch norm)": ("pfedv", {"local_norm": "all"}, ""),
    "pFedV (own batch norm, re-estimated)": ("pfedv", {"local_norm": "all", "bn_refresh_epochs": 1}, ""),
    "pFedV (Gaussian prior)": ("pfedv", {"prior": "fixed"}, "pfedv-gaussian-prior"),
    "pFedV": ("pfedv", {}, "pfedv"),
}
#: the paper's claims: the first is better than the second; then what they are made of
CLAIMS = (
    ("FedV", "FedV (Gaussian prior)"), ("pFedV", "pFedV (Gaussian prior)"), ("pFedV", "FedV"),
    ("pFedV (Gaussian prior)", "FedV (Gaussian prior)"), ("FedV", "FedAvg"), ("pFedV", "FedAvg"), ("pFedV", "FedBN"),
    ("FOLA", "FedAvg"), ("pFedV", "FOLA"), ("FedV", "FOLA"),
    ("pFedV", "pFedV (noise only)"), ("pFedV (Gaussian prior)", "pFedV (noise only)"), ("pFedV", "pFedV (flat)"),
    ("pFedV (own batch norm)", "pFedV"), ("pFedV (own batch norm)", "FedBN"), ("pFedV (flat)", "FedV (flat)"),
    ("pFedV (own batch norm, re-estimated)", "pFedV (own batch norm)"),
    ("pFedV (own batch norm, re-estimated)", "pFedV"), ("FedBN (statistics re-estimated)", "FedBN"),
    ("pFedV (own batch norm, re-estimated)", "FedBN (statistics re-estimated)"),
    ("FedV (flat)", "FedAvg"), ("FedBN (statistics alone)", "FedAvg"),
)  # fmt: skip


def settings_of(variant: str, said: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A variant's method and settings.

    What was said of steps holds for all methods, anything else for those with latent features; what makes the variant
    stays.

    Raises:
        UserError: if another prior was asked for.
    """
    if "prior" in said:
        raise UserError("the prior is what tells the rows of this table apart: choose rows with --row")
    method, own, _ = VARIANTS[variant]
    steps = {k: v for k, v in said.items() if k in SGD}
    latent = applicable(load(method).cls, said, own) if method in ("fedv", "pfedv") else {}
    return method, {**latent, **own, **steps}


def table_cell(variant: str, data: str, seed: int, said: Mapping[str, Any]) -> Cell:
    """One run of the table: evaluated after the first round and the last.

    Raises:
        UserError: if another prior was asked for.
    """
    method, settings = settings_of(variant, said)
    name = "".join(c if c.isalnum() else "-" for c in variant.lower()).strip("-")
    given = {"validation_fraction": 0.0, "evaluate_every": 1000}
    return Cell(f"{name}-{seed}", f"{data}, {variant}, seed {seed}", variant, method, data, given, settings, seed)

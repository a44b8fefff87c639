"""The second floor: one file per method or family. The page you edit.

The registry says where each method lives, so that the command line can list them without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .fedpop import FedPop
    from .limits import FedAvg, FedBN, FedPer, FedRep, Local
    from .mixed_effects import MixedEffects
    from .pfedv import FedV, PFedV
    from .pfedvem import PFedVEM
    from .pfedvmp import PFedVMP


class Entry(NamedTuple):
    """Where a method lives, and what it is in one line."""

    module: str
    cls: str
    family: str
    about: str


METHODS: dict[str, Entry] = {
    "pfedvem": Entry("pfedvem", "PFedVEM", "hierarchical", "confidence-aware variational EM (Zhu et al., CVPR 2023)"),
    "fedpop": Entry("fedpop", "FedPop", "hierarchical", "Langevin mixed effects (Kotelevskii et al., NeurIPS 2022)"),
    "mixed-effects": Entry("mixed_effects", "MixedEffects", "hierarchical", "mixed models of tables, from a formula"),
    "pfedv": Entry("pfedv", "PFedV", "hierarchical", "latent features, encoders as guides (Mou et al., ICANN 2023)"),
    "fedv": Entry("pfedv", "FedV", "hierarchical", "pFedV with a shared last layer"),
    "pfedvmp": Entry("pfedvmp", "PFedVMP", "hierarchical", "feature centroids by message passing (anonymous)"),
    "local": Entry("limits", "Local", "rho -> inf", "every client alone"),
    "fedavg": Entry("limits", "FedAvg", "rho -> 0", "one model for all (McMahan et al., AISTATS 2017)"),
    "fedbn": Entry("limits", "FedBN", "rho -> inf on batch norm", "own batch norm (Li et al., ICLR 2021)"),
    "fedper": Entry("limits", "FedPer", "rho -> inf on heads", "own head, trained jointly (Arivazhagan et al., 2019)"),
    "fedrep": Entry("limits", "FedRep", "rho -> inf on heads", "own head, trained first (Collins et al., ICML 2021)"),
}  # fmt: skip

__all__ = [
    "METHODS", "FedAvg", "FedBN", "FedPer", "FedPop", "FedRep", "FedV", "Local", "MixedEffects", "PFedV", "PFedVEM",
    "PFedVMP",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for entry in METHODS.values():
        if entry.cls == name:
            return getattr(import_module(f"hierfl.models.{entry.module}"), name)
    raise AttributeError(f"module 'hierfl.models' has no attribute {name!r}")

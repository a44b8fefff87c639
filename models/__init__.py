"""The second floor: one file per method or family. The page you edit.

The registry says where each method lives, so that the command line can list them without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .fedpop import FedPop
    from .limits import FedAvg, FedBN, FedPer, FedRep, LGFedAvg, Local
    from .mixed_effects import MixedEffects
    from .one_term import APFL, IFCA, Ditto, FedAvgFT, PerFedAvg, Scaffold
    from .pfedv import FedV, PFedV
    from .pfedvem import PFedVEM
    from .pfedvmp import PFedVMP
    from .whole import DGLMC, L2GD, FedProx, PFedBayes, PFedMe


class Entry(NamedTuple):
    """Where a method lives, and what it is in one line.

    Attributes:
        module, cls: the class.
        family: which limit of the one model it is, or what it adds to one.
        local: what stays with a client from round to round.
        sent: what a client sends.
        size: of that, relative to FedAvg's, for mlp:100 on 28x28 images of ten classes; None where there is no such.
        about: in words.
    """

    module: str
    cls: str
    family: str
    local: str
    sent: str
    size: float | None
    about: str


HEADS, ALL = "rho -> inf on heads", "rho fixed, all weights"
METHODS: dict[str, Entry] = {
    "pfedvem": Entry(
        "pfedvem", "PFedVEM", "hierarchical", "q(head), rho", "head, confidence, base", 1.0,
        "confidence-aware variational EM (Zhu et al., CVPR 2023)",
    ),
    "fedpop": Entry(
        "fedpop", "FedPop", "hierarchical", "draws of the head", "gradients of base and population", 1.0,
        "Langevin mixed effects (Kotelevskii et al., NeurIPS 2022)",
    ),
    "mixed-effects": Entry(
        "mixed_effects", "MixedEffects", "hierarchical", "random effects", "gradients, curvature", None,
        "mixed models of tables, from a formula",
    ),
    "pfedv": Entry(
        "pfedv", "PFedV", "hierarchical", "last layer", "encoder, base", 1.97,
        "latent features, encoders as guides (Mou et al., ICANN 2023)",
    ),
    "fedv": Entry(
        "pfedv", "FedV", "hierarchical", "nothing", "encoder, base, last layer", 1.99,
        "pFedV with a shared last layer",
    ),
    "pfedvmp": Entry(
        "pfedvmp", "PFedVMP", "hierarchical", "head", "base, centroids' factors", 2.28,
        "feature centroids by message passing (anonymous)",
    ),
    "local": Entry(
        "limits", "Local", "rho -> inf", "all", "nothing", 0.0,
        "every client alone",
    ),
    "fedper": Entry(
        "limits", "FedPer", HEADS, "head", "base", 0.99,
        "own head, trained jointly (Arivazhagan et al., 2019)",
    ),
    "fedrep": Entry(
        "limits", "FedRep", HEADS, "head", "base", 0.99,
        "own head, trained first (Collins et al., ICML 2021)",
    ),
    "lg-fedavg": Entry(
        "limits", "LGFedAvg", "rho -> inf on the base", "lower layers", "top layers", 0.01,
        "own representation (Liang et al., 2019)",
    ),
    "fedbn": Entry(
        "limits", "FedBN", "rho -> inf on batch norm", "batch norm", "the rest", None,
        "own batch norm (Li et al., ICLR 2021)",
    ),
    "fedavg": Entry(
        "limits", "FedAvg", "rho -> 0", "nothing", "all", 1.0,
        "one model for all (McMahan et al., AISTATS 2017)",
    ),
    "fedprox": Entry(
        "whole", "FedProx", ALL, "nothing", "all", 1.0,
        "a prior holds local training back (Li et al., MLSys 2020)",
    ),
    "pfedme": Entry(
        "whole", "PFedMe", ALL, "nothing", "copy of w", 1.0,
        "Moreau envelopes (T. Dinh et al., NeurIPS 2020)",
    ),
    "l2gd": Entry(
        "whole", "L2GD", ALL, "all", "all", 1.0,
        "random steps apart and together (Hanzely and Richtarik, 2020)",
    ),
    "dg-lmc": Entry(
        "whole", "DGLMC", ALL, "draws of all", "a draw, precision", 1.0,
        "a distributed Gibbs sampler (Plassier et al., ICML 2021)",
    ),
    "pfedbayes": Entry(
        "whole", "PFedBayes", "sigma learned, all weights", "q(all)", "copy of the prior", 2.0,
        "variational networks (Zhang et al., ICML 2022)",
    ),
    "fedavg-ft": Entry(
        "one_term", "FedAvgFT", "rho -> 0, then a fit", "nothing", "all", 1.0,
        "FedAvg, and a local fit in the end",
    ),
    "perfedavg": Entry(
        "one_term", "PerFedAvg", "rho -> 0, meta-gradient", "nothing", "all", 1.0,
        "one step from good (Fallah et al., NeurIPS 2020)",
    ),
    "scaffold": Entry(
        "one_term", "Scaffold", "rho -> 0, control variates", "c_j", "all, change of c_j", 2.0,
        "corrected drift (Karimireddy et al., ICML 2020)",
    ),
    "ifca": Entry(
        "one_term", "IFCA", "a mixture of points", "label, chosen anew", "base, all slots of heads", 1.01,
        "clusters (Ghosh et al., NeurIPS 2020)",
    ),
    "ditto": Entry(
        "one_term", "Ditto", "rho fixed, cut", "all", "all", 1.0,
        "a local model beside FedAvg's (Li et al., ICML 2021)",
    ),
    "apfl": Entry(
        "one_term", "APFL", "rho -> inf, mixed, cut", "all, alpha", "all", 1.0,
        "a mixture with FedAvg's model (Deng et al., 2020)",
    ),
}  # fmt: skip

__all__ = [
    "APFL", "DGLMC", "IFCA", "L2GD", "METHODS", "Ditto", "FedAvg", "FedAvgFT", "FedBN", "FedPer", "FedPop", "FedProx",
    "FedRep", "FedV", "LGFedAvg", "Local", "MixedEffects", "PFedBayes", "PFedMe", "PFedV", "PFedVEM", "PFedVMP",
    "PerFedAvg", "Scaffold",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for entry in METHODS.values():
        if entry.cls == name:
            return getattr(import_module(f"hierfl.models.{entry.module}"), name)
    raise AttributeError(f"module 'hierfl.models' has no attribute {name!r}")

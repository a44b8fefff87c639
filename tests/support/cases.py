"""Every method in every kind of prior, for what must hold of all."""

from __future__ import annotations

from support.methods import TUTORIAL

from hierfl.inference import Method
from hierfl.models import (
    APFL,
    DGLMC,
    FOLA,
    GPFL,
    IFCA,
    L2GD,
    MOON,
    QLSD,
    Ditto,
    FedAvg,
    FedAvgFT,
    FedBN,
    FedCP,
    FedEP,
    FedPA,
    FedPAC,
    FedPer,
    FedPop,
    FedProto,
    FedProx,
    FedRep,
    FedROD,
    FedV,
    LGFedAvg,
    Local,
    PerFedAvg,
    PFedBayes,
    PFedBreD,
    PFedEB,
    PFedGP,
    PFedHB,
    PFedMe,
    PFedV,
    PFedVEM,
    Scaffold,
)

PRIORS: list[tuple[type[Method], dict]] = [(PFedVEM, {"prior": p}) for p in ("hierarchical", "fixed", "flat")]
POPULATIONS: list[tuple[type[Method], dict]] = [
    *((FedPop, {"prior": p}) for p in ("hierarchical", "fixed", "flat")),
    (FedPop, {"population": "energy"}),
]
ENCODERS: list[tuple[type[Method], dict]] = [
    *((PFedV, {"prior": p}) for p in ("hierarchical", "fixed", "flat")),
    (FedV, {"prior": "hierarchical", "prior_norm": "running"}),
    (FedV, {"kl": "sum"}),
]
BASELINES: list[tuple[type[Method], dict]] = [
    *((cls, {}) for cls in (Local, FedAvg, FedPer, FedRep, FedBN)),
    (FedBN, {"local_norm": "statistics"}),
    *((cls, {}) for cls in (LGFedAvg, FedProx, PFedMe, L2GD, PFedBayes, DGLMC, FedAvgFT, PerFedAvg, Scaffold)),
    *((cls, {}) for cls in (IFCA, Ditto, APFL, FedROD, FedProto, MOON, FedPA, FedEP, GPFL, FedCP, FedPAC)),
    *((cls, {}) for cls in (FOLA, QLSD, PFedGP)),
    *((PFedBreD, {"shift": shift}) for shift in ("lg", "mh")),
    (FedEP, {"factors": "one"}),
    (FedEP, {"precision": "laplace", "ft_epochs": 2}),
    (FedAvgFT, {"scope": "all"}),
    (IFCA, {"scope": "all"}),
    (QLSD, {"levels": 0, "batch": 0}),
]
PARTS = dict.fromkeys(("shares", "heads", "features", "confusion", "adapters"), "auto")
POSTERIORS: list[tuple[type[Method], dict]] = [(PFedEB, {}), (PFedHB, {**PARTS, "judged": 2, "average": 4})]
METHODS: list[tuple[type[Method], dict]] = [*PRIORS, *POSTERIORS, *POPULATIONS, *ENCODERS, (TUTORIAL, {}), *BASELINES]
#: settings with which those that take many steps take few
FEW_STEPS: dict[type[Method], dict] = {
    FedPop: {"steps": 4, "burn": 2, "final_steps": 8, "final_keep": 3}, PFedEB: {"draws": 6, "base_epochs": 1},
    PFedHB: {"draws": 6},
    PFedMe: {"rounds": 4}, PFedBreD: {"rounds": 4},
}  # fmt: skip

"""pFedVEM with w learned and every rho_j held where it begins."""

from hierfl.inference.state import State
from hierfl.models import PFedVEM


class HeldRho(PFedVEM):
    name = "held-rho"

    def update_rho(self, v: State):
        return v["rho"]

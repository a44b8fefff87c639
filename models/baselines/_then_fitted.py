"""Methods with one model for all, and each client's own fit in the end where it is asked for: what they share.

    w            ~ flat, or what the method's file says          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w + offset_j)))   offset_j of the head, or of all weights

Without ``ft_epochs`` the offset stays 0, and all clients' model is the global one. With them a method is its "-FT".
"""

from dataclasses import dataclass, replace
from typing import Literal

from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting

from .fedavg_ft import FedAvgFT

#: where no client fits anything
UNFITTED = {"ft_epochs": (0,)}


@dataclass(frozen=True)
class Fit:
    """No fit in the end, where nothing is said."""

    scope: Literal["head", "all"] = setting(
        "head", "what each client fits for itself in the end: the last layer | all weights", unless=UNFITTED
    )
    ft_epochs: int = setting(
        0, "passes through a client's data of a fit of its own in the end (10 in FedAvg-FT); 0 for none", at_least=0
    )
    ft_lr: float = setting(1e-2, "step size of that fit", above=0, unless=UNFITTED)


class ThenFitted(FedAvgFT):
    """FedAvg-FT, whose fit in the end is left out where it is not asked for."""

    @dataclass(frozen=True)
    class Settings(Fit, FedAvgFT.Settings):
        """No fit."""

    settings: Settings

    def schedule(self) -> Schedule:
        # Where no one fits anything a new client has nothing to learn.
        schedule = super().schedule()
        return schedule if self.settings.ft_epochs else replace(schedule, final_steps=[], new_client_steps=[])

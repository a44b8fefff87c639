"""Batch norm of a client's own under PFedHB: statistics, or weights as well, that the server does not average.

The rules of FedBN (Li et al., ICLR 2021) and of SiloBN (Andreux et al., 2020) for PFedHB's base network. Scanners,
fonts or background move the means and variances of what each layer sees, and an average of them fits no client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hierfl.inference.local.at_prediction import AtPrediction
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.cut import Cut
from hierfl.inference.local.svi import running_statistics
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture

from ..baselines.fedavg import FedAvg
from .settings import PFedHBSettings


class OwnNorm(FedAvg):
    """FedAvg, but for what ``local_norm`` says of batch norm, which stays with the client."""

    class Settings(PFedHBSettings):
        """See :class:`.settings.PFedHBSettings`."""

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        self.kept = network.norms(self.settings.local_norm)

    def shared(self, start: InitialWeights) -> State:
        return {k: v for k, v in super().shared(start).items() if k.removeprefix("averaged.") not in self.kept}

    def personal(self, start: InitialWeights) -> State:
        return {k: v for k, v in start.base.items() if k in self.kept}

    def statistics_of_averages(self, pooled: FedAvg) -> list[LocalStep]:
        """Running statistics of the weights that predict, by ``bn_refresh_epochs`` passes; see FedBN."""
        s = self.settings
        step = running_statistics(self.kept, s.bn_refresh_epochs, s.batch)
        return [Cut(pooled, AtPrediction(step))] if s.bn_refresh_epochs else []

    def steps_of_newcomer(self, pooled: FedAvg, then: Sequence[LocalStep]) -> list[LocalStep] | None:
        """Batch norm of a client that was never seen, before its other steps; None where it is shared."""
        return [Cut(pooled, AtPrediction(self.sgd(*sorted(self.kept)))), *then] if self.kept else None

    def new_client_terms(self, personal: State) -> State:
        return {k: v for k, v in personal.items() if k in self.kept}  # of all else a new client has the prior

    @property
    def has_global_model(self) -> bool:
        return not self.kept

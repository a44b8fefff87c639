"""What a method may not declare."""

from __future__ import annotations

import pytest
import torch
from pyro.distributions import Normal

from hierfl import Federation, UserError
from hierfl.inference import SampleWeighted, fit
from hierfl.inference.method.initial import InitialWeights
from hierfl.models import FedAvg, PFedVEM
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import sample


def test_mistakes_in_a_method_file_are_named(small: Federation, net: Architecture) -> None:
    class GlobalInGuide(PFedVEM):
        def guide(self, batch: object) -> None:
            sample("w", Normal(torch.zeros(self.network.head.d), 1.0).to_event(1))

        def shared(self, start: InitialWeights) -> dict:
            return {k: v for k, v in super().shared(start).items() if k != "w"}

        def personal(self, start: InitialWeights) -> dict:
            return {"mu": torch.zeros(self.network.head.d), "pi": torch.zeros(1), "rho": torch.ones(1)}

        def exchange(self) -> dict:
            return {"base": SampleWeighted()}

    with pytest.raises(UserError, match="is outside the client plate"):
        fit(GlobalInGuide(net), small, rounds=1, progress=False)

    class Unguided(PFedVEM):
        def guide(self, batch: object) -> None:
            """Nothing."""

    with pytest.raises(UserError, match="'w_j' of the model is not in the guide"):
        fit(Unguided(net), small, rounds=1, progress=False)

    class Undeclared(PFedVEM):
        def personal(self, start: InitialWeights) -> dict:
            return {k: v for k, v in super().personal(start).items() if k != "rho"}

    with pytest.raises(UserError, match="unknown value 'rho'"):
        fit(Undeclared(net), small, rounds=1, progress=False)

    class Twice(FedAvg):
        def exchange(self) -> dict:
            return {"base": SampleWeighted(), "base.1": SampleWeighted()}

    with pytest.raises(UserError, match="two aggregation rules claim"):
        fit(Twice(net), small, rounds=1, progress=False)

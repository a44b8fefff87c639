"""What a fit's clients need for noise: the plan, the norm to clip to, and each client's source."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from .plan import Plan
from .sources import KeyedNoise, NoiseSource, SystemNoise, noisy


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of a fit, at its clients.

    Attributes:
        plan: what may be released, with how much noise.
        clip: largest L2 norm of what one unit adds to a message.
        patient_rows: rows of one patient that count, at level "site".
        seed: of a simulation's noise.
        system: whether noise is the operating system's, as at a real site; then the seed is not used.
    """

    plan: Plan
    clip: float
    patient_rows: int = 1
    seed: int = 0
    system: bool = False

    def at_a_site(self) -> Privacy:
        """The same with noise of the operating system."""
        return replace(self, system=True)

    def source(self, client: str) -> NoiseSource:
        """A client's noise.

        Args:
            client: its name.
        """
        return SystemNoise() if self.system else KeyedNoise(self.seed, client)

    def noisy(self, name: str, value: Tensor, sensitivity: float, client: str, *what: object) -> Tensor:
        """One release of a mechanism of the plan: a client's value with noise.

        Args:
            name: of the mechanism.
            value: what is released, any shape; finite.
            sensitivity: largest L2 norm by which it changes when one unit is added or removed.
            client: whose it is.
            what: names the release beside the mechanism, as (round, step).

        Raises:
            UserError: for a mechanism that the plan does not have.
        """
        return noisy(value, sensitivity, self.plan.multiplier(name), self.source(client), name, *what)

"""The noise of one fit: what is released how often, with how much noise, and what that spends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hierfl.errors import UserError

from .accounting import Mechanism, composed_epsilon, noise_plan

#: what is hidden, by the option dp
UNIT = {"site": "patient", "client": "client"}


@dataclass(frozen=True)
class Part:
    """A mechanism with its noise.

    Attributes:
        mechanism: what is released.
        multiplier: standard deviation of its noise / sensitivity.
    """

    mechanism: Mechanism
    multiplier: float


@dataclass(frozen=True)
class Plan:
    """All noise of a fit.

    Attributes:
        level: "site" or "client", where noise is added.
        delta: of all parts together.
        parts: by name, in order.
    """

    level: str
    delta: float
    parts: Mapping[str, Part]

    @classmethod
    def for_epsilon(cls, level: str, epsilon: float, delta: float, mechanisms: Sequence[Mechanism]) -> Plan:
        """The plan with which all mechanisms together have at most this epsilon.

        Raises:
            UserError: see :func:`~hierfl.inference.noise.accounting.noise_plan`.
        """
        multipliers = noise_plan(epsilon, delta, mechanisms)
        return cls(level, delta, {m.name: Part(m, multipliers[m.name]) for m in mechanisms})

    def multiplier(self, name: str) -> float:
        """The multiplier of the mechanism with this name.

        Raises:
            UserError: if the plan has no such mechanism: nothing of that kind may leave.
        """
        if name not in self.parts:
            raise UserError(f"{name}: the noise plan has no share for it, so it does not leave")
        return self.parts[name].multiplier

    @property
    def epsilon(self) -> float:
        """The epsilon of everything that the plan allows."""
        return self.spent({name: part.mechanism.releases for name, part in self.parts.items()})

    def spent(self, releases: Mapping[str, int]) -> float:
        """Epsilon of so many releases of each mechanism; those that are not named have none.

        Raises:
            UserError: for a mechanism that the plan does not have.
        """
        some = [
            replace(self.parts[name].mechanism, releases=count)
            for name, count in releases.items()
            if count and self.multiplier(name)
        ]
        return composed_epsilon(self.delta, some, {name: part.multiplier for name, part in self.parts.items()})

    def with_restarts(self, again: int) -> float:
        """Epsilon of the fit with so many rounds computed again, each of them as the one that releases the most.

        Args:
            again: how many; at least 0.
        """
        counts = {name: part.mechanism for name, part in self.parts.items()}
        return self.spent({name: m.releases + again * (m.most or m.releases) for name, m in counts.items()})

    @property
    def summary(self) -> dict[str, Any]:
        """The plan as summary.json has it."""
        return {
            "level": self.level,
            "unit": UNIT[self.level],
            "epsilon": self.epsilon,
            "delta": self.delta,
            "parts": {
                name: {
                    "share": part.mechanism.share,
                    "releases": part.mechanism.releases,
                    "rate": part.mechanism.rate,
                    "multiplier": part.multiplier,
                    "epsilon": self.spent({name: part.mechanism.releases}),
                }
                for name, part in self.parts.items()
            },
        }

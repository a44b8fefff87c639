"""Each client's random effects at every draw of the population: together they are draws of the joint posterior.

Gaussian: b_j given the population is normal, and drawn exactly from the client's row sums (:mod:`.gaussian.effects`).
Other families: by Metropolis chains (:mod:`.quadrature.draws`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierfl.inference.clients.chunk import ClientChunk

from ..model.equations import MixedModel
from ..model.names import by_short_name, fixed_values
from ..search.requests import Phase


@dataclass(frozen=True)
class Conditional:
    """A local step: b_j's mean and a root of its covariance given the shared values, as a round has them.

    Args:
        method: whose model.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """Means and roots, and the mode in u where there is one to search."""
        names = [f"{level.effects}_{part}" for level in self.method.at_site for part in ("mean", "root")]
        return [*names, *self.method.likelihood.searched]

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Computes means and roots at the estimates."""
        return chunk.put(self.method.likelihood.conditional(chunk, by_short_name(chunk.shared)))


@dataclass(frozen=True)
class JointDraws:
    """A local step: b_j at each draw of the population, with mean and covariance over all draws.

    Args:
        method: whose model.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """Draws (chains, kept, q), their mean and a root of their covariance; and those of groups inside."""
        return [f"{level.effects}_{part}" for level in self.method.at_site for part in ("draws", "mean", "root")]

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Draws effects given draws of the population. Without these the chunk stays as it is."""
        if Phase(int(chunk.shared["effects.phase"])) != Phase.DONE or not len(chunk.shared["effects.draws"]):
            return chunk
        draws = self.method.parts(chunk.shared["effects.draws"])
        same = fixed_values(chunk.shared)
        draws |= {k: v.expand(len(chunk.shared["effects.draws"]), *v.shape) for k, v in same.items()}
        return chunk.put(self.method.likelihood.joint(chunk, draws, phase))

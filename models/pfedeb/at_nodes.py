"""One local step on the heads' posteriors, at several populations side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.laplace.step import GaussianHead


@dataclass(frozen=True)
class AtNodes:
    """A step on heads' posteriors at each of K nodes: populations that the server keeps beside the likeliest one.

    The shared values NODES (K, d), NODES.covariance (K, packed) and NODES.log_rho (K, B) replace NAME and
    those whose names begin with NAME. Each node has personal values of its own: means MEAN_NODES (K, d), draws
    LATENT_draws_NODES (K, 1, draws, d) and deviations LATENT_away_NODES (K, M, d). The terms of each population are
    left as rows NODES/KEY, (S, 1, K, ...).

    Args:
        step: with terms.
        population: NAME.
        nodes: NODES.
    """

    step: GaussianHead
    population: str
    nodes: str

    @property
    def trains(self) -> Sequence[str]:
        """Means, draws and deviations."""
        return tuple(f"{name}_{self.nodes}" for name in self.step.posterior)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Moves all rows' posteriors under each of the populations."""
        shared, step, states = chunk.shared, self.step, []
        keys = {k: k.removeprefix(self.nodes) for k in shared if k == self.nodes or k.startswith(f"{self.nodes}.")}
        hidden = {k: v for k, v in shared.items() if k not in keys}
        for number in range(len(shared[next(iter(keys))])):
            population_values = {f"{self.population}{end}": shared[k][number] for k, end in keys.items()}
            own = {name: chunk.values[f"{name}_{self.nodes}"][:, :, number] for name in step.posterior}
            chunk_at_node = replace(chunk, shared={**hidden, **population_values}, values={**chunk.values, **own})
            moved = step.run(chunk_at_node, (phase, number)).values
            left = {
                f"{self.nodes}/{k.split('/', 1)[1]}": v for k, v in moved.items() if k.startswith(f"{step.latent}/")
            }
            states.append({**{f"{name}_{self.nodes}": moved[name] for name in own}, **left})
        return chunk.put({name: torch.stack([state[name] for state in states], 2) for name in states[0]})

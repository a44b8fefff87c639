"""Linear regressions whose posteriors are known, and chains on them."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import Normal

from hierfl import Federation
from hierfl.data.batch import Batch
from hierfl.inference import Langevin, Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, param, sample

CHAINS = 4


class Slopes(Method):
    """y = w_j . (x, 1) + noise, w_j ~ N(mu, tau^2 I), by whatever chain it is given."""

    chain: Any = Langevin(["w"], 1, 1e-3)
    kept, chains = 1, CHAINS

    def shared(self, start: InitialWeights) -> State:
        return {"mu": torch.zeros(self.network.head.d, dtype=torch.float64)}

    def personal(self, start: InitialWeights) -> State:
        empty = torch.zeros(self.chains, dtype=torch.float64)
        return {
            "w_draws": empty[:, None, None].expand(-1, self.kept, self.network.head.d),
            "size": empty,
            "rate": empty,
        }

    def model(self, batch: Batch) -> None:
        with clients(batch):
            w = sample("w", Normal(param("mu"), 1.3).to_event(1))
            with data(batch):
                sample("y", self.network.likelihood(self.network.head(w, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        w = param("w_draws")
        with clients(batch):
            sample("w", EmpiricalDraws(w, 1))

    def local(self) -> list:
        return [self.chain]


def chains_of(method: Method, fed: Federation, chain: Langevin, seed: int = 0, who: list[int] | None = None) -> State:
    """What the chain keeps, for all clients: {name: (S, 1, C, kept, *event)}."""
    who = sorted(range(fed.clients) if who is None else who, key=lambda j: -len(fed.train[j]))
    start = InitialWeights.for_network(method.network, 0)
    rows = {k: v.expand(len(who), 1, *v.shape) for k, v in method.personal(start).items()}
    chunk = ClientChunk(method, fed, who, 1, seed, method.shared(start), rows)
    done = chain.run(chunk, 0).values
    back = [who.index(j) for j in sorted(who)]
    return {k: v[back] for k, v in done.items()}


def posterior(fed: Federation, j: int, noise: float, prior: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of w_j given mu = 0."""
    x, y = fed.examples(fed.train[j])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    cov = torch.linalg.inv(x.T @ x / noise**2 + torch.eye(x.shape[1], dtype=x.dtype) / prior**2)
    return cov @ x.T @ y / noise**2, cov

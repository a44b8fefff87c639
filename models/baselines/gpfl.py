"""GPFL: class embeddings for all beside a head of one's own. Zhang et al., ICCV 2023.

    E, theta     ~ flat                                       embeddings (C, D) of classes, and base: z = h_theta(x)
    g            = mean of E_k,   p_j = sum_k (n_jk / n_j) E_k            conditions, by E as broadcast
    V(z, c)      = ReLU((1 + gamma(c)) * z + beta(c))                     the conditional valve
    y_ij | x_ij  ~ Categorical(softmax(cos(V(z_ij, g), E)))               (site y_global)
    V(z_ij, g)   ~ exp(-lambda |V(z_ij, g) - E_{y_ij}|) / Z               around E as broadcast (site z_global)
    E, V         ~ N(0, 1 / (mu n_j))                                     weight decay (site decay)
    w_j          ~ flat                                       rho -> inf on the head
    y_ij | x_ij  ~ Categorical(softmax(w_j^T V(z_ij, p_j)))               (site y)

    minimised by client j: mean over i of the three -log p, and (mu / 2) |(E, V)|^2

What it needs beyond the one model is a second likelihood of the labels, in which features are distinguished by their
angles to E, and the factor of V(z, g), which is no datum. gamma and beta are each a linear layer, ReLU and layer norm.

A round: every client counts its labels, and trains copies of E, V and theta, and w_j, by minibatch gradient descent.
Those who take part send n_j E_j, n_j V_j, n_j theta_j and n_j; the server divides. w_j and n_jk stay; predictions are
w_j's, with E, V and theta as the server last made them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro.distributions import Normal
from torch import Tensor, nn
from torch.nn.functional import normalize

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.nn.layers.linear import client_linear
from hierfl.ppl.plates import clients, data, flat, param, sample
from hierfl.ppl.radial_laplace import RadialLaplace

from ._local_head import SharedBase
from ._whole_network import penalty


class GPFL(SharedBase):
    """rho -> inf on the head, on features that are distinguished by class embeddings of all."""

    about = About(
        name="gpfl",
        what="class embeddings for all, own head",
        paper="Zhang et al., ICCV 2023",
        family="rho -> inf on heads, embeddings",
        stays="head",
        sent="base, embeddings, valve",
        message_size=1.26,
        order=127,
    )
    local_copies: ClassVar[tuple[str, ...]] = ()

    @dataclass(frozen=True)
    class Settings(SharedBase.Settings):
        """The authors' script has lambda 0.01 and mu 0.1 for small networks; its lambda is ours over sqrt(batch)."""

        lam: float = setting(
            0.01,
            "lambda, weight of the distance between global features and their class's embedding",
            at_least=0,
            at_most=1e12,
        )
        mu: float = setting(0.1, "mu, weight decay of embeddings and valve", at_least=0, at_most=1e12)

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.noise is not None:
            raise UserError("gpfl has an embedding for every class: data with labels, not a regression")
        super().__init__(network, **settings)
        self.classes, self.features = network.head.outputs, network.head.features
        d = self.features
        with torch.random.fork_rng(devices=[]):  # the weights made here are never used
            layers = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.LayerNorm(d))
        self.gamma, self.beta = (Network(layers, name, weights="drawn") for name in ("valve.gamma", "valve.beta"))

    def shared(self, start: InitialWeights) -> State:
        embeddings = torch.randn(self.classes, self.features, generator=start.rng, dtype=torch.float64)
        return {"E": embeddings, **self.gamma.init(start.rng), **self.beta.init(start.rng), **start.base}

    def personal(self, start: InitialWeights) -> State:
        # Equal counts are those of a client of which nothing is known: its condition is g.
        return {**super().personal(start), "class_counts": start.head.new_ones(self.classes)}

    def both_conditions(self, rows: int) -> Tensor:
        """g and p_j, (S, 2, D)."""
        sent, counts = param("broadcast.E"), param("class_counts")
        p = (counts / counts.sum(-1, keepdim=True)) @ sent
        return torch.cat([sent.mean(0).expand(rows, 1, self.features), p.expand(rows, 1, self.features)], 1)

    def model(self, batch: Batch) -> None:
        net, lam = self.network, self.settings.lam
        e, conditions = sample("E", flat(self.classes, self.features)), self.both_conditions(batch.num_clients)
        scales, shifts = 1 + self.gamma(conditions), self.beta(conditions)
        with clients(batch):
            self.decay(e, batch)
            w_j = sample("w_j", flat(net.head.d))
            with data(batch):
                z = net.base(batch.x)  # (S, n, D)
                z_global, z_own = ((scales[:, k : k + 1] * z + shifts[:, k : k + 1]).relu() for k in (0, 1))
                cosines = client_linear(normalize(z_global, dim=-1), normalize(e, dim=-1), None)
                sample("y_global", net.likelihood(cosines), obs=batch.y)
                if lam:
                    sample("z_global", RadialLaplace(param("broadcast.E")[batch.y], lam), obs=z_global)
                sample("y", net.likelihood(net.head(w_j, z_own)), obs=batch.y)

    def decay(self, e: Tensor, batch: Batch) -> None:
        """Embeddings and valve around zero; beside a mean loss that is weight decay mu."""
        if not self.settings.mu:
            return
        values = [(e, 2)]
        for network in (self.gamma, self.beta):
            values += [(param(f"{network.name}.{key}"), len(shape)) for key, shape in network.shapes.items()]
        rows = [v.expand(batch.num_clients, 1, *v.shape[v.dim() - dims :]).flatten(2) for v, dims in values]
        every = torch.cat(rows, -1)  # (S, 1, numbers)
        sample("decay", Normal(every, penalty(self.settings.mu, batch)).to_event(1), obs=torch.zeros_like(every))

    def local(self) -> list[LocalStep]:
        return [ClassCounts("class_counts"), self.sgd("E", "valve", "base", "mu")]

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[ClassCounts("class_counts"), self.sgd("mu")])

    def new_client_terms(self, personal: State) -> State:
        return {"mu": personal["mu"]}

    def exchange(self) -> dict[str, AggregationRule]:
        rule = SampleWeighted(server_lr=self.settings.server_lr)
        return {"E": rule, "valve": rule, "base": rule}

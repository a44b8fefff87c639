"""FedCP: a policy that splits each example's features between two heads. Zhang et al., KDD 2023.

    w, theta     ~ flat                                       head and base of all: z = h_theta(x)
    w_j          ~ flat                                       rho -> inf: a head of one's own
    c_j          = v_j / |v_j|,  v_j the sum over classes of w_j's weights              (context, held)
    u_ij, t_ij   = gate(c_j * z_ij)                           two numbers for each feature
    a_ij         = sigmoid((u_ij - t_ij + s_ij) / tau),  s_ij ~ Logistic(0, 1)          policy (Gumbel softmax of two)
    y_ij | x_ij  ~ Categorical(softmax(w_j(a_ij * z_ij) + w((1 - a_ij) * z_ij)))        w held
    z_1j ... z_nj   exp(-lambda n_j MMD^2({z_ij}, {h_theta(x_ij) by theta as broadcast}))   (site features)
    q(w_j)       = delta(mu_j),   q(s_ij) = p(s_ij)

    minimised by client j, by minibatches: mean over i of -log p(y_ij | .) + lambda MMD^2

What it needs beyond the one model is the gate, a third network (a linear layer, layer norm and ReLU); the factor of a
minibatch's features as a whole; and a rule that averages what a client makes of its own head:

    w  = sum n_j m_j / sum n_j,   m_j = abar_j * w_j + (1 - abar_j) * w         abar_j the mean of its a_ij

The noise s_ij is drawn (as the site noise, a standard normal of the same law) where the client trains. Predictions have
none, as the posterior's centre has none, nor has abar_j.

The context hardly deserves its name: the gradient of a softmax's log density sums to zero over classes, so that steps
down it leave v_j where it began, and all clients' contexts are the one of the common start.

A round: every client trains copies of theta and the gate, and w_j. Those who take part pass over their data once more
for abar_j, and send n_j theta_j, n_j times the gate, n_j m_j and n_j; the server divides.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pyro.distributions import Delta, Normal
from torch import Tensor, nn
from torch.nn.functional import normalize

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.server.rules.means_of import SampleWeightedMeanOf
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import Network
from hierfl.ppl.mean_discrepancy import SameDistribution
from hierfl.ppl.plates import clients, data, flat, param, sample

from ._local_head import SharedBase


class FedCP(SharedBase):
    """rho -> inf on the head; a gate splits features between it and a head of all."""

    about = About(
        name="fedcp",
        what="a gate splits features between two heads",
        paper="Zhang et al., KDD 2023",
        family="rho -> inf on heads, gate",
        stays="head",
        sent="base, gate, mixed head",
        message_size=1.26,
        order=129,
    )
    local_copies: ClassVar[tuple[str, ...]] = ()

    @dataclass(frozen=True)
    class Settings(SharedBase.Settings):
        """The authors' script: lambda 5; tau 1."""

        lam: float = setting(
            5.0,
            "lambda, how strongly a minibatch's features are held to those of the base as broadcast",
            at_least=0,
            at_most=1e12,
        )
        tau: float = setting(1.0, "temperature of the policy", above=0, at_most=1e12)
        gumbel: Literal["training", "never"] = setting(
            "training", "when the policy is noisy: where a client trains | never; predictions have no noise"
        )
        sent_head: Literal["policy", "half"] = setting(
            "policy", "what a client sends is mixed of its head and that of all by its mean policy | half and half"
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.noise is not None:
            raise UserError("fedcp has a context of class weights: data with labels, not a regression")
        super().__init__(network, **settings)
        self.features = d = network.head.features
        with torch.random.fork_rng(devices=[]):  # the weights made here are never used
            gate = nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.ReLU())
            self.gate = Network(gate, "gate", weights="drawn")
        # Batch norm, where there is any, goes by the same batches in both.
        self.sent_base = network.base.broadcast("batch" if network.base.norm_names else "running")

    def shared(self, start: InitialWeights) -> State:
        return {"w": self.settings.init_scale * start.head, **self.gate.init(start.rng), **start.base}

    def context(self, w_j: Tensor) -> Tensor:
        """c_j, (..., d) to (..., D), from where nothing flows back to the head."""
        head = self.network.head
        weights = w_j[..., : head.rows * head.features].unflatten(-1, (head.rows, head.features))
        return normalize(weights.sum(-2), dim=-1).detach()

    def policy(self, scores: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """a (..., n, D), the share of the client's own head.

        Args:
            scores: u and t, (S, n, 2 D).
            noise: s.
        """
        own, common = scores.chunk(2, -1)
        return ((own - common + noise) / self.settings.tau).sigmoid()

    def model(self, batch: Batch) -> None:
        net, lam = self.network, self.settings.lam
        w = sample("w", flat(net.head.d))
        with clients(batch):
            w_j = sample("w_j", flat(net.head.d))
            with data(batch):
                z = net.base(batch.x)  # (S, n, D)
                a = self.policy(self.gate(self.context(w_j) * z), self.noise(batch))
                sample("y", net.likelihood(net.head(w_j, a * z) + net.head(w.detach(), (1 - a) * z)), obs=batch.y)
            if lam:
                sent, present = self.sent_base(batch.x)[:, None], None if batch.mask is None else batch.mask[:, None]
                factor = SameDistribution(sent.detach(), lam * batch.n[:, None], present)
                sample("features", factor, obs=z[:, None])

    def noise(self, batch: Batch) -> Tensor | float:
        """s, of logistic law: log(p / (1 - p)) of a standard normal's p."""
        if self.settings.gumbel == "never":
            return 0.0
        r = sample("noise", self.standard(batch))
        return torch.special.log_ndtr(r) - torch.special.log_ndtr(-r)

    def standard(self, batch: Batch) -> Any:
        """N(0, I) of D numbers."""
        zeros = batch.n.new_zeros(self.features)
        return Normal(zeros, zeros + 1).to_event(1)

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            sample("w_j", Delta(param("mu")).to_event(1))
            if self.settings.gumbel == "training":
                with data(batch):
                    sample("noise", self.standard(batch))

    def local(self) -> list[LocalStep]:
        return [self.sgd("gate", "base", "mu")]

    def schedule(self) -> Schedule:
        return Schedule(new_client_steps=[self.sgd("mu")])

    def mean_policy(self, chunk: ClientChunk) -> Tensor:
        """abar_j of each row, (S, D), by the networks that it has trained."""
        base, policies = self.network.base, []
        for first, last in buckets(chunk.sizes):
            part = chunk.part(first, last)
            batch, values = part.batch(), part.view
            z = base.apply(base.parameters_from(values), batch.x)
            a = self.policy(self.gate.apply(self.gate.parameters_from(values), self.context(values["mu"]) * z))
            weighted = a if batch.mask is None else a * batch.mask[..., None]
            policies.append(weighted.sum(1) / part.n[:, None])
        return torch.cat(policies)

    def mixed_head(self, chunk: ClientChunk) -> Tensor:
        """m_j of each row, (S, d); biases, which belong to no feature, by the mean over features."""
        own, common, head = chunk.values["mu"].squeeze(1), chunk.shared["w"], self.network.head
        if self.settings.sent_head == "half":
            return (own + common) / 2
        a = self.mean_policy(chunk)
        share = a.repeat(1, head.rows)
        if head.bias:
            share = torch.cat([share, a.mean(1, keepdim=True).expand(-1, head.rows)], 1)
        return share * own + (1 - share) * common

    def exchange(self) -> dict[str, AggregationRule]:
        lr = self.settings.server_lr
        rule = SampleWeighted(server_lr=lr)
        return {"w": SampleWeightedMeanOf(self.mixed_head, lr), "gate": rule, "base": rule}

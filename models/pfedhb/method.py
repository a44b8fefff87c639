"""PFedHB: what differs between clients is said by the prior.

A method of this project. One network for all, and for each kind of difference between clients a latent of its own:

    w, theta      ~ flat                                               f = w^T h_theta, of the pooled data: FedAvg's
    |A_j|         ~ kappa,   pi_j | A_j ~ Dirichlet(beta C m, A_j)     which classes client j has, and how often
    w_j           ~ N(w, diag(rho)^2)                                  its head; rho of the weights and of the biases
    y_ij | x_ij   ~ Categorical(softmax(w_j^T h_theta(x_ij) + log pi_j - log m))         m pooled shares of the classes

Where p(x | y) is the same for all clients, f says p(y | x) of the pooled data, and log pi_j - log m turns that into
p(y | x) at client j. A label says how often its class comes, and the network what it looks like: given its counts a
client's shares have a posterior in closed form (:mod:`hierfl.ppl.label_shares`). A share ``floor`` of its labels comes
as in the pooled data, so that a class that it never had keeps a probability.

Inference is cut twice. w and theta are trained by FedAvg, as if clients did not differ: trained through the shares the
global model is a point worse. Shares are learned from counts alone, and heads given the shares' mean. Each population
is at the maximum of its marginal likelihood, a sum over clients. A client of which nothing is known has E[pi_j] = m and
w_j = w: the global model is FedAvg's, number by number, or with ``average`` that of its averaged weights.

A round: a client trains copies of w and theta, counts its labels, and moves its head's Gaussian posterior. Those who
take part send n_j w_j, n_j theta_j and n_j, and for the populations 2 C + 2 numbers of shares and 6 of rho. The server
divides, takes a step of EM on kappa and beta, and a scoring step on log rho.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.local.at_prediction import AtPrediction
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.class_counts import ClassCounts
from hierfl.inference.local.cut import Cut
from hierfl.inference.local.label_shares import DrawShares
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.label_shares import LabelSharePopulation
from hierfl.inference.server.rules.running import Averaged
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.label_shares import LabelShares, SharesGiven, log_offset
from hierfl.ppl.plates import clients, data, flat, param, sample

from ..baselines.fedavg import FedAvg
from .heads import Heads

#: settings that heads alone have
NO_HEADS: dict[str, tuple[object, ...]] = {"heads": ("off",)}


class PFedHB(FedAvg):
    """FedAvg's network under hierarchical populations of label shares and of heads."""

    about = About(
        name="pfedhb",
        what="label shares and heads, each with a population (this project)",
        family="hierarchical",
        stays="label shares, q(head)",
        sent="all, sums of label counts, score of rho",
        message_size=1.0,
        order=71,
    )
    independent_draws = True
    label_shares: ClassVar[bool] = True
    shares: ClassVar = LabelSharePopulation("shares", "class_counts")

    @dataclass(frozen=True)
    class Settings(FedAvg.Settings):
        """FedAvg's, and those of the populations."""

        average: int = setting(
            1,
            "rounds over which w and theta are averaged for predictions, with exponential weights; 1: none",
            at_least=1,
        )
        floor: float = setting(
            1e-4,
            "share of a client's labels that come as in the pooled data, whatever its own shares",
            above=0,
            below=1,
        )
        heads: Literal["on", "off"] = setting("on", "whether clients have heads of their own around w")
        sigma_0: float = setting(0.1, "initial rho of the heads' weights and biases", above=0, unless=NO_HEADS)
        rho_scale: float = setting(10.0, "scale of the half-normal prior of rho", above=0, unless=NO_HEADS)
        rank: int = setting(
            50, "rank of a head's covariance where it has more than 600 numbers", at_least=1, unless=NO_HEADS
        )
        points: int = setting(
            16, "points of each example's predictor over which its likelihood is averaged; 1: at the mode (Laplace)",
            at_least=1, unless=NO_HEADS,
        )  # fmt: skip
        draws: int = setting(100, "draws of each client's posterior that are kept at the end", at_least=2)

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.noise is not None:
            raise UserError("pfedhb has a population of label shares: data with labels, not a regression")
        super().__init__(network, **settings)
        s = self.settings
        self.pooled = FedAvg(network, **{k: v for k, v in vars(s).items() if k in FedAvg.Settings.__dataclass_fields__})
        own = Heads(network.head, s.sigma_0, s.rho_scale, s.rank, s.points, s.draws)
        self.heads = own if s.heads == "on" else None

    def shared(self, start: InitialWeights) -> State:
        network = super().shared(start)
        averaged = {f"averaged.{key}": value for key, value in network.items()} if self.settings.average > 1 else {}
        equal = -start.head.new_full((self.network.head.outputs,), self.network.head.outputs).log()
        population = {"shares.log_kappa": equal, "shares.log_beta": equal.new_zeros(1), "shares.log_pooled": equal}
        return {**network, **averaged, **population, **(self.heads.shared() if self.heads else {})}

    def personal(self, start: InitialWeights) -> State:
        counts = start.head.new_zeros(self.network.head.outputs)
        heads = self.heads.personal(self.settings.init_scale * start.head) if self.heads else {}
        return {"class_counts": counts, "log_pi_j_draws": counts.expand(1, 1, -1), **heads}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch):
            pi_j = sample("pi_j", self.population())
            w_j = sample("w_j", Normal(w, self.heads.rho(w)).to_event(1)) if self.heads else w
            with data(batch):
                f = net.head(w_j, net.base(batch.x))
                sample("y", net.likelihood(f + self.offset(pi_j)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            draws = param("log_pi_j_draws").softmax(-1)
            sample("pi_j", SharesGiven(draws, self.population(param("class_counts")).mean))
            if self.heads:
                sample("w_j", EmpiricalDraws(param("w_j_draws"), 1))

    def population(self, counts: Tensor | None = None) -> LabelShares:
        """p(pi_j), and p(pi_j | n_j)."""
        return LabelShares(param("shares.log_kappa"), param("shares.log_beta"), param("shares.log_pooled"), counts)

    def offset(self, pi_j: Tensor) -> Tensor:
        """log of how much more often each class comes at the client than in the pooled data, (..., C)."""
        return log_offset(pi_j, param("shares.log_pooled").softmax(-1), self.settings.floor)

    def share_population(self, shared: State, counts: Tensor | None = None) -> LabelShares:
        return self.shares.population(shared, counts)

    def neutral_shares(self, shared: State) -> Tensor:
        return shared["shares.log_pooled"].softmax(-1)

    def at_shares(self, shared: State, pi: Tensor) -> State:
        return {"pi_j": pi}

    def local(self) -> list[LocalStep]:
        heads = [AtPrediction(self.heads.step())] if self.heads else []
        return [Cut(self.pooled, self.sgd("w", "base")), ClassCounts("class_counts"), *heads]

    def exchange(self) -> dict[str, AggregationRule]:
        rules: dict[str, AggregationRule] = {**super().exchange(), "shares": self.shares}
        if self.settings.average > 1:
            rules["averaged"] = Averaged("averaged", self.settings.average)
        return {**rules, "heads": self.heads.rule()} if self.heads else rules

    def prediction_params(self, shared: State) -> State:
        averaged = {k.removeprefix("averaged."): v for k, v in shared.items() if k.startswith("averaged.")}
        return {**shared, **averaged}

    def schedule(self) -> Schedule:
        draws = DrawShares("log_pi_j_draws", self.shares, self.settings.draws)
        heads = [AtPrediction(self.heads.step(final=True))] if self.heads else []
        steps: list[LocalStep] = [ClassCounts("class_counts"), draws, *heads]
        return Schedule(absent="freeze", final_steps=steps, final_when="evaluation")

    def new_client_terms(self, personal: State) -> State:
        return {}  # (a client of which nothing is known has no counts, and so the pooled shares)

    def client_summary(self, values: State) -> State:
        """Expected number of classes, and how far a client's shares are from the pooled ones, in nats."""
        counts, population = values["class_counts"].squeeze(1), self.shares.population(values)
        given = self.shares.population(values, counts)
        classes = (given.sizes_given * given.sizes).sum(-1)
        return {
            "classes": classes,
            "label_skew": torch.special.xlogy(given.mean, given.mean / population.pooled).sum(-1),
        }

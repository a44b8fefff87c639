"""PFedHB: what differs between clients is said by the prior.

A method of this project. One network for all, and for each kind of difference between clients a latent of its own:

    w, theta      ~ flat                                             trained as FedAvg trains them
    |A_j|         ~ kappa,   pi_j | A_j ~ Dirichlet(beta C m, A_j)   which classes client j has, and how often
    y_ij | pi_j   ~ Categorical(pi_j)                                labels
    x_ij | y_ij   ~ p(x | y), the same for all clients               so that, with f = w^T h_theta trained on pooled data,
    y_ij | x_ij   ~ Categorical(softmax(f(x_ij) + log pi_j - log m)) m the pooled shares of the classes (site y)

A label says how often its class comes, and the network what it looks like: given its counts a client's shares have a
posterior in closed form (:mod:`hierfl.ppl.label_shares`), and nothing flows back from site y to w and theta, which are
trained on the likelihood without shares (site y_pooled). The global model is FedAvg's: a client of which nothing is
known has the pooled shares, E[pi_j] = m.

With a share ``floor`` of labels drawn from the pooled shares, a class that a client has never had keeps a probability.

A round: a client counts its labels and trains copies of w and theta. Those who take part send n_j w_j, n_j theta_j and
n_j, and 2 C + 2 numbers on the population of shares; the server divides, and takes a step of EM on kappa and beta.
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
from hierfl.ppl.label_shares import LabelShares, SharesGiven
from hierfl.ppl.plates import clients, data, flat, param, sample

from ..baselines.fedavg import FedAvg
from ..pfedeb.population import of_numbers
from .heads import Heads


class PFedHB(FedAvg):
    """FedAvg's network under a hierarchical population of label shares."""

    about = About(
        name="pfedhb",
        what="label shares with a population (this project)",
        family="hierarchical",
        stays="label shares",
        sent="all, sums of label counts",
        message_size=1.01,
        order=71,
    )
    independent_draws = True
    shares: ClassVar = LabelSharePopulation("shares", "class_counts")

    @dataclass(frozen=True)
    class Settings(FedAvg.Settings):
        """FedAvg's, and those of the populations."""

        floor: float = setting(
            1e-4, "share of a client's labels that come as in the pooled data, whatever its own shares", above=0, below=1
        )
        heads: Literal["on", "off"] = setting("off", "whether clients have heads of their own around w")
        sigma_0: float = setting(0.1, "initial rho of every block", above=0)
        rho_scale: float = setting(10.0, "scale of the half-normal prior of rho", above=0)
        rank: int = setting(50, "rank of a large head's covariance", at_least=1)
        points: int = setting(16, "points of each example's predictor over which its likelihood is averaged", at_least=1)
        average: int = setting(
            1, "rounds over which w and theta are averaged for predictions, with exponential weights; 1: none", at_least=1
        )
        draws: int = setting(100, "draws of each client's shares that are kept at the end", at_least=2)

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.noise is not None:
            raise UserError("pfedhb has a population of label shares: data with labels, not a regression")
        super().__init__(network, **settings)
        s = self.settings
        parts = Heads(network.head, s.sigma_0, s.rho_scale, s.rank, s.points, s.draws)
        self.heads = parts if s.heads == "on" else None

    def shared(self, start: InitialWeights) -> State:
        equal = -start.head.new_full((self.network.head.outputs,), self.network.head.outputs).log()
        population = {"log_kappa": equal, "log_beta": equal.new_zeros(1), "log_pooled": equal}
        network = super().shared(start)
        averaged = {f"averaged.{key}": value for key, value in network.items()} if self.settings.average > 1 else {}
        heads = self.heads.shared() if self.heads else {}
        return {**network, **averaged, **heads, **{f"shares.{key}": value for key, value in population.items()}}

    def personal(self, start: InitialWeights) -> State:
        counts = start.head.new_zeros(self.network.head.outputs)
        heads = self.heads.personal(self.settings.init_scale * start.head) if self.heads else {}
        return {"class_counts": counts, "log_pi_j_draws": counts.expand(1, 1, -1), **heads}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.head.d))
        with clients(batch):
            pi_j = sample("pi_j", self.population())
            w_j = self.own_head(w)
            with data(batch):
                z = net.base(batch.x)
                f = net.head(w, z)
                sample("y_pooled", net.likelihood(f), obs=batch.y)
                own = f.detach() if w_j is None else net.head(w_j, z.detach())
                sample("y", net.likelihood(own + self.offset(pi_j)), obs=batch.y)

    def own_head(self, w: Tensor) -> Tensor | None:
        """w_j, where heads are on."""
        if self.heads is None:
            return None
        rho = of_numbers(param("heads.log_rho"), self.heads.blocks).to(w)
        found: Tensor = sample("w_j", Normal(w.detach(), rho).to_event(1))
        return found

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            draws = param("log_pi_j_draws").softmax(-1)
            sample("pi_j", SharesGiven(draws, self.population(param("class_counts")).mean))
            if self.heads is not None:
                sample("w_j", EmpiricalDraws(param("w_j_draws"), 1))

    def population(self, counts: Tensor | None = None) -> LabelShares:
        """p(pi_j), and p(pi_j | n_j)."""
        return LabelShares(param("shares.log_kappa"), param("shares.log_beta"), param("shares.log_pooled"), counts)

    def offset(self, pi_j: Tensor) -> Tensor:
        """log of how much more often each class comes at the client than in the pooled data, (..., C)."""
        floor = self.settings.floor
        return torch.log1p((1 - floor) * (pi_j / param("shares.log_pooled").softmax(-1) - 1))

    def local(self) -> list[LocalStep]:
        heads = [AtPrediction(self.heads.step())] if self.heads else []
        return [self.sgd("w", "base"), ClassCounts("class_counts"), *heads]  # (minibatches are those of FedAvg)

    def exchange(self) -> dict[str, AggregationRule]:
        average = self.settings.average
        rules: dict[str, AggregationRule] = {"averaged": Averaged("averaged", average)} if average > 1 else {}
        if self.heads:
            rules["heads"] = self.heads.rule()
        return {**super().exchange(), **rules, "shares": self.shares}

    def prediction_params(self, shared: State) -> State:
        averaged = {k.removeprefix("averaged."): v for k, v in shared.items() if k.startswith("averaged.")}
        return {**shared, **averaged}

    def schedule(self) -> Schedule:
        draws = DrawShares("log_pi_j_draws", self.shares, self.settings.draws)
        heads = [AtPrediction(self.heads.step(final=True))] if self.heads else []
        steps = [ClassCounts("class_counts"), draws, *heads]
        return Schedule(absent="freeze", final_steps=steps, final_when="evaluation")

    def new_client_terms(self, personal: State) -> State:
        return {}  # (a client of which nothing is known has no counts, and so the pooled shares)

    def client_summary(self, values: State) -> State:
        """Expected number of classes, and how far a client's shares are from the pooled ones, in nats."""
        counts, population = values["class_counts"].squeeze(1), self.shares.population(values)
        given = self.shares.population(values, counts)
        ratio = given.mean / population.pooled
        classes = (given.sizes_given * given.sizes).sum(-1)
        return {"classes": classes, "label_skew": torch.special.xlogy(given.mean, ratio).sum(-1)}

"""FedEP: expectation propagation. Guo et al., ICLR 2023.

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))
    q(w)         = prod_j q_j(w)                                 q_j = exp(h_j^T w - w^T diag(Lambda_j) w / 2)

    minimised by client j: F_j(w) - log [q(w) / q_j(w)] / n_j    F_j the mean loss; the cavity is held

What it needs beyond the one model is no term of it: q / q_j, the cavity, represents what all other clients' data say of
w, and each client corrects its own factor of the one posterior beside it. q_j is 1 before the client has reported.

A round: every client takes w to the mode mu_t of that objective by minibatch gradient descent (the mean of where its
passes end), finds a precision of its own there, and so the tilted posterior and its factor's change,

    Lambda_t = cavity's + s (c n_j I + diag H_j),   h_t = Lambda_t mu_t,   d = delta ((h_t, Lambda_t) - (h, Lambda))

with H_j = 0 or the Fisher information of its data. Those who take part send d (h's as delta Lambda_t (mu_t - mu)) and
add it to (h_j, Lambda_j); the server adds their sum to (h, Lambda). delta is 1 in the first round, which is FedAvg's
where the last pass alone is kept (burn = epochs - 1) and precisions are identities; then eta / |A|, of the round
before, at most 1. Predictions are at mu, or averaged over

    w ~ N(mu, P^-1),    P = Lambda + 1 / sigma^2

Whatever the precisions, where a round changes nothing sum_j n_j grad F_j(mu) = 0: it is the pooled model's mode. They
are above zero since Lambda_j moves by a share of at most 1 to s (c n_j I + diag H_j), which is; hence no momentum.
FedSEP (``factors=one``) keeps no factors: its cavity is q^(1 - n_j / n), with n as estimated from those who reported.
It comes to rest elsewhere, where sum_j Lambda_t (mu_t - mu) = 0.
With ``ft_epochs`` each client fits an offset_j of its own at mu before every evaluation (FedEP-FT); it is never sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyro
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.squared_scores import mean_squared_scores
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.gradient_transforms import Preconditioned
from hierfl.inference.local.iterate_samples import IterateSamples
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.increments import GaussianIncrements
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.server.rules.running import EstimatedTotal
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, flat, param, sample

from ._then_fitted import ThenFitted
from ._whole_network import drawn


class FedEP(ThenFitted):
    """One posterior, the product of the clients' Gaussian factors, each of which is fitted beside the others."""

    about = About(
        name="fedep",
        what="expectation propagation",
        paper="Guo et al., ICLR 2023",
        family="rho -> 0, product of factors",
        stays="its factor",
        sent="change of its factor",
        message_size=2.0,
        order=338,
    )

    @dataclass(frozen=True)
    class Settings(ThenFitted.Settings):
        """The authors' repository, CIFAR-100, scaled identity: ten epochs, a step of 0.5 of all together."""

        factors: Literal["own", "one"] = setting(
            "own", "each client keeps its factor (FedEP) | none does, all are taken as alike (FedSEP)"
        )
        precision: Literal["identity", "laplace"] = setting(
            "identity", "of a client's factor: in proportion to its examples | Fisher information besides"
        )
        scale: float = setting(
            500.0, "s, what the precision of a client's factor is multiplied by", above=0, at_most=1e12
        )
        least: float = setting(1e-4, "c, precision of a client's factor for each of its examples", above=0)
        epochs: int = setting(10, "passes through a client's data in a round", at_least=0)
        burn: int = setting(0, "passes of a round, the first, that are left out of the mode's estimate", at_least=0)
        batch: int = setting(20, "examples in a minibatch", at_least=1)
        server_lr: float = setting(
            0.5, "eta, a step of all clients together: each change is damped by eta / |A|", above=0
        )
        sigma: float = setting(
            0.1,
            "largest standard deviation of a weight in draws of the posterior; 0 for no draws",
            at_least=0,
            at_most=1e12,
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        self.descent()  # a round without a sample is refused here

    @property
    def keeps(self) -> bool:
        """Whether clients keep factors."""
        return self.settings.factors == "own"

    def shared(self, start: InitialWeights) -> State:
        values = super().shared(start)
        counted = {} if self.keeps else {"examples": values["w"].new_zeros(())}
        return {
            **values,
            "precision": values["w"].new_zeros(self.network.d),
            "damping": values["w"].new_ones(()),
            **counted,
        }

    def personal(self, start: InitialWeights) -> State:
        nothing = start.head.new_zeros(self.network.d)
        return {**super().personal(start), **({"h_j": nothing, "precision_j": nothing} if self.keeps else {})}

    def cavity(self, value: Callable[[str], Tensor], n: Tensor) -> tuple[Tensor, Tensor]:
        """The cavity around the broadcast mean mu, exp(g^T u - u^T diag(C) u / 2), u = w - mu: g and C, (S, 1, d).

        Args:
            value: of a name.
            n: (S,).
        """
        mu, precision = value("broadcast.w"), value("precision")
        if self.keeps:
            own = value("precision_j")
            return own * mu - value("h_j"), (precision - own).clamp_min(0)  # below it by rounding alone
        share = (n / value("examples").clamp_min(n))[:, None, None]
        c = (1 - share) * precision
        return c.new_zeros(()).expand_as(c), c

    def model(self, batch: Batch) -> None:
        w = sample("w", flat(self.network.d))
        g, c = self.cavity(param, batch.n)
        u = w - param("broadcast.w")
        with clients(batch):
            pyro.factor("cavity", (g * u - c * u * u / 2).sum(-1))
        self.response(batch, w)

    def local(self) -> list[LocalStep]:
        return [Refit(self)]

    def descent(self) -> LocalStep:
        """Descends to the mode of the tilted posterior."""
        s = self.settings
        steps = SVI(
            ["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example",
            transform=Preconditioned("w", "brake"),
        )  # fmt: skip
        return IterateSamples(steps, "w", s.burn, lambda samples, chunk: samples.mean(1), "last")

    def own_precision(self, chunk: ClientChunk, w: Tensor) -> Tensor:
        """s (c n_j I + diag H_j) at w (S, 1, d): (S, 1, d)."""
        s = self.settings
        precision = w.new_ones(()).expand_as(w) * (s.least * chunk.n)[:, None, None]
        if s.precision == "laplace":
            precision = precision + (
                chunk.n[:, None] * mean_squared_scores(chunk, self.network, "w", "model")
            ).unsqueeze(1)
        return s.scale * precision

    def expand(self, name: str, all_names: Any) -> tuple[str, ...]:
        return ("w", "precision", "damping") if name == "posterior" else super().expand(name, all_names)

    def shared_draws(self, shared: State, number: int) -> State:
        if not self.settings.sigma:
            return {}
        return {"w": drawn(shared["w"], (shared["precision"] + self.settings.sigma**-2).rsqrt(), number)}

    def population_draws(self, shared: State, number: int) -> tuple[list[str], Tensor] | None:
        draws = self.shared_draws(shared, number)
        return ([f"w[{k}]" for k in range(self.network.d)], draws["w"].flatten(0, 2)) if draws else None

    def exchange(self) -> dict[str, AggregationRule]:
        posterior = GaussianIncrements("w", "precision", "damping", self.settings.server_lr, changes)
        rules: dict[str, AggregationRule] = {"posterior": posterior, "base": SampleWeighted()}
        return rules if self.keeps else {**rules, "examples": EstimatedTotal(lambda chunk: chunk.n)}


@dataclass(frozen=True)
class Refit:
    """A client's round: its tilted posterior, and by how much its factor changes.

    Where the cavity is narrow plain steps on it would diverge, and first in clients with few data. Divided by
    1 + lr C / n_j they are those that take the cavity's gradient where they end (proximal steps), with the same mode.
    """

    method: FedEP

    @property
    def trains(self) -> tuple[str, ...]:
        """The copy of w, and the factor."""
        return (*self.method.descent().trains, *(("h_j", "precision_j") if self.method.keeps else ()))

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Fits."""
        method, n = self.method, chunk.n
        _, c = method.cavity(chunk.view.__getitem__, n)
        brake = 1 / (1 + method.settings.lr * c / n[:, None, None])
        chunk = method.descent().run(chunk.put({"brake": brake}), phase)
        mu, precision, w = chunk.shared["w"], chunk.shared["precision"], chunk.values["w"]
        tilted, delta = c + method.own_precision(chunk, w), chunk.shared["damping"]
        shift, more = delta * tilted * (w - mu), delta * (tilted - precision)
        values = {"change.shift": shift, "change.precision": more}
        if method.keeps:
            values["h_j"] = chunk.values["h_j"] + shift + more * mu
            values["precision_j"] = chunk.values["precision_j"] + more
        return chunk.put(values)


def changes(chunk: ClientChunk) -> tuple[Tensor, Tensor]:
    """What the rows' fits have left beside their values, (S, d) each."""
    return chunk.values["change.shift"].squeeze(1), chunk.values["change.precision"].squeeze(1)

"""FOLA: Laplace approximations of one model, multiplied at the server. Liu et al., 2021 (TPAMI 2024), online Laplace.

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))
    w_j | w      ~ N(w, r / (c n_j) diag(Lambda)^-1)             while client j works in round r, around the broadcast w
    q(w_j)       = delta(theta_j) there, N(w, P^-1) where anybody predicts,  P = scale n Lambda / r + 1 / sigma^2

    minimised by client j: F_j(theta) + c / (2 r) sum_k Lambda_k (theta_k - w_k)^2       (F_j the mean loss)

What it needs beyond the one model is Lambda, the diagonal precision of w that the server has gathered from all rounds
so far, r times that of the data (of one example of them): it is the metric of the prior.

A round: every client that takes part trains a copy theta_j of w on that objective, and forgets it. It adds the Fisher
information there, Lambda_j = Lambda + F_j, the mean over its examples, and sends n_j Lambda_j theta_j, n_j Lambda_j and
n_j. The server multiplies the Gaussians, each to the power a_j = n_j / sum n_j:

    Lambda <- sum a_j Lambda_j,    w <- sum a_j Lambda_j theta_j / Lambda

Batch norm's running statistics are averaged like FedAvg's; the information is of the network that goes by them. But the
average of statistics belongs to the average of the clients' networks by n_j, and w is one by their information. With
bn_refresh_epochs they stay with the client, which takes them with w after the last round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.squared_scores import mean_squared_scores
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.gradient_transforms import Clipped
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.server.rules.online_laplace import EXTRA_VALUES, OnlineLaplace, beginning, posterior_scale
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import flat, param

from .._common_settings import client_momentum, server_step
from ._global_posterior import GlobalPosterior
from ._whole_network import drawn


class FOLA(GlobalPosterior):
    """rho -> 0, with the server's posterior N(w, P^-1) as every client's prior and all clients' predictions."""

    about = About(
        name="fola",
        what="a product of Laplace approximations",
        paper="Liu et al., 2021",
        family="rho -> 0, diagonal posterior of w",
        stays="nothing",
        sent="all, their precisions",
        message_size=2.0,
        order=345,
    )
    copied = "w.mean"
    averages_norms = True

    @dataclass(frozen=True)
    class Settings(GlobalPosterior.Settings):
        """The authors' code: c of 0, 1 or 100, clip 10, epsilon 1e-5, no momentum."""

        c: float = setting(1.0, "how strongly the prior N(w, .) holds clients back; 0 for not at all", at_least=0)
        clip: float = setting(10.0, "norm to which longer gradients of a client are shortened", above=0)
        momentum: float = client_momentum(0.0)
        fisher: Literal["data", "model"] = setting(
            "data", "squared gradients of each example at the label that it has | expected over the model's own labels"
        )
        epsilon: float = setting(1e-5, "Lambda before the first round, for each weight", above=0)
        server_lr: float = server_step()
        scale: float = setting(
            1.0, "how often each example counts in the posterior that predictions draw from", above=0, at_most=1e12
        )
        bn_refresh_epochs: int = setting(
            0,
            "batch norm's running statistics stay with the client, and are taken with the server's weights after the "
            "last round, in so many passes through its data; 0: they are averaged",
            at_least=0,
        )
        sigma: float = setting(
            0.1, "largest standard deviation of a weight there, where the data say nothing of it", above=0, at_most=1e12
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        self.kept = network.norms("statistics") if self.settings.bn_refresh_epochs else frozenset[str]()

    def shared(self, start: InitialWeights) -> State:
        statistics = {} if self.settings.bn_refresh_epochs else self.network.statistics(start.base)
        return {**beginning("w", self.begin(start), self.settings.epsilon), **statistics}

    def personal(self, start: InitialWeights) -> State:
        return self.network.statistics(start.base) if self.settings.bn_refresh_epochs else {}

    def new_client_terms(self, personal: State) -> State:
        return personal

    def schedule(self) -> Schedule:
        s = self.settings
        if not s.bn_refresh_epochs:
            return super().schedule()
        # Copies of w, which a step of length 0 leaves where they are: the server's own w is used for draws.
        refresh = SVI(["w.mean", *sorted(self.kept)], s.bn_refresh_epochs, sgd(0.0), s.batch)
        return Schedule(final_steps=[refresh], new_client_steps=[refresh])

    @property
    def has_global_model(self) -> bool:
        return not self.settings.bn_refresh_epochs

    def spread(self, value: Callable[[str], Tensor]) -> Tensor:
        """P^-1/2, (d,), where ``value`` gives the server's value of a name."""
        precision, rounds, examples = (value(f"w.{k}") for k in EXTRA_VALUES)
        return posterior_scale(precision, rounds, examples, self.settings.scale, self.settings.sigma**-2)

    def known(self, w: Tensor) -> Any:
        return Normal(w, self.spread(param)).to_event(1)

    def shared_draws(self, shared: State, number: int) -> State:
        return {"w.mean": drawn(shared["w.mean"], self.spread(shared.__getitem__), number)}

    def working_prior(self, w: Tensor, batch: Batch) -> Any:
        c = self.settings.c
        if not c:
            return flat(self.network.d)
        precision = c * batch.n[:, None, None] * param("w.precision") / (param("w.rounds") + 1)  # (S, 1, d)
        return Normal(param("broadcast.w.mean"), precision.rsqrt()).to_event(1)

    def local(self) -> list[LocalStep]:
        s = self.settings
        descent = sgd(s.lr, s.momentum)
        return [
            SVI(
                ["w.mean", "base", *sorted(self.kept)],
                s.epochs,
                descent,
                s.batch,
                per="example",
                transform=Clipped(s.clip),
            )
        ]

    def information(self, chunk: ClientChunk) -> Tensor:
        """F_j at the rows' copies, (S, d)."""
        return mean_squared_scores(chunk, self.network, "w.mean", self.settings.fisher)

    def exchange(self) -> dict[str, AggregationRule]:
        server_lr = self.settings.server_lr
        return {"w": OnlineLaplace("w", self.information, server_lr), "base": SampleWeighted(server_lr)}

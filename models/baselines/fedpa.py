"""FedPA: posterior averaging. Al-Shedivat et al., ICLR 2021.

    w            ~ flat                                          rho -> 0: w_j = w, all weights of a network
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))
    p(w | D)     ~ prod_j N(w; mu_j, Sigma_j)^n_j                Gaussians of exp(-F_j), F_j client j's mean loss

The product's mode is the root of sum_j n_j Delta_j, Delta_j = Sigma_j^-1 (w - mu_j). What it needs beyond the one model
is nothing: where the Gaussians are exact this is the pooled model's mode, found by sums of what clients say of their
own posteriors, instead of where their descents have ended.

A round: every client trains a copy of w by minibatch gradient descent on F_j. After a burn-in each pass leaves a sample
of its posterior, the mean of its iterates, L in all, with mean mu_j and covariance S_j; then

    Sigma_j = rho_L I + (1 - rho_L) S_j,   rho_L = 1 / (1 + (L - 1) rho),   w_j = w - Delta_j

Those who take part send n_j w_j and n_j. The server takes a step with momentum along the mean of Delta_j:

    v <- beta v + sum n_j Delta_j / sum n_j,   w <- w - eta v

With one sample w_j is the mean of the iterates (FedAvg with iterate averaging), with rho = 0 the mean of all samples.
Otherwise Delta_j is 1 + (L - 1) rho times as long in all directions in which no sample has moved: rho is first of all
a length of the server's steps, and means a covariance in the L - 1 others.
With ``ft_epochs`` each client fits an offset_j of its own before every evaluation (FedPA-FT); it is never sent.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.iterate_samples import IterateSamples
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.method.about import About
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.nn.architecture import Architecture
from hierfl.ppl.shrunk_covariance import solved

from ._then_fitted import ThenFitted


class FedPA(ThenFitted):
    """The server steps to the mode of the product of the clients' posteriors, sampled by descent."""

    about = About(
        name="fedpa",
        what="posterior averaging",
        paper="Al-Shedivat et al., ICLR 2021",
        family="rho -> 0, posteriors' product",
        stays="nothing",
        sent="all",
        message_size=1.0,
        order=335,
    )

    @dataclass(frozen=True)
    class Settings(ThenFitted.Settings):
        """The authors' repository: five epochs, one of them burn-in, rho 0.01, a server's step of 0.5, momentum 0.9."""

        batch: int = setting(20, "examples in a minibatch", at_least=1)
        burn: int = setting(1, "passes of a round, the first, that leave no sample of the posterior", at_least=0)
        shrinkage: float = setting(
            0.01,
            "rho: how far samples' covariance is trusted; 0 for not at all. Steps are 1 + (L - 1) rho times as long "
            "where none of the L samples has moved",
            at_least=0,
        )
        plain_rounds: int = setting(
            0, "rounds, the first, in which clients send where their descent has ended, as FedAvg's do (published: 400 "
            "of 1,500)", at_least=0,
        )  # fmt: skip
        server_lr: float = setting(0.5, "eta, the server's step along the clients' mean Delta_j", above=0)
        server_momentum: float = setting(0.9, "beta, momentum of the server's steps", at_least=0, below=1)

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        self.local()  # a round without a sample is refused here

    def local(self) -> list[LocalStep]:
        s = self.settings
        descent = SVI(["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")
        return [IterateSamples(descent, "w", s.burn, self.stepped)]

    def stepped(self, samples: Tensor, chunk: ClientChunk) -> Tensor:
        """w - Delta_j, (S, d), from samples (S, L, d) of the rows' posteriors."""
        if chunk.round <= self.settings.plain_rounds:
            return chunk.values["w"].squeeze(1)
        w = chunk.shared["w"]
        return w - solved(samples, w - samples.mean(1), self.settings.shrinkage)

    def exchange(self) -> dict[str, AggregationRule]:
        s = self.settings
        # Statistics of batch norm have no momentum.
        rule = SampleWeighted(server_lr=s.server_lr, momentum=s.server_momentum)
        return {"w": rule, "base": rule}

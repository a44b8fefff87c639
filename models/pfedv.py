"""pFedV: latent features, whose encoder is the guide, and a prior that the federation learns.

Mou et al., ICANN 2023. Data differ between clients in their inputs (feature skew).

    w_j        ~ flat                                      the classifier's last layer: a client's own (FedV: w, shared)
    z_ij       ~ N(0, I)  or  N(mu_s(x_ij), diag sigma_s^2(x_ij))         hierarchical: the encoder as broadcast (s)
    y_ij | z_ij ~ Categorical(softmax(w_j^T h_theta(z_ij)))
    q(z_ij | x_ij) = N(mu_g(x_ij), diag sigma_g^2(x_ij))                  the client's copy g of the encoder

    maximised by client j: sum_i E_q log p(y_ij | z_ij) - alpha KL(q(z_ij | x_ij) || p(z_ij))            (Eq. 6, 7)

A round: every client trains copies of the encoder g and h_theta (and w), and its w_j, on that objective; the server
averages what is shared, by n_j, and broadcasts it: with it moves the hierarchical prior. (Eq. 4 has a sign slip.)
"""

from dataclasses import dataclass
from typing import Any, Literal

from pyro.distributions import Delta, Normal
from torch import Tensor

from hierfl.errors import UserError
from hierfl.federation import Batch
from hierfl.inference.exchange import SampleWeighted
from hierfl.inference.method import LocalStep, Method, Rule, Start, State, setting
from hierfl.inference.svi import SVI, sgd
from hierfl.networks import Architecture
from hierfl.plates import clients, data, flat, param, sample, scale


class PFedV(Method):
    """Latent features; everything shared but the last layer."""

    name = "pfedv"
    latent = True

    @dataclass(frozen=True)
    class Settings:
        """The paper: alpha 0.5, one epoch of SGD 0.01 with batches of 32; it leaves the rest open."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical", "of z: the encoder as broadcast | N(0, I) | none, and z a point"
        )
        alpha: float = setting(0.5, "weight of the KL divergence", above=0)
        kl: Literal["sum", "mean"] = setting("mean", "of the KL over z's numbers (the paper does not say)")
        prior_norm: Literal["batch", "running"] = setting(
            "batch",
            "prior=hierarchical: the prior's batch norm goes by the client's batches | the broadcast statistics",
        )
        epochs: int = setting(1, "epochs a round", at_least=0)
        lr: float = setting(1e-2, "step size, on the mean over examples", above=0)
        batch: int = setting(32, "examples per step", at_least=1)
        momentum: float = setting(0.0, "forgotten each round", at_least=0)
        w_0: float = setting(0.1, "standard deviation of the initial last layer", at_least=0)

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.encoder is None:
            raise UserError(f"{self.name} needs latent features: architecture(spec, federation, latent=True)")
        super().__init__(network, **settings)
        self.encoder, self.sent = network.encoder, network.encoder.broadcast(self.settings.prior_norm)

    def shared(self, start: Start) -> State:
        return start.base  # encoder and base

    def personal(self, start: Start) -> State:
        return {"w_j_point": self.settings.w_0 * start.head}

    @property
    def weight(self) -> float:
        """Of z's log densities, in model and guide alike: KL divergences are weighted by the guide's."""
        return self.settings.alpha / (self.network.latents if self.settings.kl == "mean" else 1)

    def prior(self, x: Tensor) -> Any:
        """p(z | x), of M numbers."""
        m = self.network.latents
        if self.settings.prior == "flat":
            return flat(m)
        mean, sd = moments(self.sent(x)) if self.settings.prior == "hierarchical" else (x.new_zeros(m), x.new_ones(m))
        return Normal(mean, sd).to_event(1)

    def posterior_of(self, x: Tensor) -> Any:
        """q(z | x)."""
        mean, sd = moments(self.encoder(x))
        return (Delta(mean) if self.settings.prior == "flat" else Normal(mean, sd)).to_event(1)

    def features_and_labels(self, batch: Batch, w: Tensor) -> None:
        """p(z | x) p(y | z), in the data plate."""
        net = self.network
        with data(batch):
            with scale(scale=self.weight):
                z = sample("z", self.prior(batch.x))  # (K, S, n, M)
            sample("y", net.likelihood(net.head(w, net.base(z))), obs=batch.y)

    def model(self, batch: Batch) -> None:
        with clients(batch):
            w_j = sample("w_j", flat(self.network.head.d))
            self.features_and_labels(batch, w_j)

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            sample("w_j", Delta(param("w_j_point")).to_event(1))
            with data(batch), scale(scale=self.weight):
                sample("z", self.posterior_of(batch.x))

    def sgd(self, *names: str) -> SVI:
        """Minibatch gradient descent of these values, on the mean over examples."""
        s = self.settings
        return SVI(names, s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")

    def local(self) -> list[LocalStep]:
        return [self.sgd("encoder", "base", "w_j_point")]

    def adaptation(self) -> list[LocalStep]:
        return [self.sgd("w_j_point")]

    def newcomer(self, personal: State, initial: State) -> State:
        return {"w_j_point": personal["w_j_point"].mean(0)}

    def exchange(self) -> dict[str, Rule]:
        return {"encoder": SampleWeighted(), "base": SampleWeighted()}

    @property
    def has_global_model(self) -> bool:
        return False


class FedV(PFedV):
    """The last layer is shared, too."""

    name = "fedv"

    def shared(self, start: Start) -> State:
        return {"w": self.settings.w_0 * start.head, **start.base}

    def personal(self, start: Start) -> State:
        return {}

    def model(self, batch: Batch) -> None:
        w = sample("w", flat(self.network.head.d))
        with clients(batch):
            self.features_and_labels(batch, w)

    def guide(self, batch: Batch) -> None:
        with clients(batch), data(batch), scale(scale=self.weight):
            sample("z", self.posterior_of(batch.x))

    def local(self) -> list[LocalStep]:
        return [self.sgd("encoder", "base", "w")]

    def adaptation(self) -> list[LocalStep]:
        return []

    def newcomer(self, personal: State, initial: State) -> State:
        return {}

    def exchange(self) -> dict[str, Rule]:
        return {"w": SampleWeighted(), **super().exchange()}

    @property
    def has_global_model(self) -> bool:
        return True


def moments(encoded: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (S, n, M) from mean and log variance (S, n, 2 M)."""
    mean, log_variance = encoded.chunk(2, -1)
    return mean, (0.5 * log_variance).exp()

"""pFedV: latent features, whose encoder is the guide, and a prior that the federation learns.

Mou et al., ICANN 2023. Data differ between clients in their inputs (feature skew).

    w_j        ~ flat                                      the classifier's last layer: a client's own (FedV: w, shared)
    z_ij       ~ N(0, I)  or  N(mu_s(x_ij), diag sigma_s^2(x_ij))         hierarchical: the encoder as broadcast (s)
    y_ij | z_ij ~ Categorical(softmax(w_j^T h_theta(z_ij)))
    q(z_ij | x_ij) = N(mu_g(x_ij), diag sigma_g^2(x_ij))                  the client's copy g of the encoder

    maximised by client j: sum_i E_q log p(y_ij | z_ij) - alpha KL(q(z_ij | x_ij) || p(z_ij))            (Eq. 6, 7)

A round: every client trains copies of the encoder g and h_theta (and w), and its w_j, on that objective; the server
averages what is shared, by n_j, and broadcasts it: with it moves the hierarchical prior. Eq. 4 has a sign slip. The KL
is over z's M numbers, by default their mean (kl=mean): the paper does not say whether it is a sum.

By option a client keeps its batch norm for itself, as FedBN does. The prior then uses the client's own, as the round
begins. Running statistics are those of the client's copies, but the average is evaluated: bn_refresh_epochs computes
them again.
"""

import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

import torch
from pyro.distributions import Delta, Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.closed_form import ClosedForm
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI, running_statistics
from hierfl.inference.method.about import About
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.nn.functional import BROADCAST_PREFIX
from hierfl.ppl.plates import clients, data, flat, param, sample, scale

from ._common_settings import client_momentum


class PFedV(Method):
    """Latent features; everything shared but the last layer."""

    about = About(
        name="pfedv",
        what="latent features, encoders as guides",
        paper="Mou et al., ICANN 2023",
        family="hierarchical",
        stays="last layer",
        sent="encoder, base",
        message_size=1.97,
        order=40,
    )
    takes_adapters = True
    latent = True

    @dataclass(frozen=True)
    class Settings:
        """The paper: alpha 0.5, one epoch of SGD 0.01 with batches of 32; it leaves the rest open."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical",
            "prior of the latent features z: the encoder as broadcast | N(0, I) | none, and z is a point",
        )
        alpha: float = setting(
            0.5, "weight of the KL divergence of z from its prior", above=0, unless={"prior": ("flat",)},
            scale_of=("hierarchical", "fixed"),
        )  # fmt: skip
        kl: Literal["sum", "mean"] = setting(
            "mean", "the KL is summed | averaged over the numbers of z (the paper does not say)",
            unless={"prior": ("flat",)},
        )  # fmt: skip
        prior_norm: Literal["batch", "running"] = setting(
            "batch", "batch norm inside the prior's encoder: by the client's batches | by the broadcast statistics",
            unless={"prior": ("fixed", "flat")},
        )  # fmt: skip
        epochs: int = setting(1, "passes through a client's data in a round", at_least=0)
        lr: float = setting(1e-2, "step size of the clients, on the mean over examples", above=0)
        batch: int = setting(32, "examples in a minibatch", at_least=1)
        momentum: float = client_momentum(0.0)
        init_scale: float = setting(
            0.1, "standard deviation of the last layer's initial weights", at_least=0, at_most=1e12
        )
        local_norm: Literal["nothing", "statistics", "all"] = setting(
            "nothing", "what of batch norm each client has for itself: nothing | running statistics | its weights, too"
        )
        bn_refresh_epochs: int = setting(
            0, "after the last round: passes through a client's data that update its own running statistics under the "
            "averaged weights", at_least=0, unless={"local_norm": ("nothing",)},
        )  # fmt: skip
        sd_min: float = setting(
            0.0, "least standard deviation of z, in prior and guide (the paper: none)", at_least=0,
            unless={"prior": ("flat",)}, at_most=1e12,
        )  # fmt: skip

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if network.encoder is None:
            raise UserError(f"{self.name} needs latent features: architecture(spec, federation, latent=True)")
        super().__init__(network, **settings)
        self.encoder = network.encoder
        self.broadcast_encoder = self.encoder.broadcast(self.settings.prior_norm)
        self.kept = sorted(network.norms(self.settings.local_norm))

    def shared(self, start: InitialWeights) -> State:
        return {k: v for k, v in start.base.items() if k not in self.kept}  # encoder and base

    def personal(self, start: InitialWeights) -> State:
        return {"w_j_point": self.settings.init_scale * start.head, **self.norms(start)}

    def norms(self, start: InitialWeights) -> State:
        """A client's own batch norm, and the encoder's once more, for the prior."""
        own = {k: start.base[k] for k in self.kept}
        return {**own, **{f"{BROADCAST_PREFIX}{k}": own[k] for k in self.names_for_prior}}

    @property
    def names_for_prior(self) -> list[str]:
        """Names of a client's own values that the prior uses, as they are when the round begins."""
        return [k for k in self.kept if k in self.encoder.names and self.settings.prior == "hierarchical"]

    def hold(self) -> list[LocalStep]:
        """The steps that keep the client's own batch norm as it is now, for the prior of the next round."""
        return [ClosedForm(f"{BROADCAST_PREFIX}{k}", itemgetter(k)) for k in self.names_for_prior]

    @property
    def weight(self) -> float:
        """alpha, or alpha / M where the KL is a mean: the weight of z's log densities, in model and guide alike."""
        return self.settings.alpha / (self.network.latents if self.settings.kl == "mean" else 1)

    def prior(self, x: Tensor) -> Any:
        """p(z | x) of inputs (S, n, *event), on z (S, n, M); see the module."""
        m = self.network.latents
        if self.settings.prior == "flat":
            return flat(m)
        if self.settings.prior == "fixed":
            return Normal(x.new_zeros(m), x.new_ones(m)).to_event(1)
        return Normal(*self.moments(self.broadcast_encoder(x))).to_event(1)

    def posterior_of(self, x: Tensor) -> Any:
        """q(z | x) of inputs (S, n, *event), on z (S, n, M); a point where z has no prior."""
        mean, sd = self.moments(self.encoder(x))
        return (Delta(mean) if self.settings.prior == "flat" else Normal(mean, sd)).to_event(1)

    def moments(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (S, n, M) from mean and log variance (S, n, 2 M)."""
        mean, log_variance = encoded.chunk(2, -1)
        return mean, self.settings.sd_min + (0.5 * log_variance).exp()

    def features_and_labels(self, batch: Batch, w: Tensor) -> None:
        """p(z | x) p(y | z, w) in the data plate, w (d,) or (S, 1, d)."""
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
        return [self.sgd("encoder", "base", "w_j_point"), *self.hold()]

    def schedule(self) -> Schedule:
        s = self.settings
        refresh = [running_statistics(self.kept, s.bn_refresh_epochs, s.batch)] if s.bn_refresh_epochs else []
        return Schedule(final_steps=refresh, new_client_steps=[self.sgd("w_j_point", *self.kept), *self.hold()])

    def new_client_terms(self, personal: State) -> State:
        return personal

    def exchange(self) -> dict[str, AggregationRule]:
        return {"encoder": SampleWeighted(), "base": SampleWeighted()}

    @property
    def has_global_model(self) -> bool:
        return False

    def summary_terms(self, fitted: Fitted) -> State:
        """A histogram of the logarithms of z's standard deviations, over some training examples of each client."""
        federation, histogram = fitted.federation, torch.zeros(SD_BINS, dtype=torch.float64)
        if self.settings.prior == "flat":
            return {}
        for j in range(federation.clients):
            x, y = federation.examples(federation.train[j][:EXAMPLES][None])
            batch = Batch(x, y, None, x.new_ones(1))
            sd = fitted.personal_sites([j], batch, 0)[0]["z"].fn.base_dist.scale.flatten()
            sd = sd[sd.isfinite()].log().clamp(-SD_EDGE, SD_EDGE)
            histogram += sd.cpu().double().histc(SD_BINS, -SD_EDGE, SD_EDGE)
        return {"log_sd": histogram}

    def population_summary(self, fitted: Fitted) -> tuple[None, dict[str, float]]:
        """Median and least of z's standard deviations, to half a per cent."""
        if self.settings.prior == "flat":
            return None, {}
        counts = fitted.summary_sums["log_sd"].cumsum(0)
        if not counts[-1]:  # a diverged fit has no standard deviations to count
            return None, {"z_sd_median": math.nan, "z_sd_least": math.nan}
        median, least = (int((counts < k).sum()) for k in ((counts[-1] + 1) // 2, 1))
        middle = (torch.arange(SD_BINS) + 0.5) * (2 * SD_EDGE / SD_BINS) - SD_EDGE
        return None, {"z_sd_median": float(middle[median].exp()), "z_sd_least": float(middle[least].exp())}


#: of how many examples of a client the standard deviations of latent features are reported
EXAMPLES = 20
#: bins of their logarithms, from -SD_EDGE to SD_EDGE: a hundredth each
SD_BINS, SD_EDGE = 4000, 20.0


class FedV(PFedV):
    """The last layer is shared, too."""

    about = About(
        name="fedv",
        what="pFedV with a shared last layer",
        family="hierarchical",
        stays="nothing",
        sent="encoder, base, last layer",
        message_size=1.99,
        order=50,
    )
    takes_adapters = True

    def shared(self, start: InitialWeights) -> State:
        return {"w": self.settings.init_scale * start.head, **super().shared(start)}

    def personal(self, start: InitialWeights) -> State:
        return self.norms(start)

    def model(self, batch: Batch) -> None:
        w = sample("w", flat(self.network.head.d))
        with clients(batch):
            self.features_and_labels(batch, w)

    def guide(self, batch: Batch) -> None:
        with clients(batch), data(batch), scale(scale=self.weight):
            sample("z", self.posterior_of(batch.x))

    def local(self) -> list[LocalStep]:
        return [self.sgd("encoder", "base", "w"), *self.hold()]

    def schedule(self) -> Schedule:
        new = [self.sgd(*self.kept), *self.hold()] if self.kept else []
        return replace(super().schedule(), new_client_steps=new)

    def exchange(self) -> dict[str, AggregationRule]:
        return {"w": SampleWeighted(), **super().exchange()}

    @property
    def has_global_model(self) -> bool:
        return not self.kept

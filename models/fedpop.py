"""FedPop: a mixed-effects model whose random effects are sampled where the data are.

Kotelevskii, Vono, Durmus and Moulines, NeurIPS 2022 (FedSOUK, FedSOUL). The base network phi is a fixed effect, the
head z_j a random one from a Gaussian population:

    z_j | mu, sigma ~ N(mu, diag(sigma)^2)                       sigma is one number, or one for each of the head's
    y_ij | x_ij     ~ Categorical(softmax(z_j^T h_phi(x_ij)))
    q(z_j)          = what the chains have kept of p(z_j | D_j, phi, mu, sigma)

    maximised: log p(phi, mu) + sum_j log integral p(D_j | z, phi) N(z | mu, sigma^2) dz     (marginal MAP)

The population may also be known by an energy alone, p(z) = exp(-E(z)) / Z (population=energy, ``_energy_population``).

A round, at every client (Alg. 1): M Langevin steps from the chain's last state (stateful) or from the population
(stateless), z <- z + gamma grad log p(z | D_j, phi, mu, sigma) + sqrt(2 gamma) xi with xi ~ N(0, I). Those who take
part, A, send the log joint's gradients in phi, mu and log sigma, averaged over the draws (Fisher's identity). The
server ascends their sum times J / |A|. After the last round every client samples its posterior, the shared values
held: by default with chains that accept or reject, where the paper keeps every step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from pyro.distributions import Delta, Normal
from torch.optim.lr_scheduler import ExponentialLR

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.langevin.adjusted import adjusted
from hierfl.inference.local.langevin.step import Langevin
from hierfl.inference.local.optimizers import adam, sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.messages.codec import parse_compressor
from hierfl.inference.messages.pipeline import Codec, Stage
from hierfl.inference.method.about import About
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.gradient import Gradient
from hierfl.inference.server.rules.means import SampleWeighted
from hierfl.inference.state import State
from hierfl.nn.adapters import LowRankHead
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, flat, param, sample

from ._energy_population import EnergyPopulation
from ._gaussian_population import GaussianPopulation, Population

#: log sigma is projected above this: a population without any spread is one pooled model
LEAST_LOG_SIGMA = -7.0
#: settings without a population, settings that do not learn it, settings whose clients do not train the base
UNLESS_PRIOR_IS_FLAT: dict[str, tuple[object, ...]] = {"prior": ("flat",)}
UNLESS_PRIOR_IS_LEARNED: dict[str, tuple[object, ...]] = {"prior": ("fixed", "flat")}
NO_INNER: dict[str, tuple[object, ...]] = {"inner_phi_steps": (0,)}


class FedPop(Method):
    """Gaussian population of heads, Langevin chains at the clients, ascent of the marginal likelihood."""

    about = About(
        name="fedpop",
        what="Langevin mixed effects",
        paper="Kotelevskii et al., NeurIPS 2022",
        family="hierarchical",
        stays="draws of the head",
        sent="gradients of base and population",
        message_size=1.0,
        order=20,
    )
    takes_adapters = True

    @dataclass(frozen=True)
    class Settings:
        """The paper: M of 1 to 10 stateful, 50 stateless; it leaves the rest open."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical",
            "population of the clients' heads: mu and sigma learned | held at 0 and sigma_0 | none, and a point "
            "instead of draws",
        )
        population: Literal["isotropic", "diagonal", "energy"] = setting(
            "isotropic",
            "sigma is one number | one for each of a head's | the population is exp(-E(z)), with a second chain",
            unless=UNLESS_PRIOR_IS_FLAT,
        )
        energy_hidden: int = setting(
            0, "width of a network in E beside the Gaussian; 0 for none", at_least=0,
            unless={"population": ("isotropic", "diagonal")},
        )  # fmt: skip
        sigma_0: float = setting(
            0.3, "initial standard deviation of the population", above=0, unless=UNLESS_PRIOR_IS_FLAT,
            scale_of=("hierarchical", "fixed"), at_most=1e12,
        )  # fmt: skip
        init_scale: float = setting(0.1, "standard deviation of the population's initial mu", at_least=0, at_most=1e12)
        mu_scale: float = setting(
            0.0, "standard deviation of a N(0, .) prior on mu; 0 for a flat one", at_least=0,
            unless=UNLESS_PRIOR_IS_LEARNED, at_most=1e12,
        )  # fmt: skip
        base_decay: float = setting(0.0, "precision of a N(0, .) prior on the base; 0 for a flat one", at_least=0)
        kernel: Literal["unadjusted", "metropolis"] = setting(
            "unadjusted", "Langevin steps are always kept | accepted or rejected"
        )
        start: Literal["stateful", "stateless"] = setting(
            "stateful", "a round's chains go on where they were | begin with a draw from the population"
        )
        steps: int = setting(10, "M, Langevin steps of a chain in a round", at_least=1)
        burn: int = setting(5, "how many of these, the first, are not used", at_least=0)
        step_size: float = setting(1e-3, "gamma, of the Langevin steps", above=0)
        precondition: Literal["none", "curvature"] = setting(
            "none",
            "metric of a round's Langevin steps: none | the curvature of the posterior, from the population "
            "and the data, with step_size at most 1",
        )
        step_batch: int = setting(0, "examples in a Langevin step (SGLD); 0 for all", at_least=0)
        chains: int = setting(1, "chains of each client", at_least=1, at_most=10_000)
        control_variates: bool = setting(
            False, "take Monte-Carlo noise out of the gradients that are sent; for heads of few numbers"
        )
        lr: float = setting(1e-2, "the server's step size for mu and log sigma (Adam)", above=0)
        base_lr: float = setting(3e-3, "the server's step size for the base (Adam)", above=0)
        beta2: float = setting(
            0.999, "beta_2 of the server's Adam: how much of its mean squared gradients stays in a round", at_least=0,
            below=1,
        )  # fmt: skip
        lr_decay: float = setting(1.0, "what both step sizes are multiplied by after every round, up to 1", above=0)
        inner_phi_steps: int = setting(
            0, "0: clients send gradients of the base | passes that train a copy of it, to be averaged", at_least=0
        )
        inner_lr: float = setting(
            1e-2, "step size of those passes, on the mean log likelihood", above=0, unless=NO_INNER
        )
        inner_batch: int = setting(0, "examples in a minibatch of those; 0 for all", at_least=0, unless=NO_INNER)
        inner_momentum: float = setting(
            0.0, "momentum of those passes; every round begins without any", at_least=0, unless=NO_INNER
        )
        compress: str = setting(
            "none", "how messages of the base are compressed: none | quantise:LEVELS | sparsify:SHARE"
        )
        final_kernel: Literal["metropolis", "unadjusted"] = setting(
            "metropolis",
            "chains after the last round, for clients' posteriors: accepted or rejected, sizes adapted | as in the "
            "rounds, always kept",
            unless=UNLESS_PRIOR_IS_FLAT,
        )
        final_chains: int = setting(
            4, "chains of each client after the last round", at_least=1, unless=UNLESS_PRIOR_IS_FLAT, at_most=10_000
        )
        final_steps: int = setting(
            200, "steps of each of those chains, a quarter burn-in (unadjusted: half); 0 for none", at_least=0
        )
        final_keep: int = setting(150, "draws of each chain to keep of the others", at_least=1, at_most=100_000)

        def __post_init__(self) -> None:
            if self.steps <= self.burn:
                raise UserError(f"steps={self.steps} must be above burn={self.burn}, or no draw is left")
            if self.kernel == "metropolis" and self.step_batch:
                raise UserError("kernel=metropolis needs all examples in a step: step_batch=0")
            if 0 < self.final_steps < self.final_keep + self.final_burn:
                left = self.final_steps - self.final_burn
                raise UserError(f"final_steps={self.final_steps} leaves {left} draws to keep, not {self.final_keep}")
            if self.base_decay and self.inner_phi_steps:
                raise UserError("base_decay is a prior that gradients know, and inner_phi_steps sends none of the base")
            if self.precondition == "curvature" and (self.population == "energy" or self.step_size > 1):
                raise UserError("precondition=curvature needs a Gaussian population, and a step_size of at most 1")
            if self.control_variates and (self.prior == "flat" or self.inner_phi_steps):
                raise UserError("control_variates need a chain's draws and messages that are gradients")
            if self.population == "energy" and (self.prior != "hierarchical" or self.control_variates):
                raise UserError("population=energy is learned, and has no control variates: prior=hierarchical")
            if self.lr_decay > 1:
                raise UserError(f"lr_decay must be at most 1, not {self.lr_decay}")
            parse_compressor(self.compress)

        @property
        def final_burn(self) -> int:
            """Steps of each chain after the last round that are not kept."""
            return self.final_steps // (4 if self.final_kernel == "metropolis" else 2)

    settings: Settings

    @property
    def sampled(self) -> bool:
        """Whether there is a prior, and so a posterior to sample."""
        return self.settings.prior != "flat"

    @property
    def population(self) -> Population:
        """What the clients' heads come from."""
        s = self.settings
        if s.population == "energy":
            return EnergyPopulation(s.energy_hidden)
        return GaussianPopulation(s.population == "diagonal")

    def shared(self, start: InitialWeights) -> State:
        s = self.settings
        if not self.sampled:
            return start.base
        mu = s.init_scale * start.head if s.prior == "hierarchical" else torch.zeros_like(start.head)
        return {"mu": mu, **self.population.initial(s.sigma_0, start), **start.base}

    def personal(self, start: InitialWeights) -> State:
        s, mu = self.settings, self.settings.init_scale * start.head
        if not self.sampled:
            return {"z_point": mu}
        return {f"{name}_draws": mu.expand(s.chains, s.steps - s.burn, -1) for name in self.population.latents}

    def model(self, batch: Batch) -> None:
        net, mu_scale = self.network, self.settings.mu_scale
        priors: Mapping[str, Any] = {"z": flat(net.head.d)}
        if self.sampled:
            p_mu = flat(net.head.d)
            if mu_scale:
                p_mu = Normal(batch.n.new_zeros(net.head.d), batch.n.new_full((), mu_scale)).to_event(1)
            mu = sample("mu", p_mu)
            priors = self.population.priors(mu)  # N(mu, diag(sigma)^2), or by an energy
        with clients(batch):
            heads = {name: sample(name, prior) for name, prior in priors.items()}  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net.head(heads["z"], net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            if not self.sampled:
                sample("z", Delta(param("z_point")).to_event(1))
                return
            for name in self.population.latents:
                sample(name, EmpiricalDraws(param(f"{name}_draws"), 1))

    def init_new_client(self, means: State, initial: State, personal: State) -> State:
        return self.population.new_client(initial, personal)

    def local(self) -> list[LocalStep]:
        s, kept = self.settings, (self.settings.steps - self.settings.burn) * self.settings.chains
        if self.sampled:
            moved = list(self.population.latents)
            chain: LocalStep = Langevin(
                moved, s.steps, s.step_size, metropolis=s.kernel == "metropolis", batch=s.step_batch or None,
                precondition=s.precondition, burn=s.burn, start="last" if s.start == "stateful" else "prior",
            )  # fmt: skip
        else:
            chain = SVI(["z_point"], s.steps, sgd(s.step_size))  # the same steps without noise and prior
        descent = sgd(s.inner_lr, s.inner_momentum)
        inner = SVI(["base"], s.inner_phi_steps, descent, s.inner_batch or None, kept, per="example")
        return [chain, inner] if s.inner_phi_steps else [chain]

    def exchange(self) -> dict[str, AggregationRule]:
        s, kept = self.settings, (self.settings.steps - self.settings.burn) * self.settings.chains
        schedule = partial(ExponentialLR, gamma=s.lr_decay) if s.lr_decay < 1 else None
        latent = "z" if s.control_variates else None
        base: AggregationRule = SampleWeighted()
        if not s.inner_phi_steps:
            # Adam adds the decay times the weights to the gradient: the gradient of that prior
            base = Gradient(adam(s.base_lr, s.base_decay, s.beta2), kept, schedule, None, latent)
        rules: dict[str, AggregationRule] = {"base": base}
        for name in self.population.learned if s.prior == "hierarchical" else ():
            within = _spread if name == "log_sigma" else None
            rules[name] = Gradient(adam(s.lr, beta2=s.beta2), kept, schedule, within, latent)
        return rules

    def pipeline(self) -> dict[str, list[Stage]]:
        compressor = parse_compressor(self.settings.compress)
        return {"base": [Codec(compressor)]} if compressor else {}

    def schedule(self) -> Schedule:
        s, burn, kept = self.settings, self.settings.final_burn, self.settings.final_keep
        if not (self.sampled and s.final_steps):
            return Schedule()
        thin, moved = (s.final_steps - burn) // kept, list(self.population.latents)
        if s.final_kernel == "unadjusted":
            chain = Langevin(
                moved, burn + thin * kept, s.step_size, precondition=s.precondition, batch=s.step_batch or None,
                burn=burn, thin=thin, chains=s.final_chains, start="last" if s.final_chains == s.chains else "apart",
            )  # fmt: skip
        else:
            curved = self.population.near_normal and not isinstance(self.network.head, LowRankHead)
            step_size = 0.0 if curved else s.step_size
            chain = adjusted(moved, burn, kept, thin, s.final_chains, step_size)
        return Schedule(final_steps=[chain])

    def client_summary(self, v: State) -> State:
        draws = v["z_draws"].flatten(2, 3) if self.sampled else None  # S, 1, chains kept, d
        if draws is None or draws.shape[2] < 2:  # of one draw there is no variance
            return {}
        return {
            "uncertainty": draws.var(2).mean((1, 2)),  # tr Cov(z_j | D_j) / d
            "deviation": (draws.mean(2) - v["mu"]).square().mean((1, 2)),  # |E z_j - mu|^2 / d
        }

    @property
    def has_global_model(self) -> bool:
        return self.settings.prior == "hierarchical"


def _spread(values: State) -> State:
    return {k: v.clamp_min(LEAST_LOG_SIGMA) for k, v in values.items()}

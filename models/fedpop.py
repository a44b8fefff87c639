"""FedPop: a mixed-effects model whose random effects are sampled where the data are.

Kotelevskii, Vono, Durmus and Moulines, NeurIPS 2022 (FedSOUK, FedSOUL). The base network phi is a fixed effect, the
head z_j a random one from a Gaussian population:

    z_j | mu, sigma ~ N(mu, diag(sigma)^2)                       sigma is one number, or one for each of the head's
    y_ij | x_ij     ~ Categorical(softmax(z_j^T h_phi(x_ij)))
    q(z_j)          = what the chains have kept of p(z_j | D_j, phi, mu, sigma)

    maximised: log p(phi, mu) + sum_j log integral p(D_j | z, phi) N(z | mu, sigma^2) dz     (marginal MAP)

The population may also be known by an energy alone, p(z) = exp(-E(z)) / Z with E(z) = |z - mu|^2 / (2 sigma^2) + a
network's: then a second chain draws z_new from it, since the gradient of log Z is an expectation under the population.

A round, at every client (Alg. 1): M Langevin steps from where the chain last stood (stateful) or from the population
(stateless). Those who take part send the log joint's gradients in phi, mu and log sigma averaged over the draws
(Fisher's identity); the server ascends their sum times J / |A|. After the last round every client samples its posterior
at length, the shared values held.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pyro.distributions import Delta, Normal
from torch import Tensor
from torch.optim.lr_scheduler import ExponentialLR

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.compression import Compressed, Compressor, Quantise, Sparsify
from hierfl.inference.exchange import Gradient, SampleWeighted
from hierfl.inference.langevin import Langevin
from hierfl.inference.method import LocalStep, Method, Rule, Start, State, setting
from hierfl.inference.svi import SVI, adam, sgd
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.energy import Energy
from hierfl.ppl.plates import clients, data, flat, param, sample

#: log sigma is projected above this: a population without any spread is one pooled model
LEAST_LOG_SIGMA = -7.0
#: where there is no population; where it is not learned; where clients do not train the base
FLAT: dict[str, tuple[object, ...]] = {"prior": ("flat",)}
HELD: dict[str, tuple[object, ...]] = {"prior": ("fixed", "flat")}
NO_INNER: dict[str, tuple[object, ...]] = {"inner_phi_steps": (0,)}


class FedPop(Method):
    """Gaussian population of heads, Langevin chains at the clients, ascent of the marginal likelihood."""

    name = "fedpop"

    @dataclass(frozen=True)
    class Settings:
        """The paper: M of 1 to 10 stateful, 50 stateless; it leaves the rest open."""

        prior: Literal["hierarchical", "fixed", "flat"] = setting(
            "hierarchical", "mu and sigma learned | held at 0 and sigma_0 | a point guide and no prior"
        )
        population: Literal["isotropic", "diagonal", "energy"] = setting(
            "isotropic", "one sigma | one for each number of z | exp(-E(z)), with a second chain", unless=FLAT
        )
        energy_hidden: int = setting(
            0, "width of the network in E; 0 for none", at_least=0, unless={"population": ("isotropic", "diagonal")}
        )
        sigma_0: float = setting(0.3, "initial sigma", above=0, unless=FLAT, scale_of=("hierarchical", "fixed"))
        w_0: float = setting(0.1, "standard deviation of the initial mu", at_least=0)
        mu_scale: float = setting(
            0.0, "standard deviation of a N(0, .) prior on mu; 0 for a flat one", at_least=0,
            unless=HELD,
        )  # fmt: skip
        base_decay: float = setting(0.0, "precision of a N(0, .) prior on the base; 0 for a flat one", at_least=0)
        kernel: Literal["unadjusted", "metropolis"] = setting("unadjusted", "Langevin steps kept | accepted or not")
        start: Literal["stateful", "stateless"] = setting("stateful", "chains go on | begin in the population")
        steps: int = setting(10, "M, Langevin steps a round", at_least=1)
        burn: int = setting(5, "of which so many, the first, are not used", at_least=0)
        step_size: float = setting(1e-3, "gamma", above=0)
        precondition: Literal["none", "rms", "fisher", "full"] = setting(
            "none", "of the steps, learned in burn-in; full is for few numbers"
        )
        step_batch: int = setting(0, "examples per Langevin step (SGLD); 0 for all", at_least=0)
        chains: int = setting(1, "chains per client", at_least=1)
        controls: bool = setting(False, "control variates: gradients with less noise, where z has few numbers")
        lr: float = setting(1e-2, "the server's step size for mu and log sigma (Adam)", above=0)
        base_lr: float = setting(3e-3, "the server's step size for the base (Adam)", above=0)
        memory: float = setting(0.999, "Adam's beta_2: how long it remembers gradients", at_least=0, below=1)
        lr_decay: float = setting(1.0, "what both are multiplied by after a round, up to 1", above=0)
        inner_phi_steps: int = setting(
            0, "0: send the base's gradients | passes on a copy of the base, to be averaged", at_least=0
        )
        inner_lr: float = setting(1e-2, "step size of those, on the mean log likelihood", above=0, unless=NO_INNER)
        inner_batch: int = setting(0, "examples per step of those; 0 for all", at_least=0, unless=NO_INNER)
        inner_momentum: float = setting(0.0, "of those, forgotten each round", at_least=0, unless=NO_INNER)
        compress: str = setting("none", "the base's messages: none | quantise:LEVELS | sparsify:SHARE")
        final_steps: int = setting(1000, "Langevin steps after the last round; 0 for none", at_least=0)
        final_keep: int = setting(50, "draws of each chain to keep of their later half", at_least=1)

        def __post_init__(self) -> None:
            if self.steps <= self.burn:
                raise UserError(f"steps={self.steps} must be above burn={self.burn}, or no draw is left")
            if self.kernel == "metropolis" and self.step_batch:
                raise UserError("kernel=metropolis needs all examples in a step: step_batch=0")
            if self.final_steps and self.final_steps // 2 < self.final_keep:
                raise UserError(f"final_steps={self.final_steps} must be at least twice final_keep={self.final_keep}")
            if self.base_decay and self.inner_phi_steps:
                raise UserError("base_decay is a prior that gradients know, and inner_phi_steps sends none of the base")
            if self.precondition != "none" and not self.burn:
                raise UserError(f"a preconditioner is learned in burn-in: precondition={self.precondition} needs burn")
            if self.controls and (self.prior == "flat" or self.inner_phi_steps):
                raise UserError("controls need a chain's draws and messages that are gradients")
            if self.population == "energy" and (self.prior != "hierarchical" or self.controls):
                raise UserError("population=energy is learned, and has no control variates: prior=hierarchical")
            if self.lr_decay > 1:
                raise UserError(f"lr_decay must be at most 1, not {self.lr_decay}")
            compressor(self.compress)

    @property
    def sampled(self) -> bool:
        """Whether there is a prior, and so a posterior to sample."""
        return self.settings.prior != "flat"

    @property
    def second_chain(self) -> bool:
        """Whether the population has to be drawn from, to be learned."""
        return self.settings.population == "energy"

    def shared(self, start: Start) -> State:
        s, d = self.settings, len(start.head)
        if not self.sampled:
            return start.base
        mu = s.w_0 * start.head if s.prior == "hierarchical" else torch.zeros_like(start.head)
        sigma = torch.full((d if s.population == "diagonal" else 1,), s.sigma_0, dtype=torch.float64)
        return {"mu": mu, "log_sigma": sigma.log(), **self.first_energy(start), **start.base}

    def first_energy(self, start: Start) -> State:
        """The network in E: small weights, so that the population begins as the gaussian one."""
        s, d = self.settings, len(start.head)
        if not s.energy_hidden:
            return {}
        inside = torch.randn((s.energy_hidden, d), generator=start.rng, dtype=torch.float64) / d**0.5
        zeros = torch.zeros(s.energy_hidden, dtype=torch.float64)
        return {"energy.inside": inside, "energy.shift": zeros, "energy.outside": zeros}

    def personal(self, start: Start) -> State:
        s, mu = self.settings, self.settings.w_0 * start.head
        if not self.sampled:
            return {"z_point": mu}
        names = ("z_draws", "z_new_draws") if self.second_chain else ("z_draws",)
        return {name: mu.expand(s.chains, s.steps - s.burn, -1) for name in names}

    def model(self, batch: Batch) -> None:
        net, scale = self.network, self.settings.mu_scale
        population = flat(net.head.d)
        if self.sampled:
            mu = sample("mu", Normal(torch.zeros(net.head.d), scale).to_event(1) if scale else flat(net.head.d))
            population = Normal(mu, param("log_sigma").exp()).to_event(1)
        if self.second_chain:
            draws, values = param("z_new_draws"), {k: param(k) for k in self.energy_names}
            held = {k: v.detach() for k, v in values.items()}
            population = Energy(partial(energy, mu, values), draws)
            nobody = Energy(partial(energy, mu.detach(), held), draws, learns=False)
        with clients(batch):
            if self.second_chain:
                sample("z_new", nobody)  # a client that does not exist; it learns nothing of the shared values
            z = sample("z", population)  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net.head(z, net.base(batch.x))), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        q = EmpiricalDraws(param("z_draws"), 1) if self.sampled else Delta(param("z_point")).to_event(1)
        with clients(batch):
            sample("z", q)
            if self.second_chain:
                sample("z_new", EmpiricalDraws(param("z_new_draws"), 1))

    @property
    def energy_names(self) -> tuple[str, ...]:
        """What E is made of, beside mu."""
        network = ("energy.inside", "energy.shift", "energy.outside") if self.settings.energy_hidden else ()
        return ("log_sigma", *network)

    def moved(self) -> list[str]:
        """What the chains move."""
        return ["z", "z_new"] if self.second_chain else ["z"]

    def newcomer(self, personal: State, initial: State) -> State:
        if not self.second_chain:
            return initial
        return {**initial, "z_new_draws": personal["z_new_draws"].flatten(0, 1)}

    def local(self) -> list[LocalStep]:
        s, kept = self.settings, (self.settings.steps - self.settings.burn) * self.settings.chains
        if self.sampled:
            chain: LocalStep = Langevin(
                self.moved(), s.steps, s.step_size, metropolis=s.kernel == "metropolis", batch=s.step_batch or None,
                precondition=s.precondition, burn=s.burn, start="last" if s.start == "stateful" else "prior",
            )  # fmt: skip
        else:
            chain = SVI(["z_point"], s.steps, sgd(s.step_size))  # the same steps without noise and prior
        descent = sgd(s.inner_lr, s.inner_momentum)
        inner = SVI(["base"], s.inner_phi_steps, descent, s.inner_batch or None, kept, per="example")
        return [chain, inner] if s.inner_phi_steps else [chain]

    def exchange(self) -> dict[str, Rule]:
        s, kept = self.settings, (self.settings.steps - self.settings.burn) * self.settings.chains
        schedule = partial(ExponentialLR, gamma=s.lr_decay) if s.lr_decay < 1 else None
        latent = "z" if s.controls else None
        base: Rule = SampleWeighted()
        if not s.inner_phi_steps:
            # Adam adds the decay times the weights to the gradient: the gradient of that prior
            base = Gradient(adam(s.base_lr, s.base_decay, s.memory), kept, schedule, None, latent)
        squeeze = compressor(s.compress)
        rules: dict[str, Rule] = {"base": Compressed(base, squeeze) if squeeze else base}
        if s.prior == "hierarchical":
            rules["mu"] = Gradient(adam(s.lr, memory=s.memory), kept, schedule, None, latent)
            rules["log_sigma"] = Gradient(adam(s.lr, memory=s.memory), kept, schedule, _spread, latent)
        if s.energy_hidden:
            rules["energy"] = Gradient(adam(s.lr, memory=s.memory), kept, schedule)
        return rules

    def posterior(self) -> list[LocalStep]:
        s, half = self.settings, self.settings.final_steps // 2
        if not (self.sampled and half):
            return []
        thin = half // s.final_keep
        return [
            Langevin(
                self.moved(), half + thin * s.final_keep, s.step_size, metropolis=s.kernel == "metropolis",
                precondition=s.precondition, batch=s.step_batch or None, burn=half, thin=thin,
                target=0.574 if s.kernel == "metropolis" else None,
            )
        ]  # fmt: skip

    def per_client(self, v: State) -> State:
        if not self.sampled:
            return {}
        draws = v["z_draws"].flatten(2, 3)  # (S, 1, chains kept, d)
        return {
            "uncertainty": draws.var(2).mean((1, 2)),  # tr Cov(z_j | D_j) / d
            "deviation": (draws.mean(2) - v["mu"]).square().mean((1, 2)),  # |E z_j - mu|^2 / d
        }

    @property
    def has_global_model(self) -> bool:
        return self.settings.prior == "hierarchical"


def energy(mu: Tensor, values: State, z: Tensor) -> Tensor:
    """E(z), (*shape, d) to (*shape).

    Args:
        mu: (d,) or rows (S, 1, d).
        values: log_sigma, and where E has a network its weights, shared (*shape) or rows (S, 1, *shape).
        z: (*shape, d).
    """
    height = 0.5 * ((z - mu) / values["log_sigma"].exp()).square().sum(-1)
    if "energy.inside" not in values:
        return height
    seen = torch.tanh((values["energy.inside"] @ z.unsqueeze(-1)).squeeze(-1) + values["energy.shift"])
    return height + (seen * values["energy.outside"]).sum(-1)


def _spread(values: State) -> State:
    return {k: v.clamp_min(LEAST_LOG_SIGMA) for k, v in values.items()}


def compressor(spec: str) -> Compressor | None:
    """What ``quantise:LEVELS`` or ``sparsify:SHARE`` names; None for "none".

    Raises:
        UserError: for anything else.
    """
    if spec == "none":
        return None
    kind, _, number = spec.partition(":")
    makers: dict[str, Callable[[str], Compressor]] = {
        "quantise": lambda text: Quantise(int(text)),
        "sparsify": lambda text: Sparsify(float(text)),
    }
    if kind in makers:
        try:
            return makers[kind](number)
        except UserError:
            raise
        except ValueError:
            pass  # no number: said below
    raise UserError(f"compress is none, quantise:LEVELS or sparsify:SHARE, as in quantise:16; not {spec!r}")

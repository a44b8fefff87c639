"""Baselines in which the whole network is personal: one hierarchical model, and what each makes of it::

    w_j | w ~ N(w, rho_j^2 I),    y_ij ~ Categorical(softmax(f(x_ij; w_j)))            w_j all weights of a network

               rho_j^2             q(w_j)              what a client does                     the server does
    FedProx    1 / (mu n_j)        delta(mu_j)         SGD from w, then forgets mu_j          w = sum n_j mu_j / sum n_j
    pFedMe     1 / (lambda n_j)    delta(theta_j)      in turn: theta_j given its copy of     a step to the mean of the
                                                       w, the copy given theta_j              copies
    L2GD       1 / (lambda n_j)    delta(mu_j)         random turns: the likelihood's         w = mean of mu_j
                                                       gradient, the prior's
    pFedBayes  learned, one for    N(mu_j,             in turn: q(w_j) given its copy of      a step to the mean of the
               each weight         diag sigma_j^2)     the prior, the copy given q(w_j)       copies
    DG-LMC     rho^2               draws               Langevin steps on w_j given w          draws w ~ N(mean of w_j,
                                                                                              rho^2 / J)

A penalty (lambda / 2) |w_j - w|^2 beside a *mean* loss is the prior with rho_j^2 = 1 / (lambda n_j). With these and a
flat p(w) the exact M-step is the mean weighted by n_j (FedProx). A plain mean goes with one rho^2 = 1 / lambda for all
and likelihoods raised to 1 / n_j, since everybody's mean loss then counts the same (pFedMe, L2GD). rho -> 0 is one
model for all, rho -> inf everybody alone.

(Li et al., MLSys 2020; T. Dinh et al., NeurIPS 2020; Hanzely and Richtarik, 2020; Zhang et al., ICML 2022; Plassier et
al., ICML 2021.)
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro.distributions import Delta, Normal
from torch import Tensor
from torch.nn.functional import softplus

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.exchange import GibbsDraw, Mean, RunningMean, SampleWeighted
from hierfl.inference.langevin import Langevin
from hierfl.inference.method import ClosedForm, Local, LocalStep, Method, Rule, Start, State, setting
from hierfl.inference.svi import SVI, Block, sgd
from hierfl.nn.architecture import Architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, data, flat, param, sample, scale
from hierfl.rng import uniform


class Whole(Method):
    """All of a network's weights are one vector w_j.

    Batch norm's running statistics are no weights. Where nothing personal is predicted with they are averaged beside w;
    the others take no network that has them.
    """

    #: whether running statistics are averaged
    averages_norms: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Settings:
        """Minibatch gradient descent on the mean log likelihood."""

        epochs: int = setting(5, "epochs a round", at_least=0)
        lr: float = setting(1e-2, "step size", above=0)
        batch: int = setting(10, "examples per step", at_least=1)
        w_0: float = setting(0.1, "standard deviation of the initial head", at_least=0)

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        if network.base.norm_names and not self.averages_norms:
            name = self.name or type(self).__name__
            raise UserError(
                f"{name} has no running statistics of batch norm, as network {network.spec} "
                "has: fedbn keeps them with the client; fedavg, fedavg-ft, fedprox, scaffold, perfedavg and ifca "
                "average them"
            )

    def begin(self, start: Start) -> Tensor:
        """The initial weights, (d,): those of every other method with this network and seed."""
        return self.network.vector(start.base, self.settings.w_0 * start.head)

    def shared(self, start: Start) -> State:
        return {"w": self.begin(start), **self.network.statistics(start.base)}

    def prior(self, batch: Batch) -> Any:
        """p(w_j | w)."""
        raise NotImplementedError

    def posterior_of(self) -> Any:
        """q(w_j)."""
        raise NotImplementedError

    def model(self, batch: Batch) -> None:
        net, p = self.network, self.prior(batch)
        with clients(batch):
            w_j = sample("w_j", p)  # (S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net(w_j, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        q = self.posterior_of()
        with clients(batch):
            sample("w_j", q)

    def newcomer(self, personal: State, initial: State) -> State:
        return {k: v.mean(0) for k, v in personal.items()}


def penalty(strength: float, batch: Batch) -> Tensor:
    """rho_j of a penalty (strength / 2) |w_j - w|^2 beside a mean loss, (S, 1, 1)."""
    return (strength * batch.n).rsqrt()[:, None, None]


class FedProx(Whole):
    """w_j is a copy of w that the prior holds back, and that is forgotten when it has been sent."""

    name = "fedprox"
    averages_norms = True

    @dataclass(frozen=True)
    class Settings(Whole.Settings):
        """The paper: mu of 0.001 to 1."""

        mu: float = setting(0.1, "strength of the prior: rho_j^2 = 1 / (mu n_j)", above=0)
        momentum: float = setting(0.9, "forgotten each round", at_least=0)
        beta: float = setting(0.0, "how much of w the server keeps", at_least=0, below=1)

    def personal(self, start: Start) -> State:
        return {}

    def prior(self, batch: Batch) -> Any:
        return Normal(param("broadcast.w"), penalty(self.settings.mu, batch)).to_event(1)

    def posterior_of(self) -> Any:
        return Delta(param("w")).to_event(1)  # the client's copy

    def local(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")]

    def exchange(self) -> dict[str, Rule]:
        rule = SampleWeighted(keep=self.settings.beta)
        return {"w": rule, "base": rule}


class PFedMe(Whole):
    """theta_j around a copy of w, which follows it: Moreau envelopes."""

    name = "pfedme"
    state = "fresh"

    @dataclass(frozen=True)
    class Settings:
        """The paper: lambda 15, K 5, R 20 minibatches, eta 0.005, eta_p 0.09, beta 1."""

        rounds: int = setting(20, "R, minibatches a round", at_least=0)
        steps: int = setting(5, "K, steps on theta_j with each minibatch", at_least=1)
        lr: float = setting(0.09, "eta_p, step size of theta_j", above=0)
        w_lr: float = setting(5e-3, "eta, step size of the client's copy of w", above=0)
        lam: float = setting(15.0, "lambda, strength of the prior: rho_j^2 = 1 / (lambda n_j)", above=0)
        beta: float = setting(1.0, "the server's step towards the mean", above=0)
        batch: int = setting(20, "examples per step", at_least=1)
        w_0: float = setting(0.1, "standard deviation of the initial head", at_least=0)

    def personal(self, start: Start) -> State:
        return {"theta": self.begin(start)}

    def prior(self, batch: Batch) -> Any:
        return Normal(sample("w", flat(self.network.d)), penalty(self.settings.lam, batch)).to_event(1)

    def posterior_of(self) -> Any:
        return Delta(param("theta")).to_event(1)

    def local(self) -> list[LocalStep]:
        s = self.settings
        copy = Block(["w"], sgd(s.w_lr), terms="prior")  # w <- w - eta lambda (w - theta_j)
        inner = SVI(
            ["theta"], 0, sgd(s.lr), s.batch, per="example", steps=s.rounds, repeats=s.steps, then=[copy]
        )  # fmt: skip
        return [self.begin_anew(), inner]

    def begin_anew(self) -> ClosedForm:
        """theta_j <- w."""
        return ClosedForm("theta", lambda v: v["w"].expand_as(v["theta"]))

    def exchange(self) -> dict[str, Rule]:
        return {"w": Mean(keep=1 - self.settings.beta)}

    def adaptation(self) -> list[LocalStep]:
        s = self.settings
        inner = SVI(["theta"], 0, sgd(s.lr), s.batch, per="example", steps=s.rounds, repeats=s.steps)
        return [self.begin_anew(), inner]


class L2GD(Whole):
    """Loopless: each iteration is a step on the likelihood, or with probability p one towards the mean of all w_j.

    Steps towards the mean leave it where it is, so that the mean is sent only where a step on the likelihood came
    before: a round is a run of the ones and then a run of the others. Their lengths are geometric, the same for all
    clients.
    """

    name = "l2gd"

    @dataclass(frozen=True)
    class Settings:
        """The paper: p 0.9, alpha 1, lambda 0.5, of which lr is alpha / (J (1 - p))."""

        lam: float = setting(0.5, "lambda, strength of the prior: rho_j^2 = 1 / (lambda n_j)", above=0)
        p: float = setting(0.5, "probability of a step towards the mean", above=0, below=1)
        lr: float = setting(1e-2, "of a step on the likelihood; towards the mean it is times (1 - p) / p", above=0)
        batch: int = setting(10, "examples per step", at_least=1)
        w_0: float = setting(0.1, "standard deviation of the initial head", at_least=0)

    def personal(self, start: Start) -> State:
        return {"mu": self.begin(start)}

    def prior(self, batch: Batch) -> Any:
        return Normal(sample("w", flat(self.network.d)), penalty(self.settings.lam, batch)).to_event(1)

    def posterior_of(self) -> Any:
        return Delta(param("mu")).to_event(1)

    def local(self) -> list[LocalStep]:
        s = self.settings
        aside = sgd(s.lr * (1 - s.p) / s.p)
        towards = SVI(["mu"], 1, aside, per="example", terms="prior", steps=geometric(1 - s.p, "towards"))
        along = SVI(
            ["mu"], 1, sgd(s.lr), s.batch, per="example", terms="data", steps=geometric(s.p, "along")
        )  # fmt: skip
        return [towards, along]

    def exchange(self) -> dict[str, Rule]:
        return {"w": Mean(of="mu")}

    def adaptation(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["mu"], 1, sgd(s.lr), s.batch, per="example")]


def geometric(stop: float, name: str) -> Any:
    """How often in a row, at least once: after each time it ends with probability ``stop``; one number for a round."""

    def count(local: Local) -> int:
        u = uniform(local.seed, local.round, "turns", name)
        return 1 + (math.floor(math.log1p(-u) / math.log1p(-stop)) if stop < 1 else 0)

    return count


class PFedBayes(Whole):
    """A Gaussian for every weight: q(w_j) at the clients, the prior's mean and spread shared."""

    name = "pfedbayes"

    @dataclass(frozen=True)
    class Settings(Whole.Settings):
        """The paper: zeta 10, step size 0.001, softplus^-1 of the initial spread -2.5."""

        epochs: int = setting(5, "R, passes through the data a round", at_least=0)
        lr: float = setting(1e-3, "step size of q(w_j), on the sum over examples", above=0)
        prior_lr: float = setting(1e-3, "step size of the client's copy of the prior", above=0)
        batch: int = setting(0, "examples per step; 0 for all", at_least=0)
        zeta: float = setting(1.0, "weight of the KL divergence; 1 is the ELBO", above=0)
        sigma_0: float = setting(0.08, "initial standard deviation of prior and q", above=0)
        particles: int = setting(1, "K, draws of w_j per step", at_least=1)
        beta: float = setting(1.0, "the server's step towards the mean", above=0)

    def spread(self, start: Start) -> Tensor:
        """softplus^-1(sigma_0), (d,)."""
        sigma_0 = torch.tensor(self.settings.sigma_0, dtype=torch.float64)
        return sigma_0.expm1().log().expand_as(self.begin(start))

    def shared(self, start: Start) -> State:
        return {**super().shared(start), "spread": self.spread(start)}

    def personal(self, start: Start) -> State:
        return {"mu": self.begin(start), "pi": self.spread(start)}

    def prior(self, batch: Batch) -> Any:
        return Normal(sample("w", flat(self.network.d)), softplus(param("spread"))).to_event(1)

    def posterior_of(self) -> Any:
        return Normal(param("mu"), softplus(param("pi"))).to_event(1)

    def model(self, batch: Batch) -> None:
        net, p = self.network, self.prior(batch)
        with clients(batch):
            with scale(scale=self.settings.zeta):
                w_j = sample("w_j", p)  # (K, S, 1, d)
            with data(batch):
                sample("y", net.likelihood(net(w_j, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        q = self.posterior_of()
        with clients(batch), scale(scale=self.settings.zeta):
            sample("w_j", q)

    def local(self) -> list[LocalStep]:
        s = self.settings
        copy = Block(["w", "spread"], sgd(s.prior_lr), terms="prior")
        return [SVI(["mu", "pi"], s.epochs, sgd(s.lr), s.batch or None, s.particles, then=[copy])]

    def exchange(self) -> dict[str, Rule]:
        rule = Mean(keep=1 - self.settings.beta)
        return {"w": rule, "spread": rule}

    def adaptation(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["mu", "pi"], s.epochs, sgd(s.lr), s.batch or None, s.particles)]


class DGLMC(Whole):
    """A Gibbs sampler: the clients' w_j by Langevin steps given w, then w by a draw given them; rho is held."""

    name = "dg-lmc"

    @dataclass(frozen=True)
    class Settings:
        """The paper: rho^2 (its rho) and the step size of the order of 1 / n_j, everybody takes part."""

        rho: float = setting(0.1, "standard deviation of w_j around w", above=0)
        steps: int = setting(20, "N, Langevin steps a round", at_least=1)
        keep: int = setting(10, "draws of w_j kept, the last of a round's", at_least=1)
        step_size: float = setting(1e-3, "gamma; from 2 rho^2 on every chain diverges", above=0)
        batch: int = setting(0, "examples per step; 0 for all", at_least=0)
        burn: int = setting(10, "rounds whose draws of w do not enter its mean", at_least=0)
        w_0: float = setting(0.1, "standard deviation of the initial head", at_least=0)

    def shared(self, start: Start) -> State:
        return {**super().shared(start), "mean": self.begin(start)}

    def personal(self, start: Start) -> State:
        return {"w_j_draws": self.begin(start).expand(1, min(self.settings.keep, self.settings.steps), -1)}

    def prior(self, batch: Batch) -> Any:
        return Normal(sample("w", flat(self.network.d)), self.settings.rho).to_event(1)

    def posterior_of(self) -> Any:
        return EmpiricalDraws(param("w_j_draws"), 1)

    def local(self) -> list[LocalStep]:
        s = self.settings
        return [Langevin(["w_j"], s.steps, s.step_size, batch=s.batch or None, burn=max(0, s.steps - s.keep))]

    def exchange(self) -> dict[str, Rule]:
        return {"w": GibbsDraw("w_j_draws", self.settings.rho), "mean": RunningMean("w", self.settings.burn)}

    def settled(self, shared: State) -> State:
        return {**shared, "w": shared["mean"]}  # predictions are made with w's posterior mean

"""Baselines that are a limit of the one model and one term more::

    w_j | w ~ N(w, rho_j^2 I),    y_ij ~ Categorical(softmax(f(x_ij; w_j)))            w_j all weights of a network

                 the limit                            the term
    FedAvg-FT    rho -> 0: w_j = w                    a fit of w_j, from w, stopped early; it is never sent
    Per-FedAvg   rho -> 0                             w is fitted so that one step from it fits well (a meta-gradient)
    SCAFFOLD     rho -> 0                             control variates c and c_j in the gradient
    IFCA         w_j is one of C values w^1 ... w^C   its label, by maximum likelihood: a hard mixture
    Ditto        rho_j^2 = 1 / (lambda n_j)           a cut: w is fitted as with rho -> 0 and learns nothing of w_j
    APFL         rho -> inf: v_j                      w_j = alpha_j v_j + (1 - alpha_j) w, and a cut: w as with rho -> 0

In a cut the data are seen twice: by w alone (site y_all), and by w_j, from where nothing flows back.

(McMahan et al., AISTATS 2017, and Collins et al., ICML 2021, for the fit; Fallah et al., NeurIPS 2020; Karimireddy et
al., ICML 2020; Ghosh et al., NeurIPS 2020; Li et al., ICML 2021; Deng et al., 2020.)
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro.distributions import Delta, Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.directions import AfterOneStep, Corrected
from hierfl.inference.exchange import Increment, Mean, SampleWeighted, Slots
from hierfl.inference.method import ClosedForm, Local, LocalStep, Rule, Start, State, setting
from hierfl.inference.svi import SVI, Likeliest, sgd
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, flat, param, sample

from .whole import Whole, penalty


class Pooled(Whole):
    """rho -> 0: every w_j is w, but for an offset that is fitted where the model is looked at, and never sent."""

    state = "heard"  # who is not heard has nothing to remember
    adapts = True
    averages_norms = True

    def personal(self, start: Start) -> State:
        return {"offset": torch.zeros_like(self.begin(start))}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.d))
        with clients(batch), data(batch):
            sample("y", net.likelihood(net(w + param("offset"), batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Everything is a point."""

    def newcomer(self, personal: State, initial: State) -> State:
        return initial


class FedAvgFT(Pooled):
    """FedAvg, and then each client's own fit from what it gives."""

    name = "fedavg-ft"

    @dataclass(frozen=True)
    class Settings(Whole.Settings):
        """FedRep's repository: the head alone, 10 epochs."""

        scope: Literal["head", "all"] = setting("head", "what is fitted in the end: the last layer | all weights")
        ft_epochs: int = setting(10, "of that fit", at_least=0)
        ft_lr: float = setting(1e-2, "its step size", above=0)
        momentum: float = setting(0.9, "forgotten each round", at_least=0)
        beta: float = setting(0.0, "how much of w the server keeps", at_least=0, below=1)

    def personal(self, start: Start) -> State:
        d = len(start.head) if self.settings.scope == "head" else self.network.d
        return {"offset": start.head.new_zeros(d)}

    def model(self, batch: Batch) -> None:
        net, offset = self.network, param("offset")  # (S, 1, d), or that of the head, which comes last
        w = sample("w", flat(net.d))
        with clients(batch), data(batch):
            y = net(w + torch.nn.functional.pad(offset, (net.d - offset.shape[-1], 0)), batch.x)
            sample("y", net.likelihood(y), obs=batch.y)

    def local(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")]

    def posterior(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["offset"], s.ft_epochs, sgd(s.ft_lr, s.momentum), s.batch, per="example")]

    def exchange(self) -> dict[str, Rule]:
        rule = SampleWeighted(keep=self.settings.beta)
        return {"w": rule, "base": rule}


class PerFedAvg(Pooled):
    """The model-agnostic meta-learner with finite differences of gradients for the Hessian (HF)."""

    name = "perfedavg"

    @dataclass(frozen=True)
    class Settings:
        """The paper: R of 4 or 10 iterations, one step of adaptation; Zhu et al. (2023): an epoch of adaptation."""

        steps: int = setting(10, "R, iterations a round, each of three minibatches", at_least=0)
        alpha: float = setting(1e-2, "step size of the adaptation", above=0)
        lr: float = setting(1e-2, "beta, step size of w", above=0)
        difference: float = setting(1e-3, "delta, of the Hessian's finite difference", above=0)
        ft_epochs: int = setting(1, "of the adaptation", at_least=0, unless={"ft_steps": range(1, 2**31)})
        ft_steps: int = setting(0, "minibatches of the adaptation, instead of epochs; 0 for epochs", at_least=0)
        batch: int = setting(10, "examples per minibatch", at_least=1)
        w_0: float = setting(0.1, "standard deviation of the initial head", at_least=0)

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        if network.base.drops:
            raise UserError(f"perfedavg takes differences of gradients: no dropout, as network {network.spec} has")

    def local(self) -> list[LocalStep]:
        s = self.settings
        ahead = AfterOneStep(s.alpha, s.difference)
        return [SVI(["w", "base"], 0, sgd(s.lr), s.batch, per="example", steps=s.steps, direction=ahead)]

    def posterior(self) -> list[LocalStep]:
        s = self.settings
        return [SVI(["offset"], s.ft_epochs, sgd(s.alpha), s.batch, per="example", steps=s.ft_steps or None)]

    def exchange(self) -> dict[str, Rule]:
        return {"w": Mean(), "base": Mean()}


class Scaffold(Whole):
    """Local steps along g - c_j + c (option II): plain descent, or else c_j would be no mean gradient."""

    name = "scaffold"
    state = "heard"  # c must stay the mean of the c_j
    averages_norms = True

    @dataclass(frozen=True)
    class Settings(Whole.Settings):
        """The paper: a server's step of 1."""

        server_lr: float = setting(1.0, "eta_g, the server's step towards the mean", above=0)

    def shared(self, start: Start) -> State:
        return {**super().shared(start), "c": torch.zeros_like(self.begin(start))}

    def personal(self, start: Start) -> State:
        return {"c_j": torch.zeros_like(self.begin(start))}

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.d))
        with clients(batch), data(batch):
            sample("y", net.likelihood(net(w, batch.x)), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Nothing of the model is personal."""

    def local(self) -> list[LocalStep]:
        s = self.settings
        corrected = Corrected("w", plus="c", minus="c_j")
        descent = SVI(["w", "base"], s.epochs, sgd(s.lr), s.batch, per="example", direction=corrected)
        return [descent, Variate("c_j", self.change)]

    def change(self, local: Local) -> Tensor:
        """c_j^+ - c_j = (w - y_j) / (K_j eta) - c, of K_j steps to y_j: (S, d)."""
        s = self.settings
        taken = [s.epochs * -(-n // s.batch) for n in local.sizes]
        along = local.n.new_tensor(taken).clamp_min(1)[:, None] * s.lr
        return (local.shared["w"] - local.rows["w"].squeeze(1)) / along - local.shared["c"]

    def exchange(self) -> dict[str, Rule]:
        return {"w": Mean(keep=1 - self.settings.server_lr), "c": Increment(self.change), "base": Mean()}

    def adaptation(self) -> list[LocalStep]:
        return []


@dataclass(frozen=True)
class Variate:
    """Moves a personal value by what is told of it.

    Args:
        name: the value.
        change: of each row, (S, *shape).
    """

    name: str
    change: Any

    @property
    def trains(self) -> tuple[str, ...]:
        """The value."""
        return (self.name,)

    def run(self, local: Local, phase: object) -> Local:
        """Adds."""
        return local.put({self.name: local.rows[self.name] + self.change(local).unsqueeze(1)})


class IFCA(Whole):
    """Clusters of clients: each trains the model, of several, under which its data are likeliest."""

    name = "ifca"
    state = "heard"
    adapts = True

    def __init__(self, network: Architecture, **settings: Any) -> None:
        # (clusters that share the base share its statistics)
        self.averages_norms = settings.get("scope", "head") == "head"  # type: ignore[misc]
        super().__init__(network, **settings)

    @dataclass(frozen=True)
    class Settings(Whole.Settings):
        """The paper shares the base network and has a head for each cluster where clusters are not well apart."""

        clusters: int = setting(2, "C, how many", at_least=1)
        scope: Literal["head", "all"] = setting("head", "what a cluster has of its own: the last layer | all weights")
        momentum: float = setting(0.9, "forgotten each round", at_least=0)
        beta: float = setting(0.0, "how much of what is shared the server keeps", at_least=0, below=1)

    def shared(self, start: Start) -> State:
        s = self.settings
        # (equal ones would be chosen alike for ever)
        more = torch.randn((s.clusters - 1, len(start.head)), generator=start.rng, dtype=start.head.dtype)
        heads = s.w_0 * torch.cat([start.head[None], more])
        if s.scope == "head":
            return {"w": heads, **start.base}
        whole = torch.stack([self.network.vector(start.base, head) for head in heads])
        return {"w": whole}

    def personal(self, start: Start) -> State:
        return {"label": torch.zeros(1)}

    def model(self, batch: Batch) -> None:
        net, s = self.network, self.settings
        d = net.head.d if s.scope == "head" else net.d
        w = sample("w", flat(s.clusters, d))
        own = param("label").unsqueeze(-1) == torch.arange(s.clusters, device=batch.n.device)[:, None]  # (S, 1, C, 1)
        w_j = torch.where(own, w, 0).sum(-2)
        with clients(batch), data(batch):
            y = net.head(w_j, net.base(batch.x)) if s.scope == "head" else net(w_j, batch.x)
            sample("y", net.likelihood(y), obs=batch.y)

    def guide(self, batch: Batch) -> None:
        """Labels and weights are points."""

    def local(self) -> list[LocalStep]:
        s = self.settings
        descent = SVI(["w", "base"], s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")
        return [*self.posterior(), descent]

    def posterior(self) -> list[LocalStep]:
        return [Likeliest("label", self.settings.clusters)]

    def exchange(self) -> dict[str, Rule]:
        keep = self.settings.beta
        return {"w": Slots("label", keep), "base": SampleWeighted(keep)}

    def newcomer(self, personal: State, initial: State) -> State:
        return {"label": personal["label"].flatten().mode().values.view(1)}  # the larger cluster's

    def per_client(self, values: State) -> State:
        return {"label": values["label"].flatten()}

    @property
    def has_global_model(self) -> bool:
        return False


class Cut(Whole):
    """w as in FedAvg, from everybody's data; w_j beside it, from where w learns nothing."""

    @dataclass(frozen=True)
    class Settings(Whole.Settings):
        """Both are trained together, on the same minibatches."""

        momentum: float = setting(0.9, "forgotten each round", at_least=0)
        beta: float = setting(0.0, "how much of w the server keeps", at_least=0, below=1)

    def personal(self, start: Start) -> State:
        return {"v": self.begin(start)}

    def own(self, w: Tensor, batch: Batch) -> Tensor:
        """w_j, (S, 1, d), in the plate of clients."""
        raise NotImplementedError

    def model(self, batch: Batch) -> None:
        net = self.network
        w = sample("w", flat(net.d))
        with clients(batch):
            w_j = self.own(w.detach(), batch)
            with data(batch):
                sample("y_all", net.likelihood(net(w, batch.x)), obs=batch.y)
                sample("y", net.likelihood(net(w_j, batch.x)), obs=batch.y)

    def sgd(self, *names: str) -> SVI:
        """Minibatch gradient descent of these values."""
        s = self.settings
        return SVI(names, s.epochs, sgd(s.lr, s.momentum), s.batch, per="example")

    def local(self) -> list[LocalStep]:
        return [self.sgd("w", "v")]

    def exchange(self) -> dict[str, Rule]:
        return {"w": SampleWeighted(keep=self.settings.beta)}


class Ditto(Cut):
    """v_j around w as it was broadcast."""

    name = "ditto"

    @dataclass(frozen=True)
    class Settings(Cut.Settings):
        """The paper: lambda 1, or the best of 0.1, 1 and 2."""

        lam: float = setting(1.0, "lambda, strength of the prior: rho_j^2 = 1 / (lambda n_j)", above=0)

    def own(self, w: Tensor, batch: Batch) -> Tensor:
        around = Normal(param("broadcast.w"), penalty(self.settings.lam, batch))
        return sample("v_j", around.to_event(1))

    def guide(self, batch: Batch) -> None:
        with clients(batch):
            sample("v_j", Delta(param("v")).to_event(1))

    def adaptation(self) -> list[LocalStep]:
        return [self.sgd("v")]


class APFL(Cut):
    """v_j mixed with w, by a weight that is learned."""

    name = "apfl"

    @dataclass(frozen=True)
    class Settings(Cut.Settings):
        """The paper: alpha_j learned, from 0.5 or 0.01."""

        alpha: float = setting(0.5, "alpha_j to begin with", at_least=0, below=1)
        alpha_lr: float = setting(1e-2, "its step size: one step a round; 0 holds it", at_least=0)

    def personal(self, start: Start) -> State:
        return {**super().personal(start), "alpha": torch.tensor([self.settings.alpha], dtype=torch.float64)}

    def own(self, w: Tensor, batch: Batch) -> Tensor:
        return torch.lerp(w, param("v"), param("alpha"))

    def guide(self, batch: Batch) -> None:
        """Everything is a point."""

    def mixing(self) -> list[LocalStep]:
        """One step on alpha_j, back into [0, 1]."""
        s = self.settings
        if not s.alpha_lr:
            return []
        step = SVI(["alpha"], 1, sgd(s.alpha_lr), per="example")
        return [step, ClosedForm("alpha", lambda v: v["alpha"].clamp(0, 1))]

    def local(self) -> list[LocalStep]:
        return [*self.mixing(), *super().local()]

    def adaptation(self) -> list[LocalStep]:
        begin = ClosedForm("alpha", lambda v: torch.full_like(v["alpha"], self.settings.alpha))
        return [begin, self.sgd("v"), *self.mixing()]

    def newcomer(self, personal: State, initial: State) -> State:
        return {"v": personal["v"].mean(0), "alpha": torch.zeros_like(initial["alpha"])}  # alpha 0 is w alone

    def per_client(self, values: State) -> State:
        return {"alpha": values["alpha"].flatten()}

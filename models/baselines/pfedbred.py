"""pFedBreD: personal models around a prior mean that each client moves by a gradient step. Shi et al., NeurIPS 2023.

    theta_j | w  ~ N(w + shift_j, rho_j^2 I),  rho_j^2 = 1 / (lambda n_j)    theta_j all weights of a network (site w_j)
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; theta_j)))
    q(theta_j)   = delta(theta_j)

    lg:     shift_j = -eta_s grad F_j(w_j)                       of each minibatch (F_j the mean loss)
    meg:    shift_j = -eta_s (w_j - theta_j)                     as they were at the end of the client's last round
    mh:     the same, and before theta_j trains w_j takes a first-order meta-step by way of v:
    v = w_j - alpha grad F_j(w_j; D'),    w_j <- w_j - alpha grad F_j(v; D)

    minimised: sum_j min over theta_j of F_j(theta_j) + (lambda / 2) |theta_j - w - shift_j|^2    (shift_j held)

What it needs beyond the one model is the shift, through which no gradient flows. Without it (eta_s = 0) lg and meg are
pFedMe, and so is mh where alpha -> 0. The Gaussian prior's Bregman divergence is the squared norm (the paper's ns).

A round, at every client that takes part, R minibatches D (mh: and as many D'), with each: the shift or the meta-step,
K steps on theta_j given w_j + shift_j, then w_j <- w_j - eta lambda (w_j + shift_j - theta_j). It sends its copy w_j;
the server moves w by its step (beta) towards the plain mean. The global model is w, without a shift.

The memory of meg and mh is taken after the last of these steps, which multiplies w_j + shift_j - theta_j by
1 - eta lambda: it is the envelope's gradient downhill where eta lambda < 1, and uphill beyond.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.closed_form import ClosedForm
from hierfl.inference.local.gradient_transforms import GradientAt
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI, Block
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.ppl.plates import flat, param, sample

from ._whole_network import penalty
from .pfedme import PFedMe


class PFedBreD(PFedMe):
    """theta_j around a copy of w and a shift of the client's own."""

    about = About(
        name="pfedbred",
        what="own prior means by gradient steps",
        paper="Shi et al., NeurIPS 2023",
        family="rho fixed, shifted prior mean",
        stays="shift of the prior",
        sent="copy of w",
        message_size=1.0,
        order=245,
    )

    @dataclass(frozen=True)
    class Settings(PFedMe.Settings):
        """The authors' code: mh, lambda 15 (30 for deep networks), K 5, R 20, eta and eta_p 0.01, eta_s 0.05."""

        shift: Literal["lg", "meg", "mh"] = setting(
            "mh",
            "what moves a client's prior mean: its loss's gradient | what w_j - theta_j was after the last round (its "
            "envelope's gradient, where w_lr lam < 1) | that, and meta-steps",
        )
        shift_lr: float = setting(0.05, "eta_s, how far it moves; 0 leaves the prior's mean at w", at_least=0)
        meta_lr: float = setting(
            1e-2, "alpha, step size of both halves of a meta-step", above=0, unless={"shift": ["lg", "meg"]}
        )
        lr: float = setting(1e-2, "eta_p, step size of the personal model theta_j", above=0)
        w_lr: float = setting(1e-2, "eta, step size of the client's copy of the shared model w", above=0)

    settings: Settings

    def personal(self, start: InitialWeights) -> State:
        begin = self.begin(start)
        return {"theta": begin, "shift": torch.zeros_like(begin)}

    def prior(self, batch: Batch) -> Any:
        mean = sample("w", flat(self.network.d)) + param("shift")
        return Normal(mean, penalty(self.settings.lam, batch)).to_event(1)

    def local(self) -> list[LocalStep]:
        s = self.settings
        meta = [Block(["w"], sgd(s.meta_lr), terms="data", transform=MetaStep(s.meta_lr))] if s.shift == "mh" else []
        copy = Block(["w"], sgd(s.w_lr), terms="prior")  # w_j <- w_j - eta lambda (w_j + shift_j - theta_j)
        return [self.begin_at_w(), self.minibatches(meta, [copy]), *self.memorise()]

    def minibatches(self, before: Sequence[Block] = (), after: Sequence[Block] = ()) -> SVI:
        """R minibatches, with each the shift (lg), and K steps on theta_j; other blocks before and after them."""
        s = self.settings
        if s.shift == "lg":
            before = [*before, Block(["shift"], sgd(1.0), terms="data", transform=LossGradient(s.shift_lr))]
        blocks = [*before, Block(["theta"], sgd(s.lr), repeats=s.steps), *after]
        first, rest = blocks[0], blocks[1:]
        return SVI(
            first.names, 0, first.optimizer, s.batch, per="example", steps=s.rounds, repeats=first.repeats,
            terms=first.terms, then=rest, transform=first.transform,
        )  # fmt: skip

    def memorise(self) -> list[LocalStep]:
        """shift_j <- -eta_s (w_j - theta_j), for the next round; not for lg, whose shift is of a minibatch."""
        by = self.settings.shift_lr
        return [] if self.settings.shift == "lg" else [ClosedForm("shift", lambda v: by * (v["theta"] - v["w"]))]

    def schedule(self) -> Schedule:
        steps: list[LocalStep] = [self.begin_at_w(), self.minibatches(), *self.memorise()]
        # Lg begins with w in every round; the others remember.
        return Schedule(absent="catch-up" if self.settings.shift == "lg" else "train", new_client_steps=steps)

    def new_client_terms(self, personal: State) -> State:
        return {}  # the prior's mean of a client of which nothing is known is w


@dataclass(frozen=True)
class LossGradient:
    """A step of length 1 puts shift_j at -eta_s grad F_j(w_j).

    Args:
        step: eta_s.
    """

    step: float
    batches: ClassVar[int] = 1

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""
        w = values["w"].expand_as(values["theta"])  # shared where a new client holds it
        return {"shift": at["shift"] + self.step * gradient({"theta": w}, 0)["theta"]}


@dataclass(frozen=True)
class MetaStep:
    """The gradient of F_j on one minibatch after a step down that on another, taken as that of w_j (first order).

    Args:
        step: alpha.
    """

    step: float
    batches: ClassVar[int] = 2

    def __call__(self, gradient: GradientAt, at: State, values: Mapping[str, Tensor]) -> State:
        """See the class."""
        ahead = at["w"] - self.step * gradient({"theta": at["w"]}, 1)["theta"]
        return {"w": gradient({"theta": ahead}, 0)["theta"]}

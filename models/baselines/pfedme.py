"""pFedMe: personal models by Moreau envelopes. T. Dinh, Tran and Nguyen, NeurIPS 2020, Alg. 1.

    theta_j | w  ~ N(w, rho_j^2 I),  rho_j^2 = 1 / (lambda n_j)  theta_j all weights of a network (site w_j)
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; theta_j)))
    q(theta_j)   = delta(theta_j)

    minimised: sum_j min over theta_j of F_j(theta_j) + (lambda / 2) |theta_j - w|^2       (F_j the mean loss)

A round, at every client that takes part, R minibatches, with each: K steps on theta_j given the client's copy of w,
then w <- w - eta lambda (w - theta_j). It sends its copy; the server moves w by its step (beta) towards the plain mean.
"""

from dataclasses import dataclass
from typing import Any

from pyro.distributions import Delta, Normal

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.closed_form import ClosedForm
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI, Block
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.means import UniformMean
from hierfl.inference.state import State
from hierfl.ppl.plates import flat, param, sample

from ._whole_network import WholeNetwork, penalty


class PFedMe(WholeNetwork):
    """theta_j around a copy of w, which follows it: Moreau envelopes."""

    about = About(
        name="pfedme",
        what="Moreau envelopes",
        paper="T. Dinh et al., NeurIPS 2020",
        family="rho fixed, all weights",
        stays="nothing",
        sent="copy of w",
        message_size=1.0,
        order=220,
    )

    @dataclass(frozen=True)
    class Settings:
        """The paper: lambda 15, K 5, R 20 minibatches, eta 0.005, eta_p 0.09, beta (server_lr) 1."""

        rounds: int = setting(20, "R, minibatches that a client takes in a round", at_least=0)
        steps: int = setting(5, "K, steps on the personal model theta_j with each minibatch", at_least=1)
        lr: float = setting(0.09, "eta_p, step size of theta_j", above=0)
        w_lr: float = setting(5e-3, "eta, step size of the client's copy of the shared model w", above=0)
        lam: float = setting(
            15.0, "lambda, how strongly theta_j is pulled to w: rho_j^2 = 1 / (lambda n_j)", above=0, at_most=1e12
        )
        server_lr: float = setting(
            1.0, "beta, how far the server moves to the clients' mean: 1 replaces what it had", above=0
        )
        batch: int = setting(20, "examples in a minibatch", at_least=1)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)

    settings: Settings

    def personal(self, start: InitialWeights) -> State:
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
        return [self.begin_at_w(), inner]

    def begin_at_w(self) -> ClosedForm:
        """theta_j <- w."""
        return ClosedForm("theta", lambda v: v["w"].expand_as(v["theta"]))

    def exchange(self) -> dict[str, AggregationRule]:
        return {"w": UniformMean(server_lr=self.settings.server_lr)}

    def schedule(self) -> Schedule:
        s = self.settings
        inner = SVI(["theta"], 0, sgd(s.lr), s.batch, per="example", steps=s.rounds, repeats=s.steps)
        # Personal values begin at w in every round: nothing is lost where a client does not train.
        return Schedule(absent="catch-up", new_client_steps=[self.begin_at_w(), inner])

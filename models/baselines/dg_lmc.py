"""DG-LMC: a distributed Gibbs sampler with Langevin steps. Plassier et al., ICML 2021, Alg. 1.

    w            ~ flat
    w_j | w      ~ N(w, rho^2 I)                                 w_j all weights of a network; rho is held
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w_j)))
    q(w_j)       = what the chain has kept of p(w_j | D_j, w)

A round, at every client: N Langevin steps on w_j given w, from the chain's last draw. Those who take part send
w_j / rho^2 and 1 / rho^2; the server draws w ~ N(mean of w_j, rho^2 / |A|). Predictions are made with w's mean.
"""

from dataclasses import dataclass
from typing import Any

from pyro.distributions import Normal

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.langevin.step import Langevin
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.gibbs import GibbsDraw
from hierfl.inference.server.rules.running import RunningMean
from hierfl.inference.state import State
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import flat, param, sample

from ._whole_network import WholeNetwork


class DGLMC(WholeNetwork):
    """A Gibbs sampler: the clients' w_j by Langevin steps given w, then w by a draw given them; rho is held."""

    about = About(
        name="dg-lmc",
        what="a distributed Gibbs sampler",
        paper="Plassier et al., ICML 2021",
        family="rho fixed, all weights",
        stays="draws of all",
        sent="a draw, precision",
        message_size=1.0,
        order=240,
    )

    @dataclass(frozen=True)
    class Settings:
        """The paper: rho^2 (its rho) and the step size of the order of 1 / n_j, everyone takes part."""

        rho: float = setting(
            0.1, "standard deviation of the clients' weights around the shared ones; not learned", above=0
        )
        steps: int = setting(20, "N, Langevin steps in a round", at_least=1)
        keep: int = setting(10, "draws of w_j to predict with: so many of a round's last", at_least=1, at_most=100_000)
        step_size: float = setting(1e-3, "gamma, of the Langevin steps; from 2 rho^2 on every chain diverges", above=0)
        batch: int = setting(0, "examples in a Langevin step; 0 for all", at_least=0)
        burn: int = setting(10, "rounds, the first, whose draws of w do not enter the mean that predicts", at_least=0)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)

    settings: Settings

    def shared(self, start: InitialWeights) -> State:
        return {**super().shared(start), "mean": self.begin(start)}

    def personal(self, start: InitialWeights) -> State:
        return {"w_j_draws": self.begin(start).expand(1, min(self.settings.keep, self.settings.steps), -1)}

    def prior(self, batch: Batch) -> Any:
        return Normal(sample("w", flat(self.network.d)), batch.n.new_full((), self.settings.rho)).to_event(1)

    def posterior_of(self) -> Any:
        return EmpiricalDraws(param("w_j_draws"), 1)

    def local(self) -> list[LocalStep]:
        s = self.settings
        return [Langevin(["w_j"], s.steps, s.step_size, batch=s.batch or None, burn=max(0, s.steps - s.keep))]

    def exchange(self) -> dict[str, AggregationRule]:
        return {"w": GibbsDraw("w_j_draws", self.settings.rho), "mean": RunningMean("w", self.settings.burn)}

    def prediction_params(self, shared: State) -> State:
        return {**shared, "w": shared["mean"]}  # predictions are made with w's posterior mean

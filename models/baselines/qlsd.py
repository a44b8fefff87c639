"""QLSD: a Langevin chain at the server, along compressed gradients. Vono et al., AISTATS 2022, Alg. 1 and 2 (memory).

    w            ~ N(0, I / lambda)
    y_ij | x_ij  ~ Categorical(softmax(f(x_ij; w)))              rho -> 0: w_j = w, all weights of a network
    q(w)         = draws that the chain has left

A round: every client that takes part takes the gradient g_j of its log likelihood at w, on one minibatch, as of all its
n_j examples. It sends C(g_j - m_j), with C an unbiased quantiser and m_j what it remembers of its gradients, which
moves by a C(g_j - m_j), a = 1 / (1 + omega). The server has the sum m of all clients' memories, and draws

    w <- w + gamma (m + (J / |A|) sum over A of C(g_j - m_j) - lambda w) + sqrt(2 gamma) xi,    xi ~ N(0, I)

After burn-in each so many rounds' w is kept, up to a number of them, the last. There are no local epochs.
With ``ft_epochs`` each client fits an offset_j of its own at w before every evaluation (QLSD-FT), which is added to
each draw; it is never sent.
"""

from dataclasses import dataclass, replace
from typing import Any

from pyro.distributions import Delta, Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.inference.local.base import LocalStep
from hierfl.inference.local.compressed_memory import CompressedMemory, change_of
from hierfl.inference.local.optimizers import sgd
from hierfl.inference.local.svi import SVI
from hierfl.inference.messages.codec import Quantise
from hierfl.inference.messages.pipeline import Codec, Stage
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.rules.kept_draws import KeptDraws, without_repeats
from hierfl.inference.server.rules.langevin import LangevinStep
from hierfl.inference.state import State
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import param

from ._fine_tuned import with_offset
from ._global_posterior import GlobalPosterior
from ._then_fitted import UNFITTED, Fit


class QLSD(GlobalPosterior):
    """rho -> 0, and unadjusted Langevin steps of the shared w itself."""

    about = About(
        name="qlsd",
        what="a chain of compressed gradients",
        paper="Vono et al., AISTATS 2022",
        family="rho -> 0, draws of w",
        stays="memory of gradients",
        sent="gradients, 10 bits a weight",
        message_size=0.31,
        order=347,
    )

    @dataclass(frozen=True)
    class Settings(Fit):
        """The authors' code: gamma 1e-5, 2^8 levels, batches of 64, lambda 5."""

        step_size: float = setting(1e-5, "gamma, of the server's Langevin steps, along the sum over all data", above=0)
        batch: int = setting(64, "examples in a client's gradient; 0 for all", at_least=0)
        levels: int = setting(
            256, "of the quantiser, beside the sign; 0 sends gradients as they are", at_least=0, at_most=2**15
        )
        memory: bool = setting(True, "clients remember their gradients, and send what is new")
        prior_precision: float = setting(
            5.0, "lambda, of the prior N(0, I / lambda) of all weights", above=0, at_most=1e12
        )
        temperature: float = setting(
            1.0, "of the noise; 0 is gradient ascent of the log posterior", at_least=0, at_most=1e12
        )
        burn: int = setting(10, "rounds, the first, that leave no draw; skipped ones are not counted", at_least=0)
        thin: int = setting(1, "rounds from one draw to the next", at_least=1)
        keep: int = setting(20, "draws to predict with: so many, the last", at_least=1, at_most=100_000)
        init_scale: float = setting(0.1, "standard deviation of the head's initial weights", at_least=0, at_most=1e12)
        ft_momentum: float = setting(0.9, "momentum of the fit in the end", at_least=0, unless=UNFITTED)

    settings: Settings

    def shared(self, start: InitialWeights) -> State:
        return {**super().shared(start), "draws": self.begin(start).expand(1, self.settings.keep, -1)}

    def personal(self, start: InitialWeights) -> State:
        nothing, s = self.begin(start).new_zeros(self.network.d), self.settings
        size = len(start.head) if s.scope == "head" else self.network.d
        return {"memory": nothing, **({"offset": nothing[:size]} if s.ft_epochs else {})}

    def output(self, w_j: Tensor, x: Tensor) -> Tensor:
        return with_offset(self.network, w_j, param("offset"), x) if self.settings.ft_epochs else super().output(w_j, x)

    def global_prior(self, batch: Batch) -> Any:
        scale = batch.n.new_full((self.network.d,), self.settings.prior_precision**-0.5)
        return Normal(0.0 * scale, scale).to_event(1)

    def known(self, w: Tensor) -> Any:
        return EmpiricalDraws(param("draws"), 1)

    def prediction_params(self, shared: State) -> State:
        return {**shared, "draws": without_repeats(shared["draws"])}

    def working_prior(self, w: Tensor, batch: Batch) -> Any:
        return Delta(w).to_event(1)

    @property
    def stages(self) -> list[Stage]:
        """What gradients pass."""
        return [Codec(Quantise(self.settings.levels))] if self.settings.levels else []

    @property
    def rate(self) -> float:
        """a of the memories: 1 / (1 + omega), 0 without any."""
        s = self.settings
        omega = Quantise(s.levels).omega(self.network.d) if s.levels else 0.0
        return s.memory / (1 + omega)

    def local(self) -> list[LocalStep]:
        gradient_step = SVI(
            ["w"], 0, sgd(1.0), self.settings.batch or None, terms="data", steps=1
        )  # w_j - w is the gradient
        return [gradient_step, CompressedMemory("memory", "w", self.rate, self.stages)]

    def exchange(self) -> dict[str, AggregationRule]:
        s = self.settings
        step = LangevinStep(change_of("w"), s.step_size, self.rate, s.temperature)
        return {"w": step, "draws": KeptDraws("w", s.burn, s.thin)}

    def pipeline(self) -> dict[str, list[Stage]]:
        return {"w": self.stages} if self.settings.levels else {}

    def schedule(self) -> Schedule:
        # the server's memory must stay the sum of the clients'
        schedule, s = Schedule(absent="freeze", commit="if-used", new_client_steps=[]), self.settings
        if not s.ft_epochs:
            return schedule
        at_w = SVI(["w"], 0, sgd(1.0))  # a copy of w, where it is: not the draws
        fit = [at_w, SVI(["offset"], s.ft_epochs, sgd(s.ft_lr, s.ft_momentum), s.batch or None, per="example")]
        return replace(schedule, final_steps=fit, final_when="evaluation", new_client_steps=fit)

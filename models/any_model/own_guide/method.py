r"""A plain Pyro model with a user's own guide, as a method.

    q(z, v | lambda, eta) = q(z | lambda) prod_j q(v_j | z, lambda, eta_j)

lambda are the guide's parameters that everyone shares, eta_j those with a dimension of clients. In a round every client
takes Adam's steps with eta_j at the lambda that was broadcast, and sends the gradient by lambda of its part of the
bound (:mod:`.bound`); the server adds that of prior and entropy of the globals, and takes one step. Steps become
shorter where they lead nowhere (:mod:`.steady`); the last iterates are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.column_design import ColumnDesign
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.method.settings import setting
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.state import State
from hierfl.ppl.plates import clients, data, sample

from ..names import BOUND, CENTRING, DRAWS, INNER, OWN_DRAWS, PHASE, TRACE, VERDICT, WORTH, Phase, is_phase
from ..rule import MISSED
from ..sites import Model, read_model
from ..trace import no_trace
from ..verdict import Verdict
from .bound import Parts
from .for_clients import ForClients
from .names import OWN_ENDED, OWN_FIRST, OWN_PARAMS, OWN_SECOND, OWN_STEPS, PARAMS, RATE
from .notes import notes
from .reading import read_guide, refuse_points
from .rule import StochasticAscent
from .steps import DrawOwn, FitOwn, ended, own_heights, shared_noise

if TYPE_CHECKING:
    from hierfl.inference.evaluation.fitted import Fitted

    from ..results import ModelPosterior

#: the most numbers of a client whose likelihoods are estimated by the guide's draws
MOST_OWN = 100
#: what the method is: in no list of methods, since it needs a model and a guide
ABOUT = About(name="own-guide", what="a plain Pyro model with its user's guide")


class OwnGuide(Method):
    """The best of a user's family of guides of an ordinary Pyro model.

    Args:
        network: the table's columns.
        program: the model.
        guide: of it: ``pyro.param`` with a dimension of clients are clients' own, all others shared; or one by name.
        settings: values for the fields of ``Settings``.

    Raises:
        UserError: for a guide that is none of the model, see :func:`.reading.read_guide`.
    """

    about = ABOUT
    tabular: ClassVar[bool] = True
    reads_columns: ClassVar[bool] = True
    #: most rounds of a fit by default: stochastic gradients need hundreds
    usual_rounds: ClassVar[int] = 2000
    network: ColumnDesign

    @dataclass(frozen=True)
    class Settings:
        rate: float = setting(0.05, "size of Adam's steps at first, in unconstrained numbers", above=0)
        local_steps: int = setting(2, "steps of a client's own parameters in a round", at_least=1)
        fit_draws: int = setting(16, "draws of the guide in a step", at_least=2, at_most=100_000)
        last_steps: int = setting(200, "steps of a client's own parameters at the final shared ones", at_least=0)
        check: bool = setting(True, "weigh draws of the guide by the model, for the verdict")
        most_globals: int = setting(30, "globals beyond which draws are not weighed", at_least=0)
        points: int = setting(512, "draws of the globals that are weighed", at_least=16, at_most=1_000_000)
        inner: int = setting(32, "draws of a client's latents at each of those", at_least=2, at_most=100_000)
        draws: int = setting(1000, "draws of the posterior that are kept", at_least=2, at_most=100_000)

    settings: Settings

    def __init__(self, network: ColumnDesign, program: Model, guide: Model | ForClients, **settings: object) -> None:
        super().__init__(network, **settings)
        self.program = program
        self.sites = read_model(program, network)
        refuse_points(self.sites)
        family = guide.for_sites(self.sites) if isinstance(guide, ForClients) else guide
        self.users_guide = read_guide(family, self.sites, network)
        self.parts = Parts(program, self.sites, network, self.users_guide)

    @property
    def p(self) -> int:
        """Unconstrained numbers of the globals."""
        return len(self.sites.start)

    @property
    def q(self) -> int:
        """Unconstrained numbers of a client's latents."""
        return len(self.sites.client_start)

    @property
    def explores(self) -> bool:
        """Never: draws are the guide's."""
        return False

    @property
    def checks(self) -> bool:
        """Whether draws of the guide are weighed by the model."""
        return self.settings.check and 0 < self.p <= self.settings.most_globals and self.q <= MOST_OWN

    @property
    def check_points(self) -> int:
        """M, draws of the globals that are weighed."""
        return self.settings.points if self.checks else 0

    @property
    def fit_draws(self) -> int:
        """Draws of the guide in a step, K: even."""
        return self.settings.fit_draws + self.settings.fit_draws % 2

    def draws_of_round(self, *, fine: bool) -> int:
        """See :attr:`fit_draws`: as many in all rounds."""
        return self.fit_draws

    def kept_noise(self, draws: int, seed: int) -> Tensor:
        """Noise of the globals' kept draws, (D, G)."""
        return shared_noise(self, draws + draws % 2, seed, "kept draws")[:draws]

    def check_noise(self, seed: int) -> Tensor:
        """Noise of the draws that are weighed, (M, G)."""
        return shared_noise(self, self.check_points + self.check_points % 2, seed, "weighed")[: self.check_points]

    def shared(self, start: InitialWeights) -> State:
        s, start_at = self.settings, self.users_guide.shared.start
        draws = self.parts.globals(start_at, self.kept_noise(s.draws, 0))
        values = {
            PARAMS: start_at, RATE: torch.tensor(s.rate, dtype=torch.float64), PHASE: torch.tensor(float(Phase.ROUGH)),
            DRAWS: draws, BOUND: torch.tensor(0.0), WORTH: torch.tensor(0.0), INNER: torch.tensor(float(s.inner)),
            VERDICT: Verdict().values, TRACE: no_trace(),
        }  # fmt: skip
        return {name: value.detach().double() for name, value in values.items()}

    def personal(self, start: InitialWeights) -> State:
        own = self.users_guide.personal.start
        values = {
            OWN_PARAMS: own, OWN_FIRST: torch.zeros_like(own), OWN_SECOND: torch.zeros_like(own),
            OWN_STEPS: torch.zeros(1), OWN_ENDED: torch.tensor(0.0), OWN_DRAWS: torch.zeros(0, self.q),
            CENTRING: torch.ones(self.q),
        }  # fmt: skip
        return {name: value.detach().double() for name, value in values.items()}

    def model(self, batch: Batch) -> None:
        """Nothing of the user's: predictions are those of a fitted model."""
        with clients(batch), data(batch):
            sample("y", Normal(batch.y.new_zeros(()), 1.0), obs=batch.y)

    def local(self) -> Sequence[LocalStep]:
        return [FitOwn(self)]

    def schedule(self) -> Schedule:
        return Schedule(absent="freeze", commit="if-used", final_steps=[DrawOwn(self)])

    def exchange(self) -> dict[str, AggregationRule]:
        return {"posterior": StochasticAscent(self)}

    def finished(self, shared: State) -> bool:
        """Whether the parameters are at their end, and draws were weighed."""
        return int(shared[PHASE]) == Phase.DONE

    def evaluated_points(self, shared: State) -> int:
        """See :class:`~hierfl.inference.method.capabilities.EvaluatesPoints`; a climb asks at one."""
        return max(1, self.explored_points(shared))

    def explored_points(self, shared: State) -> int:
        """See :class:`~hierfl.inference.method.capabilities.EvaluatesPoints`."""
        if not is_phase(shared[PHASE]):
            raise ValueError("a phase that is none")
        return self.check_points if int(shared[PHASE]) == Phase.EXPLORE else 0

    @property
    def most_explored(self) -> int:
        """See :class:`~hierfl.inference.method.capabilities.BoundsExploration`; what is lost is asked again."""
        return MISSED * self.check_points

    @property
    def fixed_sums(self) -> bool:
        """None: nothing is known of how a model's density depends on the rows."""
        return False

    def broadcast_error(self, shared: State, inputs: Tensor) -> str:
        """See :class:`~hierfl.inference.method.capabilities.ChecksBroadcasts`."""
        if not is_phase(shared[PHASE]):
            return "its phase is none"
        finite = all(bool(value.isfinite().all()) for value in shared.values())
        return "" if finite else "it holds numbers that are not finite"

    # -- results ------------------------------------------------------------------------------------------------------

    def learned(self, chunk: ClientChunk) -> ClientChunk:
        """A client that was not fitted, with its own parameters at the final shared ones."""
        return ended(self, chunk)

    def heights_at_draws(self, chunk: ClientChunk, draws: int, purpose: str) -> tuple[Tensor, Tensor]:
        """The heights of clients at the first kept draws of the globals: log p(y_j | x) (D, S), and latents (D, S,
        q).
        """
        noise = self.kept_noise(len(chunk.shared[DRAWS]), chunk.seed)[:draws]
        estimates = own_heights(self, chunk, noise, self.settings.inner, purpose, pick=True)
        return estimates.height, estimates.latents

    def notes(self, fitted: Fitted, rounds: int) -> list[str]:
        """What a reader has to know of a fit of so many rounds, a line each."""
        return notes(self, fitted, rounds)

    def joint_posterior(self, fitted: Fitted) -> ModelPosterior:
        """Draws of the guide, and tables of them."""
        from ..results import ModelPosterior

        return ModelPosterior.from_fit(fitted)

    @property
    def has_global_model(self) -> bool:
        return False

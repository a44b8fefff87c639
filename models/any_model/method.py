"""A plain Pyro model with a client plate, as a method: its posterior from sums.

    q(x) = N(m, S),    q(v_j | x) = N(a_j + C_j (x - m), L_j L_j^T)     globals x, clients' latents v_j, unconstrained

The model is read once (:mod:`.sites`). Clients fit q(v_j | x) at the broadcast q(x) (:mod:`.steps`), and send the
derivatives of their bound by x (:mod:`.local`); the server takes natural-gradient steps (:mod:`.guide`). Then clients
send heights of their marginal likelihood at many x (:mod:`.heights`), by which the server weights them; and at the end
every client draws its latents given each kept draw of the globals: joint draws of the posterior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pyro.distributions import Normal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.column_design import ColumnDesign
from hierfl.data.tables import ROUNDS
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

from .beginning import first_personal, first_shared
from .by_rows.layout import Layout
from .by_rows.steps import DrawRows, FitRows, row_heights
from .family import Family
from .fit_notes import fit_notes
from .graphs.graphs import Graphs
from .heights import DrawLatents, heights
from .low_rank.family import LowRankFamily
from .low_rank.rule import SketchedGradient
from .low_rank.steps import FitSketched
from .marginals.rule import ShapedGradient
from .marginals.transform import shape_error
from .names import DRAWS, PHASE, POINTS, PRECISION, SHAPE, Phase, is_phase
from .remembered import triangle_size
from .rule import MISSED, NaturalGradient
from .sites import Coordinates, Model, read_model
from .sizes import MOST_FULL, refuse_sizes, refuse_transforms
from .steps import FitConditional

if TYPE_CHECKING:
    from hierfl.inference.evaluation.fitted import Fitted

    from .results import ModelPosterior

#: rounds of Newton steps in which a new client finds its part of the guide, rough ones and fine ones
ROUGH_ROUNDS, FINE_ROUNDS = 8, 4
#: what the method is: in no list of methods, since it needs a model
ABOUT = About(name="any-model", what="a plain Pyro model with a client plate")


class AnyModel(Method):
    """The posterior of an ordinary Pyro model of a batch of columns.

    Args:
        network: the table's columns.
        program: the model.
        settings: values for the fields of ``Settings``.
    """

    about = ABOUT
    tabular: ClassVar[bool] = True
    reads_columns: ClassVar[bool] = True
    #: most rounds of a fit by default
    usual_rounds: ClassVar[int] = ROUNDS
    network: ColumnDesign

    @dataclass(frozen=True)
    class Settings:
        local_steps: int = setting(2, "Newton steps of a client's part of the guide in a round", at_least=1)
        fit_draws: int = setting(32, "draws of the guide in a round, at least", at_least=4, at_most=100_000)
        fine_draws: int = setting(
            128, "draws of the guide in the last rounds of the climb, at least", at_least=4, at_most=100_000
        )
        guide: Literal["auto", "full", "low-rank", "diagonal", "point"] = setting(
            "auto",
            f"the guide of the globals: full | low-rank | diagonal | point; auto is full up to {MOST_FULL} numbers",
        )
        rank: int = setting(40, "directions of the curvature that are sent of more globals", at_least=1)
        transforms: Literal["auto", "on", "off"] = setting(
            "auto", "skew and tail of each global's marginal in the guide: auto is on where nothing reweights it"
        )
        reweigh: bool = setting(True, "explore the posterior of the globals beyond the guide")
        most_globals: int = setting(30, "globals beyond which the posterior is not explored", at_least=0)
        points: int = setting(512, "points of a round of the exploration", at_least=16, at_most=1_000_000)
        explored_rounds: int = setting(16, "rounds of the exploration, at most", at_least=1, at_most=10_000)
        worth: float = setting(1000, "independent draws that the explored points shall be worth", above=0, at_most=1e12)
        inner: int = setting(8, "draws of a client's latents at each point, at least", at_least=2, at_most=100_000)
        draws: int = setting(1000, "draws of the posterior that are kept", at_least=2, at_most=100_000)

    settings: Settings

    def __init__(self, network: ColumnDesign, program: Model, **settings: object) -> None:
        super().__init__(network, **settings)
        self.program = program
        self.sites = read_model(program, network)
        if self.settings.guide == "point":
            self.sites = self.sites.with_points()
        #: of a client's numbers, where those of its rows are many; else None
        self.layout = Layout.from_sites(self.sites)
        self.graphs = Graphs()
        refuse_sizes(self.sites, self.settings.guide, self.rank, by_rows=self.layout is not None)
        refuse_transforms(self.family.spread, self.settings.transforms, self.rank)

    @property
    def p(self) -> int:
        """Unconstrained numbers of the globals."""
        return len(self.sites.start)

    @property
    def q(self) -> int:
        """Unconstrained numbers of a client's latents."""
        return len(self.sites.client_start)

    @property
    def own_spread(self) -> Tensor:
        """Which of them are no points, (q,)."""
        return Coordinates(self.sites.clients).spread

    @property
    def rank(self) -> int:
        """Columns of the matrix by which clients sketch their curvature; 0 where they send all of it."""
        many = self.p > MOST_FULL or self.settings.guide == "low-rank"
        return min(self.settings.rank, self.p) if many else 0

    @property
    def curvature(self) -> Mapping[str, int]:
        """Fields of a message with numbers of the curvature, and how many each has."""
        p, r = self.p, self.rank
        if r:
            return {"diagonal": p, "sketch": p * r}
        return {"precision": triangle_size(p)} | ({"shape": 2 * p} if self.shaped else {})

    @property
    def shaped(self) -> bool:
        """Whether each global's marginal has a skew and a tail."""
        wanted = self.settings.transforms == "on" or (self.settings.transforms == "auto" and not self.explores)
        return wanted and not self.rank and bool(self.family.spread.any())

    @property
    def family(self) -> Family:
        """The family of the guide of the globals."""
        family = LowRankFamily if self.rank else Family
        return family(Coordinates(self.sites.globals).spread, self.settings.guide == "diagonal")

    @property
    def explores(self) -> bool:
        """Whether the posterior of the globals is explored beyond the guide."""
        few = 0 < int(self.family.spread.sum()) <= self.settings.most_globals
        return self.settings.reweigh and few and self.layout is None

    def draws_of_round(self, *, fine: bool) -> int:
        """Draws of the guide, K: even, and more than twice the numbers of one; globals of low rank do not count."""
        least = self.settings.fine_draws if fine else self.settings.fit_draws
        own = self.q if self.layout is None else self.layout.sizes[0] + self.layout.sizes[2]
        own += 0 if 0 < self.rank < self.p else self.p
        least = max(least, (8 if fine else 4) * own)
        return least + least % 2

    def shared(self, start: InitialWeights) -> State:
        return first_shared(self)

    def personal(self, start: InitialWeights) -> State:
        return first_personal(self)

    def model(self, batch: Batch) -> None:
        """Nothing of the user's: predictions are those of :class:`.fitted.FittedModel`."""
        with clients(batch), data(batch):
            sample("y", Normal(batch.y.new_zeros(()), 1.0), obs=batch.y)

    def local(self) -> Sequence[LocalStep]:
        if self.rank:
            return [FitSketched(self)]
        return [FitConditional(self) if self.layout is None else FitRows(self, self.layout)]

    def schedule(self) -> Schedule:
        last = DrawLatents(self) if self.layout is None else DrawRows(self, self.layout)
        return Schedule(absent="freeze", commit="if-used", final_steps=[last])

    def exchange(self) -> dict[str, AggregationRule]:
        rule = SketchedGradient if self.rank else ShapedGradient if self.shaped else NaturalGradient
        return {"posterior": rule(self)}

    def finished(self, shared: State) -> bool:
        """Whether guide and exploration are at their end."""
        return int(shared[PHASE]) == Phase.DONE

    def evaluated_points(self, shared: State) -> int:
        """See :class:`~hierfl.inference.method.capabilities.EvaluatesPoints`; a climb asks at one."""
        return max(1, self.explored_points(shared))

    def explored_points(self, shared: State) -> int:
        """See :class:`~hierfl.inference.method.capabilities.EvaluatesPoints`."""
        if not is_phase(shared[PHASE]):
            raise ValueError("a phase that is none")
        return len(shared[POINTS]) if int(shared[PHASE]) == Phase.EXPLORE else 0

    @property
    def most_explored(self) -> int:
        """See :class:`~hierfl.inference.method.capabilities.BoundsExploration`; what is lost is asked again."""
        return (self.settings.explored_rounds + MISSED) * self.settings.points if self.explores else 0

    @property
    def fixed_sums(self) -> bool:
        """None: nothing is known of how a model's density depends on the rows."""
        return False

    def broadcast_error(self, shared: State, inputs: Tensor) -> str:
        """See :class:`~hierfl.inference.method.capabilities.ChecksBroadcasts`."""
        if not is_phase(shared[PHASE]):
            return "its phase is none"
        if not all(bool(value.isfinite().all()) for value in shared.values()):
            return "it holds numbers that are not finite"
        if not self.family.definite(shared[PRECISION]):
            return "its precision is not positive definite"
        return shape_error(shared[SHAPE]) if SHAPE in shared else ""

    def learned(self, chunk: ClientChunk) -> ClientChunk:
        """A client that was not fitted, with its part of the guide at the final guide of the globals."""
        for phase, rounds in ((Phase.ROUGH, ROUGH_ROUNDS), (Phase.FINE, FINE_ROUNDS)):
            chunk = replace(chunk, shared={**chunk.shared, PHASE: torch.tensor(float(phase), dtype=torch.float64)})
            for _ in range(rounds):
                chunk = self.local()[0].run(chunk, None)
        return chunk

    def heights_at_draws(self, chunk: ClientChunk, draws: int, purpose: str) -> tuple[Tensor, Tensor]:
        """The heights of clients at the first kept draws of the globals: log p(y_j | x) (D, S), and latents (D, S,
        q).
        """
        points = chunk.shared[DRAWS][:draws]
        if self.layout is not None:
            return row_heights(self, self.layout, chunk, points)
        estimates = heights(self, chunk, points, self.settings.inner, purpose)
        return estimates.height, estimates.latents

    def notes(self, fitted: Fitted, rounds: int) -> list[str]:
        """What a reader has to know of a fit of so many rounds, a line each."""
        return fit_notes(fitted, rounds)

    def joint_posterior(self, fitted: Fitted) -> ModelPosterior:
        """Draws of the joint posterior of globals and clients, and tables of them."""
        from .results import ModelPosterior

        return ModelPosterior.from_fit(fitted)

    @property
    def has_global_model(self) -> bool:
        return False

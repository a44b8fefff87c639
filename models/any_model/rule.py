"""Messages of clients, and the server's use of their sum: first the guide's climb, then an exploration."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.messages.form import Field, Form, not_negative
from hierfl.inference.server.explored import Explored, systematic
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.plurals import counted
from hierfl.rng import key, normals

from .evaluating import global_prior
from .guide import SETTLED_FINE, UNSURE_STEP, Climb
from .heights import heights
from .moments import moments, squares, units, whitened_draws
from .names import ACCEPTED, BOUND, DRAWS, INNER, MEAN, PHASE, POINTS, PRECISION, TRACE, VERDICT, WORTH, Phase
from .overlap import overlap
from .remembered import MAX_SPREAD, Remembered
from .remembered import sent as climbing
from .trace import traced
from .verdict import Verdict, verdict

if TYPE_CHECKING:
    from .plain import GaussianModel

log = logging.getLogger("hierfl")
#: after so many rounds of the exploration in which some client was missing it is given up
MISSED = 10
#: a height of what is impossible
IMPOSSIBLE = -1e12
#: how much wider than the weighted points the exploration's second proposal is, up to four globals
SECOND_PROPOSAL_FACTOR = 1.5
#: by how much a client's draws at a point may grow
MOST_INNER = 64
#: of Hessians' squares: what single draws' are off where log joints are quadratic
EXACT = 1e-18


@dataclass(frozen=True)
class NaturalGradient:
    """Sums of the bound's derivatives, (1) of :mod:`.guide`; then sums of heights at the points that are broadcast.

    Args:
        method: whose posterior.
    """

    method: GaussianModel
    #: the climb of the guide
    climbs: ClassVar[type[Climb]] = Climb
    sends_gradients: ClassVar[bool] = False
    #: messages of clients are not compared with one another: a message grows with the client's rows
    comparable: ClassVar[bool] = False
    #: what each field of a message is, in words
    MEANINGS: ClassVar[Mapping[str, str]] = {
        "clients": "1: who has answered is counted",
        "joined": "1 in the first round that counts, then 0",
        "bound": "its part of the bound of the log evidence at the broadcast guide: one number of all its rows",
        "spread": "how much the curvature differs between draws of the guide: 0 where all is Gaussian",
        "linear": "first derivatives of its bound by the globals, as a change since they were last counted",
        "precision": "second derivatives of its bound by the globals, the lower triangle, as a change likewise",
        "heights": "log marginal likelihoods of its rows at the points that an exploration asks about; else zeros",
        "noise": "Monte-Carlo variance of these",
        "heavy": "in an exploration's first round, whether the weights of its own latents have heavy tails",
        "centrings": "in an exploration's first round, whether two centrings of its latents disagree",
    }

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """All that a round may ask: 7 + p + c + M numbers, c of them of the curvature; zeros where it does not."""
        p, number = len(old[MEAN]), torch.float64
        if old[MEAN].dtype != number:
            raise UserError(f"a plain model is fitted in double precision: dtype=torch.float64, not {old[MEAN].dtype}")
        return {
            "clients": Field((), number), "joined": Field((), number, not_negative), "bound": Field((), number),
            "spread": Field((), number, not_negative), "linear": Field((p,), number),
            **{name: Field((size,), number) for name, size in self.method.curvature.items()},
            "heights": Field((len(old[POINTS]),), number),
            "noise": Field((), number, not_negative), "heavy": Field((), number, not_negative),
            "centrings": Field((), number, not_negative),
        }  # fmt: skip

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's part of the sums."""
        stage, count = Phase(int(chunk.shared[PHASE])), len(chunk.clients)
        sent = {
            name: chunk.shared[MEAN].new_zeros(count, *field.shape) for name, field in self.form(chunk.shared).items()
        }
        sent["clients"] += 1
        if stage <= Phase.FINE:
            sent |= climbing(chunk, len(chunk.shared[MEAN]), self.method.curvature)
        elif stage == Phase.EXPLORE:
            estimates = heights(self.method, chunk, chunk.shared[POINTS], int(chunk.shared[INNER]), "points")
            sent |= {"heights": estimates.height.T.clamp_min(IMPOSSIBLE), "noise": estimates.noise}
            if not float(chunk.shared[VERDICT][0]):  # in the first round of an exploration
                overlaps = overlap(self.method, chunk, chunk.shared[POINTS])
                sent |= {"heavy": overlaps.heavy.double(), "centrings": overlaps.centrings.double()}
        return sent

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The next guide, or the next points; a round of the exploration in which a client is missing changes none."""
        stage = Phase(int(old[PHASE]))
        if stage == Phase.DONE:
            return old
        moved = 0.0
        if stage <= Phase.FINE:
            values = self._climbed(dict(old), total, context, stage)
            moved = self.climbs.read(context.rule_state).moved
        elif missing := context.num_clients - int(context.reported):
            values = self._missed(dict(old), context, missing)
        else:
            values = self._explored(dict(old), total, context, stage)
        trace = traced(
            old[TRACE], stage, context.round, bound=values[BOUND], moved=min(moved, MAX_SPREAD), worth=values[WORTH]
        )
        return {**values, TRACE: trace}

    def _climbed(self, values: State, total: State, context: AggregationContext, stage: Phase) -> State:
        memory, mean, precision, method = context.rule_state, values[MEAN], values[PRECISION], self.method
        prior = self._prior(values, context.seed, fine=stage == Phase.FINE)
        remembered = Remembered.read(memory, mean, sum(method.curvature.values())).after(total, method.curvature)
        whole = int(context.reported) == context.num_clients
        gradient, curvature = self._derivatives(remembered, prior, mean, context.seed)
        bound = total["bound"] + prior.height[0] + method.family.entropy(precision)
        exact = bool(total["spread"] + prior.spread[0] <= EXACT * self._size(curvature, precision))
        exact = exact and whole and self._sees_curves
        climb = self.climbs.read(memory) if "climb.bound" in memory else self.climbs.begin(mean, precision)
        before = climb.mean
        if whole:
            numbers = len(mean) + float(total["clients"]) * method.q
            climb = climb.after(bound, gradient, curvature, exact=exact, numbers=numbers)
            values[BOUND] = climb.bound
        else:
            climb = climb.damped(gradient, curvature, self._damping(context))
        values[ACCEPTED] = values[ACCEPTED] + float(climb.mean is not before)
        converged = climb.converged
        remembered = remembered.waited(float(context.reported), converged=converged)
        if converged and (whole or remembered.all_reported(context.num_clients)):
            after = self._when_exact if exact else Phase.FINE if stage == Phase.ROUGH else self._after
            if after == Phase.FINE:
                climb = self.climbs.begin(*climb.guide(), within=SETTLED_FINE)
            elif after == Phase.EXPLORE:
                self._begin(values, memory, climb, context)
            values[PHASE] = values[PHASE].new_tensor(float(after))
        values[MEAN], values[PRECISION] = climb.guide()
        memory.update({**climb.state(), **remembered.state()})
        values[DRAWS] = self._of_guide(values, context)
        return values

    def _derivatives(self, remembered: Remembered, prior: Any, mean: Tensor, seed: int) -> tuple[Tensor, Any]:
        """b and A of (1) in :mod:`.guide`."""
        precisions = unpacked(remembered.curvature, len(mean))
        return remembered.linear - precisions @ mean + prior.gradient[0], precisions - prior.hessian[0]

    def _size(self, curvature: Any, precision: Tensor) -> Tensor:
        """Sum of the squares of the curvature, in the units in which clients measure how theirs differs."""
        sd = self.method.family.root(precision).square().sum(-1).sqrt()
        return squares(curvature, units(sd, curvature))

    @property
    def _sees_curves(self) -> bool:
        """Whether draws vary in every number in which a log joint may not be quadratic."""
        return True

    def _damping(self, context: AggregationContext) -> float:
        """Share of a step that is taken where a client is missing."""
        return UNSURE_STEP

    @property
    def _when_exact(self) -> Phase:
        """What follows the climb where all log joints are quadratic."""
        return Phase.DONE

    def _prior(self, values: State, seed: int, *, fine: bool) -> Any:
        """Derivatives of log p(x), expected under the guide: :class:`.moments.Moments`, or a substitute."""
        method, mean = self.method, values[MEAN]
        noise = self._lattice(mean, seed, method.draws_of_round(fine=fine), fine=fine)
        moved = method.family.moved(noise, values[PRECISION])
        return moments(
            lambda x, _: global_prior(method.program, method.sites, method.network, x), mean + moved, moved[..., :0]
        )

    @staticmethod
    def _lattice(mean: Tensor, seed: int, draws: int, *, fine: bool) -> Tensor:
        """Draws of N(0, 1) for the prior, (K, 1, p)."""
        generator = torch.Generator().manual_seed(key(seed, "server's lattice", fine) % 2**63)
        shift = torch.rand(1, len(mean), generator=generator, dtype=torch.float64).to(mean)
        return whitened_draws(shift, draws)

    @property
    def _after(self) -> Phase:
        """What follows the climb."""
        return Phase.EXPLORE if self.method.explores else Phase.DONE

    def _of_guide(self, values: State, context: AggregationContext) -> Tensor:
        """Draws of the guide of the globals, (D, p)."""
        shape = values[DRAWS].shape
        noise = normals(shape, context.seed, "kept draws", dtype=torch.float64, device=values[MEAN].device)
        return self._written(values, values[MEAN] + self.method.family.moved(noise, values[PRECISION]))

    def _written(self, values: State, x: Tensor) -> Tensor:
        """The unconstrained globals of numbers (..., p) of the guide: the same, but where marginals are transformed."""
        return x

    def _log_slopes(self, values: State, x: Tensor) -> Tensor:
        """Log determinants (M,) of that at the points (M, p)."""
        return x.new_zeros(len(x))

    # -- exploration --------------------------------------------------------------------------------------------------

    def _begin(self, values: State, memory: State, climb: Climb, context: AggregationContext) -> None:
        mean, precision = climb.guide()
        num_points = len(values[POINTS])
        family = self.method.family
        spread = family.spread.to(mean.device)
        explored = Explored.begin(int(spread.sum()), num_points, self.method.settings.explored_rounds, mean)
        root = family.root_of_spread(precision)
        explored = explored.drawn(mean[spread], root, 0, key(context.seed, context.round))
        memory.update(explored.state())
        values[POINTS] = self._written(values, family.within(explored.asked, mean))

    def _missed(self, values: State, context: AggregationContext, missing: int) -> State:
        """A sum over some clients' heights is not used: the same points are asked again, a few times at most."""
        often = context.rule_state.get("explored.missed", values[WORTH].new_zeros(())) + 1
        context.rule_state["explored.missed"] = often
        if often < MISSED:
            log.warning("round %d changes nothing: an exploration needs all clients, and %d are missing",
                        context.round, missing)  # fmt: skip
            return values
        log.warning(
            "the exploration is given up: in %s some client was missing; draws are the guide's",
            counted(int(often), "round"),
        )
        values[PHASE] = values[PHASE].new_tensor(float(Phase.DONE))
        values[WORTH] = torch.zeros_like(values[WORTH])
        values[VERDICT] = replace(Verdict.read(values), missed=float(often)).values.to(values[MEAN])
        return values

    def _explored(self, values: State, total: State, context: AggregationContext, stage: Phase) -> State:
        memory, method = context.rule_state, self.method
        explored = Explored.read(memory)
        prior = global_prior(method.program, method.sites, method.network, values[POINTS][:, None])[:, 0]
        slopes = self._log_slopes(values, method.family.within(explored.asked, values[MEAN]))
        explored = explored.with_heights(total["heights"] + prior + slopes)
        first, inner = Verdict.read(values), float(values[INNER])
        now = total if not first.points else {"heavy": first.heavy, "centrings": first.centrings}
        clients = (float(total["clients"]), float(now["heavy"]), float(now["centrings"]))
        noise = float(total["noise"])
        judged = verdict(explored, noise, inner, clients, first)
        enough = judged.worth >= method.settings.worth and explored.done > 1
        if enough or explored.done == len(explored.centres):
            at = systematic(explored.log_weights(0), len(values[DRAWS]), key(context.seed, "kept draws"))
            values[DRAWS] = self._written(values, method.family.within(explored.points[at], values[MEAN]))
            values[PHASE] = values[PHASE].new_tensor(float(Phase.DONE))
        else:
            centre, root = explored.moments(0)
            wider = SECOND_PROPOSAL_FACTOR ** min(1.0, 4 / len(centre)) if explored.done == 1 else 1.0
            explored = explored.drawn(centre, wider * root, 0, key(context.seed, context.round))
            values[POINTS] = self._written(values, method.family.within(explored.asked, values[MEAN]))
        last = int(values[PHASE]) == Phase.DONE
        drawn = min(judged.next_inner(noise, last=last), MOST_INNER * method.settings.inner)
        values[INNER] = values[INNER].new_tensor(drawn)
        values[WORTH], values[VERDICT] = values[WORTH].new_tensor(judged.worth), judged.values.to(values[MEAN])
        memory.update(explored.state())
        return values


def unpacked(triangle: Tensor, size: int) -> Tensor:
    """A symmetric matrix (size, size) from its lower triangle, row by row."""
    row, column = torch.tril_indices(size, size, device=triangle.device)
    matrix = triangle.new_zeros(size, size)
    matrix[row, column] = triangle
    matrix[column, row] = triangle
    return matrix

"""How the population is found from sums: a climb to the estimates, a climb to the mode of what clients' posteriors are
mixed over, and an exploration of that density.

In each round of a climb clients send what their log marginal likelihood is around one point: height, slope and
curvature (of a gaussian response the coefficients of a quadratic in beta, with two derivatives). In each round of the
exploration they send it at many points. The server keeps the highest point as the estimate, and at the end draws of the
population.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.rng import key

from ..likelihood.gaussian.regions import region_draws
from ..likelihood.quadrature.region_nodes import (
    MOVED_NODES,
    TRIES,
    RegionExpansion,
    asks_at_nodes,
    drawn_regions,
    log_integrals,
)
from . import restricted
from .boundary import NOT_YET, BoundarySearch, deviations, tested
from .bounds import at_zero
from .climb import FAR, ROUNDING, Climb, spread
from .criterion import Criterion, Surface, upright
from .explore import Explored
from .population_draws import drawn_population
from .profile import UNKNOWN, Profile, profiled
from .questions import AROUND_ONE_POINT, Likelihoods, Phase

#: points in all, at most; and how many independent draws they shall be worth
MOST_POINTS, WORTH = 4096, 500
#: rounds and tolerance of the climb to the mode, which only says where to look
MODE_ROUNDS, MODE_TOLERANCE = 40, 0.01


@dataclass(frozen=True)
class PopulationSearch(Likelihoods):
    """Climbs to the estimates of the population, and explores what is known of it, by sums of log likelihoods.

    Args:
        method: whose population.
    """

    @cached_property
    def surface(self) -> Surface:
        """What is climbed and explored."""
        return Surface(self.method)

    @property
    def criterion(self) -> Criterion:
        """Of the first climb."""
        return "reml" if self.method.exact and self.method.settings.population == "reml" else "ml"

    @property
    def moving(self) -> list[str]:
        """The estimates, not where it is looked at next."""
        more = {"regions": 0} if self.method.regions else {}
        return [f"effects.{name}" for name in {**self.method.sizes, "beta": 0, **more}]

    @property
    def kept_sums(self) -> list[str]:
        """Of a gaussian response: the sums around the estimates, by how often they are derived."""
        return ["cross", "cross_1", *(["cross_2"] if self.method.settings.kenward_roger else [])]

    def initial(self) -> State:
        """What is broadcast beside the estimates, to begin with."""
        k, p, s = self.method.k, len(self.method.network.fixed), self.method.settings
        total = k + p if self.method.exact else k
        total += 0 if not self.method.regions else (self.method.regions + 1) * self.method.covariances["outer_root"].q
        counts = 3 if self.method.slots else 2
        start: dict[str, Tensor] = {
            "phase": self.first_phase,
            "at": torch.zeros(k), "points": torch.zeros(self.points, k), "draws": torch.zeros(s.draws, total),
            "height": torch.tensor(0.0), "slope": torch.zeros(k), "curvature": torch.zeros(k, k),
            "to_go": torch.tensor(FAR), "worth": torch.tensor(0.0), "counts": torch.zeros(counts),
        }  # fmt: skip
        if self.nodes:
            start |= self._nodes(RegionExpansion.read(self.method, {}), start["at"].double(), start["points"].double())
        if s.profile:
            start["profile"] = torch.full((len(profiled(self.method)), 2), UNKNOWN, dtype=torch.float64)
        if self.method.restricted:
            start |= restricted.start(self.method)
        if tested(self.method):
            start["boundary"] = torch.full((len(deviations(self.method)),), NOT_YET)
        if self.method.exact:
            start |= {name: torch.zeros(*[k] * order, self.cells) for order, name in enumerate(self.kept_sums)}
        return {f"effects.{name}": value.double() for name, value in start.items()}

    @cached_property
    def boundary(self) -> BoundarySearch:
        """Of the standard deviations' tests."""
        return BoundarySearch(self.surface, self.criterion, self.surface.longest("ml"), self.digits)

    @property
    def nodes(self) -> bool:
        """Whether clients are asked at nodes of their regions' effects."""
        return asks_at_nodes(self.method)

    @property
    def digits(self) -> float:
        """To which heights at different points can be compared."""
        return MOVED_NODES if self.nodes else ROUNDING

    def _nodes(self, known: RegionExpansion, at: Tensor, points: Tensor) -> State:
        """Where clients are asked next."""
        return {"nodes": known.effects(self.method, at), "many_nodes": known.effects(self.method, points)}

    @property
    def first_phase(self) -> Tensor:
        """A posterior has no estimates to climb to."""
        bayes = self.method.settings.population == "bayes" and self.method.k
        return torch.tensor(float(Phase.MODE if bayes else Phase.CLIMB))

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """What the next round asks; a round in which a client is missing is skipped: its sums are of another table.

        The population's few numbers are computed by the host.
        """
        if int(context.reported) < context.num_clients:
            return {**old, "effects.to_go": old["effects.to_go"] * torch.nan}
        device, memory = context.reported.device, context.rule_state
        for kept in (total, memory):
            kept.update({k: v.cpu() for k, v in kept.items()})
        state = {k.removeprefix("effects."): v.cpu() for k, v in old.items()}
        before, state["counts"] = state["counts"], total["counts"]
        phase = Phase(int(state["phase"]))
        if bool(before.any()) and not torch.equal(before, total["counts"]):
            # others take part than before: heights of their sums cannot be compared, and the search begins again
            memory.clear()
            state |= {"phase": self.first_phase, "at": self.method.numbers(state)}
        elif self.nodes and phase in AROUND_ONE_POINT and self._moved(state, total, memory):
            pass
        elif phase != Phase.DONE:
            of_phase = {
                Phase.CLIMB: self._climb, Phase.RESTRICT: self._restrict, Phase.PROFILE: self._profile,
                Phase.MODE: self._mode, Phase.EXPLORE: self._explore,
            }  # fmt: skip
            state = of_phase[phase](state, total, context)
        if self.nodes:
            state |= self._nodes(RegionExpansion.read(self.method, memory), state["at"], state["points"])
        memory.update({k: v.to(device) for k, v in memory.items()})
        return {name: state[name.removeprefix("effects.")].to(value) for name, value in old.items()}

    def _moved(self, state: State, total: State, memory: State) -> bool:
        """Whether the nodes have to move: then the same point is asked about once more."""
        before = RegionExpansion.read(self.method, memory)
        known = RegionExpansion.of(self.method, total, state["at"], state["nodes"])
        memory.update({f"before.{k}": v for k, v in before.state().items()})
        memory.update(known.state())
        tries = memory.get("tries", torch.zeros(()).double())
        moved = not known.near(self.method, before, state["at"]) and int(tries) < TRIES
        memory["tries"] = tries + 1 if moved else 0 * tries
        return moved

    def _known(self, memory: State) -> RegionExpansion | None:
        """By which the nodes of the last round were placed."""
        kept = {k.removeprefix("before."): v for k, v in memory.items() if k.startswith("before.")}
        return RegionExpansion.read(self.method, kept) if self.nodes else None

    def _climb(self, state: State, total: State, context: AggregationContext) -> State:
        """Up to the estimates."""
        memory, surface = context.rule_state, self.surface
        climb = (
            Climb.read(memory)
            if "climb.best" in memory
            else Climb.begin(self.method.numbers(state), self.surface.longest("ml"))
        )
        at = climb.next
        known = self._known(memory)
        climb = climb.seen(*surface.expansion(total, at, self.criterion, known), self.digits)
        if torch.equal(climb.best, at):
            height = climb.height + (surface.reml_constant if self.criterion == "reml" else 0.0)
            state = {**state, **self.method.parts(climb.best), "height": height}
            if self.method.exact:
                beta = surface.beta(total["cross"], self.criterion, climb.best)[0]
                state |= {"beta": beta} | {name: total[name] for name in self.kept_sums}
            if known is not None:
                numbers = climb.best[None]
                state["regions"] = drawn_regions(self.method, total["height"][None], known, numbers, None)[0]
            elif self.method.regions:
                found = total["cross"][None], climb.best[None], beta[None]
                state["regions"] = region_draws(self.method, *found, None)[0]
        state |= {"slope": climb.gradient, "curvature": climb.curvature, "to_go": climb.to_go}
        memory.update(climb.state())
        if not climb.arrived(self.method.settings.tol):
            return {**state, "at": climb.next}
        state = upright(self.method, state)
        if self.method.restricted:
            return {**restricted.begin(surface, state, memory), "phase": torch.tensor(float(Phase.RESTRICT))}
        return self._climbed(state, context)

    def _restrict(self, state: State, total: State, context: AggregationContext) -> State:
        """On to the restricted estimates of another response than gaussian."""
        memory = context.rule_state
        search, state = restricted.seen(self.surface, state, total, memory, self._known(memory))
        return self._climbed(upright(self.method, state), context) if bool(search.done) else state

    def _climbed(self, state: State, context: AggregationContext) -> State:
        """The estimates are known: on to profile intervals where they are asked for."""
        memory, surface = context.rule_state, self.surface
        if self.method.settings.profile and self.method.k:
            at = surface.coordinates(self.method.numbers(state))
            start = torch.where(at_zero(self.method, state), surface.inside(state), at)
            longest = surface.longest("mixing")
            level, effects = self.method.settings.profile, len(state["profile"])
            profile = Profile.begin(start, Climb.read(memory).height, level, longest, effects)
            memory.update(profile.state())
            return {**state, "phase": torch.tensor(float(Phase.PROFILE)), "at": surface.of_coordinates(profile.next)}
        return self._estimated(state, context)

    def _profile(self, state: State, total: State, context: AggregationContext) -> State:
        """On to the bounds of intervals, one after the other; or, at the end, to tests of standard deviations."""
        memory, surface, known = context.rule_state, self.surface, self._known(context.rule_state)
        if self.boundary.running(state, memory):
            return self._tested(self.boundary.seen(state, total, memory, known), memory)
        profile = Profile.read(memory)
        found = surface.expansion(total, profile.next, self.criterion, known, coordinates=True)
        profile = profile.seen(self.method, *found)
        memory.update(profile.state())
        state = {**state, "profile": profile.bounds}
        if profile.done:
            return self._estimated(state, context)
        return {**state, "at": surface.of_coordinates(profile.next)}

    def _estimated(self, state: State, context: AggregationContext) -> State:
        """The estimates are known: on to what is known of the population."""
        memory, surface = context.rule_state, self.surface
        if not self.method.settings.draws:
            return {**state, "phase": torch.tensor(float(Phase.DONE))}
        if not self.method.k:
            nowhere = state["cross"].new_zeros(1, 0)
            return drawn_population(surface, state, state["cross"][None], nowhere, state["cross"].new_zeros(1), context)
        start = self.surface.inside(state)
        memory.update(Climb.begin(start, self.surface.longest("mixing")).state())
        return {**state, "phase": torch.tensor(float(Phase.MODE)), "at": surface.of_coordinates(start)}

    def _mode(self, state: State, total: State, context: AggregationContext) -> State:
        """Up to the mode of the mixing density."""
        memory, surface = context.rule_state, self.surface
        if "climb.best" not in memory:  # (a posterior has no climb before)
            start = surface.coordinates(self.method.numbers(state))
            memory.update(Climb.begin(start, self.surface.longest("mixing")).state())
        climb = Climb.read(memory)
        climb = climb.seen(*surface.expansion(total, climb.next, "mixing", self._known(memory)), self.digits)
        memory.update(climb.state())
        if not climb.arrived(MODE_TOLERANCE) and int(climb.rounds) < MODE_ROUNDS:
            return {**state, "at": surface.of_coordinates(climb.next)}
        explored = Explored.begin(self.method.k, self.points, -(-MOST_POINTS // self.points), climb.best)
        explored = explored.drawn(climb.best, spread(climb.curvature), self.light, key(context.seed, context.round))
        memory.update(explored.state())
        if self.method.exact or self.nodes:
            memory["packed"] = climb.best.new_zeros(len(explored.points), self.cells)
        points = surface.of_coordinates(explored.asked)
        if "boundary" in state:
            state = self.boundary.begin(state, memory)
        return {**state, "phase": torch.tensor(float(Phase.EXPLORE)), "points": points}

    def _tested(self, state: State, memory: State) -> State:
        """With all draws: standard deviations that are not yet compared with zero are, one point a round."""
        running = self.boundary.running(state, memory)
        return {**state, "phase": torch.tensor(float(Phase.PROFILE if running else Phase.DONE))}

    @property
    def light(self) -> int:
        """How many of the numbers are coefficients."""
        return self.method.sizes.get("beta", 0)

    def _explore(self, state: State, total: State, context: AggregationContext) -> State:
        """Points of the mixing density; then draws."""
        memory, surface = context.rule_state, self.surface
        explored, many = Explored.read(memory), total["many"]
        if not self.nodes and self.boundary.running(state, memory):
            state = self.boundary.seen(state, total, memory, None)
        if "packed" in memory:
            first = (explored.done - 1) * self.points
            memory["packed"][first : first + self.points] = many
        if self.nodes:
            known = RegionExpansion.read(self.method, memory)
            u, factor = known.nodes(self.method, surface.of_coordinates(explored.asked))
            many = log_integrals(many.unflatten(-1, u.shape[1:3]), u, factor)
        if self.method.exact:
            many = surface.beta(many, "mixing", surface.of_coordinates(explored.asked))[2]
        explored = explored.seen(many + surface.log_prior(explored.asked))
        worth = explored.effective(self.light)
        if worth >= WORTH or explored.done == len(explored.centres):
            memory.update(explored.state())
            logs = explored.log_weights(self.light)
            packed = memory["packed"][: len(logs)] if "packed" in memory else logs
            state = {**state, "worth": logs.new_tensor(worth)}
            state = drawn_population(surface, state, packed, explored.points[: len(logs)], logs, context)
            return self._tested(state, memory)
        seed = key(context.seed, context.round)
        explored = explored.drawn(*explored.moments(self.light), self.light, seed)
        memory.update(explored.state())
        return {**state, "points": surface.of_coordinates(explored.asked)}

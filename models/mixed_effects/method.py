"""Mixed effects: a mixed model whose rows stay with their clients.

    b_j | L ~ N(0, L L^T),    eta_ij = x_ij^T beta + z_ij^T b_j,    y_ij ~ p(y | eta_ij)             (model.equations)

    l(theta) = sum_j log integral p(D_j | b, theta) N(b | 0, L L^T) db                                    (likelihood)

The population theta = (beta, L, the response's own numbers) is estimated by maximum likelihood, restricted maximum
likelihood, or has a posterior under priors (``population``): the server climbs what it makes of the clients' sums of
l and its derivatives (search.criterion, search.climb). Then it explores p(theta | all data) at many points
(hierfl.inference.server.explored), and ends with draws of theta. Every client draws its b_j given its own data at
each of them (likelihood.posterior): joint draws, in which what is not known of the population is in the clients'
intervals. With population=ml or reml the density that is explored is the likelihood's, times what keeps standard
deviations off zero (search.priors); the estimates have none of that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.noise.accounting import Mechanism
from hierfl.inference.options import Options
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.normal_of_root import NormalOfRoot
from hierfl.ppl.plates import clients, param, sample

from .likelihood.choice import likelihood_of
from .likelihood.posterior import Conditional, JointDraws
from .likelihood.protocol import Likelihood
from .model.effects import check_names
from .private.noisy_likelihood import NoisyGaussian
from .private.private_fit import mechanisms, private_fit, refuse
from .private.rule import NoisyProducts, NoisyRounds
from .private.working_likelihood import NoisyWorking
from .report.answers import Answers
from .search import ranges
from .search.loop import PopulationSearch
from .search.one_round import CrossProducts
from .search.requests import HEIGHTS, Phase, carried, evaluated


class MixedEffects(Answers):
    """Random intercepts and slopes: ML, REML or a posterior, and every client's own."""

    about = About(
        name="mixed-effects",
        what="mixed models of tables, from a formula",
        family="hierarchical",
        stays="random effects",
        sent="sums of the likelihood",
        message_size=None,
        order=30,
    )
    #: draws for a client that was not fitted: its interval includes the spread between clients
    global_draws = 200
    needs_everyone = True
    independent_draws = True

    def __init__(self, network: Architecture, **settings: Any) -> None:
        super().__init__(network, **settings)
        begun = super().shared(InitialWeights.for_network(self.network, 0))
        check_names(self, {k.partition(".")[2]: v[None] for k, v in begun.items()})

    @cached_property
    def likelihood(self) -> Likelihood:
        """Chosen once."""
        if self.private:
            return NoisyGaussian(self) if not self.private.binary else NoisyWorking(self)
        return likelihood_of(self)

    def under_noise(self, options: Options, federation: Federation) -> MixedEffects:
        """See :class:`~hierfl.inference.method.capabilities.ChangesUnderNoise`: units are of declared ranges."""
        private = private_fit(self, options, federation)
        private_method = copy.copy(self)
        private_method.__dict__.pop("likelihood", None)
        private_method.private = private
        if self.settings.population == "auto":
            private_method.settings = replace(self.settings, population=private_method.likelihood.automatic)
        private_method._describe(private.columns.design(self.network))
        private_method.likelihood.check()
        return private_method

    def with_most_groups(self, most: Mapping[str, int]) -> MixedEffects:
        """The same method for clients with at most so many groups of each level inside, {kind of level: number}."""
        method = copy.copy(self)
        method.__dict__.pop("likelihood", None)  # it has the shapes of the fitted clients' values
        method._describe(self.network.with_most(most))
        return method

    def mechanisms(self, options: Options) -> Sequence[Mechanism]:
        """See :class:`~hierfl.inference.method.capabilities.AddsNoise`."""
        refuse(self, options)
        return mechanisms(self.network.family)

    def shared(self, start: InitialWeights) -> State:
        search, values = PopulationSearch(self), super().shared(start)
        by_name = {k.partition(".")[2]: v for k, v in values.items()}
        asked = {}
        if self.private and self.private.binary:
            asked = {"asked": torch.ones(()).double(), "middle": torch.zeros(len(self.network.fixed)).double()}
        return {
            **values,
            **search.initial(),
            **{f"effects.{k}": v for k, v in asked.items()},
            "effects.at": self.numbers(by_name),
        }

    def personal(self, start: InitialWeights) -> State:
        first: dict[str, Tensor] = {}
        for level in self.at_site:
            places, sd = (level.size,) if level.inside else (), self.first_sd(level.name)
            first |= {
                f"{level.effects}_mean": torch.zeros(*places, level.q),
                f"{level.effects}_root": sd.diag().expand(*places, -1, -1),
                f"{level.effects}_draws": torch.zeros(1, 0, *places, level.q),
            }
        first |= self.likelihood.personal()
        return {k: v.double() for k, v in first.items()}

    def guide(self, batch: Batch) -> None:
        draws = param("b_draws")  # (S, 1, chains, kept, q); none yet before the end
        has_draws = draws.shape[-2] > 0
        with clients(batch):
            for level in self.at_site:
                name, many = level.effects, level.inside
                sample(name, EmpiricalDraws(param(f"{name}_draws"), 1 + many) if has_draws else effects(name, many))

    def local(self) -> list[LocalStep]:
        return [*self.likelihood.steps(), Conditional(self)]

    def schedule(self) -> Schedule:
        return Schedule(final_steps=[*self.local(), *([JointDraws(self)] if self.settings.draws else [])])

    def new_client_steps(self) -> Sequence[LocalStep]:
        if self.inside:
            raise UserError(
                "arrays do not name the groups inside a new client: predict(df, level='new', given=ROWS) of the fitted "
                "mixed model takes tables, which do"
            )
        return super().new_client_steps()

    def exchange(self) -> dict[str, AggregationRule]:
        if self.private:
            return {"effects": NoisyProducts(self) if not self.private.binary else NoisyRounds(self)}
        return {"effects": CrossProducts(self) if self.settings.one_round else PopulationSearch(self)}

    def finished(self, shared: State) -> bool:
        """Whether the population is found."""
        return int(shared["effects.phase"]) == Phase.DONE

    def evaluated_points(self, shared: State) -> int:
        """See :class:`~hierfl.inference.method.capabilities.EvaluatesPoints`; nodes of regions count."""
        return evaluated(self, shared)

    def explored_points(self, shared: State) -> int:
        """See :class:`~hierfl.inference.method.capabilities.EvaluatesPoints`; nodes of regions count."""
        return HEIGHTS.points(shared) if HEIGHTS in carried(self, shared) else 0

    @property
    def _other(self) -> bool:
        """Whether the response is none whose sums are made once."""
        return self.likelihood.searches_beta or bool(self.private and self.private.binary)

    @property
    def fixed_sums(self) -> bool:
        """Whether sums are X'X, X'y and y'y: of a gaussian response, where all rows count the same and no groups are
        inside.
        """
        own = {"known", "weight", "precision", "series"} & set(self.network.extras)
        return not (self._other or self.inside or own or self.network.own)

    def broadcast_error(self, shared: State, inputs: Tensor) -> str:
        """See :class:`~hierfl.inference.method.capabilities.ChecksBroadcasts`."""
        return ranges.broadcast_error(self, shared, inputs)

    def response_error(self, shared: State, y: Tensor) -> str:
        """See :class:`~hierfl.inference.method.response_checks.ChecksResponses`."""
        return ranges.response_error(self, shared, y)

    @property
    def prediction_draws(self) -> int:
        """All that there are."""
        return int(self.settings.draws)

    @property
    def global_moments(self) -> bool:
        """Whether moments describe the global model: of a gaussian response they say all, given the population."""
        return not (self._other or self.settings.draws or self.inside)


def effects(name: str, many: bool) -> Any:
    """A normal guide of random effects, or of those of many groups."""
    normal = NormalOfRoot(param(f"{name}_mean"), param(f"{name}_root"))
    return normal.to_event(1) if many else normal

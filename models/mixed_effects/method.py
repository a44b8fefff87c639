"""Mixed effects: a mixed model whose rows stay with their clients.

    b_j | L ~ N(0, L L^T),    eta_ij = x_ij^T beta + z_ij^T b_j,    y_ij ~ p(y | eta_ij)              (model, families)

    l(theta) = sum_j log integral p(D_j | b, theta) N(b | 0, L L^T) db                (cross_products, quadrature)

The population theta = (beta, L, the family's own numbers) is estimated by maximum likelihood, restricted maximum
likelihood, or has a posterior under priors (``population``): the server climbs what it makes of the clients' sums of l
and its derivatives (exchange, surface, climb). Then it explores p(theta | all data) at many points (explore), and ends
with draws of theta. Every client draws its b_j given its own data at each of them (posterior): joint draws, in which
what is not known of the population is in the clients' intervals. With population=ml or reml the density that is
explored is the likelihood's, times what keeps standard deviations off zero (priors); the estimates have none of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import MultivariateNormal

from hierfl.data.batch import Batch
from hierfl.errors import UserError
from hierfl.inference.local.base import LocalStep
from hierfl.inference.method.about import About
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.schedule import Schedule
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.state import State
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.plates import clients, param, sample

from .likelihood.gaussian.row_sums import RowSums, columns_of
from .likelihood.posterior import Conditional, JointDraws, chains_of
from .model.effects import effects_of, in_table_units
from .model.equations import MixedModel
from .report.shrinkage import shrinkage_table
from .report.summary import effects_table
from .search.loop import PopulationSearch
from .search.one_round import CrossProducts
from .search.questions import Likelihoods, Phase

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from hierfl.inference.evaluation.fitted import Fitted


class MixedEffects(MixedModel):
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
    #: a new client differs from the others: the spread between them belongs to what is said of it
    global_draws = 200
    needs_everyone = True
    independent_draws = True

    def shared(self, start: InitialWeights) -> State:
        search, values = PopulationSearch(self), super().shared(start)
        short = {k.partition(".")[2]: v for k, v in values.items()}
        return {**values, **search.initial(), "effects.at": self.numbers(short)}

    def personal(self, start: InitialWeights) -> State:
        q, m, unknowns = self.covariance.q, columns_of(self), self.covariance.q
        held = {"b_mean": torch.zeros(q), "b_root": self.first_sd().diag(), "b_draws": torch.zeros(1, 0, q)}
        places: tuple[int, ...] = ()
        if self.slots:
            inner = self.covariances["inner_root"].q
            places, m, unknowns = (self.slots,), m + inner, q + self.slots * inner
            held |= {"c_mean": torch.zeros(self.slots, inner), "c_draws": torch.zeros(1, 0, self.slots, inner)}
            held["c_root"] = self.first_sd("inner_root").diag().expand(self.slots, inner, inner)
        if self.exact:
            held |= {"gram": torch.zeros(*places, m, m), "rows": torch.zeros(4)}
        else:
            held["u_mode"] = torch.zeros(unknowns)
        return {k: v.double() for k, v in held.items()}

    def guide(self, batch: Batch) -> None:
        draws = param("b_draws")  # (S, 1, chains, kept, q); none yet before the end
        seen = draws.shape[-2] > 0
        with clients(batch):
            sample("b", EmpiricalDraws(draws, 1) if seen else effects("b"))
            if self.slots:
                sample("c", EmpiricalDraws(param("c_draws"), 2) if seen else effects("c").to_event(1))

    def local(self) -> list[LocalStep]:
        return [*([RowSums(self)] if self.exact else []), Conditional(self)]

    def schedule(self) -> Schedule:
        return Schedule(final_steps=[*self.local(), *([JointDraws(self)] if self.settings.draws else [])])

    def new_client_steps(self) -> Sequence[LocalStep]:
        if self.slots:
            raise UserError("groups inside a client that was never seen have no numbers: nothing is fitted to its rows")
        return super().new_client_steps()

    def exchange(self) -> dict[str, AggregationRule]:
        return {"effects": CrossProducts(self) if self.settings.one_round else PopulationSearch(self)}

    def finished(self, shared: State) -> bool:
        """Whether the population is found."""
        return int(shared["effects.phase"]) == Phase.DONE

    def shared_draws(self, shared: State, number: int) -> State:
        """The population at each of so many of the kept draws, {name: (number, 1, 1, *shape)}."""
        draws = shared["effects.draws"]
        if int(shared["effects.phase"]) != Phase.DONE or not len(draws):
            return {}
        some = EmpiricalDraws(draws.unflatten(0, (chains_of(len(draws)), -1)), 1).some(number)
        parts = self.parts(some)
        return {f"effects.{k}": v[:, None, None] for k, v in parts.items()}

    def population_draws(self, shared: State, number: int) -> tuple[list[str], Tensor] | None:
        """See :func:`~hierfl.models.mixed_effects.model.effects.effects_of`."""
        found = {k.partition(".")[2]: v.flatten(0, 2) for k, v in self.shared_draws(shared, number).items()}
        return effects_of(self, {**Likelihoods.held(shared), **found}) if found else None

    @property
    def prediction_draws(self) -> int:
        """All that there are."""
        return int(self.settings.draws)

    @property
    def global_moments(self) -> bool:
        """Of a gaussian response they say all, given the population."""
        return self.exact and not self.settings.draws and not self.slots

    def client_summary(self, v: State) -> State:
        mean, spread = in_table_units(self.groupings["root"], v["b_mean"].squeeze(1), v["b_root"].squeeze(1))
        columns: State = {}
        for k, name in enumerate(self.network.random):
            columns |= {f"b[{name}]": mean[:, k], f"sd b[{name}]": spread[:, k]}
        return columns

    @property
    def coordinates(self) -> dict[str, list[str]]:
        """The random effects' names, and those of the table of effects."""
        found = {"b_dim_0": list(self.network.random)}
        if self.network.inner:
            found["c_dim_0"] = ["new", *(f"group {k}" for k in range(1, self.slots))]
            found["c_dim_1"] = list(self.network.inner.names)
        return found

    @property
    def level_names(self) -> Sequence[Any]:
        """Of an ordinal response."""
        return self.response_family.level_names

    def in_users_units(self, name: str, values: Tensor) -> Tensor:
        """Draws (..., q) of random effects, of the table's columns as they are; responses y in the table's numbers."""
        if name == "y":
            return self.response_family.in_table_numbers(values)
        return values @ self.groupings["inner_root" if name == "c" else "root"].to_users(values).T

    def population_summary(self, fitted: Fitted) -> tuple[pd.DataFrame, dict[str, float]]:
        """See :func:`~hierfl.models.mixed_effects.report.summary.effects_table`."""
        return effects_table(fitted)

    def shrinkage_table(self, fitted: Fitted) -> pd.DataFrame | None:
        """See :func:`~hierfl.models.mixed_effects.report.shrinkage.shrinkage_table`; None at a site.

        One site's rows say neither what all rows together would, nor which fixed effects go with a random one: there
        a column may be the same in every row.
        """
        return shrinkage_table(fitted) if fitted.federation.clients > 1 else None


def effects(name: str) -> MultivariateNormal:
    """A normal guide of random effects."""
    return MultivariateNormal(param(f"{name}_mean"), scale_tril=param(f"{name}_root"))

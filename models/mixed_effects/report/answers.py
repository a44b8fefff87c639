"""What a fit of a mixed model is asked by those who print, plot and predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hierfl.inference.state import State
from hierfl.ppl.empirical_draws import EmpiricalDraws

from ..likelihood.moments import chains_of
from ..model.effects import effects_of, in_table_units
from ..model.equations import MixedModel
from ..model.names import RESIDUALS, fixed_values
from ..search.requests import Phase
from .shrinkage import shrinkage_table
from .summary import effects_table

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.inference.evaluation.fitted import Fitted


class Answers(MixedModel):
    """Tables, draws and names, in the table's units."""

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
        draws = {k.partition(".")[2]: v.flatten(0, 2) for k, v in self.shared_draws(shared, number).items()}
        return effects_of(self, {**fixed_values(shared), **draws}) if draws else None

    def client_summary(self, v: State) -> State:
        mean, spread = in_table_units(self.groupings["root"], v["b_mean"].squeeze(1), v["b_root"].squeeze(1))
        columns: State = {}
        for k, name in enumerate(self.network.random):
            columns |= {f"b[{name}]": mean[:, k], f"sd b[{name}]": spread[:, k]}
        return columns

    @property
    def coordinates(self) -> dict[str, list[str]]:
        """The random effects' names, and those of the table of effects."""
        labels = {"b_dim_0": list(self.network.random)}
        for level in self.inside:
            labels[f"{level.effects}_dim_0"] = ["new", *(f"group {k}" for k in range(1, level.size))]
            labels[f"{level.effects}_dim_1"] = list(level.grouping.names)
        return labels

    @property
    def level_names(self) -> Sequence[Any]:
        """The names of the levels of an ordinal response."""
        return self.response_family.level_names

    def in_users_units(self, name: str, values: Tensor) -> Tensor:
        """Draws (..., q) of random effects, of the table's columns as they are; responses y in the table's numbers."""
        if name == "y":
            return self.response_family.in_table_numbers(values)
        (grouping,) = (level.grouping for level in self.at_site if level.effects == name)
        return values @ grouping.to_users(values).T

    #: sums that are counts of rows
    row_counts = (RESIDUALS,)

    def summary_terms(self, fitted: Fitted) -> State:
        """Training rows counted by the quantiles of their responses, in ten cells of equal probability."""
        from ..after.histogram import counts_of_rows

        return {RESIDUALS: counts_of_rows(fitted)} if self.settings.residuals else {}

    def population_summary(self, fitted: Fitted) -> tuple[pd.DataFrame, dict[str, float]]:
        """See :func:`~hierfl.models.mixed_effects.report.summary.effects_table`."""
        from ..after.histogram import numbers_of

        table, numbers = effects_table(fitted)
        return table, {**numbers, **numbers_of(fitted)}

    def shrinkage_table(self, fitted: Fitted) -> pd.DataFrame | None:
        """See :func:`~hierfl.models.mixed_effects.report.shrinkage.shrinkage_table`; None at a site.

        One site's rows say neither what all rows together would, nor which fixed effects go with a random one: there
        a column may be the same in every row. None where clients have residual deviations of their own.
        """
        return shrinkage_table(fitted) if fitted.federation.clients > 1 and not self.network.spread else None

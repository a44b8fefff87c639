"""Tables of random effects: of clients, of groups inside them, and of groups of clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats
from torch import Tensor

from hierfl.data.formula.grouping import Grouping
from hierfl.errors import unknown
from hierfl.inference.run.result import Run
from hierfl.natural_order import natural

from ..likelihood.gaussian.likelihood import Gaussian
from ..likelihood.gaussian.regions import region_covariances
from ..model.effects import in_table_units
from ..model.equations import MixedModel
from ..model.levels import Level
from ..model.names import by_short_name

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
#: of the intervals
LEVEL = 0.9


def random_effects(run: Run, level: str) -> pd.DataFrame:
    """See :meth:`hierfl.models.mixed_effects.fitted_model.FittedMixedModel.ranef`."""
    method, federation = run.fitted.method, run.fitted.federation
    assert isinstance(method, MixedModel)
    named = {grouping.grouping.factor or "client": grouping for grouping in method.levels}
    if (reader := federation.about.get("reader")) is not None and level == reader.places.levels.client:
        level = "client"
    if level not in named:
        raise unknown("level of random effects", level, named)
    level_asked, own = named[level], run.personal
    grouping = level_asked.grouping
    if level_asked.where == "server":
        return _table({level: list(grouping.groups)}, grouping, *_of_server(run, level_asked))
    if not level_asked.inside:
        return _table(
            {"client": list(federation.ids), "n": federation.sizes()},
            grouping,
            *in_table_units(grouping, own["b_mean"], own["b_root"]),
        )
    mean, sd = in_table_units(grouping, own[f"{level_asked.effects}_mean"], own[f"{level_asked.effects}_root"])
    places = federation.about["reader"].places.within.get(level_asked.kind, {})
    where = [(j, name, k) for j, client in enumerate(federation.ids) for name, k in places.get(client, {}).items()]
    at = tuple(torch.tensor([entry[i] for entry in where]) for i in (0, 2))
    names = {"client": [federation.ids[j] for j, _, _ in where], level: [name for _, name, _ in where]}
    return _table(names, grouping, mean[at], sd[at])


def _of_server(run: Run, level: Level) -> tuple[Tensor, Tensor]:
    """The same of groups of clients, (R, q): by draws, or given the estimates. Of other responses than gaussian what
    that needs is not kept: without draws there are no standard deviations.
    """
    method, effects = run.fitted.method, run.shared[f"effects.{level.effects}"]
    assert isinstance(method, MixedModel)
    turn = level.grouping.to_users(effects)
    if not len(run.shared["effects.draws"]):
        mean, estimates = effects[1:] @ turn.T, by_short_name(run.shared)
        if isinstance(method.likelihood, Gaussian):
            covariance = region_covariances(method, level, estimates["cross"], method.numbers(estimates))
            return mean, (turn @ covariance @ turn.T).diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        log.warning("this fit has no draws, and the groups' effects no standard deviations: draws=1000 makes them")
        return mean, torch.full_like(mean, torch.nan)
    draws = method.parts(run.shared["effects.draws"])[level.effects][:, 1:] @ turn.T
    return draws.mean(0), draws.std(0)


def _table(whose: Mapping[str, Sequence[Any]], grouping: Grouping, mean: Tensor, sd: Tensor) -> pd.DataFrame:
    """A row for each group and effect, effect after effect; groups in the order in which people count."""
    import pandas as pd

    parts, reach = [], float(stats.norm.ppf((1 + LEVEL) / 2))
    for k, name in enumerate(grouping.names):
        m, s = mean[:, k].cpu().numpy(), sd[:, k].cpu().numpy()
        columns = {**whose, "effect": name, "mean": m, "sd": s, "lower": m - reach * s, "upper": m + reach * s}
        parts.append(pd.DataFrame(columns))
    places = [name for name in whose if name != "n"]
    order = sorted(range(len(whose[places[0]])), key=lambda row: [natural(whose[name][row]) for name in places])
    return pd.concat([part.iloc[order] for part in parts], ignore_index=True)

"""Predictions of rows of a table, with intervals of the mean and of a response."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.responses.formulas import OWN_SPREAD
from hierfl.rng import key, normals

from ..model.arithmetic import linear, of_smooth
from ..model.equations import MixedModel
from ..model.names import by_short_name, fixed_values
from .client_of_rows import client_of_rows
from .estimates_only import at_nodes
from .own_spreads import at_draws, beside_nodes

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
#: a client's own; where its random effects are zero; of a client that is not among them
Level = Literal["client", "population", "new"]
#: columns of both intervals
INTERVALS = ("lower", "upper", "response_lower", "response_upper")
#: draws x rows that are held at a time
NUMBERS_PER_PASS = 5_000_000


def predicted(
    run: Run, df: pd.DataFrame, level: Level, interval: float | None, draws: int | None = None
) -> pd.DataFrame:
    """See :meth:`hierfl.models.mixed_effects.fitted_model.FittedMixedModel.predict`.

    Args:
        run: the fit.
        df: the table.
        level: whose model.
        interval: of both intervals; None for none.
        draws: that the mean is of, of those that were kept; None for all, 0 for the estimates.
    """
    import pandas as pd

    method = run.fitted.method
    assert isinstance(method, MixedModel)
    reader = run.fitted.federation.about["reader"]
    df = reader.prepared(df)
    owner = client_of_rows(run, df) if level == "client" else None
    kept = run.personal["b_draws"].shape[-3:-1].numel()
    kept = kept if draws is None else min(draws, kept)
    if interval is not None and not kept:
        log.warning("this fit has no draws, and its predictions no intervals: the mean is at the estimates")
        interval = None
    if not len(df):
        names = ["client"] * (level == "client") + ["mean", *(INTERVALS if interval is not None else ())]
        names += [f"p({name})" for name in method.response_family.level_names]
        return pd.DataFrame({name: pd.Series(dtype=str if name == "client" else float) for name in names}, df.index)
    inputs = torch.as_tensor(reader(df), dtype=torch.float64)
    population, own = _draws(method, run, kept) if kept else _estimates(method, run)
    estimates = None if level == "client" or method.settings.population == "bayes" else _estimates(method, run)
    parts, size = [], max(1, NUMBERS_PER_PASS // len(population["beta"]))
    for first in range(0, len(inputs), size):
        columns = method.network.split(inputs[None, first : first + size])
        eta = method.predictor(columns, population["beta"][:, None, None])[:, 0]  # (D, n)
        whose = None if owner is None else owner[first : first + size]
        if not kept:
            nodes = at_nodes(method, eta, columns, population, own, whose, level)
            eta, weights, spread = beside_nodes(method, nodes, population, own, whose, level)
        else:
            weights = eta.new_full((len(eta),), 1 / len(eta))
            spread = at_draws(method, population, own, whose, level, run.options.seed)
            if whose is not None:
                eta = eta + _of_clients(method, columns, own, whose)
            elif level == "new":
                eta = eta + _of_new(method, columns, population, run.options.seed)
            for above in method.above:
                z, group = columns.for_level(above.kind)
                if above.smooth:  # a curve of the population, too
                    eta = eta + linear(z[0], of_smooth(population[above.effects]))
                if above.smooth or level == "population":
                    continue
                assert group is not None
                eta = eta + linear(z[0], population[above.effects][:, group[0].long()])
        seed = key(run.options.seed, "response", first)
        part = _summary(method, eta, weights, {**population, **spread}, columns, interval, seed)
        if kept and estimates is not None:
            part = part.assign(**_at_estimates(method, columns, *estimates, level))
        parts.append(part)
    table = pd.concat(parts).set_axis(df.index)
    if owner is not None:
        table.insert(0, "client", [run.fitted.federation.ids[j] for j in owner.tolist()])
    return table


def _at_estimates(method: MixedModel, columns: Columns, population: State, own: State, level: Level) -> dict[str, Any]:
    """Means of rows of no fitted client. The mean over draws has no end where few clients leave a long tail of spreads:
    exp(sd^2 / 2) of the largest ones is most of it, and another seed has another mean.
    """
    eta = method.predictor(columns, population["beta"][:, None, None])[:, 0]
    nodes = at_nodes(method, eta, columns, population, own, None, level)
    eta, weights, spread = beside_nodes(method, nodes, population, own, None, level)
    return dict(_summary(method, eta, weights, {**population, **spread}, columns, None, 0))


def _of_clients(method: MixedModel, columns: Columns, own: State, owner: Tensor) -> Tensor:
    """What rows' clients' effects add to eta, and those of groups inside them, (D, n)."""
    total = columns.x.new_zeros(())
    for level in method.at_site:
        z, group = columns.for_level(level.kind)
        effects = own[level.effects]
        rows = effects[owner] if group is None else effects[owner, :, group[0].long()]  # (n, D, q)
        total = total + linear(z[0], rows.transpose(0, 1))
    return total


def _of_new(method: MixedModel, columns: Columns, population: State, seed: int) -> Tensor:
    """The same of one client that is not known, with one group inside it, (D, n)."""
    total = columns.x.new_zeros(())
    for level in method.at_site:
        root, name = level.root(population[level.name]), f"new {level.name}"
        noise = normals(torch.Size(root.shape[:2]), seed, name, dtype=torch.float64)
        total = total + linear(columns.for_level(level.kind)[0][0], (root @ noise[..., None]).squeeze(-1)[:, None])
    return total


def _draws(method: MixedModel, run: Run, number: int) -> tuple[State, State]:
    """The population {name: (D, *shape)}, and the clients' effects, b (J, D, q) and c (J, D, G, q), at D draws."""
    shared = run.shared
    every = len(shared["effects.draws"])
    some = torch.arange(every) if number == every else (torch.arange(number) * every) // number
    parts = method.parts(shared["effects.draws"][some])
    same = {k: v.expand(len(parts["beta"]), *v.shape) for k, v in fixed_values(shared).items()}
    names = [level.effects for level in method.at_site if f"{level.effects}_draws" in run.personal]
    return {**same, **parts}, {name: run.personal[f"{name}_draws"].flatten(1, 2)[:, some] for name in names}


def _estimates(method: MixedModel, run: Run) -> tuple[State, State]:
    """The population {name: (1, *shape)} and the clients' effects at the estimates: means and roots of covariances."""
    population = {name: value[None] for name, value in by_short_name(run.shared).items()}
    names = [f"{level.effects}_{part}" for level in method.at_site for part in ("mean", "root")]
    names = [name for name in names if name in run.personal]
    return population, {name: run.personal[name] for name in names}


def _summary(
    method: MixedModel, eta: Tensor, weights: Tensor, population: State, columns: Columns, interval: float | None,
    seed: int,
) -> pd.DataFrame:  # fmt: skip
    """The summary of n rows: their mean, intervals of it and of a response, and the probability of each named level."""
    import pandas as pd

    values = {name: population[name][:, None] for name in method.response_family.starts}
    values |= {name: population[name] for name in (OWN_SPREAD,) if name in population}
    rows = columns.single_client
    fn, family = method.response(eta, values, rows), method.response_family
    levels = family.level_names
    mean = family.mean_of(fn).expand_as(eta)
    table: dict[str, Any] = {"mean": (weights[:, None] * mean).sum(0).numpy()}
    if interval is not None:
        tails = eta.new_tensor([(1 - interval) / 2, (1 + interval) / 2])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed % 2**63)
            drawn = fn.sample()
        ends = torch.quantile(mean, tails, dim=0)
        ends = torch.where(ends.isnan() & mean.isinf().any(0), torch.inf, ends)  # between two means without an end
        table["lower"], table["upper"] = ends.numpy()
        if levels:
            sides = zip(tails, ("lower", "higher"), strict=True)
            bounds = [torch.quantile(drawn, tail, dim=0, interpolation=side) for tail, side in sides]
            for name, bound in zip(("response_lower", "response_upper"), bounds, strict=True):
                table[name] = [levels[int(number) - 1] for number in bound]
        else:
            both = torch.quantile(drawn.expand_as(eta), tails, dim=0)
            both = torch.where(both.isnan() & mean.isinf().any(0), torch.inf, both)
            table["response_lower"], table["response_upper"] = both.numpy()
    if levels:
        of_levels = (weights[:, None, None] * family.level_probabilities(fn)).sum(0).T.numpy()
        table |= {f"p({name})": probability for name, probability in zip(levels, of_levels, strict=True)}
    return pd.DataFrame(table)

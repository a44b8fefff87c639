"""A fitted method for ArviZ: every client's posterior and prior, and what they say of the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pyro.distributions import ImproperUniform

from hierfl.arviz_io import to_inference_data
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.plurals import counted

from ..checks import check_draws, check_number
from ..evaluation.fitted import Fitted
from ..evaluation.keyed_draws import has_rows
from ..evaluation.personal import BUDGET, pieces
from ..evaluation.response import response
from ..local.langevin.names import STATS
from ..method.capabilities import coordinates, in_users_units, joint_posterior, level_names
from .client_draws import Groups, client_draws
from .number_names import dimension_names, event_shapes

#: draws by default; where latents belong to single examples each draw is a pass through the data
DEFAULT_DRAWS, DEFAULT_DRAWS_ENCODED = 200, 20
CONDITIONAL = "training data at draws of the guide; globals and their hyperparameters are held where the fit left them"
JOINT = "training data at draws of the joint posterior of population and clients, which these data have seen"
POINT = "; the guide is a point, so this is training likelihood, and leave-one-out says nothing about new data"


def inference_data(
    fitted: Fitted, draws: int | None, rows: Sequence[int], float32: bool, limit: float, *, observed: bool = True,
    by_row: bool = True,
) -> Any:  # fmt: skip
    """See :meth:`hierfl.inference.run.result.Run.posterior`; ``rows`` are the clients' places, ``by_row`` its rows."""
    if draws is not None:
        check_draws(draws, 2)
    check_number("limit", limit)
    if not 0 < limit < float("inf"):
        raise UserError(f"limit is a number of bytes, not {limit}")
    if (joint := joint_posterior(fitted.method, fitted)) is not None:
        if draws is not None and draws > joint.kept:
            raise UserError(
                f"it kept {counted(joint.kept, 'draw')}: a fit with draws={draws} (--set draws={draws}) keeps more"
            )
        some = joint.some(draws, rows)
        most = None if draws is not None else max(2, int(limit / some.bytes_per_draw(rows=by_row)))
        return some.some(most, range(len(rows))).inference_data(rows=by_row, observed=observed)
    federation = fitted.federation
    trace = fitted.trace
    dtype = torch.float32 if float32 else federation.dtype
    if draws is None:
        most = DEFAULT_DRAWS_ENCODED if trace.by_example else trace.kept or DEFAULT_DRAWS
        draws = max(min(2, most), min(most, int(limit / bytes_per_draw(fitted, rows, dtype, by_row=by_row))))
    draws = -(-draws // trace.chains) * trace.chains
    arrays, found_effects = _all_draws(fitted, rows, draws, dtype, by_row=by_row), _effects(fitted, draws, dtype)
    names = [federation.ids[j] for j in rows]
    sizes = [federation.sizes()[j] for j in rows]
    constants: dict[str, tuple[tuple[str, ...], np.ndarray]] = {"n": (("client",), np.array(sizes))}
    for name, value in fitted.method.client_summary(fitted.values(rows)).items():
        constants[name] = (("client",), value.cpu().numpy())
    for name in trace.global_latents:
        point = fitted.shared[name].cpu().numpy()
        constants[name] = (tuple(f"{name}_dim_{k}" for k in range(point.ndim)), point)
    points = {name: tuple(fitted.shared[name].shape) for name in trace.global_latents}
    coordinates_of_values = {
        **dimension_names(fitted, {**points, **event_shapes(arrays["posterior"])}),
        **coordinates(fitted.method),
    }
    names_of_levels = level_names(fitted.method)
    if any(isinstance(name, str) for name in names_of_levels):  # y holds their numbers
        constants["level"] = (("level_number",), np.array([str(name) for name in names_of_levels]))
        coordinates_of_values["level_number"] = [str(number) for number in range(1, len(names_of_levels) + 1)]
    if federation.task == "classification" and federation.about.get("labels"):  # likewise
        constants["label"] = (("label_number",), np.array(federation.label_names))
        coordinates_of_values["label_number"] = [str(number) for number in range(federation.classes)]
    data = to_inference_data(
        clients=names,
        posterior=arrays["posterior"],
        prior=arrays["prior"],
        log_likelihood=arrays["log_likelihood"],
        posterior_predictive=arrays["posterior_predictive"],
        sample_stats=arrays["sample_stats"],
        observed={"y": np.concatenate([_responses(fitted, j) for j in rows])} if observed else {},
        obs_client=np.repeat(np.array(names), sizes).tolist(),
        rows_of="all" if len(rows) == federation.clients else names,
        constants=constants,
        about_log_likelihood=JOINT if found_effects else CONDITIONAL + ("" if trace.random else POINT),
        draws_of="posterior" if fitted.method.independent_draws and trace.kept else trace.draws_of,
        coordinates=coordinates_of_values,
        effects=found_effects,
    )
    if observed and by_row and (name := _response_name(federation)):
        data["observed_data"]["y"].attrs["long_name"] = name
    return data


def _response_name(federation: Federation) -> str:
    """What the user calls the response: a table's column, or the left side of a formula; empty where it has no name."""
    formula = getattr(federation.about.get("reader"), "formula", "")
    return formula.partition("~")[0].strip() or str(federation.about.get("response") or "")


def _responses(fitted: Fitted, client: int) -> np.ndarray:
    """A client's training responses as they are reported, (n,)."""
    federation = fitted.federation
    return in_users_units(fitted.method, "y", federation.y[federation.train[client]]).cpu().numpy()


def _effects(fitted: Fitted, draws: int, dtype: torch.dtype) -> tuple[Sequence[str], np.ndarray] | None:
    """What is reported of the population, at the draws of the clients: (chain, draw, m)."""
    named_draws = fitted.method.population_draws(fitted.shared, draws)
    if named_draws is None:
        return None
    names, values = named_draws
    return names, values.to(dtype).cpu().numpy().reshape(fitted.trace.chains, -1, len(names))


#: numbers (draws x examples x classes) that clients drawn together hold in one tensor
MAX_NUMBERS_AT_ONCE = 2_000_000
#: groups whose arrays are of the data, (chains, draws, N); the others' are of the clients, (chains, draws, J, *event)
BY_ROW_GROUPS = ("log_likelihood", "posterior_predictive")


def _all_draws(fitted: Fitted, rows: Sequence[int], draws: int, dtype: torch.dtype, *, by_row: bool) -> Groups:
    """The arrays of all these clients, in their order; without ``by_row`` none of :data:`BY_ROW_GROUPS`."""
    federation = fitted.federation
    sizes = np.array([federation.sizes()[j] for j in rows])
    firsts = np.cumsum(sizes) - sizes
    groups: Groups = {group: {} for group in (*BY_ROW_GROUPS, "posterior", "prior", "sample_stats")}
    together = 1000 if _separable(fitted) else 1
    cost = max(1, BUDGET // MAX_NUMBERS_AT_ONCE) * draws * max(1, federation.classes)
    for places in pieces(sizes.tolist(), together, cost):
        part = client_draws(fitted, [rows[position] for position in places], draws, dtype)
        for group, arrays in part.items():
            if group in BY_ROW_GROUPS and not by_row:
                continue
            for name, value in arrays.items():
                if name not in groups[group]:
                    shape = (int(sizes.sum()),) if group in BY_ROW_GROUPS else (len(rows), *value.shape[3:])
                    groups[group][name] = np.empty((*value.shape[:2], *shape), value.dtype)
                if group not in BY_ROW_GROUPS:
                    groups[group][name][:, :, places] = value
                    continue
                for row, position in enumerate(places):
                    first, n = firsts[position], sizes[position]
                    groups[group][name][:, :, first : first + n] = value[:, :, row, :n]
    return groups


def _separable(fitted: Fitted) -> bool:
    """Whether the rows of a plate can be drawn each by itself: responses, and latents from their prior."""
    single = replace(fitted, copies={}, personal={k: v[:1] for k, v in fitted.personal.items()})
    latents, sites = single.personal_sites([0], fitted.federation.template(), 0)
    personal = [sites[name].fn for name, site in latents.items() if not site.per_example]
    return all(has_rows(fn) or isinstance(fn, ImproperUniform) for fn in [response(sites).fn, *personal])


def bytes_per_draw(fitted: Fitted, rows: Sequence[int], dtype: torch.dtype, *, by_row: bool = True) -> float:
    """How much one more draw adds to the file, about: posterior and prior; what it says of the data, twice; stats."""
    numbers, population = fitted.trace.numbers_per_client, fitted.method.population_draws(fitted.shared, 1)
    numbers_of_draw = len(rows) * (2 * numbers + len(STATS) + 1)
    numbers_of_draw += 2 * sum(fitted.federation.sizes()[j] for j in rows) if by_row else 0
    numbers_of_draw += 0 if population is None else len(population[0])
    return float(dtype.itemsize * numbers_of_draw)

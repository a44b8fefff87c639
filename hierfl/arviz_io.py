"""Arrays to ArviZ. Takes arrays; calls no inference.

A personal variable has dimensions (chain, draw, client, ...); observations are flat, with the client of each as a
coordinate, never padded.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .arviz_data import dataset, dataset_of, gathered, group_names, import_arviz
from .convergence import MAX_DIAGNOSED_NUMBERS
from .elpd import leave_one_out, smoothed, with_elpd
from .errors import UserError
from .files import write_whole


def to_inference_data(
    *,
    clients: Sequence[str],
    posterior: Mapping[str, np.ndarray],
    prior: Mapping[str, np.ndarray],
    log_likelihood: Mapping[str, np.ndarray],
    posterior_predictive: Mapping[str, np.ndarray],
    sample_stats: Mapping[str, np.ndarray],
    observed: Mapping[str, np.ndarray],
    obs_client: Sequence[str],
    constants: Mapping[str, tuple[tuple[str, ...], np.ndarray]],
    about_log_likelihood: str,
    draws_of: str,
    coordinates: Mapping[str, Sequence[str]] | None = None,
    effects: tuple[Sequence[str], np.ndarray] | None = None,
    rows_of: Sequence[str] | Literal["all"] = "all",
) -> Any:
    """An ArviZ InferenceData.

    Args:
        clients: the J clients' names.
        posterior, prior: (chain, draw, J, *event).
        log_likelihood, posterior_predictive: (chain, draw, N).
        sample_stats: (chain, draw, J).
        observed: (N,).
        obs_client: the client of each of the N observations.
        constants: name -> (dimension names, array); "client" is the clients' dimension.
        about_log_likelihood: what these numbers are conditioned on, kept as an attribute of their group.
        draws_of: "chains", "posterior" (independent ones), "guide", "point", "examples" (latents of single examples) or
            "shared" (shared values alone); likewise.
        coordinates: names along an event's dimensions, {"VARIABLE_dim_K": names}; numbers where none are given.
        effects: of the population: names, and (chain, draw, m), a variable "effects" with the coordinate "effect".
        rows_of: whose rows these are: "all" clients', or those of some.

    Returns:
        Groups posterior, prior, posterior_predictive, log_likelihood, sample_stats, observed_data and constant_data;
        empty ones are left out. Its own attribute ``rows`` says which of them have an entry for each row, how many, and
        of which clients (:func:`held_rows`); ``draws_of`` is kept beside it.
    """
    personal = {
        name: ["client", *(f"{name}_dim_{k}" for k in range(value.ndim - 3))]
        for name, value in {**posterior, **prior, **sample_stats}.items()
    }
    flat = {name: ["obs"] for name in (*log_likelihood, *posterior_predictive, *observed)}
    of_all = {} if effects is None else {"effects": effects[1]}
    names = {} if effects is None else {"effect": list(effects[0])}
    return with_rows(
        {
            "posterior": {**posterior, **of_all},
            "prior": prior,
            "posterior_predictive": posterior_predictive,
            "log_likelihood": log_likelihood,
            "sample_stats": sample_stats,
            "observed_data": observed,
            "constant_data": {name: value for name, (_, value) in constants.items()},
        },
        dims={
            **personal,
            **flat,
            **{name: names_of_dims for name, (names_of_dims, _) in constants.items()},
            "effects": ["effect"],
        },
        coords={"client": clients, **names, **(coordinates or {})},
        obs_client=obs_client,
        density={"about": about_log_likelihood, "draws_of": draws_of},
        rows_of=rows_of,
        attrs={"draws_of": draws_of},
    )


#: groups with an entry for each training row
BY_ROW = ("log_likelihood", "observed_data", "posterior_predictive")
#: what the attribute ``rows`` says of an InferenceData that has none of them
NO_ROWS = "none"


#: groups whose variables have no chains and draws
GROUPS_WITHOUT_DRAWS = ("observed_data", "constant_data")


def with_rows(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    *,
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Sequence[Any]],
    obs_client: Sequence[str],
    density: Mapping[str, str],
    rows_of: Sequence[str] | Literal["all"],
    attrs: Mapping[str, str],
) -> Any:
    """Groups of arrays, with the client of each row beside what has an entry for each row.

    Args:
        groups: arrays by group and name, (chain, draw, ...) but in :data:`GROUPS_WITHOUT_DRAWS`.
        dims: names of the other dimensions, by variable.
        coords: labels along dimensions.
        obs_client: the client of each of the N rows, which are the dimension "obs".
        density: attributes of the group log_likelihood.
        rows_of: see :func:`to_inference_data`.
        attrs: more attributes of the whole.
    """
    made = {}
    for group, arrays in groups.items():
        group_data = dataset_of(arrays, dims, coords, sampled=group not in GROUPS_WITHOUT_DRAWS)
        if group == "log_likelihood":
            group_data.attrs |= density
        made[group] = (
            group_data.assign_coords(client=("obs", list(obs_client))) if "obs" in group_data.dims else group_data
        )
    by_row = [group for group in BY_ROW if group in made and made[group].data_vars]
    record = {"groups": by_row, "number": len(obs_client), "clients": rows_of if rows_of == "all" else list(rows_of)}
    return gathered(made, {"rows": json.dumps(record) if by_row else NO_ROWS, **attrs})


def held_rows(data: Any) -> dict[str, Any] | str:
    """Which rows an InferenceData holds: {"groups": names, "number": of rows, "clients": "all" or names}, or "none".

    What was written before it said so itself is looked at.
    """
    record = data.attrs.get("rows")
    if record is not None:
        return NO_ROWS if record == NO_ROWS else dict(json.loads(record))
    groups = [group for group in BY_ROW if group in group_names(data)]
    number = dataset(data, groups[0]).sizes["obs"] if groups else 0
    return {"groups": groups, "number": number, "clients": "all"} if groups else NO_ROWS


def without_rows(data: Any) -> Any:
    """The same without the groups that have an entry for each row."""
    kind_of_draws = {} if (kind := draws_of(data)) is None else {"draws_of": kind}
    kept = {group: dataset(data, group) for group in group_names(data) if group not in BY_ROW}
    return gathered(kept, {**data.attrs, "rows": NO_ROWS, **kind_of_draws})


def draws_of(data: Any) -> str | None:
    """What the draws are of, as :func:`to_inference_data` was given; None of what was written before it was kept."""
    density = getattr(data, "log_likelihood", None)
    kind = data.attrs.get("draws_of") if density is None else density.attrs.get("draws_of")
    return None if kind is None else str(kind)


def of_clients(data: Any, group: str = "posterior") -> Any:
    """The variables of a group that clients have each, a Dataset; empty where there is no such group."""
    if group not in group_names(data):
        return dataset_of({}, {}, {}, sampled=True)
    group_data = dataset(data, group)
    return group_data[[name for name, value in group_data.data_vars.items() if "client" in value.dims]]


#: why there is no log likelihood
LEFT_OUT = "they were left out (--no-rows): run it again without that"


def loo(data: Any, site: str | None = None) -> Any:
    """Leave-one-out cross-validation by Pareto-smoothed importance sampling, pointwise: an ArviZ ``ELPDData``.

    ``az.loo`` takes draws for draws of the posterior, as chains' are. Where the draws are a guide's, sample_stats says
    so (lp, the client's log joint, and guide_lp, log q): then an example's weights are p(w_j, the client's other
    examples) / q(w_j), so that what the guide gets wrong of the posterior is corrected, as far as Pareto's k allows
    (Magnusson et al., ICML 2019; Vehtari et al., JMLR 2024).

    Args:
        data: an InferenceData with log likelihoods, as :func:`to_inference_data` makes them.
        site: whose log likelihood; None for the only one.

    Raises:
        UserError: for one without the log likelihoods of rows; for several, where ``site`` is none of them.
    """
    if "log_likelihood" not in group_names(data):
        raise UserError(f"leave-one-out needs log likelihoods of single rows, and {LEFT_OUT}")
    densities = dataset(data, "log_likelihood")
    sites = list(densities.data_vars)
    if site not in sites and (site is not None or len(sites) > 1):
        raise UserError(f"leave-one-out is of one site, site='NAME': {', '.join(map(repr, sites))}")
    site = site or sites[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # large k are in the result, and callers report it
        result = leave_one_out(data, site, _efficiency(data))
    stats = dataset(data, "sample_stats") if "sample_stats" in group_names(data) else {}
    if not {"lp", "guide_lp"} <= set(stats):
        return result
    stacked = {"__sample__": ("chain", "draw")}
    density = densities[site].stack(stacked).astype(float)  # (N, S)
    ratio = (stats["lp"] - stats["guide_lp"]).stack(stacked).astype(float)
    owner = dataset(data, "posterior").indexes["client"].get_indexer(density["client"].values)
    ratio = ratio.transpose("client", "__sample__").values
    log_density = density.transpose("obs", "__sample__").values
    whole = np.full_like(ratio, -np.log(ratio.shape[-1]))
    # A guide that is the posterior has ratios that are all alike: of them there is no tail.
    apart = np.ptp(ratio, axis=-1) > 1e-9
    with np.errstate(over="ignore"):  # in its fit of the tail, where it means a weight of zero
        weights, k = smoothed(ratio[owner] - log_density)
        if apart.any():
            whole[apart], _ = smoothed(ratio[apart])
    left_out = np.logaddexp.reduce(weights + log_density, axis=-1)
    lppd = np.logaddexp.reduce(whole[owner] + log_density, axis=-1)
    return with_elpd(result, left_out, k, float((lppd - left_out).sum()))


def _efficiency(data: Any) -> float:
    """Effective draws of the mean over draws, on average over the posterior's numbers, as ``az.loo`` takes it."""
    posterior = of_clients(data)
    if not posterior.data_vars or posterior.sizes["chain"] == 1:
        return 1.0
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    numbers_of_client = sum(v.size for v in posterior.data_vars.values()) / draws / posterior.sizes["client"]
    some = posterior.isel(
        client=slice(None, None, max(1, round(numbers_of_client * posterior.sizes["client"] / MAX_DIAGNOSED_NUMBERS)))
    )
    effective = import_arviz().ess(some, method="mean")
    return float(np.concatenate([v.values.ravel() for v in effective.data_vars.values()]).mean() / draws)


#: permissions of posterior.nc: it holds clients' responses
OWNER_ALONE = 0o600


def write(data: Any, path: Path) -> None:
    """Writes an InferenceData to ``path``, readable by its owner alone, whole or not at all.

    It is made in memory: what writes HDF5 to a disk that runs full ends the process.
    """
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    memory = io.BytesIO()
    with h5netcdf.File(memory, "w") as file:
        file.attrs.update(data.attrs)
        for group in group_names(data):
            group_data = dataset(data, group)
            packed = {name: {"zlib": True} for name, v in group_data.variables.items() if v.dtype.kind in "biuf"}
            group_data.dump_to_store(H5NetCDFStore(file, group=group, mode="a"), encoding=packed)
    write_whole(path, memory.getvalue(), mode=OWNER_ALONE)


def read(path: Path) -> Any:
    """The InferenceData of a file.

    Raises:
        UserError: if it is damaged, or none.
    """
    try:  # an absolute path: xarray expands a ~ of its own
        data = import_arviz().from_netcdf(os.path.abspath(path))
    except FileNotFoundError as error:
        raise UserError(f"no file {path}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{path} is damaged, or no posterior: {error}") from error
    needed = ("constant_data",) if data.attrs.get("rows") == NO_ROWS else ("log_likelihood", "constant_data")
    lacking = [group for group in needed if group not in group_names(data)]
    if lacking:
        raise UserError(f"{path} is damaged: it has no group {lacking[0]}")
    return data

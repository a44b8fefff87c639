"""A plain model's draws to ArviZ. Takes arrays; calls no inference.

Globals have dimensions (chain, draw, ...), clients' latents (chain, draw, client, ...). What is observed by row is
flat, with the client of each row as a coordinate; what is observed once for a client has the dimension client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .arviz_io import with_rows

#: arrays by name, of one chain: (draw, *shape)
Arrays = Mapping[str, np.ndarray]
#: what the log likelihoods of a plain model are conditioned on
JOINT = "training data at draws of the joint posterior of globals and clients, which these data have seen"


def model_inference_data(
    *,
    clients: Sequence[str],
    rows_of: Sequence[str],
    globals_: Mapping[str, Arrays],
    of_clients: Mapping[str, Arrays],
    of_rows: Mapping[str, Arrays],
    observed: Arrays,
    observed_of_clients: Arrays,
    sizes: np.ndarray,
) -> Any:
    """An ArviZ InferenceData of one chain of independent draws.

    Args:
        clients: the J clients' names.
        rows_of: the client of each of the N rows.
        globals_: by group ("posterior", "prior"), (draw, *shape).
        of_clients: by group ("posterior", "prior", "log_likelihood", "posterior_predictive"), (draw, J, *shape).
        of_rows: by group ("log_likelihood", "posterior_predictive"), (draw, N, *shape).
        observed, observed_of_clients: (N, *shape) and (J, *shape).
        sizes: n_j, (J,).

    Returns:
        Groups posterior, prior, log_likelihood, posterior_predictive, observed_data and constant_data; empty ones are
        left out. Attributes ``rows`` and ``draws_of`` are as of :func:`.arviz_io.to_inference_data`; ``prior_of`` is
        "model": in the group prior globals are drawn, too.
    """
    groups: dict[str, dict[str, np.ndarray]] = {}
    dims: dict[str, list[str]] = {"n": ["client"]}
    leads: Sequence[tuple[Mapping[str, Arrays], list[str]]] = (
        (globals_, []), (of_clients, ["client"]), (of_rows, ["obs"]),
    )  # fmt: skip
    for arrays_by_group, lead in leads:
        for group, arrays in arrays_by_group.items():
            for name, value in arrays.items():
                groups.setdefault(group, {})[name] = value[None]
                dims[name] = [*lead, *(f"{name}_dim_{k}" for k in range(value.ndim - 1 - len(lead)))]
    for arrays, dimension in ((observed, "obs"), (observed_of_clients, "client")):
        for name, value in arrays.items():
            groups.setdefault("observed_data", {})[name] = value
            dims[name] = [dimension, *(f"{name}_dim_{k}" for k in range(value.ndim - 1))]
    groups["constant_data"] = {"n": sizes}
    return with_rows(
        groups,
        dims=dims,
        coords={"client": clients},
        obs_client=rows_of,
        density={"about": JOINT, "draws_of": "posterior"},
        rows_of="all",
        attrs={"draws_of": "posterior", "prior_of": "model"},
    )

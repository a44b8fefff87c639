"""The gallery's models in plain Pyro: a batch of clients without padding, and log joints by Pyro's own ELBO."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pandas as pd
import torch
from pyro import poutine
from pyro.infer.mcmc.util import TraceEinsumEvaluator
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from support.paths import ROOT
from torch import Tensor

GALLERY = ROOT / "docs" / "gallery"
NAMES = sorted(path.stem for path in GALLERY.glob("*.py"))


def load(name: str) -> ModuleType:
    """A file of the gallery."""
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", GALLERY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Batch:
    """Clients with equally many rows each.

    Args:
        frame: rows of the clients; text columns may be categorical, so that levels outlast a choice of rows.
        group: the client column.
        names: the clients, in order; all of them by default.
    """

    def __init__(self, frame: pd.DataFrame, group: str, names: Sequence[str] | None = None) -> None:
        frame = frame.astype({c: "category" for c in frame if not pd.api.types.is_numeric_dtype(frame[c])})
        self.names = sorted(frame[group].unique()) if names is None else list(names)
        self.frames = [frame[frame[group] == name] for name in self.names]
        (self.width,) = {len(rows) for rows in self.frames}
        self.num_clients = len(self.names)
        self.categories = {c: tuple(frame[c].cat.categories) for c in frame if c in frame.select_dtypes("category")}

    def __getitem__(self, column: str) -> Tensor:
        """A column, (S, n)."""
        series = [rows[column].cat.codes if column in self.categories else rows[column] for rows in self.frames]
        return torch.stack([torch.tensor(values.to_numpy(dtype=float)) for values in series])

    def client(self, column: str) -> Tensor:
        """A column that is constant within a client, (S, 1)."""
        values = self[column]
        assert (values == values[:, :1]).all()
        return values[:, :1]

    def levels(self, column: str) -> tuple[str, ...]:
        """Names of a text column's levels, in the order of their codes."""
        return self.categories[column]


def latents(model: Any, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A draw from the prior: global latents, and clients' (S, 1, ...); those that are enumerated are left out."""
    shared, own = {}, {}
    for name, site in poutine.trace(model).get_trace(batch).iter_stochastic_nodes():
        if site["infer"].get("enumerate") is None and not site_is_subsample(site):
            frames = {frame.name for frame in site["cond_indep_stack"]}
            (own if "client" in frames else shared)[name] = site["value"]
    return shared, own


def log_joint(model: Any, batch: Batch, values: dict[str, Tensor], sums: bool) -> Tensor:
    """Log p(rows, latents), with enumerated latents summed over; constrained values, without their Jacobians."""
    given = poutine.condition(model, values)
    if not sums:
        return poutine.trace(given).get_trace(batch).log_prob_sum()
    trace = prune_subsample_sites(poutine.trace(poutine.enum(given, first_available_dim=-3)).get_trace(batch))
    return TraceEinsumEvaluator(trace, True, max_plate_nesting=2).log_prob(trace)


def enumerated(model: Any, batch: Batch) -> bool:
    """Whether a model sums over some of its latents."""
    with torch.no_grad():
        trace = poutine.trace(model).get_trace(batch)
    return any(site["infer"].get("enumerate") for _, site in trace.iter_stochastic_nodes())


def log_prior(model: Any, batch: Batch, shared: dict[str, Tensor]) -> Tensor:
    """Log p of the global latents."""
    trace = poutine.trace(poutine.condition(model, shared)).get_trace(batch)
    return sum((trace.nodes[name]["fn"].log_prob(value).sum() for name, value in shared.items()), torch.zeros(()))

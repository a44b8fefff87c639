"""Responses simulated from a fitted mixed model, each client by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pyro
import torch
from torch import Tensor

from hierfl.data.federation import Federation
from hierfl.data.formula.design import Columns
from hierfl.data.formula.parsed import CLIENT
from hierfl.inference.run.result import Run
from hierfl.inference.state import State
from hierfl.rng import key, normals

from ..model.arithmetic import linear, of_smooth
from ..model.equations import MixedModel
from ..model.levels import Level
from ..model.names import by_short_name


class Places(NamedTuple):
    """Rows whose responses are simulated.

    Attributes:
        inputs: as the design has them, (N, width); groups inside and above have numbers from 0.
        clients: whose rows are which, by name.
        like: numbers of the response's type, (N,).
    """

    inputs: Tensor
    clients: Sequence[tuple[str, Tensor]]
    like: Tensor


def simulated(run: Run, number: int, seed: int, places: Places | None = None) -> Tensor:
    """Responses (N,) drawn at the estimates: of new effects of every group, and new rows.

    Args:
        run: the fit.
        number: of the replicate; another one has other noise.
        seed: of the replicates.
        places: of other rows than those of the fit.
    """
    method, federation = run.fitted.method, run.fitted.federation
    assert isinstance(method, MixedModel)
    if places is None:
        clients = list(zip(federation.ids, federation.train, strict=True))
        places = Places(federation.x.to(torch.float64), clients, federation.y)
    values = {k: v.cpu() for k, v in by_short_name(run.shared).items()}
    x, y = places.inputs, places.like.clone()
    whole = method.network.split(x[None])
    sizes = {level.kind: max(level.size, _most(whole, level) + 1) for level in method.levels}
    above = {
        level.kind: _effects(level, values, sizes[level.kind], key(seed, number, "regions"))
        for level in method.above if not level.smooth
    }  # fmt: skip
    for client, rows in places.clients:
        own = key(seed, number, client)
        columns = method.network.split(x[rows][None])
        eta = method.predictor(columns, values["beta"])[0]
        for level in method.above:
            if level.smooth:  # the curve that was estimated
                eta = eta + linear(columns.for_level(level.kind)[0][0], of_smooth(values[level.effects]))
        effects = {}
        for level in method.at_site:
            groups, name = (sizes[level.kind], "groups") if level.inside else (1, "client")
            effects[level.kind] = _effects(level, values, groups, key(own, name))
        for kind, drawn in {**effects, **above}.items():
            z, group = columns.for_level(kind)
            eta = eta + linear(z[0], drawn if group is None else drawn[group[0].long()])
        rows_of_client, spread = columns.single_client, method.spread(effects[CLIENT])
        y[rows] = responses(method, eta, {**values, **spread}, rows_of_client, key(own, "rows")).to(y)
    return y


def simulated_federation(run: Run, y: Tensor, seed: int) -> Federation:
    """The fitted rows with simulated responses y (N,): times as far as their rows are watched."""
    method, federation = run.fitted.method, run.fitted.federation
    assert isinstance(method, MixedModel)
    extras = method.network.extras
    if "event" not in extras:
        return replace(federation, y=y)
    position = list(extras).index("event") - len(extras)
    x, y = federation.x.clone(), y.clone()
    for client, rows in zip(federation.ids, federation.train, strict=True):
        watched, event = federation.y[rows], federation.x[rows, position]
        y[rows], seen = watched_until(y[rows], watched, event, key(seed, client, "watched"))
        x[rows, position] = seen.to(x)
    return replace(federation, x=x, y=y)


def watched_until(times: Tensor, watched: Tensor, event: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Simulated times of events as they would have been seen, (n,), and whether the event was, (n,).

    A row without an event is watched until the time that it has. One with an event would have been watched longer:
    until a time from the distribution of those times beyond its own, by Kaplan and Meier, or without an end (Davison
    and Hinkley, 1997, algorithm 3.1).

    Args:
        times: simulated.
        watched: of the fitted rows, until their event or without one.
        event: of the fitted rows, 1 or 0.
        seed: of the times until which rows are watched.
    """
    ends = watched[event == 0].unique()
    at_risk = (watched > ends[:, None]).sum(1) + ((watched == ends[:, None]) & (event == 0)).sum(1)
    lost = ((watched == ends[:, None]) & (event == 0)).sum(1)
    beyond = torch.cat([watched.new_ones(1), (1 - lost / at_risk).to(watched).cumprod(0)])  # P(watched beyond ends)
    share = torch.rand(len(watched), generator=torch.Generator().manual_seed(seed % 2**63), dtype=watched.dtype)
    before = torch.searchsorted(ends, watched)  # ends below the row's own time
    later = torch.arange(len(ends)) >= before[:, None]
    reached = later & (beyond[1:] <= (beyond[before] * share)[:, None])
    first = torch.where(reached, ends, torch.inf).amin(1) if len(ends) else torch.full_like(watched, torch.inf)
    until = torch.where(event > 0, first, watched)
    return times.minimum(until), times <= until


def responses(method: MixedModel, eta: Tensor, values: State, columns: Columns, seed: int) -> Tensor:
    """Drawn responses of rows with linear predictors eta (n,); those of a series are correlated as they are fitted."""
    if (serial := getattr(method.response_family, "serial", None)) is not None:
        assert columns.series is not None
        noise = torch.empty_like(eta)
        rho, z = serial.rho(values["serial"]), normals(eta.shape, seed, "serial", dtype=eta.dtype)
        time = torch.zeros_like(eta) if columns.time is None else columns.time
        for number in columns.series.unique():
            own = columns.series == number
            noise[own] = torch.linalg.cholesky(serial.matrix(rho, time[own])) @ z[own]
        return eta + noise * method.response_family.noise(values, columns)  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices=[]), pyro.validation_enabled(False):
        torch.default_generator.manual_seed(seed % 2**63)
        drawn: Tensor = method.response(eta, values, columns).sample()
    return drawn


def _most(columns: Columns, level: Level) -> int:
    """The largest number of a level's groups that rows have."""
    group = columns.for_level(level.kind)[1]
    return 0 if group is None else int(group.max())


def _effects(level: Level, values: State, groups: int, seed: int) -> Tensor:
    """New effects of so many groups of a level, (groups, q)."""
    root = level.root(values[level.name])
    z = normals(torch.Size([groups, len(root)]), seed, level.name, dtype=torch.float64)
    return z @ root.T

"""Replicates of a calibration, a block at a time: simulated, fitted, ranked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hierfl.data.column_federation import column_federation
from hierfl.data.federation import Federation
from hierfl.plurals import counted
from hierfl.rng import generator, key

from ..columns import checked
from ..evaluating import Clients, constrained
from ..heights import heights
from ..look import whole
from ..method import AnyModel
from ..model_file import ModelMethod, method_of
from ..names import CENTRING, DRAWS, INNER, WORTH
from ..printed import number_names
from ..sites import Model
from ..verdict import Verdict
from .replicates import Replicate, Replicates
from .simulate import Simulated, responses, simulate
from .table import Rows

#: most draws x clients x rows in the log joints of a block's climb, and most replicates of a block
MAX_CELLS, MAX_REPLICATES = 800_000, 50


@dataclass(frozen=True)
class Ranked:
    """What is kept of a replicate.

    Attributes:
        ranks: of what was drawn among the draws, by quantity; empty where the fit has no posterior.
        rounds: of the fit.
        worth: independent draws that its points are worth.
        k_hat: of their weights.
        warnings: lines of its verdict that warn.
        failed: why there is no posterior.
        client: whose latents are ranked.
    """

    ranks: dict[str, int]
    rounds: int
    worth: float
    k_hat: float
    warnings: list[str]
    failed: str
    client: int


class Blocks:
    """A calibration of a model at some rows.

    Args:
        model: the model.
        rows: at which data are simulated.
        seed: of everything that is drawn.
        settings: of the fits.

    Raises:
        UserError: for a model or rows that cannot be used.
    """

    def __init__(self, model: Model, rows: Rows, seed: int, settings: dict[str, object]) -> None:
        columns = [name for name in rows.frame.columns if name != rows.group]
        self.federation, design = column_federation(rows.frame, rows.group, columns, "keep")
        method = cast("type[ModelMethod]", method_of(model))
        self.base = self.federation.to(dtype=torch.float64)
        self.each = whole(design, self.base.batch(range(self.base.clients)))
        self.observed = responses(model, design, max(self.each, key=lambda rows: rows.shape[-1]))
        self.model, self.seed = model, seed
        #: A response that was made up may be impossible: the first replicate's are not.
        first = self._simulated_by(method(replace(design, rows=max(self.base.sizes())), **settings), 0, 1)
        self.method: AnyModel = method(checked(model, self._federation(first, [0]), design), **settings)

    @property
    def draws(self) -> int:
        """L, draws among which a truth is ranked."""
        return int(self.method.settings.draws)

    @cached_property
    def size(self) -> int:
        """Replicates of a block."""
        rows = self.base.clients * max(self.base.sizes())
        return max(1, min(MAX_REPLICATES, MAX_CELLS // (self.method.draws_of_round(fine=True) * rows)))

    @cached_property
    def quantities(self) -> tuple[list[str], list[str]]:
        """Names of what is ranked: numbers of the globals, and of a client's latents."""
        sites = self.method.sites
        everyones = [name for latent in sites.globals for name in number_names(latent.name, latent.shape)]
        own = [latent for latent in sites.clients if latent.level == "client"]
        shapes = [[size for k, size in enumerate(latent.shape) if k != latent.axis and size != 1] for latent in own]
        return everyones, [
            name for latent, shape in zip(own, shapes, strict=True) for name in number_names(latent.name, shape)
        ]

    def block(self, number: int, count: int) -> list[Ranked]:
        """The replicates of a block, the first ``count`` of them."""
        numbers = [number * self.size + k for k in range(count)]
        simulated = self._simulated_by(self.method, number, self.size)
        jobs = Replicates(
            self.method, self._federation(simulated, numbers), self.base.clients,
            [key(self.seed, "replicate", r) for r in numbers],
        )  # fmt: skip
        picks = [key(self.seed, "ranked client", r) % self.base.clients for r in numbers]
        return self._ranked(jobs.run(), jobs, simulated, picks, numbers)

    def _simulated_by(self, method: AnyModel, number: int, count: int) -> Simulated:
        return simulate(
            self.model, method.sites, method.network, self.each, self.observed, count, self.seed, "block", number
        )

    def _federation(self, simulated: Simulated, numbers: Sequence[int]) -> Federation:
        """The clients of some replicates, one replicate after the other."""
        sizes, ids = list(self.base.sizes()) * len(numbers), self.base.ids
        parts = [columns[k].T for k in range(len(numbers)) for columns in simulated.columns]
        x = torch.cat(parts)
        at = torch.arange(len(x)).split(sizes)
        none = [torch.zeros(0, dtype=torch.long)] * len(at)
        return replace(
            self.base, x=x, y=torch.zeros(len(x), dtype=self.base.y.dtype), train=list(at), validation=none, test=none,
            ids=[f"{r}/{name}" for r in numbers for name in ids],
        )  # fmt: skip

    def _ranked(
        self, fits: list[Replicate], jobs: Replicates, simulated: Simulated, picks: list[int], numbers: list[int]
    ) -> list[Ranked]:
        sites, done = self.method.sites, [k for k, replicate in enumerate(fits) if replicate.arrived]
        truths, draws = self._truths(simulated, picks), torch.zeros(self.draws, len(fits), 0, dtype=torch.float64)
        if done:
            x = torch.stack([fits[k].shared[DRAWS] for k in done], 1)
            values = constrained(sites, x)
            numbers_of = [values[latent.name].reshape(*x.shape[:2], -1) for latent in sites.globals]
            own = self._own(x, [fits[k] for k in done], jobs, [picks[k] for k in done])
            draws = torch.cat([*numbers_of, own], -1)
        names = [*self.quantities[0], *self.quantities[1]]
        made = []
        for k, replicate in enumerate(fits):
            verdict, ranks = Verdict.read(replicate.shared), {}
            failed = replicate.failed or (
                "" if replicate.arrived else f"not arrived after {counted(replicate.rounds, 'round')}"
            )
            if replicate.arrived:
                among = draws[:, done.index(k)]
                if bool(among.isfinite().all() & truths[k].isfinite().all()):
                    ranks = dict(zip(names, self._places(truths[k], among, numbers[k]), strict=True))
                else:
                    failed = "draws that are not finite"
            worth = float(replicate.shared[WORTH])
            made.append(Ranked(ranks, replicate.rounds, worth, verdict.k_hat, verdict.warnings, failed, picks[k]))
        return made

    def _truths(self, simulated: Simulated, picks: list[int]) -> Tensor:
        """What was drawn, (R, quantities)."""
        count = len(picks)
        everyones = [simulated.globals[latent.name][:count].reshape(count, -1) for latent in self.method.sites.globals]
        own = [
            torch.stack([simulated.clients[j][latent.name][k].flatten() for k, j in enumerate(picks)])
            for latent in self.method.sites.clients
            if latent.level == "client"
        ]
        return torch.cat([torch.zeros(count, 0), *everyones, *own], -1).double()

    def _own(self, x: Tensor, fits: list[Replicate], jobs: Replicates, picks: list[int]) -> Tensor:
        """Draws of one client's latents of each fit, (L, R, numbers)."""
        method = self.method
        if not self.quantities[1]:
            return x.new_zeros(*x.shape[:2], 0)
        rows = [replicate.rows[j] for replicate, j in zip(fits, picks, strict=True)]
        with torch.no_grad():
            v = torch.cat([
                heights(method, jobs.chunk(replicate, [row], replicate.rounds), replicate.shared[DRAWS],
                        int(replicate.shared[INNER]),
                        "posterior").latents
                for replicate, row in zip(fits, rows, strict=True)
            ], 1)  # fmt: skip
        columns, mask = jobs.data
        index = torch.tensor(rows)
        centring = torch.stack([replicate.values[CENTRING][j, 0] for replicate, j in zip(fits, picks, strict=True)])
        mask = None if mask is None else mask[index]
        clients = Clients(method.program, method.sites, method.network, columns[index], mask, centring)
        return clients.latents(x, v).detach()

    def _places(self, truth: Tensor, draws: Tensor, number: int) -> list[int]:
        """Ranks of numbers (m,) among draws (L, m); where some are equal, any of their positions is as good."""
        below, same = (draws < truth).sum(0), (draws == truth).sum(0)
        u = torch.rand(len(truth), generator=generator(self.seed, "ties", number))
        return (below + (u * (same + 1)).floor().long().clamp(max=same)).tolist()


def as_record(ranked: Ranked) -> dict[str, object]:
    """The ranks as a record of a file."""
    return {name: _rounded(value) for name, value in asdict(ranked).items()}


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) and math.isfinite(value) else value


def ranks_of(records: Sequence[Ranked], name: str) -> np.ndarray:
    """Ranks of a quantity in all replicates that have a posterior."""
    return np.array([record.ranks[name] for record in records if record.ranks])

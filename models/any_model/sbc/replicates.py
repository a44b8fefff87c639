"""Many fits of one model at once: the clients of all replicates are rows of one plate.

Replicates have globals of their own. While guides climb, the clients of all of them are evaluated together, each at the
globals of its replicate; the server's steps are those of a fit, one replicate after another. A replicate that has
arrived leaves the plate. One that cannot be computed so is fitted by itself, as :func:`hierfl.inference.fit` does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import pyro
import torch
from torch import Tensor

from hierfl.data.federation import Federation
from hierfl.data.tables import ROUNDS
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.run.fit import fit
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.server import NUMERICAL
from hierfl.inference.state import State
from hierfl.rng import key, uniforms

from ..evaluating import Clients, global_prior
from ..local import Conditional
from ..marginals.rule import ShapedGradient
from ..marginals.transform import Marginals
from ..method import AnyModel
from ..moments import Moments, moments, whitened_draws
from ..names import (
    ACCEPTED,
    AROUND,
    CENTRING,
    MEAN,
    OWN_MEAN,
    OWN_ROOT,
    OWN_SLOPE,
    OWN_VALUES,
    PHASE,
    PRECISION,
    SHAPE,
    Phase,
)
from ..remembered import sent
from ..rule import NaturalGradient
from ..steps import AtSites, FitConditional, kept

log = logging.getLogger("hierfl")


@dataclass
class Replicate:
    """A fit.

    Attributes:
        rows: its clients' in the federation of all.
        seed: of its draws.
        shared: of the server.
        memory: what the server's rule remembers.
        values: of its clients, {name: (J, 1, *shape)}.
        rounds: that have ended.
        failed: why there is no posterior; empty where there is one, or the fit goes on.
        alone: whether it was fitted by itself.
    """

    rows: list[int]
    seed: int
    shared: State
    memory: State
    values: State
    rounds: int = 0
    failed: str = ""
    alone: bool = False

    @property
    def phase(self) -> Phase:
        """What its next round is about."""
        return Phase(int(self.shared[PHASE]))

    @property
    def arrived(self) -> bool:
        """Whether the fit has ended by itself."""
        return not self.failed and self.phase == Phase.DONE


@dataclass(frozen=True)
class _Given(NaturalGradient):
    """The server's rule, with the prior's derivatives computed for many replicates together."""

    prior: Moments = field(kw_only=True)

    def _prior(self, values: State, seed: int, *, fine: bool) -> Moments:
        return self.prior


class Replicates:
    """Fits of one model to several data sets.

    Args:
        method: the model.
        federation: clients of all replicates, in double precision.
        clients: J, of each; replicate r has the clients r J to r J + J - 1.
        seeds: of the replicates.
        rounds: of a fit, at most.
    """

    def __init__(
        self, method: AnyModel, federation: Federation, clients: int, seeds: Sequence[int], rounds: int = ROUNDS
    ) -> None:
        self.method, self.federation, self.clients, self.rounds = method, federation, clients, rounds
        start = InitialWeights.for_network(method.network, 0)
        self.all = []
        for r, seed in enumerate(seeds):
            own = {k: v.expand(clients, 1, *v.shape).clone() for k, v in method.personal(start).items()}
            rows = list(range(r * clients, (r + 1) * clients))
            self.all.append(Replicate(rows, seed, method.shared(start), {}, own))
        self.noise: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}

    @cached_property
    def data(self) -> tuple[Tensor, Tensor | None]:
        """Columns (S, columns, n) and mask (S, n) of all clients."""
        batch = self.federation.batch(range(self.federation.clients))
        return self.method.network.stacked(batch), batch.mask

    def run(self) -> list[Replicate]:
        """All of them, each until it has arrived."""
        if self.method.rank:  # that of many globals is computed for one fit at a time
            for replicate in self.all:
                replicate.alone, replicate.rounds = True, self.rounds
        with torch.no_grad(), pyro.get_param_store().scope(), _quiet():
            while going := [r for r in self.all if not r.failed and not r.arrived and r.rounds < self.rounds]:
                climbing = [[r for r in going if r.phase == stage] for stage in (Phase.ROUGH, Phase.FINE)]
                exploring = [[r] for r in going if r.phase == Phase.EXPLORE]
                for these in (*climbing, *exploring):
                    if these:
                        self._attempt(these)
            for replicate in self.all:
                if replicate.alone:
                    self._alone(replicate)
        return self.all

    def _attempt(self, these: list[Replicate]) -> None:
        """A round of replicates that are in the same phase; what fails in one fails alone."""
        try:
            self._explored(these[0]) if these[0].phase == Phase.EXPLORE else self._climbed(these)
        except (UserError, *NUMERICAL) as error:
            if len(these) == 1:
                log.debug("a replicate is fitted by itself: %s", error)
                these[0].alone, these[0].rounds = True, self.rounds
                return
            half = len(these) // 2
            self._attempt(these[:half])
            self._attempt(these[half:])

    # -- the climb ----------------------------------------------------------------------------------------------------

    def _climbed(self, these: list[Replicate]) -> None:
        fine = these[0].phase == Phase.FINE
        num_clients = self.clients
        names = [name for name in (MEAN, PRECISION, ACCEPTED, SHAPE) if name in these[0].shared]
        shared = {name: torch.stack([r.shared[name] for r in these]) for name in names}
        of_clients = {name: value.repeat_interleave(num_clients, 0) for name, value in shared.items()}
        of_clients |= {ACCEPTED: of_clients[ACCEPTED][:, None], PHASE: these[0].shared[PHASE]}
        values = {name: torch.cat([r.values[name] for r in these]) for name in these[0].values}
        rows = [row for r in these for row in r.rows]
        chunk = kept(ClientChunk(self.method, self.federation, rows, 0, 0, of_clients, values))
        root = self.method.family.root(shared[PRECISION]).repeat_interleave(num_clients, 0)
        e, d = self._lattices(these, fine=fine)
        at = self._at(chunk, rows, of_clients[MEAN], torch.einsum("spr,ksr->ksp", root, e), d)
        chunk = FitConditional(self.method).climbed(chunk, at, rough=not fine)
        message = sent(chunk, self.method.p, self.method.curvature)
        prior = self._priors(shared[MEAN], shared[PRECISION], these, fine=fine)
        empty = self._empty(these[0])
        healthy = chunk.healthy().view(-1, num_clients).all(1)
        for k, r in enumerate(these):
            own = {name: value[k * num_clients : (k + 1) * num_clients] for name, value in chunk.values.items()}
            total = {name: value[k * num_clients : (k + 1) * num_clients].sum(0) for name, value in message.items()}
            if not bool(healthy[k]):
                r.alone, r.rounds = True, self.rounds
                continue
            expected = Moments(
                *(getattr(prior, name)[k : k + 1] for name in ("height", "gradient", "hessian", "spread", "unit"))
            )
            r.values = {name: own[name] for name in r.values}
            rule = ShapedGradient(self.method) if self.method.shaped else _Given(self.method, prior=expected)
            self._updated(r, rule, {**empty, **total})

    def _at(self, chunk: ClientChunk, rows: list[int], mean: Tensor, moved: Tensor, noise: Tensor) -> AtSites:
        method, (columns, mask) = self.method, self.data
        values = {name: chunk.values[name].squeeze(1) for name in OWN_VALUES}
        index = torch.tensor(rows)
        clients = Clients(
            method.program, method.sites, method.network, columns[index], None if mask is None else mask[index],
            values[CENTRING], method.graphs, marginals=Marginals.read(chunk.shared),
        )  # fmt: skip
        around = Conditional(values[OWN_MEAN], values[OWN_SLOPE], values[OWN_ROOT], method.own_spread)
        return AtSites(clients, around.shifted(mean - values[AROUND]), mean, moved, noise)

    def _lattices(self, these: list[Replicate], *, fine: bool) -> tuple[Tensor, Tensor]:
        """Draws of the clients, those of a fit with each replicate's seed, (K, S, p) and (K, S, q)."""
        p, q = self.method.p, self.method.q
        for r in these:
            if (r.seed, fine) not in self.noise:
                keys = self.federation.keys[torch.tensor(r.rows)]
                stream = [uniforms(keys, r.seed, "lattice", fine, i) for i in range(p + q)]
                shift = torch.stack(stream, -1) if stream else torch.zeros(len(keys), 0, dtype=torch.float64)
                both = whitened_draws(shift, self.method.draws_of_round(fine=fine)).split([p, q], -1)
                self.noise[r.seed, fine] = both[0], both[1]
        parts = [self.noise[r.seed, fine] for r in these]
        return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)

    def _priors(self, mean: Tensor, precision: Tensor, these: list[Replicate], *, fine: bool) -> Moments:
        """Derivatives of the replicates' log priors, as :class:`.rule.NaturalGradient` has those of one."""
        method, p = self.method, self.method.p
        shifts = []
        for r in these:
            generator = torch.Generator().manual_seed(key(r.seed, "server's lattice", fine) % 2**63)
            shifts.append(torch.rand(1, p, generator=generator, dtype=torch.float64))
        noise = whitened_draws(torch.cat(shifts), method.draws_of_round(fine=fine))
        moved = torch.einsum("spr,ksr->ksp", method.family.root(precision), noise)

        def prior(x: Tensor, _: Tensor) -> Tensor:
            flat = global_prior(method.program, method.sites, method.network, x.flatten(0, 1)[:, None])
            return flat.reshape(x.shape[:-1])

        return moments(prior, mean + moved, moved[..., :0])

    # -- the exploration, and the end ---------------------------------------------------------------------------------

    def _explored(self, replicate: Replicate) -> None:
        rule = ShapedGradient(self.method) if self.method.shaped else NaturalGradient(self.method)
        message = rule.message((), self.chunk(replicate, replicate.rows, replicate.rounds + 1))
        self._updated(replicate, rule, {name: value.sum(0) for name, value in message.items()})

    def chunk(self, replicate: Replicate, rows: list[int], number: int) -> ClientChunk:
        """Some of a replicate's clients in a round."""
        at = torch.tensor([row - replicate.rows[0] for row in rows])
        values = {name: value[at] for name, value in replicate.values.items()}
        return ClientChunk(self.method, self.federation, rows, number, replicate.seed, replicate.shared, values)

    def _empty(self, replicate: Replicate) -> State:
        form = NaturalGradient(self.method).form(replicate.shared)
        zeros = {name: torch.zeros(field.shape, dtype=torch.float64) for name, field in form.items()}
        return {**zeros, "clients": torch.tensor(float(self.clients), dtype=torch.float64)}

    def _updated(self, replicate: Replicate, rule: NaturalGradient, total: State) -> None:
        """The server's part of a round.

        Raises:
            ArithmeticError: for an update that is not finite.
        """
        memory = {name: value.clone() for name, value in replicate.memory.items()}
        reported = torch.tensor(float(self.clients), dtype=torch.float64)
        number = replicate.rounds + 1
        context = AggregationContext(
            self.clients, reported, number, lambda names: {}, memory, replicate.shared, replicate.seed
        )
        try:
            new = rule.update(replicate.shared, total, context)
            if not all(bool(value.isfinite().all()) for value in (*new.values(), *memory.values())):
                raise ArithmeticError("an update that is not finite")
        except (UserError, *NUMERICAL) as error:
            log.debug("a replicate is fitted by itself: %s", error)
            replicate.alone, replicate.rounds = True, self.rounds
            return
        replicate.shared, replicate.memory, replicate.rounds = new, memory, number

    def _alone(self, replicate: Replicate) -> None:
        try:
            run = fit(
                self.method, self.federation.select(replicate.rows), self.rounds, seed=replicate.seed, splits=(),
                dtype=torch.float64, progress=False, evaluate_every=ROUNDS, chunk=1000,
            )  # fmt: skip
        except (UserError, *NUMERICAL) as error:
            replicate.failed = str(error).splitlines()[0]
            return
        replicate.shared, replicate.rounds = run.shared, run.rounds
        replicate.values = {name: value.unsqueeze(1) for name, value in run.personal.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Counts a fit's warnings, and shows none of them."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
